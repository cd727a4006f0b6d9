"""A worker stops reporting, while the others train on."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.place import culprit, refuse_worker
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SilentWorker(Fault):
    """One worker reports nothing. It costs no time."""

    name = "silent-worker"
    cause = "silent-worker"
    is_slow = False

    dp_rank: int
    stage: int

    @override
    def check(self, world: World) -> None:
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        drawn.is_silent[self.stage, :, self.dp_rank] |= lasts > 0

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)
