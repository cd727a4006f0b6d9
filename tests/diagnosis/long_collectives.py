"""A fault that the simulator lacks: collectives of one type that take longer."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class LongCollective(Fault):
    """Collectives of one type take longer, on one dp rank or all."""

    name = "long-collective"
    cause = None

    optype: str
    factor: float
    dp_rank: int | None = None

    @override
    def check(self, world: World) -> None:
        """Nothing to check."""

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        ranks = slice(None) if self.dp_rank is None else slice(self.dp_rank, self.dp_rank + 1)
        drawn.once_s[self.optype][..., ranks] *= np.where(lasts > 0, self.factor, 1.0)[:, None]

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
