"""Optimizers of one stage that take long on all of its replicas."""

import numpy as np

from benchmarks.strangers.faults.compute import SLOW_WORKER, truth_of
from benchmarks.strangers.faults.fault import (
    Fault,
    JobUnderway,
    since,
    whole,
    workers_of_stage,
)
from benchmarks.strangers.faults.stages import STAGE
from benchmarks.strangers.graph import OPTIMIZER
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations


def stage_optimizer(job: JobUnderway) -> Fault:
    """One stage's optimizer takes 2 to 12 times as long: embeddings, experts, or an offload.

    Parameters that other stages lack are there from the start on; an offload to the host may begin
    when memory runs short, and varies more.
    """
    shape, rng = job.shape, job.rng
    is_offload = bool(rng.random() < 0.5)
    # Embeddings lie at the ends of the model, experts and offloaded states anywhere.
    ends = (0, shape.pp - 1)
    stage = ends[int(rng.integers(2))] if rng.random() < 0.5 else int(rng.integers(shape.pp))
    begins_late = is_offload and bool(rng.random() < 0.7)
    course = since(job.num_steps, rng) if begins_late else whole(job.num_steps)
    factor = rng.uniform(2.0, 12.0)
    spread = 0.08 if is_offload else 0.01
    jitter = np.exp(spread * rng.standard_normal((job.num_steps, shape.dp)))
    more = (factor - 1) * course.strength[:, None] * jitter
    (op,) = np.flatnonzero(job.graph.of(OPTIMIZER) & (job.graph.stage == stage)).tolist()

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        durations.own[:, op] *= 1 + more

    workers = workers_of_stage(shape, stage)
    truth = truth_of("stage-optimizer", STAGE | SLOW_WORKER, workers, course)
    why = "offload" if is_offload else "more parameters"
    return Fault(truth, change, f"{factor:.1f}x on stage {stage}, {why}")
