"""Simulated jobs with faults, their drawn durations, and what the faults cost."""

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.synth.truth import FaultStepTimes
from app.trace.job import Parallelism

DP, PP, MICROBATCHES = 4, 3, 4
STEPS = range(20)


def made(*faults, num_microbatches=MICROBATCHES, parallelism=None, **options):
    return SimulatedJob(
        parallelism or Parallelism(DP, PP),
        num_microbatches,
        costs=options.pop("costs", OperationCosts()),
        cluster=Cluster(gpus_per_host=2),
        faults=faults,
        **options,
    )


def drawn(job, steps=STEPS):
    """{array: values} of everything that was drawn for the steps, and the interruptions."""
    blocks = [block.drawn for block in job.blocks(steps)]
    assert len(blocks) == 1
    found: dict[str, NDArray[Any]] = {}
    for field in fields(blocks[0]):
        value = getattr(blocks[0], field.name)
        if isinstance(value, dict):
            found |= {f"{field.name} {name}": each for name, each in value.items()}
        elif isinstance(value, np.ndarray):
            found[field.name] = value
    return found, blocks[0].interruptions


def step_axis(name):
    """The last axis of all others is that of dp ranks."""
    return 0 if name == "steps" else -2


def changed(job, healthy):
    """{array: where it differs}"""
    one, other = drawn(job)[0], drawn(healthy)[0]
    assert one.keys() - other.keys() <= {"tokens", "seq_len_sq"}
    return {name: values != other.get(name, -1) for name, values in one.items()}


def ratios(job, name):
    """What was drawn, in what a healthy job's was."""
    return drawn(job)[0][name] / drawn(made())[0][name]


def added(job, name):
    """How much longer it is than a healthy job's."""
    return drawn(job)[0][name] - drawn(made())[0][name]


def compute_only_costs(forward_s, backward_s):
    """Only forward and backward take time, always exactly this long."""
    others = {f.name: 0.0 for f in fields(OperationCosts) if f.type is float}
    del others["weight_share"]
    return OperationCosts(**{**others, "forward_s": forward_s, "backward_s": backward_s})


def costs_of(job, steps):
    """Share of the job's time that each fault costs over these steps."""
    return FaultStepTimes.of(job, steps).costs()
