"""Faults of many workers' computations: hosts, generations of GPUs, stages and model chunks."""

import numpy as np

from benchmarks.strangers.faults.compute import SLOW_WORKER, scale, slowdown, truth_of
from benchmarks.strangers.faults.fault import (
    Course,
    Draw,
    Fault,
    JobUnderway,
    Workers,
    combined,
    whole,
    workers_of_stage,
)
from benchmarks.strangers.graph import BACKWARD, FORWARD
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations

STAGE = frozenset({"stage-imbalance"})
MODEL = (FORWARD, BACKWARD)  # what a stage's layers take; the optimizer is a GPU's matter


def slow_host(kind: str) -> Draw:
    """Draws a host all of whose GPUs are slow."""

    def draw(job: JobUnderway) -> Fault:
        workers = job.shape.workers_of_host(int(job.rng.integers(job.shape.num_hosts)))
        factor, course = slowdown(job.rng), whole(job.num_steps)
        causes = SLOW_WORKER
        if any(workers_of_stage(job.shape, p) <= workers for _, p in workers):
            causes |= STAGE  # it holds all replicas: the same as a stage with more layers
        truth = truth_of(kind, causes, workers, course)
        return Fault(truth, scale(job, workers, factor, course), f"{factor:.2f}x")

    return draw


def older_gpus(job: JobUnderway) -> Fault:
    """30 to 65 % of the workers have GPUs of an older generation, host by host or by chance."""
    shape, rng = job.shape, job.rng
    share = rng.uniform(0.3, 0.65)
    hosts = rng.permutation(shape.num_hosts)[: max(1, round(share * shape.num_hosts))].tolist()
    workers = frozenset().union(*(shape.workers_of_host(each) for each in hosts))
    is_stage = any(workers_of_stage(shape, p) <= workers for p in range(shape.pp))
    if is_stage or len(workers) > 0.7 * shape.dp * shape.pp or rng.random() < 0.5:
        old = [
            (int(d), p)
            for p in range(shape.pp)
            for d in rng.permutation(shape.dp)[: max(1, int(share * shape.dp))]
        ]
        workers = frozenset(old)
    factor, course = slowdown(rng, 1.1, 1.8), whole(job.num_steps)
    truth = truth_of("older-gpus", SLOW_WORKER, workers, course)
    return Fault(truth, scale(job, workers, factor, course), f"{factor:.2f}x, {len(workers)}")


def heavier_stages(job: JobUnderway) -> Fault:
    """Each stage has more work than the one before."""
    shape, course = job.shape, whole(job.num_steps)
    most = slowdown(job.rng, 1.15, 2.2)
    steps = [
        scale(job, workers_of_stage(shape, p), 1 + (most - 1) * p / (shape.pp - 1), course, MODEL)
        for p in range(1, shape.pp)
    ]
    causes = STAGE | (SLOW_WORKER if shape.dp == 1 else frozenset())
    # Which of them are "the long ones" is a matter of taste; the lightest is not.
    guilty = frozenset((d, p) for d, p in shape.workers() if p)
    truth = truth_of("heavier-stages", causes, guilty, course, may_abstain=shape.dp == 1)
    return Fault(truth.without_culprits(), combined(steps), f"up to {most:.2f}x")


def loss_chunk(job: JobUnderway) -> Fault:
    """The loss layer lies in the last model chunk of the last stage (interleaved schedules)."""
    shape, graph, course = job.shape, job.graph, whole(job.num_steps)
    factor = slowdown(job.rng, 1.3, 4.0)
    ops = graph.of(*MODEL) & (graph.stage == shape.pp - 1) & (graph.mc == shape.chunks - 1)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        durations.own[:, ops] *= factor

    causes = STAGE | (SLOW_WORKER if shape.dp == 1 else frozenset())
    truth = truth_of(
        "loss-chunk",
        causes,
        workers_of_stage(shape, shape.pp - 1),
        course,
        may_abstain=shape.dp == 1,
    )
    return Fault(truth, change, f"{factor:.2f}x")


def rotating_culprit(job: JobUnderway) -> Fault:
    """Another worker is slow every one to three steps."""
    rng, at, steps = job.rng, 0, []
    factor = slowdown(rng, 1.2, 2.5)
    culprits: set[tuple[int, int]] = set()
    while at < job.num_steps:
        worker = int(rng.integers(job.shape.dp)), int(rng.integers(job.shape.pp))
        length = int(rng.integers(1, 4))
        on = np.zeros(job.num_steps)
        on[at : at + length] = 1
        rotating = Course(on, None, None, frozenset({"rotating"}))
        steps.append(scale(job, frozenset({worker}), factor, rotating))
        culprits.add(worker)
        at += length
    guilty: Workers = frozenset(culprits)
    course = Course(np.ones(job.num_steps), None, None, frozenset({"rotating"}))
    truth = truth_of("rotating", SLOW_WORKER, guilty, course).without_culprits()
    return Fault(truth, combined(steps), f"{factor:.2f}x")
