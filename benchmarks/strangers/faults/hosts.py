"""Faults of hosts: garbage collection, data loading, checkpoints, stops, contended CPUs."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from benchmarks.strangers.faults.compute import any_worker, log_uniform, truth_of
from benchmarks.strangers.faults.everybody import nobody
from benchmarks.strangers.faults.fault import (
    CHRONIC,
    Course,
    Draw,
    Fault,
    JobUnderway,
    Workers,
    all_workers,
)
from benchmarks.strangers.graph import BACKWARD, FORWARD
from benchmarks.strangers.recording import Extras, Interruption
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations

# Of observations.
IDLE = frozenset({"idle-between-steps"})
IRREGULAR = CHRONIC | {"transient", "rotating"}


def usual_step_s(job: JobUnderway) -> float:
    """About what a step takes without the fault."""
    base = job.base
    computes = (job.shape.microbatches + job.shape.pp - 1) * base.forward_s
    return computes * (1 + base.backward_ratio) + base.gather_s + base.reduce_s


def whole_hosts(shape: Shape, workers: Workers) -> Workers:
    """All workers of the hosts of these."""
    hosts = {shape.host(*each) for each in workers}
    return frozenset[tuple[int, int]]().union(*(shape.workers_of_host(each) for each in hosts))


def first_forward(job: JobUnderway, stage: int) -> int:
    """The first forward of a stage."""
    ops = np.flatnonzero(job.graph.of(FORWARD) & (job.graph.stage == stage))
    return int(ops[0])


def gc_pauses(kind: str, *, are_annotated: bool) -> Draw:
    """Draws unplanned collections: lone forwards of any worker are longer by 0.1 s and more."""

    def draw(job: JobUnderway) -> Fault:
        shape, rng = job.shape, job.rng
        forwards = np.flatnonzero(job.graph.of(FORWARD))
        per_step = rng.uniform(1, 4) * max(1.0, shape.dp * shape.pp / 16)
        pause_s = log_uniform(rng, 0.04, 0.4) * usual_step_s(job)
        pauses = []
        for step in range(job.num_steps):
            for _ in range(rng.poisson(per_step)):
                lasted = pause_s * rng.uniform(0.7, 1.3)
                op, dp_rank = int(rng.choice(forwards)), int(rng.integers(shape.dp))
                pauses.append((step, op, dp_rank, lasted))

        def change(durations: Durations, extras: Extras) -> None:
            for step, op, dp_rank, lasted in pauses:
                begun = 0.3 * durations.own[step, op, dp_rank]
                durations.own[step, op, dp_rank] += lasted
                if are_annotated:
                    extras.interruptions.append(
                        Interruption("gc-pause", step, op, dp_rank, begun, lasted)
                    )

        course = Course(np.ones(job.num_steps), None, None, IRREGULAR)
        truth = nobody(kind, "gc-pause", job, course)
        return Fault(truth, change, f"{len(pauses)} pauses of {pause_s:.3f} s")

    return draw


def planned_gc(job: JobUnderway) -> Fault:
    """All workers collect together, in every few steps, after the last computation."""
    every = int(job.rng.integers(1, 5))
    pause_s = log_uniform(job.rng, 0.06, 0.4) * usual_step_s(job) * every
    ops = job.graph.of(OP_CODES["gc"])
    on = (np.arange(job.num_steps) % every == 0).astype(float)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        durations.own[:, ops] += pause_s * on[:, None, None]

    course = Course(on, None, None, IRREGULAR)
    truth = nobody("planned-gc", "gc-pause", job, course)
    return Fault(truth, change, f"{pause_s:.3f} s every {every} steps")


def gc_storm(job: JobUnderway) -> Fault:
    """Some workers collect before the step's first forward, others in each step; annotated."""
    shape, rng = job.shape, job.rng
    pause_s = log_uniform(rng, 0.08, 0.6) * usual_step_s(job)
    pauses = [
        (step, first_forward(job, stage), dp_rank, pause_s * rng.uniform(0.5, 1.2))
        for step in range(job.num_steps)
        for dp_rank, stage in shape.workers()
        if rng.random() < max(0.15, 1.5 / (shape.dp * shape.pp))
    ]

    def change(durations: Durations, extras: Extras) -> None:
        for step, op, dp_rank, lasted in pauses:
            durations.launch[step, op, dp_rank] += lasted
            extras.interruptions.append(
                Interruption("gc-pause", step, op, dp_rank, -lasted, lasted)
            )

    course = Course(np.ones(job.num_steps), None, None, IRREGULAR)
    return Fault(nobody("gc-storm", "gc-pause", job, course), change, f"{pause_s:.3f} s")


