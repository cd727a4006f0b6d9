"""Faults of the network: a slow link, a slow or flapping network card, a slow dp group."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.effects import (
    affected_steps,
    factor_while,
    neighbours,
    refuse_without_network,
    scale_dp_group,
    scale_pair,
)
from app.synth.faults.fault import (
    Fault,
    culprit,
    refuse_factor,
    refuse_outside,
    refuse_share,
    refuse_worker,
)
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """What a stage and the next one of a replica send each other takes longer.

    After the last stage comes the first one, where a stage has several chunks.
    """

    name = "slow-link"
    cause = "slow-link"

    dp_rank: int
    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_worker(self.dp_rank, self.stage, world)
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
class SlowNic(Fault):
    """A worker's exchanges with other stages, and those of its dp group, take longer."""

    name = "slow-nic"
    cause = "slow-link"

    dp_rank: int
    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_without_network(world)
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = factor_while(self.slowdown, lasts)
        for neighbour in neighbours(world, self.stage):
            scale_pair(drawn, self.dp_rank, (self.stage, neighbour), factor, slice(None))
        scale_dp_group(drawn, self.stage, factor)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)


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
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in affected_steps(drawn, lasts):
            rng = rng_of(step)
            is_hit = rng.random() < self.rate or step == self.when.first_step
            if is_hit:
                self._burst(drawn, world, at, rng)

    def _burst(self, drawn: DrawnSteps, world: World, at: int, rng: np.random.Generator) -> None:
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


@dataclass(frozen=True, slots=True)
class SlowDpGroup(Fault):
    """The collectives among a stage's dp ranks take longer."""

    name = "slow-dp-group"
    cause = "slow-link"

    stage: int
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_outside("stage", self.stage, world.parallelism.pp_size)
        if world.parallelism.dp_size == 1:
            raise InvalidRequest(
                "the fault is among dp ranks: this job has one, which exchanges nothing"
            )

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        scale_dp_group(drawn, self.stage, factor_while(self.slowdown, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (Culprit(stage=self.stage),)
