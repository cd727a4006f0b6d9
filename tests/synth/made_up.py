"""Faults made up for a test: one line each of what they change."""

from collections.abc import Callable
from dataclasses import dataclass

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class MadeUp(Fault):
    """Whatever `deed` does to what was drawn."""

    name = "made-up"
    cause = None

    deed: Callable[[Drawn], None]

    def check(self, world: World) -> None:
        pass

    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        self.deed(drawn)

    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
