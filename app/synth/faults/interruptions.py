"""Faults that stop workers: garbage collection, allocator, late data, checkpoints, busy CPUs.

Workers collect garbage independently (`GcPauses`) or all at once (`PlannedGc`). A `JobStop` happens
once. A `SilentWorker` only stops reporting, which costs no time.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.cluster import WHOLE_JOB, RngOf, Worker, World
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
    """Every worker pauses in a forward computation, in a fraction `rate` of its steps.

    Only `workers` pause, unless it is (). With `is_sent` the client reports the pauses.
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

    The pauses lengthen the `gc` operation or, with `in_forward`, the first forward computations; in
    this case the client reports them with `is_sent`.
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


def _random_stalls_s(
    mean_s: float, rate: float, shape: tuple[int, ...], rng: np.random.Generator
) -> Floats:
    """Seconds: exponentially distributed with a probability of `rate`, else 0."""
    return np.asarray(rng.exponential(mean_s, shape) * (rng.random(shape) < rate), np.float64)


def _stall_computations(
    drawn: DrawnSteps, worker: Worker, at: int, mean_s: float, rate: float, rng: np.random.Generator
) -> None:
    """Random stalls before or within a worker's computations, in the step at a position."""
    dp_rank, stage = worker
    for duration_s, delay_s in (
        (drawn.forward_s, drawn.forward_delay_s),
        (drawn.backward_s, drawn.backward_delay_s),
    ):
        stall_s = _random_stalls_s(mean_s, rate, duration_s.shape[1:3], rng)
        comes_before = rng.random(stall_s.shape) < 0.5
        delay_s[stage, :, :, at, dp_rank] += stall_s * comes_before
        duration_s[stage, :, :, at, dp_rank] += stall_s * ~comes_before


# Fraction of the spells after the first that have stalls.
_SPELL_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class AllocatorStalls(WorkersFault):
    """Some workers stall in a fraction `rate` of their computations, in spells.

    A stall takes `stall_s` on average, before the computation or within it. Spells take
    `spell_steps` steps; the first has stalls, later ones may have none.
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
            spell = (step - self.when.first_step) // self.spell_steps
            # Spells have the generators of numbers beyond all steps, counted down.
            if spell == 0 or rng_of(WHOLE_JOB - spell).random() < _SPELL_SHARE:
                rng = rng_of(step)
                for worker in self.workers:
                    _stall_computations(drawn, worker, at, self.stall_s, self.rate, rng)


# Standard deviation of the logarithm of single waits: storage varies a lot.
_DATA_WAIT_SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class DataLoading(HostFault):
    """A host's workers, or all workers, wait before a step's first forward computation.

    A host of None means all hosts, which wait for different times. Samples are fetched on demand,
    so stages wait one after the other. With `is_sent` the client reports the waits.
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
        chosen = np.zeros(shape)
        workers = world.hosts if self.host is None else world.workers_of_host(self.host)
        for dp_rank, stage in workers:
            chosen[stage, dp_rank] = 1.0
        for at, step in affected_steps(drawn, lasts):
            if (step - self.when.first_step) % self.every_steps == self.every_steps - 1:
                stall_s = log_normal_around(self.stall_s, _CHECKPOINT_SPREAD, rng_of(step), shape)
                drawn.once_delay_s["gc"][:, 0, at] += chosen * stall_s


@dataclass(frozen=True, slots=True)
class JobStop(WorkersFault):
    """Some workers do nothing for `stop_s` in the middle of the first step of the fault."""

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
    """Other processes use a host's CPUs, so some launches of its workers are late.

    A share `rate` of all operations starts late by `delay_s` on average, or takes longer by that.
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
            for worker in world.workers_of_host(self.host):
                self._delay(drawn, worker, at, rng)

    def _delay(self, drawn: DrawnSteps, worker: Worker, at: int, rng: np.random.Generator) -> None:
        dp_rank, stage = worker
        _stall_computations(drawn, worker, at, self.delay_s, self.rate, rng)
        once = [delay_s[stage, :, at, dp_rank] for delay_s in drawn.once_delay_s.values()]
        sends = [
            drawn.p2p_delay_s[name][stage, :, :, at, dp_rank]
            for name in ("forward-send", "backward-send")
            if name in drawn.p2p_delay_s
        ]
        for delay_s in (*once, *sends):
            delay_s += _random_stalls_s(self.delay_s, self.rate, delay_s.shape, rng)
