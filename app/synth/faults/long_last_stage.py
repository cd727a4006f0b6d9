"""The last stage computes the loss on top of its layers."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting, scale_stage
from app.synth.world import RngOf, World
from app.trace.window import Floats

# Measured in production where the last stage also computes the loss (Lin et al., OSDI 2025).
LOSS_FORWARD = 2.07
LOSS_BACKWARD = 1.41


@dataclass(frozen=True, slots=True)
class LongLastStage(Fault):
    """The last stage takes `forward` and `backward` times as long in every replica."""

    name = "long-last-stage"
    cause = "stage-imbalance"

    forward: float = LOSS_FORWARD
    backward: float = LOSS_BACKWARD

    def __post_init__(self) -> None:
        refuse_factor(self.forward)
        refuse_factor(self.backward)

    @override
    def check(self, world: World) -> None:
        return

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        last = world.parallelism.pp_size - 1
        scale_stage(drawn, last, lasting(self.forward, lasts), lasting(self.backward, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (Culprit(stage=world.parallelism.pp_size - 1),)
