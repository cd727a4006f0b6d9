"""Arrivals of several windows together, from their results' blocks (docs/arrivals.md).

Means over steps are weighted by the windows' steps, shares of occurrences by their number of
occurrences, shares of the step by its time. Windows without arrivals are left out: nothing is known
of waits in them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.engine.combine_parts import Result

_PLACE = ("rank", "dp_rank", "stage", "host", "local_rank")
_BY_STEPS = ("waited_for_s", "waited_s", "own_delay_s")
_OF_GROUP = ("transfer_s", "waited_s", "bandwidth_bytes_s")
MAX_GROUPS = 50

# A value of each window, and its weight.
Weighed = Sequence[tuple[float | None, float]]


def combined_arrivals(known: Sequence[Result]) -> dict[str, Any]:
    """The keys about arrivals of windows with figures, in their order and of one run."""
    step_s = [float(sum(each["step_time_s"]["recorded"])) for each in known]
    shares = {
        name: mean_known([(each.get(name), s) for each, s in zip(known, step_s, strict=True)])
        for name in ("unexplained_share", "coverage")
    }
    have = [each for each in known if each.get("arrivals")]
    return {"arrivals": _joint(have) if have else None, **shares}


def mean_known(values: Weighed) -> float | None:
    """The weighted mean of those that are known; None where none is."""
    pairs = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total > 0 else None


def _joint(have: Sequence[Result]) -> dict[str, Any]:
    blocks = [each["arrivals"] for each in have]
    num_steps = [len(each["steps"]) for each in have]
    recorded_s = [float(sum(each["step_time_s"]["recorded"])) for each in have]
    by_rank = _Ranks(blocks)
    occurrences = [float(each["num_occurrences"]) for each in blocks]
    joint: dict[str, Any] = {
        "num_occurrences": sum(each["num_occurrences"] for each in blocks),
        "num_ranks": max(each.get("num_ranks", len(each["rank"])) for each in blocks),
        "waiting_share": _mean(blocks, "waiting_share", recorded_s),
        **by_rank.places,
        **{name: by_rank.means(name, num_steps) for name in _BY_STEPS},
        "late_share": by_rank.means("late_share", occurrences),
        "groups": _groups(blocks, num_steps),
    }
    mean_step_s = sum(recorded_s) / sum(num_steps)
    most_s = max((each or 0.0 for each in joint["waited_for_s"]), default=0.0)
    joint["largest_share"] = most_s / mean_step_s
    joint["culprits"] = _culprits(blocks, num_steps, joint, by_rank, mean_step_s)
    if all("per_step" in each for each in blocks):
        joint["per_step"] = {"waited_for_s": by_rank.by_step("waited_for_s")}
    return joint


class _Ranks:
    """Every rank of any window: places as the newest window that has it knows them."""

    def __init__(self, blocks: Sequence[Result]) -> None:
        self._blocks = blocks
        every = sorted({rank for each in blocks for rank in each["rank"]})
        self.at = {rank: at for at, rank in enumerate(every)}
        self._columns = [np.array([self.at[rank] for rank in each["rank"]]) for each in blocks]
        self.places: dict[str, list[Any]] = {name: [None] * len(self.at) for name in _PLACE}
        for each, columns in zip(blocks, self._columns, strict=True):
            for name in _PLACE:
                for at, value in zip(columns, each[name], strict=True):
                    if value is not None:
                        self.places[name][at] = value

    def means(self, name: str, weights: Sequence[float]) -> list[float | None]:
        """The weighted mean of a rank's figures in the windows that know them."""
        total, weight = np.zeros(len(self.at)), np.zeros(len(self.at))
        for each, columns, of_window in zip(self._blocks, self._columns, weights, strict=True):
            values = np.array(each[name], np.float64)
            is_known = np.isfinite(values)
            total[columns[is_known]] += values[is_known] * of_window
            weight[columns[is_known]] += of_window
        return [float(t / w) if w > 0 else None for t, w in zip(total, weight, strict=True)]

    def by_step(self, name: str) -> list[list[float | None]]:
        """[steps][ranks], None for ranks that a window does not have."""
        rows: list[list[float | None]] = []
        for each, columns in zip(self._blocks, self._columns, strict=True):
            for values in each["per_step"][name]:
                row: list[float | None] = [None] * len(self.at)
                for at, value in zip(columns, values, strict=True):
                    row[at] = value
                rows.append(row)
        return rows


def _groups(blocks: Sequence[Result], num_steps: Sequence[int]) -> list[dict[str, Any]]:
    """Groups by name, those that wait longest first; their members as far as windows name them."""
    seen: dict[str, list[tuple[Result, float]]] = {}
    for each, steps in zip(blocks, num_steps, strict=True):
        for group in each["groups"]:
            seen.setdefault(group["name"], []).append((group, float(steps)))
    joint = [_group(of_group) for of_group in seen.values()]
    return sorted(joint, key=lambda each: -(each["waited_s"] or 0.0))[:MAX_GROUPS]


def _group(seen: Sequence[tuple[Result, float]]) -> dict[str, Any]:
    newest = seen[-1][0]
    return {
        **newest,
        "num_occurrences": sum(group["num_occurrences"] for group, _ in seen),
        **{name: mean_known([(group[name], steps) for group, steps in seen]) for name in _OF_GROUP},
        "members": _members(seen),
    }


def _members(seen: Sequence[tuple[Result, float]]) -> list[dict[str, Any]]:
    """Members that every window names: of large groups each has the most waited for alone."""
    by_rank: dict[int, list[tuple[Result, float, float]]] = {}
    for group, steps in seen:
        for each in group["members"]:
            weights = (each, steps, float(group["num_occurrences"]))
            by_rank.setdefault(each["rank"], []).append(weights)
    found = [
        {
            **of_rank[-1][0],
            "waited_for_s": mean_known([(each["waited_for_s"], s) for each, s, _ in of_rank]),
            "waited_s": mean_known([(each["waited_s"], s) for each, s, _ in of_rank]),
            "late_share": mean_known([(each["late_share"], n) for each, _, n in of_rank]),
        }
        for of_rank in by_rank.values()
        if len(of_rank) == len(seen)
    ]
    return sorted(found, key=lambda each: -(each["waited_for_s"] or 0.0))


def _culprits(
    blocks: Sequence[Result],
    num_steps: Sequence[int],
    joint: Mapping[str, Any],
    ranks: _Ranks,
    mean_step_s: float,
) -> list[dict[str, Any]]:
    """Everybody to blame in any window, with what they cost over all of them."""
    newest: dict[int, Result] = {}
    late_steps: dict[int, float] = {}
    for each, steps in zip(blocks, num_steps, strict=True):
        for culprit in each["culprits"]:
            rank = culprit["rank"]
            newest[rank] = culprit
            late_steps[rank] = late_steps.get(rank, 0.0) + culprit["steps_late"] * steps
    total = float(sum(num_steps))

    def of(rank: int, name: str) -> Any:
        return joint[name][ranks.at[rank]]

    found = [
        {
            **culprit,
            "waited_for_s": of(rank, "waited_for_s"),
            "share": (of(rank, "waited_for_s") or 0.0) / mean_step_s,
            "late_share": of(rank, "late_share"),
            "steps_late": late_steps[rank] / total,
            "own_delay_s": of(rank, "own_delay_s"),
        }
        for rank, culprit in newest.items()
    ]
    return sorted(found, key=lambda each: -each["share"])


def _mean(blocks: Sequence[Result], name: str, weights: Sequence[float]) -> float | None:
    return mean_known([(each[name], w) for each, w in zip(blocks, weights, strict=True)])
