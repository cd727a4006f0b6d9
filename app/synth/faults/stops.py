"""Faults that stop whole hosts or the whole job: checkpoints, single stops, busy CPUs."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.effects import affected_steps, log_normal_around
from app.synth.faults.fault import (
    Fault,
    WorkerPlaces,
    culprit,
    culprit_hosts,
    refuse_below,
    refuse_host,
    refuse_seconds,
    refuse_share,
    refuse_worker,
)
from app.trace.window import Floats

# Standard deviation of the logarithm: all workers write about as much.
_CHECKPOINT_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class CheckpointStalls(Fault):
    """All workers, or those of a host, stop before the optimizer step every `every_steps` steps."""

    name = "checkpoint-stalls"
    cause = "checkpoint-stall"

    every_steps: int = 5
    stall_s: float = 2.0
    host: str | None = None

    def __post_init__(self) -> None:
        refuse_below("every-steps", self.every_steps, 2)
        refuse_seconds(self.stall_s)

    @override
    def check(self, world: World) -> None:
        if self.host is not None:
            refuse_host(self.host, world)

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        shape = world.parallelism.pp_size, world.parallelism.dp_size
        chosen = np.ones(shape)
        if self.host is not None:
            chosen = np.zeros(shape)
            for dp_rank, stage in world.workers_of_host(self.host):
                chosen[stage, dp_rank] = 1.0
        for at, step in affected_steps(drawn, lasts):
            if (step - self.when.first_step) % self.every_steps == self.every_steps - 1:
                stall_s = log_normal_around(self.stall_s, _CHECKPOINT_SPREAD, rng_of(step), shape)
                drawn.once_delay_s["gc"][:, 0, at] += chosen * stall_s

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return () if self.host is None else culprit_hosts(world, [self.host])


@dataclass(frozen=True, slots=True)
class JobStop(Fault):
    """Some workers do nothing for `stop_s` in the first step of the fault, in the middle of it."""

    name = "job-stop"
    cause = "job-stop"

    workers: WorkerPlaces
    stop_s: float = 20.0

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidRequest("a stop of no worker: name one or more")
        refuse_seconds(self.stop_s)

    @override
    def check(self, world: World) -> None:
        for worker in self.workers:
            refuse_worker(*worker, world)

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at in np.flatnonzero(drawn.steps == self.when.first_step).tolist():
            for dp_rank, stage in self.workers:
                delay_s = drawn.backward_delay_s[stage, -1, :, at, dp_rank]
                delay_s[delay_s.size // 2] += self.stop_s

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return tuple(culprit(world, *worker) for worker in sorted(self.workers))


@dataclass(frozen=True, slots=True)
class CpuContention(Fault):
    """Something else uses a host's CPUs: launches of its workers are late now and then.

    A share `rate` of all operations starts late, by `delay_s` on average, or takes longer by that.
    """

    name = "cpu-contention"
    cause = "cpu-contention"

    host: str
    rate: float = 0.15
    delay_s: float = 0.03

    def __post_init__(self) -> None:
        refuse_share("rate", self.rate)
        refuse_seconds(self.delay_s)

    @override
    def check(self, world: World) -> None:
        refuse_host(self.host, world)

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in affected_steps(drawn, lasts):
            rng = rng_of(step)
            for dp_rank, stage in world.workers_of_host(self.host):
                self._hold_up(drawn, (dp_rank, stage), at, rng)

    def _hold_up(
        self, drawn: DrawnSteps, worker: tuple[int, int], at: int, rng: np.random.Generator
    ) -> None:
        dp_rank, stage = worker
        passes = (
            (drawn.forward_s, drawn.forward_delay_s),
            (drawn.backward_s, drawn.backward_delay_s),
        )
        for longer_s, late_s in passes:
            held_s = self._seconds(longer_s.shape[1:3], rng)
            comes_before = rng.random(held_s.shape) < 0.5
            late_s[stage, :, :, at, dp_rank] += held_s * comes_before
            longer_s[stage, :, :, at, dp_rank] += held_s * ~comes_before
        for late_s in drawn.once_delay_s.values():
            late_s[stage, :, at, dp_rank] += self._seconds((late_s.shape[1],), rng)
        for name in ("forward-send", "backward-send"):
            if name in drawn.p2p_delay_s:
                late_s = drawn.p2p_delay_s[name]
                late_s[stage, :, :, at, dp_rank] += self._seconds(late_s.shape[1:3], rng)

    def _seconds(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Seconds by which each of some operations is held up, mostly 0."""
        held_s = rng.exponential(self.delay_s, shape) * (rng.random(shape) < self.rate)
        return np.asarray(held_s, np.float64)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return culprit_hosts(world, [self.host])


@dataclass(frozen=True, slots=True)
class ExpertImbalance(Fault):
    """Experts get uneven numbers of tokens, so ranks of a block compute longer or shorter.

    The loads of a block's ranks are drawn for every stage and micro-batch, with a standard
    deviation of `spread` around a mean of 1. Not a fault of the command line, whose jobs have no
    experts.
    """

    name = "expert-imbalance"
    cause = "expert-imbalance"

    spread: float = 0.3

    def __post_init__(self) -> None:
        refuse_share("spread", self.spread)

    @override
    def check(self, world: World) -> None:
        if world.parallelism.ep_size < 2:
            raise InvalidRequest("uneven experts in a job without experts: its ep_size is 1")

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        sizes = world.parallelism
        shape = (
            *(sizes.pp_size, world.num_microbatches),
            *(sizes.dp_size // sizes.ep_size, sizes.ep_size),
        )
        sigma = np.sqrt(np.log(1 + self.spread**2))
        for at, step in affected_steps(drawn, lasts):
            load = log_normal_around(1.0, sigma, rng_of(step), shape)
            load /= load.mean(axis=3, keepdims=True)
            load = load.reshape(*shape[:2], sizes.dp_size)
            drawn.forward_s[..., at, :] *= load[:, None]
            drawn.backward_s[..., at, :] *= load[:, None]

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
