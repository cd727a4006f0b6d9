"""Verdict on the findings of a run.

A run is judged over all of its windows, since each of them is shown and each may fire an alert.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.result.finding import Culprit, Finding
from app.result.window_result import WindowResult
from benchmarks.trainings.cases import Run, late_because

Outcome = Literal["right", "wrong-culprit", "wrong-cause", "missed", "healthy", "false-cause"]

BAR = 0.95  # of the runs of a faulty case
GOOD: tuple[Outcome, ...] = ("right", "healthy")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judged findings of a run.

    `outcome` goes by the cause that cost most over all windows; `extra_causes` are those beside
    it that no answer to the fault has, in any window.
    """

    outcome: Outcome
    cause: str | None
    culprits: tuple[Culprit, ...]
    sentence: str | None
    costs: dict[str, float]
    extra_causes: list[str]
    num_windows: int
    num_right_windows: int

    @classmethod
    def of(cls, run: Run, results: Sequence[WindowResult]) -> "Verdict":
        """Of the run's closed windows, oldest first."""
        findings = [finding for result in results for finding in result.findings or ()]
        costs: dict[str, float] = defaultdict(float)
        for finding in findings:
            costs[finding.cause] += (finding.cost or 0.0) / len(results)
        right = {finding.cause for finding in findings if run.is_right_cause(finding)}
        first = max(costs, key=costs.__getitem__, default=None)
        shown = _shown([finding for finding in findings if finding.cause == first])
        return cls(
            outcome=_outcome(run, shown),
            cause=first,
            culprits=() if shown is None else shown.culprits,
            sentence=None if shown is None else shown.sentence,
            costs=dict(costs),
            extra_causes=sorted(costs.keys() - right),
            num_windows=len(results),
            num_right_windows=sum(_is_right(run, result) for result in results),
        )


def _shown(findings: list[Finding]) -> Finding | None:
    """Of findings of one cause, one with the culprits that most of them have."""
    if not findings:
        return None
    counted = Counter(map(_key, findings))
    return max(findings, key=lambda finding: counted[_key(finding)])


def _key(finding: Finding) -> str:
    return repr((finding.culprits, late_because(finding)))


def _outcome(run: Run, shown: Finding | None) -> Outcome:
    if not run.case.fault:
        return "healthy" if shown is None else "false-cause"
    if shown is None:
        return "missed"
    if not run.is_right_cause(shown):
        return "wrong-cause"
    return "right" if run.names_culprit(shown) else "wrong-culprit"


def _is_right(run: Run, result: WindowResult) -> bool:
    """Whether the first finding of this window alone is right."""
    return _outcome(run, result.findings[0] if result.findings else None) in GOOD


def figures(verdicts: Iterable[tuple[Run, Verdict]]) -> dict[str, Any]:
    """Counts by case, over all, and whether the bars are held."""
    by_case: dict[str, list[Verdict]] = defaultdict(list)
    num_faulty = num_right = num_false = 0
    for run, verdict in verdicts:
        by_case[run.case.name].append(verdict)
        num_faulty += bool(run.case.fault)
        num_right += verdict.outcome == "right"
        num_false += verdict.outcome == "false-cause"
    share = num_right / num_faulty if num_faulty else None
    return {
        "cases": {name: _counts(each) for name, each in by_case.items()},
        "faulty_runs": num_faulty,
        "right_runs": num_right,
        "right_share": share,
        "false_causes_in_healthy_runs": num_false,
        "bar": BAR,
        "holds": (share is None or share >= BAR) and num_false == 0,
    }


def _counts(verdicts: list[Verdict]) -> dict[str, Any]:
    outcomes = Counter(each.outcome for each in verdicts)
    return {
        "runs": len(verdicts),
        **{name.replace("-", "_"): count for name, count in sorted(outcomes.items())},
        "windows": sum(each.num_windows for each in verdicts),
        "right_windows": sum(each.num_right_windows for each in verdicts),
        "extra_causes": dict(Counter(name for each in verdicts for name in each.extra_causes)),
    }
