"""What changed between two windows A and B: their figures, the causes, and the headline.

A cause is new, gone or on both sides. The headline says how much slower or faster B is, and which
causes are new or gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app import formatting
from app.result.causes import cause_phrase
from app.result.figures import gpu_time_wasted
from app.result.finding import Finding
from app.result.window_result import StepTimeName, WindowResult, mean_s

_SHAPE_SIZES = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size")


@dataclass(frozen=True, slots=True)
class Side:
    """A result (docs/glossary.md) with its job's name and GPUs."""

    job_id: str
    name: str
    num_gpus: int
    result: WindowResult

    @property
    def slowdown(self) -> float | None:
        """None where no step was analysed."""
        return self.result.slowdown

    @property
    def is_low(self) -> bool:
        """Whether the simulation is too far off: only recorded times are shown."""
        return self.result.fidelity.verdict == "low"

    @property
    def shape(self) -> dict[str, int]:
        """Sizes by axis; a step takes as much work only where they are equal."""
        return {name: getattr(self.result.job, name) for name in _SHAPE_SIZES}

    @property
    def findings(self) -> Sequence[Finding]:
        """Causes; empty where the data allow no diagnosis."""
        return self.result.findings or ()

    def mean_s(self, kind: StepTimeName) -> float | None:
        """Mean seconds a step; None where no step was analysed."""
        has_times = bool(getattr(self.result.step_time_s, kind))
        return mean_s(self.result, kind) if has_times else None

    @property
    def why_not_measured(self) -> str | None:
        """Why there are no figures; None if there are."""
        if self.slowdown is not None:
            return None
        if not self.result.skipped_steps:
            return "no complete step has been analysed"
        first = self.result.skipped_steps[0]
        return f"step {first.step} was left out: {first.reason}"


CauseChange = Literal["new", "gone", "same"]


@dataclass(frozen=True, slots=True)
class ComparedCause:
    """A cause on one side or both; `before` is A's finding where both have it.

    A cost is the share of its side's GPU time, where known.
    """

    change: CauseChange
    finding: Finding
    before: Finding | None = None

    @property
    def cost(self) -> float:
        """Its cost, on B if there, else on A; 0 if unknown."""
        return self.finding.cost or 0.0


def compared_causes(a: Side, b: Side) -> list[ComparedCause]:
    """Every cause once: new ones, then those on both sides, then gone ones; most costly first."""
    left = list(a.findings)
    causes = []
    for finding in b.findings:
        before = next((other for other in left if _is_same(other, finding)), None)
        if before is not None:
            left.remove(before)
        causes.append(ComparedCause("new" if before is None else "same", finding, before))
    causes += [ComparedCause("gone", finding) for finding in left]
    order = ("new", "same", "gone")
    return sorted(causes, key=lambda cause: (order.index(cause.change), -cause.cost))


def _is_same(before: Finding, after: Finding) -> bool:
    """Whether both findings have the same cause and a common culprit (worker or host)."""
    if before.cause != after.cause:
        return False
    was, now = _blamed_targets(before), _blamed_targets(after)
    return bool(was & now) or not (was and now)


def _blamed_targets(finding: Finding) -> set[str | tuple[int | None, int | None]]:
    """Hosts, and places in the job, that a finding names."""
    hosts = {culprit.host for culprit in finding.culprits if culprit.host}
    places = {(culprit.dp_rank, culprit.stage) for culprit in finding.culprits}
    return hosts | (places - {(None, None)})


# Step times this close count as equal: they vary as much from one step to the next.
SAME_WITHIN = 0.01
# From this difference of ideal step times on, the work of a step is not the same.
_SAME_WORK_WITHIN = 0.03
_MAX_NAMED = 2


def compare_headline(a: Side, b: Side, causes: Sequence[ComparedCause]) -> tuple[str, str]:
    """The sentence that compares B with A, and the line under it."""
    if (a.job_id, a.result.window.id) == (b.job_id, b.result.window.id):
        return "Both sides are the same: nothing differs.", "Pick another window, run or job."
    for letter, side in (("A", a), ("B", b)):
        if (why := side.why_not_measured) is not None:
            return f"{letter} has no figures to compare.", f"{letter}: {why}."
    if a.is_low or b.is_low:
        return _recorded_only(a, b)
    return f"{_comparison(a, b)}{_changed_causes(causes)}.", _times_sentence(a, b)


def step_time_change(a: Side, b: Side) -> float | None:
    """How much longer a recorded step takes on B, as a share of A's; None where not comparable.

    Jobs of different shapes do different work in a step.
    """
    was_s, is_s = a.mean_s("recorded"), b.mean_s("recorded")
    if not was_s or is_s is None or a.shape != b.shape:
        return None
    return is_s / was_s - 1


def _comparison(a: Side, b: Side) -> str:
    ratios = f"{formatting.ratio(b.slowdown or 1)} against {formatting.ratio(a.slowdown or 1)}"
    change = step_time_change(a, b)
    if change is not None:
        return f"{ratios}: {_change_text(change)}"
    lost, was_lost = (
        formatting.percent(max(0.0, gpu_time_wasted(side.slowdown or 1))) for side in (b, a)
    )
    return f"{ratios}: it loses {lost} of its GPU time against {was_lost}"


def _change_text(change: float) -> str:
    if abs(change) < SAME_WITHIN:
        return "a step takes as long"
    how = "longer" if change > 0 else "less time"
    return f"a step takes {formatting.percent(abs(change))} {how}"


def _changed_causes(causes: Sequence[ComparedCause]) -> str:
    """The first two causes that came or went, and how many more."""
    changed = [cause for cause in causes if cause.change != "same"]
    if not changed:
        return "; the causes are the same" if causes else ""
    named = [
        f"{cause_phrase(cause.finding.cause)} is {cause.change}" for cause in changed[:_MAX_NAMED]
    ]
    more = len(changed) - len(named)
    others = f", and {formatting.plural(more, 'more cause')} came or went" if more else ""
    return f"; {', '.join(named)}{others}"


def _recorded_only(a: Side, b: Side) -> tuple[str, str]:
    low = " and ".join(letter for letter, side in (("A", a), ("B", b)) if side.is_low)
    change = step_time_change(a, b)
    text = "only recorded times can be compared" if change is None else _change_text(change)
    why = "The simulated steps are too far from the recorded ones to name a loss or a cause."
    return f"{text.capitalize()}: {low} has low fidelity.", why


def _times_sentence(a: Side, b: Side) -> str:
    """Step times of both sides, and whether their work is the same."""
    was_s, is_s = (side.mean_s("recorded") or 0.0 for side in (a, b))
    before_s, after_s = (side.mean_s("ideal") or 0.0 for side in (a, b))
    text = (
        f"A step takes {formatting.seconds(is_s)} against {formatting.seconds(was_s)}; "
        f"without stragglers {formatting.seconds(after_s)} against {formatting.seconds(before_s)}."
    )
    if a.shape != b.shape:
        return f"{text} The shapes differ, so the times tell little."
    change = after_s / before_s - 1 if before_s > 0 else 0.0
    if abs(change) < _SAME_WORK_WITHIN:
        return text
    moved = f"{formatting.percent(abs(change))} {'more' if change > 0 else 'less'}"
    return f"{text} So {moved} is no straggler's: the work or the speed of all changed."
