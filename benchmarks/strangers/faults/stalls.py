"""Stalls of a part of a host's ranks, and of one rank's loader."""

import numpy as np

from benchmarks.strangers.faults.compute import log_uniform, truth_of
from benchmarks.strangers.faults.fault import (
    CHRONIC,
    Course,
    Fault,
    JobUnderway,
    since,
    whole,
)
from benchmarks.strangers.faults.hosts import first_forward, usual_step_s
from benchmarks.strangers.graph import BACKWARD, FORWARD
from benchmarks.strangers.recording import Extras, Interruption
from benchmarks.strangers.simulation import Durations

STALLING = 3  # of the four ranks of a host


def part_of_host_stalls(job: JobUnderway) -> Fault:
    """Three of the four ranks of a host, mostly of the first stage, stall before computations.

    Each by itself and irregularly, as an allocator that has run short of memory does. The fourth
    is healthy.
    """
    shape, rng, graph = job.shape, job.rng, job.graph
    stage = 0 if rng.random() < 0.7 else int(rng.integers(shape.pp))
    hosts = sorted({shape.host(dp_rank, stage) for dp_rank in range(shape.dp)})
    members = sorted(shape.workers_of_host(hosts[int(rng.integers(len(hosts)))]))
    stalling = [members[k] for k in rng.permutation(len(members))[:STALLING].tolist()]
    course = since(job.num_steps, rng) if rng.random() < 0.3 else whole(job.num_steps)
    how_often = rng.uniform(0.08, 0.35)
    usual_s = job.base.forward_s / shape.chunks
    mean_s = usual_s * log_uniform(rng, 0.3, 3.0)
    size = (job.num_steps, graph.num_ops, shape.dp)
    stalls_s = mean_s * (0.3 + rng.exponential(0.7, size)) * (rng.random(size) < how_often)
    stalls_s *= course.on_s
    is_inside = (rng.random(size) < 0.15) & bool(rng.random() < 0.5)
    of_compute = graph.of(FORWARD, BACKWARD)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        for dp_rank, of_stage in stalling:
            ops = np.flatnonzero(of_compute & (graph.stage == of_stage))
            inside, mine_s = is_inside[:, ops, dp_rank], stalls_s[:, ops, dp_rank]
            durations.launch[:, ops, dp_rank] += np.where(inside, 0.0, mine_s)
            durations.own[:, ops, dp_rank] += np.where(inside, mine_s, 0.0)

    causes = frozenset({"cpu-contention", "allocator-stall", "late-host"})
    truth = truth_of("part-of-host-stalls", causes, frozenset(stalling), course, area="host")
    words = f"{mean_s / usual_s:.2f} of a forward before {100 * how_often:.0f} % of computations"
    return Fault(truth, change, f"{words}, stage {stage}")


def loader_stop(job: JobUnderway) -> Fault:
    """One rank waits for its loader for longer than a step, one to three times; rows say so."""
    rng = job.rng
    dp_rank = int(rng.integers(job.shape.dp))
    count = int(rng.integers(1, 4))
    steps = np.sort(rng.choice(np.arange(1, job.num_steps), count, replace=False)).tolist()
    step_s = usual_step_s(job)
    all_s = log_uniform(rng, 0.08, 0.8) * step_s * job.num_steps
    lasts_s = np.maximum(all_s / count * rng.uniform(0.7, 1.3, count), 1.3 * step_s).tolist()
    op = first_forward(job, 0)

    def change(durations: Durations, extras: Extras) -> None:
        for step, wait_s in zip(steps, lasts_s, strict=True):
            durations.launch[step, op, dp_rank] += wait_s
            extras.interruptions.append(
                Interruption("data-wait", step, op, dp_rank, -wait_s, wait_s)
            )

    on = np.isin(np.arange(job.num_steps), steps).astype(float)
    course = Course(on, steps[0], None, CHRONIC | {"transient"})
    worker = frozenset({(dp_rank, 0)})
    truth = truth_of("loader-stop", frozenset({"data-loading"}), worker, course, area="host")
    return Fault(truth, change, f"{sum(lasts_s) / step_s:.1f} steps' time in steps {steps}")
