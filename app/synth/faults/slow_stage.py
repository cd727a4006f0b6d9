"""One stage has more work than the others, in every replica."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.place import refuse_outside
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting, scale_stage
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowStage(Fault):
    """One stage takes longer in every replica, forward and backward."""

    name = "slow-stage"
    cause = "stage-imbalance"

    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_outside("stage", self.stage, world.parallelism.pp_size)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = lasting(self.slowdown, lasts)
        scale_stage(drawn, self.stage, factor, factor)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (Culprit(stage=self.stage),)
