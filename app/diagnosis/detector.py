"""What every detector of a root cause answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from app.diagnosis.case import Case
from app.diagnosis.finding import Culprit, Persistence, RuledOut
from app.diagnosis.repair import Repair
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Costed:
    """What a sentence may need that is known only after the cost was computed."""

    cost: float | None
    onset_step: int | None
    persistence: Persistence | None
    once_others_are_mended: float | None = None  # its cost then, where another one hides it now
    cost_range: tuple[float, float] | None = None  # where replay and waits disagree


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A cause that a detector sees, before its cost, onset and persistence are known.

    `repair` says what the operations would take without the cause; None where nothing is to be
    replayed (then `cost` is used). `course` [n] is how bad it was in each step of the case's
    course (history and window), 1.0 = not at all, NaN = not known; its onset and persistence are
    read from it. None where these do not apply. `wording` makes the sentence. `delays` is for a
    cause that shows as launch delay, which a replay leaves out: its `duration_s` are the seconds
    that the operations of its rows were launched too late, 0 in lanes not blamed. T' has them
    added to what is recorded; the cause's own repair takes them out again. `min_cost` is the share
    of GPU time below which it is not worth naming, where its evidence is weaker than others'.
    """

    cause: str
    score: float
    confidence: float
    culprits: tuple[Culprit, ...]
    wording: Callable[[Costed], str]
    repair: Repair | None = None
    delays: Repair | None = None
    course: Floats | None = None
    cost: float | None = None
    min_cost: float = 0.0
    onset_step: int | None = None
    persistence: Persistence | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Detector(ABC):
    """One root cause."""

    cause: ClassVar[str]

    @abstractmethod
    def detect(self, case: Case) -> Suspicion | RuledOut:
        """Whether the case shows this cause; if not, why not."""
