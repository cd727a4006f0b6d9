"""The link between two stages of one replica is slow."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.network import neighbours, scale_pair
from app.synth.faults.place import culprit, refuse_worker
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """What a stage and the next one of a replica send each other takes longer.

    After the last stage comes the first one, where a stage has several chunks.
    """

    name = "slow-link"
    cause = "slow-link"

    dp_rank: int
    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_worker(self.dp_rank, self.stage, world)
        if self._next(world) not in neighbours(world, self.stage):
            num_stages = world.parallelism.pp_size
            raise InvalidRequest(
                f"the fault is on the link from stage {self.stage} to the next one: "
                f"this job has {num_stages} stage{'s' * (num_stages > 1)}"
            )

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        stages = self.stage, self._next(world)
        scale_pair(drawn, self.dp_rank, stages, lasting(self.slowdown, lasts), slice(None))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        stages = self.stage, self._next(world)
        return tuple(culprit(world, self.dp_rank, stage) for stage in stages)

    def _next(self, world: World) -> int:
        return (self.stage + 1) % world.parallelism.pp_size
