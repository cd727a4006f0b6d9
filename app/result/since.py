"""A window's result from one of its steps on, so that figures since an onset start at the onset.

What has a value for each step is exact: times, slowdown and loss. Figures by worker, stage and
operation type stay the whole window's, since results have no simulated times of them by step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.result.figures import gpu_time_wasted
from app.result.step_counts import step_counts, total_s

Result = Mapping[str, Any]


def result_since(result: Result, step: int) -> dict[str, Any]:
    """The result without the steps before `step`, without `per_step`.

    The whole result where it has no figures, or `step` is none of its later steps. The cost of a
    finding that began at the first step kept, or later, is of the steps kept.
    """
    steps: Sequence[int] = result["steps"]
    first = sum(each < step for each in steps)
    if result["slowdown"] is None or not 0 < first < len(steps):
        return dict(result)
    times = {
        name: None if each is None else each[first:] for name, each in result["step_time_s"].items()
    }
    left = {"steps": list(steps[first:]), "step_time_s": times} | _thinned_since(result, first)
    recorded_s, simulated_s, ideal_s = (
        total_s(left, name) for name in ("recorded", "simulated", "ideal")
    )
    slowdown = simulated_s / ideal_s
    whole_s = total_s(result, "recorded")
    wasted_s = whole_s * gpu_time_wasted(result["slowdown"])
    lost_share = recorded_s * gpu_time_wasted(slowdown) / wasted_s if wasted_s else 0.0
    found = result["findings"]
    return {
        **{name: value for name, value in result.items() if name != "per_step"},
        **left,
        "step_started_s": (result.get("step_started_s") or [None] * len(steps))[first:],
        "step_slowdown": result["step_slowdown"][first:],
        "structures": [
            kept for each in result.get("structures", ()) if (kept := _since(each, step))
        ],
        "slowdown": slowdown,
        "gpu_time_wasted": gpu_time_wasted(slowdown),
        "gpu_hours_lost": result["gpu_hours_lost"] * lost_share,
        "launch_slowdown": recorded_s / simulated_s,
        "findings": found
        and [_finding(each, steps[first - 1], whole_s / recorded_s) for each in found],
    }


def _thinned_since(result: Result, first: int) -> dict[str, Any]:
    if not result.get("thinned"):
        return {}
    return {"thinned": {**result["thinned"], "step_counts": step_counts(result)[first:]}}


def _since(steps: Sequence[int], step: int) -> list[int]:
    return [each for each in steps if each >= step]


def _finding(finding: Result, last_left_out: int, ratio: float) -> dict[str, Any]:
    """The finding; its cost times `ratio` if all of it is in the steps that are kept."""
    onset, cost = finding["onset_step"], finding["cost"]
    if onset is None or onset <= last_left_out or cost is None:
        return dict(finding)
    ends = finding.get("cost_range")
    return {
        **finding,
        "cost": min(1.0, cost * ratio),
        "cost_range": None if ends is None else [min(1.0, each * ratio) for each in ends],
    }
