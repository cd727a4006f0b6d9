"""The interface of faults: checks of settings, changes of a job, and expected culprits.

`SimulatedJob` draws successive steps in blocks and calls `fault.apply(drawn, world, rng_of)` once
per block and fault. `drawn.steps` holds the numbers of the block's steps; the step axis of arrays
has their order. A fault changes the arrays in place, only in the steps in which it lasts. Results
must not depend on the division into blocks, so random numbers come from `rng_of(step)`: by the
number of a step, not by its position.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, get_type_hints

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.cluster import RngOf, Worker, World
from app.synth.drawing import DrawnSteps, Interruption
from app.trace.ops import OP_CODES, OP_SPECS, Axis, Direction
from app.trace.window import Floats, Ints

# Limits that keep operations below a day, the longest that the server accepts.
_MAX_FACTOR = 1e5
_MAX_S = 3_600.0


def _refuse_factor(_: str, factor: float) -> None:
    if not 0 < factor <= _MAX_FACTOR:
        raise InvalidRequest(
            f"factor is {factor}: give a number above 0, at most {_MAX_FACTOR:,.0f}"
        )


def _refuse_seconds(_: str, seconds: float) -> None:
    if not 0 < seconds <= _MAX_S:
        raise InvalidRequest(
            f"a fault of {seconds} seconds: give a number above 0, at most {_MAX_S:,.0f}"
        )


def _refuse_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise InvalidRequest(f"{name} is {share}: give a number above 0, at most 1")


def at_least(minimum: int) -> Callable[[str, int], None]:
    """The check of a setting against a minimum, for `Annotated`."""

    def refuse_below(name: str, number: int) -> None:
        if number < minimum:
            raise InvalidRequest(f"{name} is {number}: give {minimum} or more")

    return refuse_below


# Types of settings, with the checks that `Fault` makes.
Factor = Annotated[float, _refuse_factor]  # times as long
Seconds = Annotated[float, _refuse_seconds]
Share = Annotated[float, _refuse_share]

WorkerPlaces = tuple[Worker, ...]


@lru_cache(maxsize=64)
def _checks_of(kind: type["Fault"]) -> list[tuple[str, Callable[[str, Any], None]]]:
    """The fields of a fault's settings, with their checks."""
    hints = get_type_hints(kind, include_extras=True).items()
    return [(name, check) for name, type_ in hints for check in getattr(type_, "__metadata__", ())]


def refuse_worker(dp_rank: int, stage: int, world: World) -> None:
    """Raise InvalidRequest unless the job has this dp rank and stage."""
    refuse_outside("dp rank", dp_rank, world.parallelism.dp_size)
    refuse_outside("stage", stage, world.parallelism.pp_size)


def refuse_outside(axis: str, index: int, size: int) -> None:
    """Raise InvalidRequest unless 0 <= index < size, the job's on this axis."""
    if not 0 <= index < size:
        raise InvalidRequest(f"the fault is on {axis} {index}: this job has 0 to {size - 1}")


def culprit(world: World, dp_rank: int, stage: int) -> Culprit:
    """A worker as a culprit, with its host."""
    return Culprit(dp_rank, stage, world.hosts.get((dp_rank, stage)))


def culprit_hosts(world: World, hosts: Iterable[str]) -> tuple[Culprit, ...]:
    """Hosts as culprits; for a host with one worker, this worker."""
    culprits: list[Culprit] = []
    for host in hosts:
        workers = world.workers_of_host(host)
        culprits.append(culprit(world, *workers[0]) if len(workers) == 1 else Culprit(host=host))
    return tuple(sorted(culprits, key=str))


def _some_names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} .. {names[-1]}"


# The largest step number of the wire format.
_MAX_STEP = 2**53


