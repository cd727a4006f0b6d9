"""Steps whose replicas compute different numbers of micro-batches.

Replicas meet only where a step begins, to gather parameters, and where it ends, to exchange
gradients. So replicas of equal counts run together, and all of them end their steps together.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from app.errors import InvalidRequest
from app.synth.drawing import DrawnSteps
from app.synth.execution import Execution
from app.synth.schedules import Schedule
from app.synth.structure import ReplicaStructure
from app.trace.job import Parallelism
from app.trace.window import Floats


def step_times(
    parallelism: Parallelism, schedule: Schedule, counts: Sequence[int], drawn: DrawnSteps
) -> Floats:
    """Step times of replicas with their own numbers of micro-batches.

    Args:
        parallelism: sizes of the job.
        schedule: every replica's schedule.
        counts: micro-batches of each dp rank, at least 1.
        drawn: durations of at least the largest count; a replica uses the first ones.

    Returns:
        [steps], seconds from each step's start to the end of its last optimizer.

    Raises:
        InvalidRequest: a count is not possible.
    """
    if len(counts) != parallelism.dp_size or not 1 <= min(counts) <= max(counts):
        raise InvalidRequest(
            f"micro-batches {list(counts)}: give one number of 1 or more for each of "
            f"{parallelism.dp_size} dp ranks"
        )
    num_steps = drawn.is_silent.shape[1]
    computed_s = np.empty((parallelism.pp_size, num_steps, parallelism.dp_size))
    for count in sorted(set(counts)):
        schedule.check(
            pp_size=parallelism.pp_size, num_microbatches=count, num_chunks=parallelism.vpp_size
        )
        members = np.flatnonzero(np.asarray(counts) == count)
        structure = _structure(parallelism, count, schedule)
        some = Execution(structure, of_dp_ranks(drawn, members.tolist()))
        computed_s[..., members] = some.run_pipeline()
    ends = Execution(ReplicaStructure(parallelism, 0, ((),) * parallelism.pp_size), drawn)
    ends.finish(computed_s)
    return np.asarray(computed_s.max(axis=(0, 2)))


@lru_cache(maxsize=8)
def _structure(parallelism: Parallelism, count: int, schedule: Schedule) -> ReplicaStructure:
    return ReplicaStructure.of(parallelism, count, schedule)


def of_dp_ranks(drawn: DrawnSteps, dp_ranks: Sequence[int]) -> DrawnSteps:
    """The durations of some dp ranks; those that all ranks share stay."""
    found: dict[str, Any] = {}
    for name in (each.name for each in fields(drawn)):
        value = getattr(drawn, name)
        if isinstance(value, dict):
            found[name] = {key: _taken(each, dp_ranks) for key, each in value.items()}
        elif isinstance(value, np.ndarray) and name != "steps":
            found[name] = _taken(value, dp_ranks)
    return replace(drawn, interruptions=[], **found)


def _taken(values: Any, dp_ranks: Sequence[int]) -> Any:
    return values if values.shape[-1] == 1 else values[..., list(dp_ranks)]


def without_launch_delays(drawn: DrawnSteps) -> DrawnSteps:
    """The same durations with every operation launched as soon as it can be."""
    none = np.zeros((*drawn.forward_s.shape[:3], 1, 1))
    once = {name: np.zeros(each.shape) for name, each in drawn.once_delay_s.items()}
    return replace(
        drawn,
        forward_delay_s=none,
        backward_delay_s=none,
        weight_delay_s=None if drawn.weight_share is None else none,
        once_delay_s=once,
        p2p_delay_s={},
    )
