"""Faults of the network: a slow link, a slow or flapping network card, a slow dp group."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import (
    Factor,
    Share,
    StageFault,
    WorkerFault,
    affected_steps,
    culprit,
    factor_while,
    neighbours,
    scale_dp_group,
    scale_pair,
)
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowLink(WorkerFault):
    """Transfers between a stage and the next one of a replica take longer, in both directions.

    With several chunks a stage, the first stage follows the last one.
    """

    name = "slow-link"
    cause = "slow-link"

    slowdown: Factor

    @override
    def check(self, world: World) -> None:
        WorkerFault.check(self, world)
        if self._next(world) not in neighbours(world, self.stage):
            num_stages = world.parallelism.pp_size
            raise InvalidRequest(
                f"the fault is on the link from stage {self.stage} to the next one: "
                f"this job has {num_stages} stage{'s' * (num_stages > 1)}"
            )

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        stages = self.stage, self._next(world)
        scale_pair(drawn, self.dp_rank, stages, factor_while(self.slowdown, lasts), slice(None))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        stages = self.stage, self._next(world)
        return tuple(culprit(world, self.dp_rank, stage) for stage in stages)

    def _next(self, world: World) -> int:
        return (self.stage + 1) % world.parallelism.pp_size


@dataclass(frozen=True, slots=True)
class _NicFault(WorkerFault):
    """A fault of a worker's communication with other workers."""

    slowdown: Factor

    @override
    def check(self, world: World) -> None:
        if world.parallelism.num_workers == 1:
            raise InvalidRequest(
                "the fault is on a link: this job has only one worker, and no link"
            )
        WorkerFault.check(self, world)


@dataclass(frozen=True, slots=True)
class SlowNic(_NicFault):
    """A worker's transfers between stages, and its dp group's collectives, take longer."""

    name = "slow-nic"
    cause = "slow-link"

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = factor_while(self.slowdown, lasts)
        for neighbour in neighbours(world, self.stage):
            scale_pair(drawn, self.dp_rank, (self.stage, neighbour), factor, slice(None))
        scale_dp_group(drawn, self.stage, factor)


@dataclass(frozen=True, slots=True)
class FlappingNic(_NicFault):
    """A worker's transfers, and its dp group's collectives, take longer in bursts.

    A share `rate` of the steps has a burst, and the first one always. It affects successive
    micro-batches; if it reaches the last one, also the dp group's collectives.
    """

    name = "flapping-nic"
    cause = "flapping-link"

    rate: Share = 0.4

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in affected_steps(drawn, lasts):
            rng = rng_of(step)
            if rng.random() < self.rate or step == self.when.first_step:
                self._burst(drawn, world, at, rng)

    def _burst(self, drawn: DrawnSteps, world: World, at: int, rng: np.random.Generator) -> None:
        factor = np.ones(drawn.steps.size)
        factor[at] = self.slowdown
        num_microbatches = world.num_microbatches
        begins = int(rng.integers(num_microbatches))
        ends = int(rng.integers(begins + 1, num_microbatches + 1))
        for neighbour in neighbours(world, self.stage):
            pair = self.stage, neighbour
            scale_pair(drawn, self.dp_rank, pair, factor, slice(begins, ends))
        if ends == num_microbatches:
            scale_dp_group(drawn, self.stage, factor)


@dataclass(frozen=True, slots=True)
class SlowDpGroup(StageFault):
    """The collectives among a stage's dp ranks take longer."""

    name = "slow-dp-group"
    cause = "slow-link"

    slowdown: Factor

    @override
    def check(self, world: World) -> None:
        StageFault.check(self, world)
        if world.parallelism.dp_size == 1:
            raise InvalidRequest(
                "the fault is among dp ranks: this job has one, which exchanges nothing"
            )

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        scale_dp_group(drawn, self.stage, factor_while(self.slowdown, lasts))
