"""One worker is slower than its peers: a failing GPU, a busy host."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.place import culprit, refuse_worker
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting, scale_worker
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowWorker(Fault):
    """One worker takes longer, forward and backward."""

    name = "slow-worker"
    cause = "slow-worker"

    dp_rank: int
    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        scale_worker(drawn, self.dp_rank, self.stage, lasting(self.slowdown, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)
