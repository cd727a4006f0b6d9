"""Faults that stop workers: garbage collection, allocator, late data, checkpoints, busy CPUs.

Garbage is collected by each worker on its own (`GcPauses`) or by all at once (`PlannedGc`). A
`JobStop` is a single one. A `SilentWorker` stops reporting and costs no time.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.cluster import WHOLE_JOB, RngOf, World
from app.synth.drawing import DrawnSteps, Interruption
from app.synth.faults.fault import (
    Fault,
    HostFault,
    Seconds,
    Share,
    WorkerFault,
    WorkerPlaces,
    WorkersFault,
    add_pause,
    affected_steps,
    at_least,
    log_normal_around,
)
from app.trace.ops import Direction
from app.trace.window import Floats

# Standard deviation of the logarithm of single pauses.
_GC_SPREAD = 0.15


@dataclass(frozen=True, slots=True)
class GcPauses(WorkersFault):
    """Each worker pauses in a forward computation, in a fraction `rate` of its steps.

    `workers` are those that pause, () means all. With `is_sent` the client reports each pause.
    """

    name = "gc-pauses"
    cause = "gc-pause"

    rate: Share = 0.02
    pause_s: Seconds = 0.3
    workers: WorkerPlaces = ()
    is_sent: bool = False

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in affected_steps(drawn, lasts):
            for interruption in self._pauses(world, at, rng_of(step)):
                add_pause(drawn, interruption, is_sent=self.is_sent)

    def _pauses(self, world: World, at: int, rng: np.random.Generator) -> list[Interruption]:
        shape = world.parallelism.pp_size, world.parallelism.dp_size
        pauses = rng.random(shape) < self.rate
        chunk = rng.integers(world.num_chunks, size=shape)
        microbatch = rng.integers(world.num_microbatches, size=shape)
        pause_s = log_normal_around(self.pause_s, _GC_SPREAD, rng, shape)
        return [
            Interruption(
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


# Standard deviation of the logarithm: all workers collect the same objects.
_PLANNED_GC_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class PlannedGc(Fault):
    """All workers pause at once, in the first step and every `every_steps` after it.

    The `gc` operation gets longer or, with `in_forward`, every worker's first forward computation;
    then `is_sent` tells whether the client reports each pause.
    """

    name = "planned-gc"
    cause = "gc-pause"

    every_steps: Annotated[int, at_least(1)] = 10
    pause_s: Seconds = 0.3
    in_forward: bool = False
    is_sent: bool = False

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        if self.is_sent and not self.in_forward:
            raise InvalidRequest(
                "the gc operation itself reports pauses in it: leave out sent, or give in-forward"
            )

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        shape = world.parallelism.pp_size, world.parallelism.dp_size
        for at, step in affected_steps(drawn, lasts):
            if (step - self.when.first_step) % self.every_steps:
                continue
            pause_s = log_normal_around(self.pause_s, _PLANNED_GC_SPREAD, rng_of(step), shape)
            if self.in_forward:
                self._pause_forward(drawn, at, pause_s)
            else:
                drawn.once_s["gc"][:, 0, at] += pause_s

    def _pause_forward(self, drawn: DrawnSteps, at: int, pause_s: Floats) -> None:
        for (stage, dp_rank), seconds in np.ndenumerate(pause_s):
            interruption = Interruption(
                "gc-pause", float(seconds), Direction.FORWARD, stage, 0, 0, at, dp_rank
            )
            add_pause(drawn, interruption, is_sent=self.is_sent)


# Fraction of the spells after the first that have stalls.
_SPELL_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class AllocatorStalls(WorkersFault):
    """Some workers stall in a fraction `rate` of their computations, in spells.

    A stall takes `stall_s` on average, before the computation or within it. Spells last
    `spell_steps`, with stalls (always in the first) or without.
    """

    name = "allocator-stalls"
    cause = "allocator-stall"

    workers: WorkerPlaces
    rate: Share = 0.2
    stall_s: Seconds = 0.03
    spell_steps: Annotated[int, at_least(1)] = 4

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidRequest("allocator stalls without a worker: name one or more")
        Fault.__post_init__(self)

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in affected_steps(drawn, lasts):
            if self._stalls(step, rng_of):
                self._stall(drawn, at, rng_of(step))

    def _stalls(self, step: int, rng_of: RngOf) -> bool:
        spell = (step - self.when.first_step) // self.spell_steps
        # Spell numbers count down from above all steps, so they never share a step's generator.
        return spell == 0 or rng_of(WHOLE_JOB - spell).random() < _SPELL_SHARE

    def _stall(self, drawn: DrawnSteps, at: int, rng: np.random.Generator) -> None:
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


# Standard deviation of the logarithm of single waits: storage varies a lot.
_DATA_WAIT_SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class DataLoading(HostFault):
    """A host's workers, or all workers, wait before a step's first forward computation.

    A host of None means all hosts, each with its own wait. Samples are fetched on demand, so stages
    wait one after the other. With `is_sent` the client reports each wait.
    """

    name = "data-loading"
    cause = "data-loading"

    host: str | None = None
    delay_s: Seconds = 0.2
    is_sent: bool = False

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        hosts = world.host_names if self.host is None else [self.host]
        for at, step in affected_steps(drawn, lasts):
            waits_s = log_normal_around(
                self.delay_s, _DATA_WAIT_SPREAD, rng_of(step), (len(hosts),)
            ).tolist()
            for host, wait_s in zip(hosts, waits_s, strict=True):
                self._wait(drawn, world, host, at, wait_s)

    def _wait(self, drawn: DrawnSteps, world: World, host: str, at: int, wait_s: float) -> None:
        for dp_rank, stage in world.workers_of_host(host):
            drawn.forward_delay_s[stage, 0, 0, at, dp_rank] += wait_s
            if self.is_sent:
                drawn.interruptions.append(
                    Interruption("data-wait", wait_s, Direction.FORWARD, stage, 0, 0, at, dp_rank)
                )


@dataclass(frozen=True, slots=True)
class SilentWorker(WorkerFault):
    """One worker reports nothing. It costs no time."""

    name = "silent-worker"
    cause = "silent-worker"
    is_slow = False

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        drawn.is_silent[self.stage, :, self.dp_rank] |= lasts > 0


# Standard deviation of the logarithm: all workers write about as much.
_CHECKPOINT_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class CheckpointStalls(HostFault):
    """All workers, or those of a host, stop before the optimizer step every `every_steps` steps."""

    name = "checkpoint-stalls"
    cause = "checkpoint-stall"

    every_steps: Annotated[int, at_least(2)] = 5
    stall_s: Seconds = 2.0
    host: str | None = None

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


@dataclass(frozen=True, slots=True)
class JobStop(WorkersFault):
    """Some workers do nothing for `stop_s` in the first step of the fault, in the middle of it."""

    name = "job-stop"
    cause = "job-stop"

    workers: WorkerPlaces
    stop_s: Seconds = 20.0

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidRequest("a stop of no worker: name one or more")
        Fault.__post_init__(self)

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at in np.flatnonzero(drawn.steps == self.when.first_step).tolist():
            for dp_rank, stage in self.workers:
                delay_s = drawn.backward_delay_s[stage, -1, :, at, dp_rank]
                delay_s[delay_s.size // 2] += self.stop_s


@dataclass(frozen=True, slots=True)
class CpuContention(HostFault):
    """Something else uses a host's CPUs: launches of its workers are late now and then.

    A share `rate` of all operations starts late, by `delay_s` on average, or takes longer by that.
    """

    name = "cpu-contention"
    cause = "cpu-contention"

    host: str
    rate: Share = 0.15
    delay_s: Seconds = 0.03

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
