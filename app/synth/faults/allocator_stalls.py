"""A few workers' memory allocator runs short, and stops them here and there."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.pauses import struck
from app.synth.faults.place import Workers, culprit, refuse_worker
from app.synth.faults.severity import refuse_below, refuse_seconds, refuse_share
from app.synth.world import WHOLE_JOB, RngOf, World
from app.trace.window import Floats

# Of the spells after the first one.
_SHARE_OF_SPELLS = 0.6


@dataclass(frozen=True, slots=True)
class AllocatorStalls(Fault):
    """Some workers stall in a share `rate` of their computations, in spells.

    A stall takes `stall_s` in the mean; it comes before the computation or makes it longer. Time
    goes by in spells of `spell_steps`, with stalls (the first one always) or without.
    """

    name = "allocator-stalls"
    cause = "allocator-stall"

    workers: Workers
    rate: float = 0.2
    stall_s: float = 0.03
    spell_steps: int = 4

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidRequest("allocator stalls of no worker: name one or more")
        refuse_share("rate", self.rate)
        refuse_seconds(self.stall_s)
        refuse_below("spell-steps", self.spell_steps, 1)

    @override
    def check(self, world: World) -> None:
        for worker in self.workers:
            refuse_worker(*worker, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in struck(drawn, lasts):
            if self._stalls(step, rng_of):
                self._stall(drawn, at, rng_of(step))

    def _stalls(self, step: int, rng_of: RngOf) -> bool:
        spell = (step - self.when.first_step) // self.spell_steps
        # Spells count down from above all steps, and so never share a step's chance.
        return spell == 0 or rng_of(WHOLE_JOB - spell).random() < _SHARE_OF_SPELLS

    def _stall(self, drawn: Drawn, at: int, rng: np.random.Generator) -> None:
        kinds = (
            (drawn.forward_s, drawn.forward_delay_s),
            (drawn.backward_s, drawn.backward_delay_s),
        )
        for dp_rank, stage in self.workers:
            for longer_s, delay_s in kinds:
                shape = longer_s.shape[1:3]
                stall_s = rng.exponential(self.stall_s, shape) * (rng.random(shape) < self.rate)
                comes_before = rng.random(shape) < 0.5
                delay_s[stage, :, :, at, dp_rank] += stall_s * comes_before
                longer_s[stage, :, :, at, dp_rank] += stall_s * ~comes_before

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return tuple(culprit(world, *worker) for worker in sorted(self.workers))
