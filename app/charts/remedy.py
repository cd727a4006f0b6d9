"""What would help against the leading cause, and what that would win back."""

from collections.abc import Mapping
from typing import Any

from app import words

Finding = Mapping[str, Any]

_ACTS = {
    "gc-pause": "Collecting garbage on all workers in the same step",
    "data-loading": "Loading data in time",
    "allocator-stall": "Avoiding the memory allocator's stalls",
    "uniform-slowdown": "Computing as fast as before",
    "late-host": "Launching in time",
    "sequence-imbalance": "Balancing documents over dp ranks by that sum",
}
# What to look at on a host that launches late, by what is known of the reason.
_CHECKS = {
    "data-wait": "Its launches wait for data: check its data loader.",
    "gc": "Python's garbage collector pauses there: collect on all ranks in the same step.",
}
_CHECK_ALL = (
    "Check its data loader, garbage collection, other processes on the host, CPU frequency, and "
    "Python work between operations."
)
_LEAST_COST = 0.005
_HOURS_A_DAY = 24
# Less apart than this, rounding may show both as the same.
_CLEARLY_MORE = 1.01


def remedy(finding: Finding, *, pp_size: int, num_gpus: int, slowdown: float | None = None) -> str:
    """One or two sentences; "" where nothing would be won back, or that is not known.

    With `num_gpus` of a running job they say what that is a day. A cost is against peers, a loss
    against the ideal: with the job's `slowdown` they say where the one is more than the other.
    """
    act = _act(finding)
    won = _won(finding, num_gpus)
    if not act or not won:
        return ""
    won += _more_than_lost(finding, num_gpus, slowdown)
    return " ".join(each for each in (_why(finding, pp_size), f"{act} would {won}.") if each)


def won_back_gpu_hours(finding: Finding, num_gpus: int) -> float | None:
    """GPU-hours a day that are won back without the finding; None where its cost is unknown."""
    cost = finding["cost"]
    return None if cost is None or not num_gpus else cost * num_gpus * _HOURS_A_DAY


def _won(finding: Finding, num_gpus: int) -> str:
    cost = finding["cost"]
    if cost is None or cost < _LEAST_COST:
        return ""
    a_day = won_back_gpu_hours(finding, num_gpus)
    if a_day is not None:
        return f"win back {words.gpu_hours(a_day)} per day"
    share = (finding.get("evidence") or {}).get("share_of_loss")
    if share is None or share > 1:
        return f"win back {words.percent(cost)} of the GPU time"
    return f"win back {words.percent(share)} of the loss"


def _more_than_lost(finding: Finding, num_gpus: int, slowdown: float | None) -> str:
    """Why more is won back than counts as lost; "" where it is not more."""
    lost = None if slowdown is None else 1 - 1 / slowdown
    if lost is None or finding["cost"] <= _CLEARLY_MORE * max(lost, 0.0):
        return ""
    who = "this stage itself" if finding["cause"] == "stage-imbalance" else "the fault itself"
    counted = f"{words.percent(max(lost, 0.0))}"
    if num_gpus:
        counted = words.gpu_hours(max(lost, 0.0) * num_gpus * _HOURS_A_DAY).removesuffix(" GPU-h")
    return f", more than the {counted} counted as lost: the ideal is a mean that {who} raises"


def _act(finding: Finding) -> str:
    culprits = finding["culprits"]
    match finding["cause"]:
        case "slow-worker":
            of_workers = any("stage" in each for each in culprits)
            return f"Fixing {_these(len(culprits), 'worker' if of_workers else 'host')}"
        case "slow-link" | "flapping-link":
            return f"Fixing {_these(len(culprits), 'link')}"
        case "stage-imbalance":
            return f"Fixing {_these(len(culprits), 'stage')}" if culprits else ""
    return _ACTS.get(finding["cause"], "")


def _why(finding: Finding, pp_size: int) -> str:
    match finding["cause"]:
        case "late-host":
            because = (finding.get("evidence") or {}).get("late_because")
            return _CHECKS.get(str(because), _CHECK_ALL)
        case "stage-imbalance" if any(
            each.get("stage") == pp_size - 1 for each in finding["culprits"]
        ):
            return "Give the last stage fewer layers: it also computes the loss."
        case "sequence-imbalance":
            r = (finding.get("evidence") or {}).get("pearson_r_with_lengths_squared")
            fit = "" if r is None else f" (r\u00b2 {r * r:.2f})"
            follows = "Micro-batch time follows the sum of squared sequence lengths"
            return f"No host is at fault. {follows}{fit}."
    return ""


def _these(number: int, noun: str) -> str:
    return f"this {noun}" if number <= 1 else f"these {words.counted(number, noun)}"
