"""The interface of a detector, and helpers for the sentences of findings.

A sentence states the fact, then the cost, in the plain present tense; in the past tense where the
cause has ended.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.finding import Worker
from app.diagnosis.repair import Repair
from app.result.finding import Basis, Culprit, OnsetForm, Persistence, RuledOut, SentenceParts
from app.result.sentence import cost_words, in_tense, onset_words, sentence_case, whole_sentence
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class CostFigures:
    """Figures of a finding that are known only after its cost was computed."""

    cost: float | None
    onset_step: int | None
    persistence: Persistence | None
    cost_after_others: float | None = None  # its cost after the repairs that hide it now
    cost_range: tuple[float, float] | None = None  # where replay and waits disagree
    end_step: int | None = None  # the last step with the cause; None while it lasts
    is_past: bool = False  # the past tense also without an end


@dataclass(frozen=True, slots=True)
class CulpritParts:
    """The culprits of a suspicion one by one, so that each is held against its own repair.

    `number` of culprits that may be dropped separately. `repair` and `suspicion` take the positions
    of some of them, at least one, and return what repairs these alone, or suspects these alone.
    """

    number: int
    repair: Callable[[Sequence[int]], Repair]
    suspicion: Callable[[Sequence[int]], "Suspicion"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A cause that a detector suspects, before its cost is known.

    `repair` gives durations without the cause; None where nothing is replayed (then `cost` counts).
    `delays` is for a cause that shows as launch delay, which a replay leaves out: its `duration_s`
    are seconds of late launch, 0 in other lanes; they are added to T' and left out of the repaired
    time. `badness` [n] says how bad each step of the extended history was, 1.0 = not at all, NaN =
    unknown; onset, end and persistence come from it unless they are given. `wording` makes the
    sentence, and `onset_form` says how it adds the onset, None where the fact has the step already.
    Below `min_cost`, a share of GPU time, the cause is not named. `parts` is for several culprits
    with a repair. `max_confidence` is for few steps, on which nothing was calibrated, and for a
    doubt that the sentence names and that the calibrated jobs rarely have.
    With `is_cost_recorded` the cost is `cost`, read from the record, whatever is replayed.
    `is_at_step_end` is for work after the last micro-batch, as the optimizer. `basis` says what the
    cause rests on.
    """

    cause: str
    score: float
    confidence: float
    culprits: tuple[Culprit, ...]
    wording: Callable[[CostFigures], str]
    repair: Repair | None = None
    delays: Repair | None = None
    badness: Floats | None = None
    cost: float | None = None
    min_cost: float = 0.0
    max_confidence: float = 1.0
    is_cost_recorded: bool = False
    is_at_step_end: bool = False
    onset_step: int | None = None
    persistence: Persistence | None = None
    end_step: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    parts: CulpritParts | None = None
    onset_form: OnsetForm | None = "since"
    basis: Basis = "concluded"

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
# The end of a host's name is kept: there the hosts of a cluster differ.
_MAX_HOST_CHARS = 48
# Unicode marks that reverse the direction of the text around them.
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def finding_sentence(fact: str, costs: CostFigures) -> str:
    """The fact, its onset, its end and its cost, without a full stop.

    The fact has its verbs marked (sentence.py).
    """
    is_past = costs.is_past or costs.end_step is not None
    said = f"{in_tense(fact, is_past=is_past)}{onset_words(costs.onset_step, costs.end_step)}"
    return said + _cost_words(costs)


def sentence_and_parts(suspicion: Suspicion, costs: CostFigures) -> tuple[str, SentenceParts]:
    """The sentence of a finding, with its first letter in upper case, and its parts."""
    without = CostFigures(None, None, costs.persistence)
    fact, past_fact = (
        sentence_case(suspicion.wording(each)) for each in (without, replace(without, is_past=True))
    )
    parts = SentenceParts(fact=fact, past_fact=past_fact, onset=suspicion.onset_form)
    return whole_sentence(parts, costs.onset_step, costs.end_step, _cost_words(costs)), parts


def names_of(culprits: Sequence[Culprit], num_stages: int | None = None) -> str:
    """The culprits in words: "host-17, rank 11 (dp 3, stage 1), GPU 5", "host-2", "stage 3"."""
    if not culprits:
        return "every worker"
    # Only one alone is called the last: the words have commas.
    num_stages = num_stages if len(culprits) == 1 else None
    named = [_name(culprit, num_stages) for culprit in culprits[:_MAX_NAMED]]
    more, hosts = len(culprits) - _MAX_NAMED, all(_is_host(each) for each in culprits)
    # Names of workers have commas, too.
    between = "; " if any("," in each for each in named) else ", "
    if more > 0:
        return f"{between.join(named)} and {more:,} more{' hosts' if hosts and more > 1 else ''}"
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


def plural(number: int, noun: str) -> str:
    """Number and noun, as "1 step" or "1,024 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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


def percent(share: float) -> str:
    """A share in words, as pages show it: 31 %, below 9.95 % with one digit."""
    return formatting.percent(share)


def _name(culprit: Culprit, num_stages: int | None) -> str:
    if culprit == Culprit(stage=culprit.stage) and culprit.stage == (num_stages or 0) - 1:
        return f"stage {culprit.stage}, the last stage,"
    host = _host(culprit.host) if culprit.host else None
    return structs.replace(culprit, host=host).name() or "every worker"


def _host(name: str) -> str:
    """A host's name without direction marks, cut at its beginning to fit."""
    plain = _DIRECTION_MARKS.sub("", name)
    return plain if len(plain) <= _MAX_HOST_CHARS else "..." + plain[3 - _MAX_HOST_CHARS :]


def _cost_words(costs: CostFigures) -> str:
    is_past = costs.is_past or costs.end_step is not None
    return cost_words(costs.cost, costs.cost_range, costs.cost_after_others, is_past=is_past)


# So many steps are enough to tell a slowdown from chance.
ENOUGH_STEPS = 3
# A ratio that is no chance in a single step either.
MIN_CLEAR_RATIO = 1.25
MAX_CONFIDENCE = 0.7
# Steps before the window that may support a slowdown in a short window.
_EARLIER_STEPS = 8


def is_supported(num_usual: int, earlier: Floats, least: float) -> NDArray[np.bool_]:
    """[...], whether the window and the steps before it are long enough, and agree.

    Args:
        num_usual: number of usual steps in the window.
        earlier: [steps before the window, ...] ratios, 1.0 = no slowdown, NaN = unknown.
        least: the smallest mean ratio of the earlier steps that supports a slowdown.
    """
    if num_usual >= ENOUGH_STEPS:
        return np.ones(earlier.shape[1:], np.bool_)
    known = np.isfinite(earlier).all(axis=tuple(range(1, earlier.ndim)))
    latest = earlier[known][-_EARLIER_STEPS:]
    if num_usual + len(latest) < ENOUGH_STEPS:
        return np.zeros(earlier.shape[1:], np.bool_)
    return np.asarray(latest.mean(axis=0) >= least)


def too_few_steps_reason(num_usual: int, who: str, ratio: str) -> str:
    """The reason against a slowdown in a window of too few steps."""
    steps = "a single step" if num_usual == 1 else f"{num_usual} steps"
    return (
        f"{steps} {'is' if num_usual == 1 else 'are'} too few to rule out chance: the slowest, "
        f"{who}, takes {ratio} as long; {MIN_CLEAR_RATIO}x is needed"
    )
