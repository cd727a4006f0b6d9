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
from numpy.typing import NDArray

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.finding import Culprit, Persistence, RuledOut
from app.diagnosis.onset_words import onset_words, past_tense
from app.diagnosis.repair import Repair
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
    sentence. Below `min_cost`, a share of GPU time, the cause is not named. `parts` is
    for several culprits with a repair. `max_confidence` is for evidence that cannot decide, however
    often such findings are right: few steps, or two explanations that look alike. With
    `is_cost_recorded` the cost is `cost`, read from the record, whatever is replayed.
    `is_at_step_end` is for work after the last micro-batch, as the optimizer.
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


class Detector(ABC):
    """One root cause."""

    cause: ClassVar[str]

    @abstractmethod
    def detect(self, case: Case) -> Suspicion | RuledOut:
        """A suspicion if the case shows this cause, else the reason against it."""


# More culprits than this are counted, not named.
_MAX_NAMED = 3
# The end of a host's name is kept: there the hosts of a cluster differ.
_MAX_HOST_CHARS = 48
# Unicode marks that reverse the direction of the text around them.
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def finding_sentence(fact: str, costs: CostFigures) -> str:
    """The fact, its onset, its end and its cost, without a full stop.

    The fact is in the present tense, with verbs of onset_words.py.
    """
    said = f"{fact}{onset_words(costs.onset_step, costs.end_step)}{_cost(costs)}"
    return said if costs.end_step is None else past_tense(said)


def names_of(culprits: Sequence[Culprit], num_stages: int | None = None) -> str:
    """The culprits in words: "rank 11 (dp 3, stage 1) on host-17, GPU 5", "host-2", "stage 3"."""
    if not culprits:
        return "every worker"
    named = [_name(culprit, num_stages) for culprit in culprits[:_MAX_NAMED]]
    if len(culprits) > _MAX_NAMED:
        return f"{'; '.join(named)} and {len(culprits) - _MAX_NAMED:,} more"
    if len(named) == 1:
        return named[0]
    return f"{'; '.join(named[:-1])} and {named[-1]}"


def plural(number: int, noun: str) -> str:
    """Number and noun, as "1 step" or "1,024 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def as_ratio(ratio: float) -> str:
    """A ratio in words: 1.6x, below 1.15 with two digits."""
    return f"{ratio:.1f}x" if ratio >= 1.15 else f"{ratio:.2f}x"


def percent(share: float) -> str:
    """A share in words: 31 %, below 9.5 % with one digit."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _name(culprit: Culprit, num_stages: int | None) -> str:
    host = _host(culprit.host) if culprit.host else ""
    if culprit.dp_rank is None and culprit.stage is None and culprit.rank is None:
        return host or "every worker"
    parts = [f"dp {culprit.dp_rank}"] if culprit.dp_rank is not None else []
    if culprit.stage is not None:
        is_last = culprit.dp_rank is None and culprit.stage + 1 == num_stages
        parts.append(f"stage {culprit.stage}" + (", the last stage," if is_last else ""))
    return formatting.gpu(culprit.rank, ", ".join(parts), host, culprit.local_rank)


def _host(name: str) -> str:
    """A host's name without direction marks, cut at its beginning to fit."""
    plain = _DIRECTION_MARKS.sub("", name)
    return plain if len(plain) <= _MAX_HOST_CHARS else "..." + plain[3 - _MAX_HOST_CHARS :]


def _cost(costs: CostFigures) -> str:
    if costs.cost is None:
        return ""
    if costs.cost_after_others is not None:
        later = percent(costs.cost_after_others)
        return (
            f"; hidden by another cause now, it costs {later} of the GPU time once that is mended"
        )
    if costs.cost_range is not None:
        low, high = (percent(each) for each in costs.cost_range)
        return f"; it costs {low} to {high} of the job's GPU time"
    return f"; it costs {percent(costs.cost)} of the job's GPU time"


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
