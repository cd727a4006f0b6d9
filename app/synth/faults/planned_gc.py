"""All workers collect their garbage at once, every so many steps, as they were told to."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.drawn import Annotation, Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.pauses import around, pause, struck
from app.synth.faults.severity import refuse_below, refuse_seconds
from app.synth.world import RngOf, World
from app.trace.ops import Direction
from app.trace.window import Floats

# Of the logarithm of single pauses: the same objects everywhere.
_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class PlannedGc(Fault):
    """Everybody pauses at once, in the first step and every `every_steps` on.

    It is the `gc` operation that gets longer or, `in_forward`, the first forward computation of
    every worker; then `is_sent` says whether the client tells of each pause.
    """

    name = "planned-gc"
    cause = "gc-pause"

    every_steps: int = 10
    pause_s: float = 0.3
    in_forward: bool = False
    is_sent: bool = False

    def __post_init__(self) -> None:
        refuse_below("every-steps", self.every_steps, 1)
        refuse_seconds(self.pause_s)
        if self.is_sent and not self.in_forward:
            raise InvalidRequest(
                "pauses in the gc operation are told by that operation: leave out sent, or "
                "give in-forward"
            )

    @override
    def check(self, world: World) -> None:
        return

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        shape = world.parallelism.pp_size, world.parallelism.dp_size
        for at, step in struck(drawn, lasts):
            if (step - self.when.first_step) % self.every_steps:
                continue
            pause_s = around(self.pause_s, _SPREAD, rng_of(step), shape)
            if self.in_forward:
                self._pause_forward(drawn, at, pause_s)
            else:
                drawn.once_s["gc"][:, 0, at] += pause_s

    def _pause_forward(self, drawn: Drawn, at: int, pause_s: Floats) -> None:
        for (stage, dp_rank), seconds in np.ndenumerate(pause_s):
            annotation = Annotation(
                "gc-pause", float(seconds), Direction.FORWARD, stage, 0, 0, at, dp_rank
            )
            pause(drawn, annotation, is_sent=self.is_sent)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
