"""Faults of computations: slow GPUs, hosts and stages."""

from collections.abc import Callable

import numpy as np

from app.trace.ops import OP_CODES
from benchmarks.strangers.faults.fault import (
    Area,
    Course,
    Draw,
    Fault,
    JobUnderway,
    Truth,
    Worker,
    Workers,
    come_and_go,
    ramping,
    recovered,
    since,
    whole,
    workers_of_stage,
)
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations

SLOW_WORKER = frozenset({"slow-worker"})
COMPUTE = (FORWARD, BACKWARD, OPTIMIZER)


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Between low and high, small ones as likely as large ones."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def slowdown(rng: np.random.Generator, least: float = 1.06, most: float = 2.5) -> float:
    """How many times as long a slow part takes; most of the loss is in 5 to 60 %."""
    return 1 + log_uniform(rng, least - 1, most - 1)


def any_worker(job: JobUnderway) -> Worker:
    """A worker by chance."""
    return int(job.rng.integers(job.shape.dp)), int(job.rng.integers(job.shape.pp))


def scale(
    job: JobUnderway,
    workers: Workers,
    factor: float,
    course: Course,
    optypes: tuple[int, ...] = COMPUTE,
) -> Callable[[Durations, Extras], None]:
    """Makes operations of some workers take `factor` times as long where the course is 1."""

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        of_type = job.graph.of(*optypes)
        for dp_rank, stage in workers:
            ops = of_type & (job.graph.stage == stage)
            durations.own[:, ops, dp_rank] *= 1 + (factor - 1) * course.strength[:, None]

    return change


def truth_of(
    kind: str,
    causes: frozenset[str],
    workers: Workers,
    course: Course,
    *,
    area: Area = "compute",
    may_abstain: bool = False,
    also: tuple[Workers, ...] = (),
) -> Truth:
    """The answer that names exactly these workers."""
    guilty = workers.union(*also)
    return Truth(
        kind,
        causes,
        (workers, *also),
        guilty,
        area,
        course.persistence,
        course.onset,
        course.end,
        may_abstain,
    )


def slow_worker(
    kind: str,
    drawn_course: Callable[[int, np.random.Generator], Course],
    *,
    least: float = 1.06,
    most: float = 2.5,
) -> Draw:
    """Draws one slow GPU with this course, `least` to `most` times as slow as others."""

    def draw(job: JobUnderway) -> Fault:
        worker = frozenset({any_worker(job)})
        factor = slowdown(job.rng, least, most)
        course = drawn_course(job.num_steps, job.rng)
        alone = job.shape.dp == 1
        causes = SLOW_WORKER | ({"stage-imbalance"} if alone else set())
        # Without another replica and without a healthy past nothing tells it from a long stage.
        truth = truth_of(kind, causes, worker, course, may_abstain=alone and course.onset is None)
        return Fault(truth, scale(job, worker, factor, course), f"{factor:.2f}x")

    return draw


def chronic(num_steps: int, rng: np.random.Generator) -> Course:
    """In every step."""
    del rng
    return whole(num_steps)


slow_gpu = slow_worker("slow-gpu", chronic)
slow_gpu_since = slow_worker("slow-gpu-since", since)
slow_gpu_recovered = slow_worker("slow-gpu-recovered", recovered)
slow_gpu_ramping = slow_worker("slow-gpu-ramping", ramping)
slow_gpu_come_and_go = slow_worker("slow-gpu-come-and-go", come_and_go)


def long_last_stage(job: JobUnderway) -> Fault:
    """The loss layer makes the last stage long, on every replica."""
    stage = workers_of_stage(job.shape, job.shape.pp - 1)
    factor, course = slowdown(job.rng, 1.08, 2.2), whole(job.num_steps)
    causes = frozenset({"stage-imbalance"}) | (SLOW_WORKER if job.shape.dp == 1 else frozenset())
    truth = truth_of("long-last-stage", causes, stage, course, may_abstain=job.shape.dp == 1)
    return Fault(truth, scale(job, stage, factor, course, (FORWARD, BACKWARD)), f"{factor:.2f}x")


def one_direction(kind: str, optype: int) -> Draw:
    """Draws a worker that is slow in one kind of computation only."""

    def draw(job: JobUnderway) -> Fault:
        worker = frozenset({any_worker(job)})
        factor, course = slowdown(job.rng, 1.1, 3.5), whole(job.num_steps)
        causes = SLOW_WORKER | ({"stage-imbalance"} if job.shape.dp == 1 else set())
        truth = truth_of(kind, causes, worker, course, may_abstain=job.shape.dp == 1)
        return Fault(truth, scale(job, worker, factor, course, (optype,)), f"{factor:.2f}x")

    return draw


forward_only = one_direction("forward-only", FORWARD)
backward_only = one_direction("backward-only", BACKWARD)


def slow_optimizer(job: JobUnderway) -> Fault:
    """One worker's optimizer takes many times as long, such as one that is offloaded."""
    worker = frozenset({any_worker(job)})
    course = whole(job.num_steps)
    step_s = (job.shape.microbatches + job.shape.pp - 1) * job.base.forward_s * 3
    factor = 1 + log_uniform(job.rng, 0.04, 0.8) * step_s / job.base.optimizer_s
    causes = SLOW_WORKER | {"slow-optimizer"}
    truth = truth_of("slow-optimizer", causes, worker, course, may_abstain=job.shape.dp == 1)
    optimizer = (OP_CODES["optimizer"],)
    return Fault(truth, scale(job, worker, factor, course, optimizer), f"{factor:.1f}x")
