"""A GPU gets hot and lowers its clock, more and more."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.place import culprit, refuse_worker
from app.synth.faults.severity import refuse_below, refuse_factor
from app.synth.faults.slower import scale_worker
from app.synth.world import RngOf, World
from app.trace.window import Floats, Ints

# From a usual temperature under load to where GPUs lower their clocks.
_HOTTER_C = 25


@dataclass(frozen=True, slots=True)
class ThrottlingGpu(Fault):
    """One worker gets slower from step to step, as the clock of its hot GPU gets lower.

    After `ramp_steps` it takes `slowdown` times as long, and stays there.
    """

    name = "throttling-gpu"
    cause = "slow-worker"

    dp_rank: int
    stage: int
    slowdown: float
    ramp_steps: int = 20

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)
        refuse_below("ramp-steps", self.ramp_steps, 1)

    @override
    def check(self, world: World) -> None:
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        share = self._share(drawn.steps) * lasts
        factor = 1.0 + (self.slowdown - 1.0) * share
        scale_worker(drawn, self.dp_rank, self.stage, factor)
        at = self.stage, slice(None), self.dp_rank
        if drawn.sm_clock_mhz is not None:
            drawn.sm_clock_mhz[at] = np.rint(drawn.sm_clock_mhz[at] / factor)
        if drawn.temperature_c is not None:
            drawn.temperature_c[at] += np.rint(_HOTTER_C * share).astype(np.int64)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)

    def _share(self, steps: Ints) -> Floats:
        """How far it has come on its way, 0..1."""
        return np.clip((steps - self.when.first_step + 1) / self.ramp_steps, 0.0, 1.0)