@dataclass(frozen=True, slots=True)
class FaultSteps:
    """The steps of a fault: `num_steps` from `first_step` on, or all from there."""

    first_step: int = 0
    num_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_step <= _MAX_STEP:
            raise InvalidRequest(
                f"a fault from step {self.first_step} on: steps are 0 to {_MAX_STEP:,}"
            )
        if self.num_steps is not None and not 0 < self.num_steps <= _MAX_STEP:
            raise InvalidRequest(f"a fault of {self.num_steps} steps: give 1 to {_MAX_STEP:,}")

    @property
    def last_step(self) -> int | None:
        """The last step, None if the fault does not end."""
        return None if self.num_steps is None else self.first_step + self.num_steps - 1

    def holds(self, steps: Ints) -> Floats:
        """[steps], 1.0 in the steps of the fault, else 0.0."""
        lasts = steps >= self.first_step
        if self.last_step is not None:
            lasts &= steps <= self.last_step
        return np.asarray(lasts, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(ABC):
    """A fault of a job in the steps `when`.

    `name` is that on the command line, `cause` the cause that a diagnosis should name, if any;
    `is_slow`: it makes steps longer. The constructor refuses invalid settings, `check` refuses
    workers and hosts that the job does not have.
    """

    name: ClassVar[str]
    cause: ClassVar[str | None]
    is_slow: ClassVar[bool] = True
    when: FaultSteps = FaultSteps()

    def __post_init__(self) -> None:
        for field, check in _checks_of(type(self)):
            check(field.replace("_", "-"), getattr(self, field))

    def apply(self, drawn: DrawnSteps, world: World, rng_of: RngOf) -> None:
        """Change the drawn durations of the steps; raises InvalidRequest as `check` does."""
        self.check(world)
        lasts = self.when.holds(drawn.steps)
        if lasts.any():
            self.change(drawn, world, lasts, rng_of)

    def check(self, world: World) -> None:  # noqa: B027
        """Check that the job has the worker or host of the fault; the default accepts any job.

        Raises:
            InvalidRequest: the job lacks it.
        """

    @abstractmethod
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        """Change the drawn durations, only where `lasts` [steps] is 1.0."""

    def culprits(self, world: World) -> tuple[Culprit, ...]:
        """The culprits that a perfect diagnosis would name; () means all workers."""
        return ()

    def baseline(self) -> "Fault":
        """The replacement of this fault in the job that its cost is measured against."""
        return NoFault(when=self.when)


@dataclass(frozen=True, slots=True)
class NoFault(Fault):
    """No fault; it keeps the positions and thus the random numbers of the faults after it."""

    name = "absent"
    cause = None
    is_slow = False

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        return


@dataclass(frozen=True, slots=True)
class WorkerFault(Fault):
    """A fault of one worker."""

    dp_rank: int
    stage: int

    @override
    def check(self, world: World) -> None:
        refuse_worker(self.dp_rank, self.stage, world)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (culprit(world, self.dp_rank, self.stage),)


@dataclass(frozen=True, slots=True)
class StageFault(Fault):
    """A fault of one stage in every replica."""

    stage: int

    @override
    def check(self, world: World) -> None:
        refuse_outside("stage", self.stage, world.parallelism.pp_size)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (Culprit(stage=self.stage),)


class HostFault(Fault):
    """A fault of one host, or of all where its `host` is None."""

    __slots__ = ()
    host: str | None

    @override
    def check(self, world: World) -> None:
        if self.host is not None and not world.workers_of_host(self.host):
            raise InvalidRequest(
                f"the fault is on {self.host}: this job runs on {_some_names(world.host_names)}"
            )

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return () if self.host is None else culprit_hosts(world, [self.host])


class WorkersFault(Fault):
    """A fault of its `workers`."""

    __slots__ = ()
    workers: WorkerPlaces

    @override
    def check(self, world: World) -> None:
        for worker in self.workers:
            refuse_worker(*worker, world)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return tuple(culprit(world, *worker) for worker in sorted(self.workers))


def factor_while(factor: float, lasts: Floats) -> Floats:
    """[steps], the factor where `lasts` is 1.0, and 1.0 where it is 0.0."""
    return 1.0 + (factor - 1.0) * lasts


def scale_worker(drawn: DrawnSteps, dp_rank: int, stage: int, factor: Floats) -> None:
    """Scale one worker's forward and backward computations by `factor` [steps]."""
    for duration_s in (drawn.forward_s, drawn.backward_s):
        duration_s[stage, ..., dp_rank] *= factor


def scale_stage(drawn: DrawnSteps, stage: int, forward: Floats, backward: Floats) -> None:
    """Scale a stage's computations in all replicas by factors [steps] of each direction."""
    for duration_s, factor in ((drawn.forward_s, forward), (drawn.backward_s, backward)):
        duration_s[stage] *= factor[:, None]


def scale_pair(
    drawn: DrawnSteps, dp_rank: int, stages: tuple[int, int], factor: Floats, microbatches: slice
) -> None:
    """Scale the transfers between two stages of a replica, in both directions, by `factor` [steps].

    `microbatches` are the affected ones.
    """
    num_stages = drawn.forward_s.shape[0]
    for transfer_s, towards in ((drawn.forward_transfer_s, 1), (drawn.backward_transfer_s, -1)):
        for receiver in set(stages):
            if {receiver, (receiver - towards) % num_stages} == set(stages):
                transfer_s[receiver, :, microbatches, :, dp_rank] *= factor


def neighbours(world: World, stage: int) -> list[int]:
    """The stages that a stage exchanges data with, ascending."""
    num_stages = world.parallelism.pp_size
    if world.num_chunks > 1:  # the last stage sends to the first one's next chunk
        return sorted({(stage - 1) % num_stages, (stage + 1) % num_stages} - {stage})
    return [neighbour for neighbour in (stage - 1, stage + 1) if 0 <= neighbour < num_stages]


def scale_dp_group(drawn: DrawnSteps, stage: int, factor: Floats) -> None:
    """Scale the collectives of a stage's dp ranks by `factor` [steps].

    A ring is as fast as its slowest link.
    """
    for name, duration_s in drawn.once_s.items():
        if OP_SPECS[OP_CODES[name]].axis is Axis.DP:
            duration_s[stage] *= factor[:, None]


def affected_steps(drawn: DrawnSteps, lasts: Floats) -> list[tuple[int, int]]:
    """Positions and numbers of the steps with the fault."""
    return [(at, int(drawn.steps[at])) for at in np.flatnonzero(lasts).tolist()]


def log_normal_around(
    median: float, spread: float, rng: np.random.Generator, shape: tuple[int, ...]
) -> Floats:
    """Log-normal numbers; `spread` is the standard deviation of their logarithm."""
    return np.asarray(median * np.exp(spread * rng.standard_normal(shape)), np.float64)


def add_pause(drawn: DrawnSteps, interruption: Interruption, *, is_sent: bool) -> None:
    """Lengthen a computation by a pause, which the client reports with `is_sent`."""
    where = interruption.stage, interruption.chunk, interruption.microbatch
    is_forward = interruption.direction is Direction.FORWARD
    duration_s = drawn.forward_s if is_forward else drawn.backward_s
    duration_s[(*where, interruption.step, interruption.dp_rank)] += interruption.duration_s
    if is_sent:
        drawn.interruptions.append(interruption)
