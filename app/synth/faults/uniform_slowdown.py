"""Everybody gets slower at once: a power cap, a warm hall."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class UniformSlowdown(Fault):
    """All computations of all workers take longer, at a lower clock."""

    name = "uniform-slowdown"
    cause = "uniform-slowdown"

    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        return

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = lasting(self.slowdown, lasts)[:, None]
        drawn.forward_s *= factor
        drawn.backward_s *= factor
        drawn.once_s["optimizer"] *= factor
        if drawn.sm_clock_mhz is not None:
            drawn.sm_clock_mhz[:] = np.rint(drawn.sm_clock_mhz / factor)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
