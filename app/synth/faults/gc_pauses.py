"""Python collects its garbage in the middle of a forward computation, each worker for itself."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Annotation, Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.pauses import around, pause, struck
from app.synth.faults.place import Workers, culprit, refuse_worker
from app.synth.faults.severity import refuse_seconds, refuse_share
from app.synth.world import RngOf, World
from app.trace.ops import Direction
from app.trace.window import Floats

# Of the logarithm of single pauses.
_SPREAD = 0.15


@dataclass(frozen=True, slots=True)
class GcPauses(Fault):
    """Each worker pauses in a forward computation, in a share `rate` of its steps.

    `workers` names the few that do; () is everybody. `is_sent`: the client tells of each pause.
    """

    name = "gc-pauses"
    cause = "gc-pause"

    rate: float = 0.02
    pause_s: float = 0.3
    workers: Workers = ()
    is_sent: bool = False

    def __post_init__(self) -> None:
        refuse_share("rate", self.rate)
        refuse_seconds(self.pause_s)

    @override
    def check(self, world: World) -> None:
        for worker in self.workers:
            refuse_worker(*worker, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in struck(drawn, lasts):
            for annotation in self._pauses(world, at, rng_of(step)):
                pause(drawn, annotation, is_sent=self.is_sent)

    def _pauses(self, world: World, at: int, rng: np.random.Generator) -> list[Annotation]:
        shape = world.parallelism.pp_size, world.parallelism.dp_size
        pauses = rng.random(shape) < self.rate
        chunk = rng.integers(world.num_chunks, size=shape)
        microbatch = rng.integers(world.num_microbatches, size=shape)
        pause_s = around(self.pause_s, _SPREAD, rng, shape)
        return [
            Annotation(
                "gc-pause",
                float(pause_s[stage, dp_rank]),
                Direction.FORWARD,
                stage,
                int(chunk[stage, dp_rank]),
                int(microbatch[stage, dp_rank]),
                at,
                dp_rank,
            )
            for stage, dp_rank in np.argwhere(pauses).tolist()
            if not self.workers or (dp_rank, stage) in self.workers
        ]

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return tuple(culprit(world, *worker) for worker in sorted(self.workers))