def data_loading(kind: str, *, of_all: bool, every: int = 1) -> Draw:
    """Draws a slow loader, before the first forward of the first stage.

    Where the job's loader is recorded, every worker that loads has data waits anyway.
    """

    def draw(job: JobUnderway) -> Fault:
        shape, rng = job.shape, job.rng
        dp_ranks = list(range(shape.dp)) if of_all else [int(rng.integers(shape.dp))]
        wait_s = log_uniform(rng, 0.06, 1.0) * usual_step_s(job) * every
        on = (np.arange(job.num_steps) % every == every - 1).astype(float)
        waits = (
            wait_s * on[:, None] * np.exp(0.2 * rng.standard_normal((job.num_steps, len(dp_ranks))))
        )
        op = first_forward(job, 0)

        def change(durations: Durations, extras: Extras) -> None:
            durations.launch[:, op, dp_ranks] += waits
            if job.has_loader:
                extras.interruptions += [
                    Interruption("data-wait", step, op, d, -waits[step, k], waits[step, k])
                    for step in np.flatnonzero(on).tolist()
                    for k, d in enumerate(dp_ranks)
                ]

        most = CHRONIC if every == 1 else CHRONIC | {"transient"}
        course = Course(on, None, None, most)
        workers: Workers = frozenset((d, 0) for d in dp_ranks)
        also: tuple[Workers, ...] = ()
        if len(dp_ranks) == shape.dp:
            # No culprit, or the hosts of the workers that load data.
            also = (frozenset(), whole_hosts(shape, workers), all_workers(shape))
        truth = truth_of(kind, frozenset({"data-loading"}), workers, course, area="host", also=also)
        if of_all and not job.has_loader:
            truth = replace(truth, facts=IDLE)  # that they wait for data is in no row
        return Fault(truth, change, f"{wait_s:.3f} s on {len(dp_ranks)}")

    return draw


def checkpoint_stalls(job: JobUnderway) -> Fault:
    """Everybody stops before every few steps, while a checkpoint is written."""
    every = int(job.rng.integers(4, max(5, min(9, job.num_steps // 3))))  # three stops or more
    first = int(job.rng.integers(1, every))
    lasts_s = log_uniform(job.rng, 0.08, 0.8) * usual_step_s(job) * every
    at = np.arange(job.num_steps)
    on = ((at >= first) & ((at - first) % every == 0)).astype(float)
    firsts = [first_forward(job, stage) for stage in range(job.shape.pp)]
    gathers = np.flatnonzero(job.graph.of(OP_CODES["params-all-gather"])).tolist()
    receives = np.flatnonzero(
        job.graph.of(OP_CODES["forward-recv"]) & (job.graph.seq_id == 0)
    ).tolist()
    jitter = np.exp(0.05 * job.rng.standard_normal((job.num_steps, job.shape.pp, job.shape.dp)))

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        stall = lasts_s * on[:, None, None] * jitter
        if durations.is_continuous:
            durations.gap += stall
            return
        for op in gathers or [*firsts[:1], *receives]:
            durations.launch[:, op] += stall[:, job.graph.stage[op]]

    course = Course(on, None, None, IRREGULAR)
    truth = nobody("checkpoint-stalls", "checkpoint-stall", job, course)
    truth = replace(truth, facts=IDLE)  # an evaluation looks the same
    return Fault(truth, change, f"{lasts_s:.2f} s every {every} steps")


def one_huge_stop(job: JobUnderway) -> Fault:
    """One worker stands still once, for several steps' time, as where a filesystem hangs."""
    worker = any_worker(job)
    step = int(job.rng.integers(2, job.num_steps - 1))
    lasts_s = log_uniform(job.rng, 0.1, 1.2) * usual_step_s(job) * job.num_steps
    computes = np.flatnonzero(job.graph.of(FORWARD, BACKWARD) & (job.graph.stage == worker[1]))
    op, is_late = int(job.rng.choice(computes)), bool(job.rng.random() < 0.5)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        (durations.launch if is_late else durations.own)[step, op, worker[0]] += lasts_s

    on = (np.arange(job.num_steps) == step).astype(float)
    course = Course(on, step, step + 1, frozenset({"transient"}))
    truth = truth_of(
        "one-huge-stop",
        frozenset({"job-stop"}),
        frozenset({worker}),
        course,
        area="host",
        also=(frozenset(),),
    )
    return Fault(truth, change, f"{lasts_s:.2f} s in step {step}")


def cpu_contention(job: JobUnderway) -> Fault:
    """Something else runs on one host: launches come late and computations are stretched there."""
    shape, rng = job.shape, job.rng
    workers = shape.workers_of_host(int(rng.integers(shape.num_hosts)))
    strength = log_uniform(rng, 0.15, 1.5)
    size = (job.num_steps, job.graph.num_ops, shape.dp)
    is_late, is_long = rng.random(size) < 0.35, rng.random(size) < 0.15
    late = strength * rng.exponential(0.5, size) * is_late
    long = 1 + strength * rng.exponential(0.6, size) * is_long
    usual_s = job.base.forward_s / shape.chunks
    of_compute: NDArray[np.bool_] = job.graph.of(FORWARD, BACKWARD)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        for dp_rank, stage in workers:
            ops = of_compute & (job.graph.stage == stage)
            durations.launch[:, ops, dp_rank] += usual_s * late[:, ops, dp_rank]
            durations.own[:, ops, dp_rank] *= long[:, ops, dp_rank]

    course = Course(np.ones(job.num_steps), None, None, CHRONIC)
    causes = frozenset({"cpu-contention", "late-host"})
    truth = truth_of("cpu-contention", causes, workers, course, area="host")
    return Fault(truth, change, f"strength {strength:.2f} on {len(workers)}")
