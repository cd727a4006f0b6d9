"""The interface of a detector, and helpers for the sentences of findings.

A sentence states the fact, then the cost, in the plain present tense; in the past tense where the
cause has ended.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.finding import Worker
from app.diagnosis.repair import Repair
from app.diagnosis.statistics.persistence import Onset
from app.formatting import plural
from app.result.finding import Basis, Culprit, OnsetForm, RuledOut, SentenceParts
from app.result.words import in_tense, sentence_case
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class CulpritParts:
    """The culprits of a suspicion one by one, so that each is held against its own repair.

    `number` of culprits that may be dropped separately. `repair` and `suspicion` take the positions
    of some of them, at least one, and return what repairs these alone, or suspects these alone.
    """

    number: int
    repair: Callable[[Sequence[int]], Repair]
    suspicion: Callable[[Sequence[int]], "Suspicion"]


_UNKNOWN = Onset(None, None)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A cause that a detector suspects, before its cost is known.

    `repair` gives durations without the cause; None where nothing is replayed (then `cost` counts).
    `delays` is for a cause that shows as launch delay, which a replay leaves out: its `duration_s`
    are seconds of late launch, 0 in other lanes; they are added to T' and left out of the repaired
    time. `badness` [n] says how bad each step of the extended history was, 1.0 = not at all, NaN =
    unknown; `onset` comes from it where it is not given. `fact` begins the
    sentence, its verbs marked (words.py), and `onset_form` says how the onset follows it: None
    where the fact has the step already. Below `min_cost`, a share of GPU time, the cause is not
    named. `parts` is for several culprits with a repair. `max_confidence` is for few steps, on
    which nothing was calibrated, and for a doubt that the sentence names and that the calibrated
    jobs rarely have.
    With `is_cost_recorded` the cost is `cost`, read from the record, whatever is replayed.
    `is_at_step_end` is for work after the last micro-batch, as the optimizer. `basis` says what the
    cause rests on, and `note` is a sentence after the others.
    """

    cause: str
    score: float
    confidence: float
    culprits: tuple[Culprit, ...]
    fact: str
    repair: Repair | None = None
    delays: Repair | None = None
    badness: Floats | None = None
    cost: float | None = None
    min_cost: float = 0.0
    max_confidence: float = 1.0
    is_cost_recorded: bool = False
    is_at_step_end: bool = False
    onset: Onset = _UNKNOWN
    evidence: Mapping[str, Any] = field(default_factory=dict)
    parts: CulpritParts | None = None
    onset_form: OnsetForm | None = "since"
    basis: Basis = "concluded"
    note: str = ""

    @property
    def workers(self) -> list[Worker]:
        """The workers in its evidence."""
        return [(dp_rank, stage) for dp_rank, stage in self.evidence.get("workers", ())]


class Detector(ABC):
    """One root cause; `by_arrivals` where it reads only who came late, and others come first."""

    cause: ClassVar[str]
    by_arrivals: ClassVar[bool] = False

    @abstractmethod
    def detect(self, case: Case) -> Suspicion | RuledOut:
        """A suspicion if the case shows this cause, else the reason against it."""

    def cannot_tell(self, reason: str, score: float = 0.0, **figures: float) -> RuledOut:
        """The reason why the data do not show whether the case has this cause."""
        return RuledOut(self.cause, reason, insufficient=True, score=score, figures=figures)

    def denied(self, reason: str, score: float = 0.0, **figures: float) -> RuledOut:
        """The reason against this cause."""
        return RuledOut(self.cause, reason, score=score, figures=figures)


# More workers of a suspicion are counted, not listed.
MAX_LISTED = 64


def workers_evidence(workers: Sequence[Worker]) -> dict[str, Any]:
    """The workers of a suspicion, as evidence."""
    listed = [list(worker) for worker in workers[:MAX_LISTED]]
    return {"workers": listed, "num_workers": len(workers)}


# More culprits than this are counted, not named.
_MAX_NAMED = 3
# Of a long host name the end is kept, in which the hosts of a cluster differ.
_MAX_HOST_CHARS = 48
# Unicode marks that reverse the direction of the text around them.
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def sentence_parts(suspicion: Suspicion) -> SentenceParts:
    """The fact in both tenses, with its first letter in upper case."""
    fact, past_fact = (
        sentence_case(in_tense(suspicion.fact, is_past=is_past)) for is_past in (False, True)
    )
    return SentenceParts(
        fact=fact, past_fact=past_fact, onset=suspicion.onset_form, note=suspicion.note
    )


