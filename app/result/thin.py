"""One small result of successive windows, to be stored in their place when they are old.

It is the joint result of the windows, with causes, losses and figures by worker over all of their
steps. Of its lists by step at most `MAX_VALUES` values are left, each the mean of successive steps
(app.result.step_counts). What is needed to replay one of the windows stays beside them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from app.result.join import joint_result
from app.result.step_counts import Resolution, step_counts

Result = Mapping[str, Any]

# Of each list by step: an hour's are of two and a half minutes, a day's of an hour.
MAX_VALUES = 24
# Skipped steps that are listed: the first ones, of every reason at least one.
MAX_SKIPPED = 20

_TIMES = ("recorded", "between", "simulated", "ideal")
# What a window's replay needs of its result.
_RECORDED = ("window", "steps", "skipped_steps", "imputed")


def thinned_result(
    parts: Sequence[Result], resolution: Resolution, recorded: Result | None = None
) -> dict[str, Any]:
    """The result that replaces those of successive windows of one run.

    Args:
        parts: their results, ascending, without `per_step`; thinned ones may be among them.
        resolution: what the new result is of.
        recorded: that of the windows whose operations stay stored.
    """
    joint = joint_result(parts)
    windows = [each["window"] for each in parts]
    header = {
        **joint["window"],
        "id": windows[0]["id"],
        "num_windows": sum(each.get("num_windows", 1) for each in windows),
    }
    for name in ("windows", "left_out", "num_left_out"):
        header.pop(name, None)
    counts = step_counts(joint)
    groups = _groups(len(counts))
    weights = [np.array([counts[at] for at in group], float) for group in groups]
    thinned: dict[str, Any] = {
        "resolution": resolution,
        "step_counts": [int(each.sum()) for each in weights],
        "num_skipped": sum(_num_skipped(each) for each in parts),
    }
    if recorded is not None:
        thinned["recorded"] = recorded_part(recorded)
    result = {
        **joint,
        "window": header,
        "steps": [joint["steps"][group[0]] for group in groups],
        "skipped_steps": _some_skipped(joint["skipped_steps"]),
        "thinned": thinned,
    }
    if joint.get("imputed"):
        result["imputed"] = {**joint["imputed"], "steps": []}
    if not groups:  # no step of any window has figures
        return result
    means = _Means(groups, weights)
    times = {name: means.of(joint["step_time_s"][name]) for name in _TIMES}
    return {
        **result,
        "step_time_s": times,
        "step_started_s": [joint["step_started_s"][group[0]] for group in groups],
        "step_slowdown": [
            simulated_s / ideal_s if simulated_s is not None and ideal_s else None
            for simulated_s, ideal_s in zip(times["simulated"], times["ideal"], strict=True)
        ],
        "structures": [],
        "fidelity": {
            **joint["fidelity"],
            "step_discrepancy": means.of(joint["fidelity"]["step_discrepancy"]),
        },
    }


def recorded_part(result: Result) -> dict[str, Any]:
    """What a replay needs of the result of the window whose operations are stored."""
    kept: dict[str, Any] = (result.get("thinned") or {}).get("recorded") or {
        name: result.get(name) for name in _RECORDED
    }
    return kept


class ThinnedSteps(NamedTuple):
    """Successive steps, seconds a step; `last_step` is that before the next ones, or the window's.

    `started_s` is the Unix time at which the first of them started.
    """

    first_step: int
    last_step: int
    num_steps: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    started_s: float | None


def thinned_steps(result: Result, last_step: int, *, max_values: int) -> list[ThinnedSteps]:
    """The steps with figures of a window that ends at `last_step`, as so many means at most."""
    numbers, counts = result["steps"], step_counts(result)
    groups = _groups(len(numbers), max_values)
    weights = [np.array([counts[at] for at in group], float) for group in groups]
    means = _Means(groups, weights)
    recorded, simulated, ideal = (
        means.of(result["step_time_s"].get(name) or [])
        for name in ("recorded", "simulated", "ideal")
    )
    started_s = result.get("step_started_s") or [None] * len(numbers)
    ends = [numbers[after[0]] - 1 for _, after in pairwise(groups)] + [last_step]
    found = []
    for at, group in enumerate(groups):
        without, best = simulated[at], ideal[at]
        slowdown = None if without is None or not best else without / best
        found.append(
            ThinnedSteps(
                numbers[group[0]], ends[at], int(weights[at].sum()),
                recorded[at], without, best, slowdown, started_s[group[0]],
            )
        )  # fmt: skip
    return found


class _Means:
    """Weighted means of each group of places in a list."""

    def __init__(self, groups: Sequence[range], weights: Sequence[Any]) -> None:
        self._groups, self._weights = groups, weights

    def of(self, values: Sequence[float | None]) -> list[Any]:
        """A mean is over the known values, None where none is."""
        if not values:
            return [None] * len(self._groups)
        found: list[Any] = []
        for group, weight in zip(self._groups, self._weights, strict=True):
            part = np.array([values[at] for at in group], float)
            is_known = np.isfinite(part)
            total = weight[is_known].sum()
            found.append(float((part * weight)[is_known].sum() / total) if total else None)
        return found


def _groups(number: int, max_values: int = MAX_VALUES) -> list[range]:
    """Successive places in as many parts of about equal length as there may be."""
    edges = np.linspace(0, number, min(number, max_values) + 1).round().astype(int).tolist()
    return [range(first, end) for first, end in pairwise(edges)]


def _num_skipped(result: Result) -> int:
    thinned = result.get("thinned") or {}
    return int(thinned.get("num_skipped", len(result["skipped_steps"])))


def _some_skipped(skipped: Sequence[Result]) -> list[Any]:
    first_of = {each["reason"]: at for at, each in reversed(list(enumerate(skipped)))}
    kept = sorted(first_of.values())[:MAX_SKIPPED]
    others = (at for at in range(len(skipped)) if at not in set(kept))
    for at, _ in zip(others, range(MAX_SKIPPED - len(kept)), strict=False):
        kept.append(at)
    return [skipped[at] for at in sorted(kept)]
