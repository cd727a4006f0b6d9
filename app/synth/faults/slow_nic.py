"""One worker's network card is slow, whatever it sends and receives."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.network import (
    neighbours,
    refuse_without_network,
    scale_dp_group,
    scale_pair,
)
from app.synth.faults.place import culprit, refuse_worker
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowNic(Fault):
    """A worker's exchanges with other stages, and those of its dp group, take longer."""

    name = "slow-nic"
    cause = "slow-link"

    dp_rank: int
    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_without_network(world)
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = lasting(self.slowdown, lasts)
        for neighbour in neighbours(world, self.stage):
            scale_pair(drawn, self.dp_rank, (self.stage, neighbour), factor, slice(None))
        scale_dp_group(drawn, self.stage, factor)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)
