"""What every fault of a made job answers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.synth.world import RngOf, World
from app.trace.window import Floats, Ints

# What can be sent.
_LAST_STEP = 2**53


@dataclass(frozen=True, slots=True)
class When:
    """The steps that a fault lasts: from `first_step`, `num_steps` of them, or to the end."""

    first_step: int = 0
    num_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_step <= _LAST_STEP:
            raise InvalidRequest(
                f"a fault from step {self.first_step} on: steps are 0 to {_LAST_STEP:,}"
            )
        if self.num_steps is not None and not 0 < self.num_steps <= _LAST_STEP:
            raise InvalidRequest(
                f"a fault of {self.num_steps} steps is none: give 1 to {_LAST_STEP:,}"
            )

    @property
    def last_step(self) -> int | None:
        """The last of them, None where there is none."""
        return None if self.num_steps is None else self.first_step + self.num_steps - 1

    def holds(self, steps: Ints) -> Floats:
        """[steps], 1.0 while the fault lasts and else 0.0."""
        after = steps >= self.first_step
        if self.num_steps is not None:
            after &= steps < self.first_step + self.num_steps
        return np.asarray(after, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(ABC):
    """Something that is wrong with a job, in the steps `when`.

    `name` is what users call it, `cause` its name in results, None where there is nothing to be
    named; `is_slow` says whether it makes steps longer at all. Numbers that make no sense are
    refused when it is made, places that the job does not have by `check`.
    """

    name: ClassVar[str]
    cause: ClassVar[str | None]
    is_slow: ClassVar[bool] = True
    when: When = When()

    def strike(self, drawn: Drawn, world: World, rng_of: RngOf) -> None:
        """Change what was drawn for the steps in which the fault lasts.

        Raises:
            InvalidRequest: the job has no such place.
        """
        self.check(world)
        lasts = self.when.holds(drawn.steps)
        if lasts.any():
            self.change(drawn, world, lasts, rng_of)

    @abstractmethod
    def check(self, world: World) -> None:
        """Returns if the job has the place that the fault is in.

        Raises:
            InvalidRequest: it has not; the message says what it has.
        """

    @abstractmethod
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        """Change what was drawn where `lasts` [steps] is 1.0; nothing else."""

    @abstractmethod
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        """Who is to blame, as a perfect diagnosis would say it; () is everybody."""

    def undone(self) -> "Fault":
        """What stands in its place in the same job without it, to tell what it costs."""
        return Absent(when=self.when)


@dataclass(frozen=True, slots=True)
class Absent(Fault):
    """Nothing is wrong; the faults after it keep the chance that they had."""

    name = "absent"
    cause = None
    is_slow = False

    @override
    def check(self, world: World) -> None:
        return

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        return

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
