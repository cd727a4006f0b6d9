"""Verdicts of Paceline on the runs of examples/torch_pipeline, over all windows of each."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.e2e.stack import Stack, wait_until

CONTROL = "1f1b:none"
# Expected cause and culprits of each run.
EXPECTED: dict[str, tuple[str | None, list[dict[str, int]]]] = {
    CONTROL: (None, []),
    "1f1b:long-sequences": ("sequence-imbalance", [{"dp_rank": 1}]),
    "1f1b:long-last-stage": ("stage-imbalance", [{"stage": 1}]),
    "1f1b:gc-pauses": ("gc-pause", []),
    "interleaved:slow-rank": ("slow-worker", [{"dp_rank": 1, "stage": 0}]),
}
# Mean over a run's windows. On an overloaded machine each fault costs at least 15 % of the job's
# time; no cause reached more than 3 % in the healthy run.
NEGLIGIBLE_COST = 0.05
MAX_DISCREPANCY = 0.05

Result = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Verdict on one run: the costliest cause over all windows, with its most frequent culprits."""

    cause: str | None
    culprits: list[dict[str, int]]
    cost_by_cause: dict[str, float]

    @classmethod
    def of(cls, windows: list[Result]) -> "Verdict":
        """Windows without a finding count as zero cost, or not at all if simulated badly."""
        windows = [each for each in windows if each["findings"] or _is_simulated_well(each)]
        costs: dict[str, list[float]] = defaultdict(list)
        blamed: dict[str, list[list[dict[str, int]]]] = defaultdict(list)
        for finding in (each for window in windows for each in window["findings"] or []):
            costs[finding["cause"]].append(finding["cost"] or 0.0)
            blamed[finding["cause"]].append([_position(each) for each in finding["culprits"]])
        means = {cause: sum(each) / len(windows) for cause, each in costs.items()}
        worst = max(means, key=means.__getitem__, default=None)
        if worst is None or means[worst] < NEGLIGIBLE_COST:
            return cls(None, [], means)
        return cls(worst, max(blamed[worst], key=blamed[worst].count), means)


def _is_simulated_well(window: Result) -> bool:
    return bool(window["fidelity"]["verdict"] == "ok")


def _position(culprit: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in culprit.items() if name in ("dp_rank", "stage")}


def discrepancy(runs: dict[str, list[Result]]) -> float:
    """Median discrepancy over all windows of all runs."""
    return float(
        median(window["fidelity"]["discrepancy"] for windows in runs.values() for window in windows)
    )


def is_as_expected(runs: dict[str, list[Result]]) -> bool:
    """Whether every verdict is as expected and the simulation matches."""
    verdicts = {run: Verdict.of(windows) for run, windows in runs.items()}
    return discrepancy(runs) < MAX_DISCREPANCY and all(
        (verdicts[run].cause, verdicts[run].culprits) == wanted for run, wanted in EXPECTED.items()
    )


def windows_of(stack: Stack, job: str, last_step: int) -> list[Result]:
    """All windows of a job, once they include its last step."""

    def items() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stack.get(f"/jobs/{job}/windows", limit=100)["items"]
        return found

    def results() -> list[Result]:
        return [stack.get(f"/jobs/{job}/windows/{item['window_id']}") for item in items()]

    def is_whole() -> bool:
        steps = [step for window in results() for step in window["steps"]]
        return last_step in steps and {item["state"] for item in items()} == {"complete"}

    wait_until(is_whole, f"all windows of {job} are closed")
    return results()
