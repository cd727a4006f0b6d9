"""What faults do to drawn durations: slow down computations and transfers, and insert pauses."""

import numpy as np

from app.errors import InvalidRequest
from app.synth.cluster import World
from app.synth.drawing import DrawnSteps, Interruption
from app.trace.ops import OP_CODES, OP_SPECS, Axis, Direction
from app.trace.window import Floats


def factor_while(factor: float, lasts: Floats) -> Floats:
    """[steps], the factor where `lasts` is 1.0, and 1.0 where it is 0.0."""
    return 1.0 + (factor - 1.0) * lasts


def scale_worker(drawn: DrawnSteps, dp_rank: int, stage: int, factor: Floats) -> None:
    """Scale one worker's forward and backward computations by `factor` [steps]."""
    for duration_s in (drawn.forward_s, drawn.backward_s):
        duration_s[stage, ..., dp_rank] *= factor


def scale_stage(drawn: DrawnSteps, stage: int, forward: Floats, backward: Floats) -> None:
    """Scale a stage's computations in all replicas by factors [steps] of each direction."""
    for duration_s, factor in ((drawn.forward_s, forward), (drawn.backward_s, backward)):
        duration_s[stage] *= factor[:, None]


def refuse_without_network(world: World) -> None:
    """Check that the job has several workers.

    Raises:
        InvalidRequest: it has one.
    """
    if world.parallelism.num_workers == 1:
        raise InvalidRequest("the fault is on a link: this job has only one worker, and no link")


def scale_pair(
    drawn: DrawnSteps, dp_rank: int, stages: tuple[int, int], factor: Floats, microbatches: slice
) -> None:
    """Scale the transfers between two stages of a replica, both ways, by `factor` [steps]."""
    num_stages = drawn.forward_s.shape[0]
    for transfer_s, towards in ((drawn.forward_transfer_s, 1), (drawn.backward_transfer_s, -1)):
        for receiver in set(stages):
            if {receiver, (receiver - towards) % num_stages} == set(stages):
                transfer_s[receiver, :, microbatches, :, dp_rank] *= factor


def neighbours(world: World, stage: int) -> list[int]:
    """The stages that a stage exchanges data with, ascending."""
    num_stages = world.parallelism.pp_size
    if world.num_chunks > 1:  # the last stage sends to the next chunk of the first
        found = {(stage + towards) % num_stages for towards in (-1, 1)} - {stage}
    else:
        found = {at for at in (stage - 1, stage + 1) if 0 <= at < num_stages}
    return sorted(found)


def scale_dp_group(drawn: DrawnSteps, stage: int, factor: Floats) -> None:
    """Scale the collectives of a stage's dp ranks by `factor` [steps].

    A ring is as fast as its slowest link.
    """
    for name, duration_s in drawn.once_s.items():
        if OP_SPECS[OP_CODES[name]].axis is Axis.DP:
            duration_s[stage] *= factor[:, None]


def affected_steps(drawn: DrawnSteps, lasts: Floats) -> list[tuple[int, int]]:
    """Position and number of each step with the fault."""
    return [(at, int(drawn.steps[at])) for at in np.flatnonzero(lasts).tolist()]


def log_normal_around(
    median: float, spread: float, rng: np.random.Generator, shape: tuple[int, ...]
) -> Floats:
    """Log-normal numbers with median `median`; `spread` is the deviation of their logarithm."""
    return np.asarray(median * np.exp(spread * rng.standard_normal(shape)), np.float64)


def add_pause(drawn: DrawnSteps, interruption: Interruption, *, is_sent: bool) -> None:
    """Lengthen a computation; with `is_sent` the client reports the pause."""
    where = interruption.stage, interruption.chunk, interruption.microbatch
    is_forward = interruption.direction is Direction.FORWARD
    duration_s = drawn.forward_s if is_forward else drawn.backward_s
    duration_s[(*where, interruption.step, interruption.dp_rank)] += interruption.duration_s
    if is_sent:
        drawn.interruptions.append(interruption)
