"""Make transfers take longer: those of a pair of workers, and those of a dp group."""

from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.synth.world import World
from app.trace.ops import OP_CODES, OP_SPECS, Axis
from app.trace.window import Floats


def refuse_without_network(world: World) -> None:
    """Nothing, if the job's workers exchange anything.

    Raises:
        InvalidRequest: there is but one worker.
    """
    if world.parallelism.num_workers == 1:
        raise InvalidRequest("the fault is on a link: this job has one worker, and so no link")


def scale_pair(
    drawn: Drawn, dp_rank: int, stages: tuple[int, int], factor: Floats, microbatches: slice
) -> None:
    """Scale what two stages of a replica send each other, both ways, by `factor` [steps]."""
    num_stages = drawn.forward_s.shape[0]
    for transfer_s, towards in ((drawn.forward_transfer_s, 1), (drawn.backward_transfer_s, -1)):
        for receiver in set(stages):
            if {receiver, (receiver - towards) % num_stages} == set(stages):
                transfer_s[receiver, :, microbatches, :, dp_rank] *= factor


def neighbours(world: World, stage: int) -> list[int]:
    """The stages with which a stage exchanges something, ascending."""
    num_stages = world.parallelism.pp_size
    if world.num_chunks > 1:  # the last stage gives to the first one's next chunk
        found = {(stage + towards) % num_stages for towards in (-1, 1)} - {stage}
    else:
        found = {at for at in (stage - 1, stage + 1) if 0 <= at < num_stages}
    return sorted(found)


def scale_dp_group(drawn: Drawn, stage: int, factor: Floats) -> None:
    """Scale the collectives of a stage's dp ranks by `factor` [steps].

    A ring is as fast as its slowest link, so that one slow member is enough.
    """
    for name, duration_s in drawn.once_s.items():
        if OP_SPECS[OP_CODES[name]].axis is Axis.DP:
            duration_s[stage] *= factor[:, None]
