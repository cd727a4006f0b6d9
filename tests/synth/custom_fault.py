"""Faults made up for a test: one line each of what they change."""

from collections.abc import Callable
from dataclasses import dataclass

from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class CustomFault(Fault):
    """Whatever `deed` does to what was drawn."""

    name = "made-up"
    cause = None

    deed: Callable[[DrawnSteps], None]

    def check(self, world: World) -> None:
        pass

    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        self.deed(drawn)

    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