def names_of(culprits: Sequence[Culprit], num_stages: int | None = None) -> str:
    """The culprits in words: "host-17, rank 11 (dp 3, stage 1), GPU 5", "host-2", "stage 3"."""
    if not culprits:
        return "every worker"
    # Only a stage that is alone is called the last one: these words have commas.
    num_stages = num_stages if len(culprits) == 1 else None
    named = [_name(culprit, num_stages) for culprit in culprits[:_MAX_NAMED]]
    # Names of workers have commas, too.
    between = "; " if any("," in name for name in named) else ", "
    more = len(culprits) - _MAX_NAMED
    if more > 0:
        hosts = " hosts" if more > 1 and all(map(_is_host, culprits)) else ""
        return f"{between.join(named)} and {more:,} more{hosts}"
    if len(named) == 1:
        return named[0]
    return f"{between.join(named[:-1])} and {named[-1]}"


def is_plural(culprits: Sequence[Culprit]) -> bool:
    """Whether the words of `names_of` take a plural verb: "ranks 0 to 3 (dp 0, stage 0)" do."""
    if len(culprits) != 1:
        return len(culprits) > 1
    return culprits[0].host is None and len(culprits[0].ranks) > 1


def _is_host(culprit: Culprit) -> bool:
    return culprit.dp_rank is None and culprit.stage is None and culprit.rank is None


def steps_of(number: int, num_steps: int) -> str:
    """In which steps: "in 15 of 31 steps", "in all 31 steps"."""
    if number < num_steps:
        return f"in {number:,} of {plural(num_steps, 'step')}"
    return "in the only step" if num_steps == 1 else f"in all {num_steps:,} steps"


def step_by_step(number: int, num_steps: int) -> str:
    """As `steps_of` of what is so step by step: "in every step" where all of them show it."""
    return "in every step" if number == num_steps else steps_of(number, num_steps)


def as_ratio(ratio: float) -> str:
    """A ratio in words: 12x, 1.6x, below 1.15 with two digits."""
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 1.15 else 2
    return f"{ratio:,.{digits}f}x"


def _name(culprit: Culprit, num_stages: int | None) -> str:
    if culprit == Culprit(stage=culprit.stage) and culprit.stage == (num_stages or 0) - 1:
        return f"stage {culprit.stage}, the last stage,"
    host = _host(culprit.host) if culprit.host else None
    return structs.replace(culprit, host=host).name() or "every worker"


def _host(name: str) -> str:
    """A host's name without direction marks, cut at its beginning to fit."""
    plain = _DIRECTION_MARKS.sub("", name)
    return plain if len(plain) <= _MAX_HOST_CHARS else "..." + plain[3 - _MAX_HOST_CHARS :]


@dataclass(frozen=True, slots=True)
class FewStepsLimits:
    """Thresholds of slow workers and stages in windows of few usual steps. All were chosen."""

    # Steps from which a slowdown is no chance: the median of three outvotes one of them.
    enough_steps: int = 3
    # Times the peers' time that are no chance in a single step either: of one step no spread is
    # known, so it is far above the thresholds of longer windows.
    min_clear_ratio: float = 1.25
    # Confidence of a slowdown in so few steps, at most: no job with so few was calibrated.
    max_confidence: float = 0.7
    # Steps before the window that may support its slowdown: about as many as a small window has.
    max_earlier_steps: int = 8


LIMITS = FewStepsLimits()


def is_supported(num_usual: int, earlier: Floats, least: float) -> NDArray[np.bool_]:
    """[...], whether the window and the steps before it are long enough, and agree.

    Args:
        num_usual: number of usual steps in the window.
        earlier: [steps before the window, ...] ratios, 1.0 = no slowdown, NaN = unknown.
        least: the smallest mean ratio of the earlier steps that supports a slowdown.
    """
    if num_usual >= LIMITS.enough_steps:
        return np.ones(earlier.shape[1:], np.bool_)
    known = np.isfinite(earlier).all(axis=tuple(range(1, earlier.ndim)))
    latest = earlier[known][-LIMITS.max_earlier_steps :]
    if num_usual + len(latest) < LIMITS.enough_steps:
        return np.zeros(earlier.shape[1:], np.bool_)
    return np.asarray(latest.mean(axis=0) >= least)


def too_few_steps_reason(num_usual: int, slowest: str, ratio: float) -> str:
    """The reason against a slowdown in a window of too few steps."""
    steps = "a single step is" if num_usual == 1 else f"{num_usual} steps are"
    return (
        f"{steps} too few to rule out chance: the slowest, {slowest}, takes {as_ratio(ratio)} as "
        f"long; {LIMITS.min_clear_ratio}x is needed"
    )
