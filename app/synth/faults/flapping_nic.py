"""One worker's network card goes up and down."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.network import (
    neighbours,
    refuse_without_network,
    scale_dp_group,
    scale_pair,
)
from app.synth.faults.pauses import struck
from app.synth.faults.place import culprit, refuse_worker
from app.synth.faults.severity import refuse_factor, refuse_share
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class FlappingNic(Fault):
    """A worker's exchanges, and those of its dp group, take longer in bursts.

    There is a burst in a share `rate` of the steps, and always in the first one; it holds for a
    run of micro-batches, and for the dp group's collectives where it reaches the last one.
    """

    name = "flapping-nic"
    cause = "flapping-link"

    dp_rank: int
    stage: int
    slowdown: float
    rate: float = 0.4

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)
        refuse_share("rate", self.rate)

    @override
    def check(self, world: World) -> None:
        refuse_without_network(world)
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in struck(drawn, lasts):
            rng = rng_of(step)
            is_hit = rng.random() < self.rate or step == self.when.first_step
            if is_hit:
                self._burst(drawn, world, at, rng)

    def _burst(self, drawn: Drawn, world: World, at: int, rng: np.random.Generator) -> None:
        factor = np.ones(drawn.steps.size)
        factor[at] = self.slowdown
        last = world.num_microbatches
        begins = int(rng.integers(last))
        ends = int(rng.integers(begins + 1, last + 1))
        for neighbour in neighbours(world, self.stage):
            pair = self.stage, neighbour
            scale_pair(drawn, self.dp_rank, pair, factor, slice(begins, ends))
        if ends == last:
            scale_dp_group(drawn, self.stage, factor)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)
