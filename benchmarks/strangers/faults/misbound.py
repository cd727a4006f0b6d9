"""A host whose processes run on the wrong processors, away from their memory and their GPUs."""

import numpy as np

from benchmarks.strangers.faults.compute import SLOW_WORKER, log_uniform, truth_of
from benchmarks.strangers.faults.fault import (
    Fault,
    JobUnderway,
    since,
    whole,
    workers_of_stage,
)
from benchmarks.strangers.faults.hosts import first_forward
from benchmarks.strangers.faults.stages import STAGE
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER
from benchmarks.strangers.recording import Extras, Interruption
from benchmarks.strangers.simulation import Durations


def numa_misbinding(job: JobUnderway) -> Fault:
    """All ranks of one host launch late, load slowly, and compute a little longer.

    Launches are late by about as much each time: nothing else runs there. Copies from the wrong
    memory make batches late, and computations longer.
    """
    shape, rng, graph = job.shape, job.rng, job.graph
    host = int(rng.integers(shape.num_hosts))
    workers = shape.workers_of_host(host)
    course = since(job.num_steps, rng) if rng.random() < 0.25 else whole(job.num_steps)
    usual_s = job.base.forward_s / shape.chunks
    late_s = usual_s * log_uniform(rng, 0.04, 0.25)
    size = (job.num_steps, graph.num_ops, shape.dp)
    late = late_s * np.exp(0.3 * rng.standard_normal(size)) * course.on_s
    # A transfer is posted by a short call.
    late[:, graph.is_communication] *= 0.3
    longer = 1 + rng.uniform(0.02, 0.12) * course.strength[:, None]
    # Batches are small beside what is launched and computed in a step.
    computations = 2 * shape.microbatches * shape.chunks
    load_s = computations * late_s * rng.uniform(0.05, 0.25)
    loads = load_s * np.exp(0.2 * rng.standard_normal((job.num_steps, shape.dp)))
    loads *= course.strength[:, None]
    of_compute = graph.of(FORWARD, BACKWARD, OPTIMIZER)

    def change(durations: Durations, extras: Extras) -> None:
        for dp_rank, stage in workers:
            ops = graph.stage == stage
            durations.launch[:, ops, dp_rank] += late[:, ops, dp_rank]
            durations.own[:, ops & of_compute, dp_rank] *= longer
            if stage not in (0, shape.pp - 1):
                continue  # only the first and the last stage read batches
            op = first_forward(job, stage)
            durations.launch[:, op, dp_rank] += loads[:, dp_rank]
            if job.has_loader:
                extras.interruptions += [
                    Interruption("data-wait", step, op, dp_rank, -load, load)
                    for step, load in enumerate(loads[:, dp_rank].tolist())
                    if load > 0
                ]

    causes = SLOW_WORKER | {"late-host"}
    if any(workers_of_stage(shape, stage) <= workers for stage in range(shape.pp)):
        causes |= STAGE  # it holds all replicas of a stage
    truth = truth_of("numa-misbinding", causes, workers, course, area="host")
    words = f"host {host}, launches {late_s / usual_s:.2f} of a forward late"
    return Fault(truth, change, f"{words}, computing {longer.max():.2f}x")
