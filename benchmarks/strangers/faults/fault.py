"""A fault of a simulated job: what it does to the times, and what a diagnosis should say of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.strangers.graph import StepGraph
from benchmarks.strangers.noise import Base
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations

Worker = tuple[int, int]
Workers = frozenset[Worker]
Persistence = Literal["transient", "chronic", "rotating", "progressive"]
Area = Literal["compute", "network", "host", "all"]


@dataclass(frozen=True, slots=True)
class JobUnderway:
    """What a fault needs to know of the job that it befalls."""

    shape: Shape
    graph: StepGraph
    base: Base
    num_steps: int
    rng: np.random.Generator
    has_loader: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """The right answer.

    `causes`: accepted names. `culprits`: sets of workers any of which is exactly right; empty where
    none can be named. `guilty`: workers that may be named without being innocent. `onset` and
    `end`: positions of the first step with the fault and of the first one without it again; None
    where that lies outside of the window. `may_abstain`: nothing in the record decides.
    `may_be_silent`: nothing need be said. `facts`: kinds of observations any of which says it
    where no row shows the cause; without `causes` their share is that of the cost.
    `costs_nothing`: it counts all the same.
    """

    kind: str
    causes: frozenset[str]
    culprits: tuple[Workers, ...]
    guilty: Workers
    area: Area
    persistence: frozenset[str] = frozenset({"chronic"})
    onset: int | None = None
    end: int | None = None
    may_abstain: bool = False
    may_be_silent: bool = False
    facts: frozenset[str] = frozenset()
    costs_nothing: bool = False

    def without_culprits(self) -> "Truth":
        """The same where no exact set of workers is expected."""
        return replace(self, culprits=())


def combined(
    changes: Sequence[Callable[[Durations, Extras], None]],
) -> Callable[[Durations, Extras], None]:
    """All changes, one after the other."""

    def change(durations: Durations, extras: Extras) -> None:
        for each in changes:
            each(durations, extras)

    return change


@dataclass(slots=True)
class Fault:
    """A fault that was drawn: `change` alters durations and what is recorded besides."""

    truth: Truth
    change: Callable[[Durations, Extras], None]
    words: str = ""

    def named(self, kind: str) -> "Fault":
        """The same as a fault of another kind; `words` keep the former name."""
        words = f"{self.truth.kind}, {self.words}"
        return replace(self, truth=replace(self.truth, kind=kind), words=words)


Draw = Callable[[JobUnderway], Fault]
# What a job does by design: alters its healthy durations. Returns the number of first steps that
# are no measure of the others.
Design = Callable[[JobUnderway, Durations, Extras], int]


def workers_of_stage(shape: Shape, stage: int) -> Workers:
    """All replicas of a stage."""
    return frozenset((dp_rank, stage) for dp_rank in range(shape.dp))


def all_workers(shape: Shape) -> Workers:
    """Every worker of the job."""
    return frozenset(shape.workers())


@dataclass(frozen=True, slots=True)
class Course:
    """How strong a fault is in every step: `strength` [steps], 0 to 1."""

    strength: NDArray[np.float64]
    onset: int | None
    end: int | None
    persistence: frozenset[str]

    @property
    def on_s(self) -> NDArray[np.float64]:
        """[steps, 1, 1], to multiply with operations."""
        return self.strength[:, None, None]


CHRONIC = frozenset({"chronic"})


def whole(num_steps: int) -> Course:
    """In every step."""
    return Course(np.ones(num_steps), None, None, CHRONIC)


def since(num_steps: int, rng: np.random.Generator) -> Course:
    """From a step on, with enough steps on both sides."""
    onset = int(rng.integers(num_steps // 3, num_steps * 2 // 3))
    on = (np.arange(num_steps) >= onset).astype(float)
    most = CHRONIC if 2 * onset <= num_steps else frozenset({"chronic", "transient"})
    return Course(on, onset, None, most)


def recovered(num_steps: int, rng: np.random.Generator) -> Course:
    """From a step to another one, both inside of the window."""
    onset = int(rng.integers(num_steps // 5, num_steps // 3 + 1))
    end = int(rng.integers(num_steps * 3 // 5, num_steps * 4 // 5))
    at = np.arange(num_steps)
    return Course(
        ((at >= onset) & (at < end)).astype(float), onset, end, frozenset({"chronic", "transient"})
    )


def ramping(num_steps: int, rng: np.random.Generator) -> Course:
    """Growing from nothing through the whole window."""
    del rng
    return Course(np.linspace(0.05, 1, num_steps), None, None, frozenset({"progressive"}))


def come_and_go(num_steps: int, rng: np.random.Generator) -> Course:
    """In blocks of a few steps, again and again."""
    on = np.zeros(num_steps)
    at = int(rng.integers(0, 3))
    while at < num_steps:
        length = int(rng.integers(2, 5))
        on[at : at + length] = 1
        at += length + int(rng.integers(2, 5))
    share = on.mean()
    said = {"transient"} if share < 0.4 else {"transient", "chronic"}
    return Course(on, None, None, frozenset(said))
