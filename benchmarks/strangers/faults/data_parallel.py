"""Jobs under DDP and FSDP: their shapes, what their hosts and streams do, and slow ranks."""

from dataclasses import replace

import numpy as np

from benchmarks.strangers.faults.compute import (
    COMPUTE,
    SLOW_WORKER,
    any_worker,
    log_uniform,
    scale,
    slowdown,
    truth_of,
)
from benchmarks.strangers.faults.fault import Draw, Fault, JobUnderway, whole
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER, Floats
from benchmarks.strangers.noise import Base
from benchmarks.strangers.recording import Extras, Recorder
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations


def with_ddp(shape: Shape, rng: np.random.Generator) -> Shape:
    """DDP as PyTorch's client records it: two to eight buckets, the first one small."""
    steps = rng.uniform(0.5, 1.5, int(rng.integers(2, 9)))
    shares = np.cumsum(steps) / steps.sum()
    shares[-1] = 1.0
    return replace(
        shape,
        microbatches=int(rng.integers(1, 6)),
        gradients="ddp",
        has_gathers=False,
        has_clip=bool(rng.random() < 0.3),
        has_small_reductions=False,
        bucket_shares=tuple(shares.tolist()),
        starts_in_queue=bool(rng.random() < 0.5),
    )


def with_hidden_buckets(base: Base, shape: Shape, rng: np.random.Generator) -> Base:
    """All buckets together take a tenth of a backward, up to as long as one."""
    del shape
    backward_s = base.forward_s * base.backward_ratio
    return replace(base, reduce_s=backward_s * log_uniform(rng, 0.1, 1.0))


def with_some_ddp(shape: Shape, rng: np.random.Generator) -> Shape:
    """DDP, in a third of the jobs as all-reduces in a published trace."""
    if rng.random() < 1 / 3:
        return replace(
            shape,
            gradients="buckets",
            has_gathers=False,
            has_small_reductions=False,
            has_clip=bool(rng.random() < 0.5),
        )
    return with_ddp(shape, rng)


def with_fsdp(shape: Shape, rng: np.random.Generator) -> Shape:
    """FSDP with 4 to 12 units."""
    weights = rng.uniform(0.7, 1.3, int(rng.integers(4, 13)))
    return replace(
        shape,
        microbatches=int(rng.integers(1, 5)),
        gradients="fsdp",
        has_gathers=False,
        has_clip=bool(rng.random() < 0.3),
        has_small_reductions=False,
        unit_weights=tuple((weights / weights.sum()).tolist()),
        prefetch=1 if rng.random() < 0.7 else 2,
        has_one_queue=bool(rng.random() < 0.3),
        reduces_each=bool(rng.random() < 0.7),
    )


def with_either(shape: Shape, rng: np.random.Generator) -> Shape:
    """DDP, in some jobs with few hardware queues, or FSDP."""
    if rng.random() < 0.5:
        return replace(with_ddp(shape, rng), is_held=bool(rng.random() < 0.3))
    return with_fsdp(shape, rng)


def usual_base(base: Base, shape: Shape, rng: np.random.Generator) -> Base:
    """Communication that the computation hides for the most part."""
    backward_s = base.forward_s * base.backward_ratio
    return _launched(
        replace(
            base,
            gather_s=base.forward_s * log_uniform(rng, 0.15, 0.6),
            reduce_s=backward_s * log_uniform(rng, 0.05, 0.5),
        ),
        shape,
    )


def communication_bound(base: Base, shape: Shape, rng: np.random.Generator) -> Base:
    """Gathers and scatters take about as long as the computations beside them, or longer."""
    return _launched(
        replace(
            base,
            gather_s=base.forward_s * log_uniform(rng, 0.7, 1.8),
            reduce_s=base.forward_s * log_uniform(rng, 0.7, 2.2),
        ),
        shape,
    )


def _launched(base: Base, shape: Shape) -> Base:
    return replace(base, launch_s=base.launch_s / max(1, len(shape.unit_weights)))


def with_a_client(recorder: Recorder, rng: np.random.Generator) -> Recorder:
    """The client's format, and in some jobs a version of PyTorch whose waits cannot be seen."""
    return replace(recorder, is_client=True, has_waits=bool(rng.random() < 0.85))


def irregular(job: JobUnderway, durations: Durations, extras: Extras) -> int:
    """Launches and posts that jitter, and computations that communication beside them stretches.

    On all ranks alike: what a replay does not know of makes its step shorter than the recorded one.
    """
    del extras
    rng, graph = job.rng, job.graph
    ops = graph.of(FORWARD, BACKWARD, OPTIMIZER)
    size = (job.num_steps, int(ops.sum()), job.shape.dp)
    is_late = rng.random(size) < rng.uniform(0.2, 0.8)
    late_s = rng.uniform(0.03, 0.3) * rng.exponential(1.0, size) * is_late
    durations.launch[:, ops] += _share_of_forward(job)[ops][None, :, None] * late_s
    backward = graph.of(BACKWARD)
    size = (job.num_steps, int(backward.sum()), job.shape.dp)
    durations.own[:, backward] *= 1 + rng.uniform(0.0, 0.2) * rng.random(size)
    posts = graph.is_communication
    size = (job.num_steps, int(posts.sum()), job.shape.dp)
    mean_s = job.base.forward_s * rng.uniform(0.0, 0.1) / max(1, len(job.shape.unit_weights))
    durations.launch[:, posts] += mean_s * rng.exponential(1.0, size)
    # All members of a collective have the same transfer.
    durations.own[:, posts] *= np.exp(
        rng.uniform(0.05, 0.3) * rng.standard_normal((job.num_steps, size[1], 1))
    )
    return 0


def _share_of_forward(job: JobUnderway) -> Floats:
    """[ops], seconds: a forward, or the part of it that a unit is; half before the units."""
    weight = job.graph.weight
    found: Floats = job.base.forward_s * np.where(weight > 0, weight, 0.5)
    return found


def slow_rank(kind: str, least: float = 1.15, most: float = 2.0) -> Draw:
    """Draws a GPU that is slow in forwards and backwards, on any rank."""

    def draw(job: JobUnderway) -> Fault:
        worker = frozenset({any_worker(job)})
        factor, course = slowdown(job.rng, least, most), whole(job.num_steps)
        truth = truth_of(kind, SLOW_WORKER, worker, course)
        return Fault(truth, scale(job, worker, factor, course, COMPUTE), f"{factor:.2f}x")

    return draw


def late_rank(job: JobUnderway) -> Fault:
    """One rank's host launches late. Inside a recorded computation that looks like a slow GPU."""
    rng, graph, ((dp_rank, stage),) = job.rng, job.graph, (any_worker(job),)
    ops = graph.of(FORWARD, BACKWARD)
    share, mean = rng.uniform(0.4, 1.0), log_uniform(rng, 0.3, 2.0)
    size = (job.num_steps, int(ops.sum()))
    late_s = _share_of_forward(job)[ops] * mean * rng.exponential(1.0, size)
    late_s *= rng.random(size) < share

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        durations.launch[:, ops, dp_rank] += late_s

    causes = frozenset({"late-host", "cpu-contention"})
    if job.shape.gradients == "fsdp":
        causes |= SLOW_WORKER
    worker = frozenset({(dp_rank, stage)})
    truth = truth_of("late-rank", causes, worker, whole(job.num_steps), area="host")
    return Fault(truth, change, f"{mean:.2f} of a forward in {share:.2f}")
