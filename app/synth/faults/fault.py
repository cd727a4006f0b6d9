"""The interface of a fault, the checks of its settings, and the culprits that it names.

`SimulatedJob` draws some successive steps at a time, a block, and calls `fault.apply(drawn,
world, rng_of)` once for each block and fault. `drawn.steps` holds the numbers of the block's
steps; the step axis of every array is in their order. A fault changes the arrays in place, and
only for the steps in which it lasts. How steps are split into blocks must not show, so randomness
comes from `rng_of(step)` alone: by step number, not by position.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.cluster import RngOf, Worker, World
from app.synth.drawing import DrawnSteps
from app.trace.window import Floats, Ints

# The server accepts operations of up to a day.
_MAX_FACTOR = 1e5
_MAX_S = 3_600.0


def refuse_factor(factor: float) -> None:
    """Check a slowdown factor.

    Raises:
        InvalidRequest: it is out of range.
    """
    if not 0 < factor <= _MAX_FACTOR:
        raise InvalidRequest(
            f"factor is {factor}: give a number above 0, at most {_MAX_FACTOR:,.0f}"
        )


def refuse_seconds(seconds: float) -> None:
    """Check a duration.

    Raises:
        InvalidRequest: it is out of range.
    """
    if not 0 < seconds <= _MAX_S:
        raise InvalidRequest(
            f"a fault of {seconds} seconds: give a number above 0, at most {_MAX_S:,.0f}"
        )


def refuse_share(name: str, share: float) -> None:
    """Check that a fraction is above 0 and at most 1.

    Raises:
        InvalidRequest: it is not.
    """
    if not 0 < share <= 1:
        raise InvalidRequest(f"{name} is {share}: give a number above 0, at most 1")


def refuse_below(name: str, number: int, minimum: int) -> None:
    """Check a minimum.

    Raises:
        InvalidRequest: the number is below it.
    """
    if number < minimum:
        raise InvalidRequest(f"{name} is {number}: give {minimum} or more")


WorkerPlaces = tuple[Worker, ...]


def refuse_worker(dp_rank: int, stage: int, world: World) -> None:
    """Check that the job has this worker.

    Raises:
        InvalidRequest: it has not.
    """
    refuse_outside("dp rank", dp_rank, world.parallelism.dp_size)
    refuse_outside("stage", stage, world.parallelism.pp_size)


def refuse_outside(axis: str, index: int, size: int) -> None:
    """Check that 0 <= index < size.

    Raises:
        InvalidRequest: the job has no such index on this axis.
    """
    if not 0 <= index < size:
        raise InvalidRequest(f"the fault is on {axis} {index}: this job has 0 to {size - 1}")


def refuse_host(host: str, world: World) -> None:
    """Check that the job runs on this host.

    Raises:
        InvalidRequest: it does not.
    """
    if not world.workers_of_host(host):
        raise InvalidRequest(
            f"the fault is on {host}: this job runs on {_some_names(world.host_names)}"
        )


def culprit(world: World, dp_rank: int, stage: int) -> Culprit:
    """One worker, with its host."""
    return Culprit(dp_rank, stage, world.hosts.get((dp_rank, stage)))


def culprit_hosts(world: World, hosts: Iterable[str]) -> tuple[Culprit, ...]:
    """Each host by name, or by its worker if the job has only one there."""
    found: list[Culprit] = []
    for host in hosts:
        workers = world.workers_of_host(host)
        found.append(culprit(world, *workers[0]) if len(workers) == 1 else Culprit(host=host))
    return tuple(sorted(found, key=str))


def _some_names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} .. {names[-1]}"


# The largest step number of the wire format.
_MAX_STEP = 2**53


@dataclass(frozen=True, slots=True)
class FaultSteps:
    """The steps of a fault: `num_steps` from `first_step`, or all from there."""

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
        """The last step; None if the fault does not end."""
        return None if self.num_steps is None else self.first_step + self.num_steps - 1

    def holds(self, steps: Ints) -> Floats:
        """[steps], 1.0 in the steps of the fault, else 0.0."""
        after = steps >= self.first_step
        if self.num_steps is not None:
            after &= steps < self.first_step + self.num_steps
        return np.asarray(after, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(ABC):
    """Something that is wrong with a job, in the steps `when`.

    `name` is its name on the command line, `cause` the cause that a diagnosis should name, if any;
    `is_slow` tells whether it makes steps longer. The constructor refuses invalid numbers, `check`
    workers and hosts that the job does not have.
    """

    name: ClassVar[str]
    cause: ClassVar[str | None]
    is_slow: ClassVar[bool] = True
    when: FaultSteps = FaultSteps()

    def apply(self, drawn: DrawnSteps, world: World, rng_of: RngOf) -> None:
        """Change the drawn durations of the steps with the fault.

        Raises:
            InvalidRequest: the job lacks the worker or host of the fault.
        """
        self.check(world)
        lasts = self.when.holds(drawn.steps)
        if lasts.any():
            self.change(drawn, world, lasts, rng_of)

    @abstractmethod
    def check(self, world: World) -> None:
        """Check that the job has the worker or host of the fault.

        Raises:
            InvalidRequest: it has not.
        """

    @abstractmethod
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        """Change the drawn durations where `lasts` [steps] is 1.0; nothing else."""

    @abstractmethod
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        """The culprits that a perfect diagnosis would name; () means every worker."""

    def baseline(self) -> "Fault":
        """The replacement of this fault in the same job without it, to measure its cost."""
        return NoFault(when=self.when)


@dataclass(frozen=True, slots=True)
class NoFault(Fault):
    """No fault; keeps the positions, and so the random numbers, of the faults after it."""

    name = "absent"
    cause = None
    is_slow = False

    @override
    def check(self, world: World) -> None:
        return

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        return

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
