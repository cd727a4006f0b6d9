"""The network among the dp ranks of one stage is slow."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.network import scale_dp_group
from app.synth.faults.place import refuse_outside
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowDpGroup(Fault):
    """The collectives among a stage's dp ranks take longer."""

    name = "slow-dp-group"
    cause = "slow-link"

    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_outside("stage", self.stage, world.parallelism.pp_size)
        if world.parallelism.dp_size == 1:
            raise InvalidRequest(
                "the fault is among dp ranks: this job has one, which exchanges nothing"
            )

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        scale_dp_group(drawn, self.stage, lasting(self.slowdown, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (Culprit(stage=self.stage),)
