"""Combines the results of several windows into one, as if all steps were of one window.

T, T_ideal and every T_keep are means over steps, so each ratio to T_ideal is the mean of the
windows', weighted by what their steps would take without stragglers. Shares of the loss are
weighted by the loss.

Arrivals (docs/arrivals.md): means over steps are weighted by the windows' steps, shares of
occurrences by their number of occurrences, shares of the step by its time. Windows without arrivals
are left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.result.arrivals import MAX_GROUPS, PLACE_KEYS
from app.result.figures import EQUAL_TIMES, MAX_DISCREPANCY, as_lists, gpu_time_wasted
from app.result.step_counts import RESOLUTIONS, num_steps, resolution_of, step_counts, total_s
from app.result.window_result import MAX_CLOCKS
from app.trace.window import Floats

Result = Mapping[str, Any]

# For results of the first releases.
_NO_CLOCKS: dict[str, Any] = {
    "residual_ms": None,
    "hosts": {},
    "reason": "the release that wrote this measured none",
}


@dataclass(frozen=True, slots=True)
class Weights:
    """[windows] sums over each window's steps, seconds, and how many steps it has."""

    recorded_s: Floats
    simulated_s: Floats
    ideal_s: Floats
    steps: Floats

    @classmethod
    def of(cls, known: Sequence[Result]) -> "Weights":
        """Weights of windows with figures."""
        recorded_s, simulated_s, ideal_s = (
            np.array([total_s(each, name) for each in known])
            for name in ("recorded", "simulated", "ideal")
        )
        steps = np.array([float(num_steps(each)) for each in known])
        return cls(recorded_s, simulated_s, ideal_s, steps)

    @property
    def lost_s(self) -> Floats:
        """Loss of each window's steps, seconds."""
        return self.simulated_s - self.ideal_s

    @property
    def has_loss(self) -> bool:
        """Whether the loss is more than rounding."""
        return bool(abs(self.lost_s.sum()) > EQUAL_TIMES * self.ideal_s.sum())


def combine_clocks(known: Sequence[Result]) -> dict[str, Any]:
    """Each host's window with the largest residual; the overall residual is the largest, too."""
    all_ = [each.get("clocks", _NO_CLOCKS) for each in known]
    residuals = [each["residual_ms"] for each in all_ if each["residual_ms"] is not None]
    if not residuals:
        return dict(all_[-1])
    hosts: dict[str, Any] = {}
    for clock in (item for each in all_ for item in each["hosts"].items()):
        name, figures = clock
        if name not in hosts or figures["residual_ms"] > hosts[name]["residual_ms"]:
            hosts[name] = figures
    worst = sorted(hosts.items(), key=lambda each: (-each[1]["residual_ms"], each[0]))
    reasons = [each["reason"] for each in all_ if each["reason"]]
    return {
        "residual_ms": max(residuals),
        "hosts": dict(worst[:MAX_CLOCKS]),
        "reason": reasons[-1] if reasons else None,
    }


def combine_launch_delay(known: Sequence[Result], total: Weights) -> dict[str, Any]:
    """Means over steps; a type absent from a window counts as 0 there."""
    delays = [each["launch_delay"] for each in known]
    names = {name: None for each in delays for name in each["by_optype"]}
    by_optype = {
        name: weighted([each["by_optype"].get(name, 0.0) for each in delays], total.steps)
        for name in names
    }
    arrays = ("by_worker", "others_waited")
    return {"by_optype": by_optype} | {
        name: mean(delays, name, total.steps)
        for name in arrays
        if all(each.get(name) is not None for each in delays)
    }


def combine_op_times(known: Sequence[Result], total: Weights) -> dict[str, Any]:
    """Means over the windows that have op times; results of older releases have none."""
    have = [at for at, each in enumerate(known) if each.get("optype_time_s")]
    if not have:
        return {}
    parts, weights = [known[at] for at in have], total.steps[have]
    stages = [each["stage_compute_s"] for each in parts]
    types = [each["optype_time_s"] for each in parts]
    names = {name: None for each in types for name in each}
    return {
        "stage_compute_s": {
            side: [
                _mean_or_none([each[side][stage] for each in stages], weights)
                for stage in range(len(stages[0][side]))
            ]
            for side in ("forward", "backward")
        },
        "optype_time_s": {name: _of_type(types, name, weights) for name in names},
    }


def _of_type(types: Sequence[Result], name: str, weights: Floats) -> dict[str, float | None]:
    """Means of one type; windows without it count as 0."""
    known = next(each[name] for each in types if name in each)
    nothing = {part: None if value is None else 0.0 for part, value in known.items()}
    return {
        part: _mean_or_none([each.get(name, nothing)[part] for each in types], weights)
        for part in known
    }


def _mean_or_none(values: Sequence[float | None], weights: Floats) -> float | None:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    if not pairs:
        return None
    return weighted([value for value, _ in pairs], np.array([weight for _, weight in pairs]))


def mean(known: Sequence[Result], name: str, weights: Floats) -> list[Any]:
    """The weighted mean of an array over the windows; of an element over those that know it."""
    values = np.array([each[name] for each in known], np.float64)
    is_known = np.isfinite(values)
    weight = weights.reshape(-1, *[1] * (values.ndim - 1))
    if is_known.all():
        found: list[Any] = ((values * weight).sum(axis=0) / weights.sum()).tolist()
        return found
    total = np.where(is_known, values * weight, 0.0).sum(axis=0)
    known_weight = (is_known * weight).sum(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0 is not known
        of_known: list[Any] = as_lists(total / known_weight)
    return of_known


def weighted(values: Sequence[float], weights: Floats) -> float:
    """The weighted mean."""
    return float(np.dot(np.asarray(values, np.float64), weights) / weights.sum())


_BY_STEPS = ("waited_for_s", "waited_s", "own_delay_s")
_GROUP_KEYS = ("transfer_s", "waited_s", "bandwidth_bytes_s")

# A value of each window, and its weight.
WeightedValues = Sequence[tuple[float | None, float]]


def combine_arrivals(known: Sequence[Result]) -> dict[str, Any]:
    """The keys about arrivals of windows with figures, in their order and of one run."""
    step_s = [total_s(each, "recorded") for each in known]
    shares = {
        name: mean_known([(each.get(name), s) for each, s in zip(known, step_s, strict=True)])
        for name in ("unexplained_share", "coverage")
    }
    have = [each for each in known if each.get("arrivals")]
    return {"arrivals": _joint(have) if have else None, **shares}


def mean_known(values: WeightedValues) -> float | None:
    """The weighted mean of those that are known; None where none is."""
    pairs = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total > 0 else None


def _joint(have: Sequence[Result]) -> dict[str, Any]:
    blocks = [each["arrivals"] for each in have]
    steps = [num_steps(each) for each in have]
    recorded_s = [total_s(each, "recorded") for each in have]
    by_rank = _RankMeans(blocks)
    occurrences = [float(each["num_occurrences"]) for each in blocks]
    joint: dict[str, Any] = {
        "num_occurrences": sum(each["num_occurrences"] for each in blocks),
        "num_ranks": max(each.get("num_ranks", len(each["rank"])) for each in blocks),
        "waiting_share": _mean(blocks, "waiting_share", recorded_s),
        **by_rank.places,
        **{name: by_rank.means(name, steps) for name in _BY_STEPS},
        "late_share": by_rank.means("late_share", occurrences),
        "groups": _groups(blocks, steps),
    }
    mean_step_s = sum(recorded_s) / sum(steps)
    most_s = max((each or 0.0 for each in joint["waited_for_s"]), default=0.0)
    joint["largest_share"] = most_s / mean_step_s
    joint["culprits"] = _culprits(blocks, steps, joint, by_rank, mean_step_s)
    if all("per_step" in each for each in blocks):
        joint["per_step"] = {"waited_for_s": by_rank.by_step("waited_for_s")}
    return joint


class _RankMeans:
    """Every rank of any window: places as the newest window that has it knows them."""

    def __init__(self, blocks: Sequence[Result]) -> None:
        self._blocks = blocks
        every = sorted({rank for each in blocks for rank in each["rank"]})
        self.at = {rank: at for at, rank in enumerate(every)}
        self._columns = [np.array([self.at[rank] for rank in each["rank"]]) for each in blocks]
        self.places: dict[str, list[Any]] = {name: [None] * len(self.at) for name in PLACE_KEYS}
        for each, columns in zip(blocks, self._columns, strict=True):
            for name in PLACE_KEYS:
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


def _groups(blocks: Sequence[Result], num_each: Sequence[int]) -> list[dict[str, Any]]:
    """Groups by name, those that wait longest first; their members as far as windows name them."""
    seen: dict[str, list[tuple[Result, float]]] = {}
    for each, steps in zip(blocks, num_each, strict=True):
        for group in each["groups"]:
            seen.setdefault(group["name"], []).append((group, float(steps)))
    joint = [_group(of_group) for of_group in seen.values()]
    return sorted(joint, key=lambda each: -(each["waited_s"] or 0.0))[:MAX_GROUPS]


def _group(seen: Sequence[tuple[Result, float]]) -> dict[str, Any]:
    newest = seen[-1][0]
    return {
        **newest,
        "num_occurrences": sum(group["num_occurrences"] for group, _ in seen),
        **{
            name: mean_known([(group[name], steps) for group, steps in seen])
            for name in _GROUP_KEYS
        },
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
    num_each: Sequence[int],
    joint: Mapping[str, Any],
    ranks: _RankMeans,
    mean_step_s: float,
) -> list[dict[str, Any]]:
    """Culprits of any window, with their cost over all windows."""
    newest: dict[int, Result] = {}
    late_steps: dict[int, float] = {}
    for each, steps in zip(blocks, num_each, strict=True):
        for culprit in each["culprits"]:
            rank = culprit["rank"]
            newest[rank] = culprit
            late_steps[rank] = late_steps.get(rank, 0.0) + culprit["steps_late"] * steps
    total = float(sum(num_each))

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


_BY_IDEAL = ("dp_rank_slowdown", "stage_slowdown", "worker_slowdown")
_BY_LOSS = ("m_w", "m_w_exact", "m_s")


def combine_results(results: Sequence[Result]) -> dict[str, Any]:
    """One result of at least one window, ascending and of one run, without `per_step`.

    Windows without figures add their skipped steps and nothing else. The estimate of S_w and the
    share of a stage are exact; M_W is of each window's own slowest workers, lost GPU-hours are
    against each window's own ideal, and times by stage and type are of windows that have them. What
    was found is the newest window's: see app.result.join_causes.
    """
    known = [each for each in results if each["slowdown"] is not None]
    if not known:
        return {**results[-1], **_header(results)}
    total = Weights.of(known)
    slowdown = float(total.simulated_s.sum() / total.ideal_s.sum())
    return {
        **known[-1],
        **_header(results),
        **_times(known, total),
        **{name: mean(known, name, total.ideal_s) for name in _BY_IDEAL},
        **{name: _share(known, name, total) for name in _BY_LOSS},
        "worker_slowdown_estimate": _estimate(known, total),
        "clocks": combine_clocks(known),
        "slowdown": slowdown,
        "gpu_time_wasted": gpu_time_wasted(slowdown),
        "gpu_hours_lost": sum(each["gpu_hours_lost"] for each in known),
        "launch_delay": combine_launch_delay(known, total),
        "step_slowdown": _concatenated(known, lambda each: each["step_slowdown"]),
        "optype_slowdown": _optypes(known, total),
        "stage_share": _stage_share(known, total),
        **combine_op_times(known, total),
        **combine_arrivals(known),
    }


def combine_per_step(parts: Sequence[Result]) -> dict[str, Any]:
    """`per_step` of successive windows, one after the other.

    A type that one window lacks cost nothing there: its slowdown alone is 1.
    """
    names = {name: None for each in parts for name in each["optype_slowdown"]}
    sizes = [len(each["stage_slowdown"]) for each in parts]
    by_type = {
        name: [
            value
            for each, size in zip(parts, sizes, strict=True)
            for value in each["optype_slowdown"].get(name, [1.0] * size)
        ]
        for name in names
    }
    arrays = ("dp_rank_slowdown", "stage_slowdown", "worker_slowdown")
    return {
        "optype_slowdown": by_type,
        **{name: _at(parts, name) for name in arrays},
    }


def _header(results: Sequence[Result]) -> dict[str, Any]:
    windows = [each["window"] for each in results]
    states = {each["state"] for each in windows}
    state = next((s for s in ("open", "superseded", "incomplete") if s in states), "complete")
    return {
        "window": {
            "id": f"{windows[0]['id']}..{windows[-1]['id']}",
            "epoch": windows[-1]["epoch"],
            "revision": sum(each["revision"] for each in windows),
            "state": state,
            "missing": sorted({rank for each in windows for rank in each["missing"]}),
            "windows": [each["id"] for each in windows],
        },
        "skipped_steps": _concatenated(results, lambda each: each["skipped_steps"]),
        "imputed": _imputed(results),
    }


def _imputed(results: Sequence[Result]) -> dict[str, Any] | None:
    """Imputed operations of all windows; a worker is missing from the steps of all of them.

    A window without losses does not say how many operations it has: as many a step as the others.
    """
    with_losses = [each for each in results if each.get("imputed")]
    if not with_losses:
        return None
    blocks = [each["imputed"] for each in with_losses]
    workers: dict[int, dict[str, Any]] = {}
    for each in (worker for block in blocks for worker in block["workers"]):
        before = workers.get(each["rank"])
        workers[each["rank"]] = {
            **each,
            "first_step": each["first_step"] if before is None else before["first_step"],
            "num_steps": each["num_steps"] + (0 if before is None else before["num_steps"]),
        }
    num_ops = sum(each["ops"] for each in blocks)
    of_losses = sum(each["ops"] / each["share"] for each in blocks if each["share"])
    in_all, in_these = (sum(map(num_steps, some)) for some in (results, with_losses))
    of_all = of_losses * in_all / in_these if in_these else of_losses
    return {
        "ops": num_ops,
        "lone_ops": sum(each["lone_ops"] for each in blocks),
        "share": num_ops / of_all if of_all else 0.0,
        "workers": [workers[rank] for rank in sorted(workers)],
        "steps": _concatenated(blocks, lambda each: each["steps"]),
    }


def _times(known: Sequence[Result], total: Weights) -> dict[str, Any]:
    recorded_s, simulated_s = total.recorded_s.sum(), total.simulated_s.sum()
    return {
        "steps": _concatenated(known, lambda each: each["steps"]),
        "step_started_s": _concatenated(
            known, lambda each: each.get("step_started_s") or [None] * len(each["steps"])
        ),
        "structures": _concatenated(known, lambda each: each.get("structures", ())),
        "step_time_s": {
            name: [value for each in known for value in _of_steps(each, name)]
            for name in ("recorded", "between", "simulated", "ideal")
        },
        **_thinned(known),
        "launch_slowdown": float(recorded_s / simulated_s),
        "fidelity": _fidelity(known, float(abs(simulated_s - recorded_s) / recorded_s)),
    }


def _thinned(known: Sequence[Result]) -> dict[str, Any]:
    """The steps that the values stand for, where a window was thinned; as coarse as the coarsest.

    What a thinned window knows of its operations is of that window alone.
    """
    if not any(each.get("thinned") for each in known):
        return {}
    coarsest = max(map(resolution_of, known), key=RESOLUTIONS.index)
    counts = _concatenated(known, step_counts)
    return {"thinned": {"resolution": coarsest, "step_counts": counts}}


def _of_steps(result: Result, name: str) -> Sequence[float | None]:
    """Times by step; unknown where the release that wrote the result did not measure them."""
    found: Sequence[float | None] | None = result["step_time_s"].get(name)
    return [None] * len(result["steps"]) if found is None else found


def _fidelity(known: Sequence[Result], discrepancy: float) -> dict[str, Any]:
    """Errors of opposite sign may cancel in the mean, so low windows count, too."""
    all_ = [each["fidelity"] for each in known]
    num_low = sum(each["verdict"] == "low" for each in all_)
    is_low = discrepancy > MAX_DISCREPANCY or 2 * num_low > len(known)
    return {
        "discrepancy": discrepancy,
        "verdict": "low" if is_low else "ok",
        "low_windows": num_low,
        "step_discrepancy": _concatenated(all_, lambda each: each.get("step_discrepancy", ())),
    }


def _optypes(known: Sequence[Result], total: Weights) -> dict[str, float]:
    names = {name: None for each in known for name in each["optype_slowdown"]}
    # A window without a type lost nothing to it.
    return {
        name: float(
            weighted([each["optype_slowdown"].get(name, 1.0) for each in known], total.ideal_s)
        )
        for name in names
    }


def _stage_share(known: Sequence[Result], total: Weights) -> list[float | None]:
    rows = zip(*(each["stage_share"] for each in known), strict=True)
    return [_of_loss(row, total) for row in rows]


def _share(known: Sequence[Result], name: str, total: Weights) -> float | None:
    return _of_loss([each[name] for each in known], total)


def _of_loss(shares: Sequence[float | None], total: Weights) -> float | None:
    """Where a window lost nothing there was nothing to win back in it."""
    if not total.has_loss or all(share is None for share in shares):
        return None
    return weighted([share or 0.0 for share in shares], total.lost_s)


def _estimate(known: Sequence[Result], total: Weights) -> list[list[float | None]]:
    dp_rank = np.array(mean(known, "dp_rank_slowdown", total.ideal_s), np.float64)
    stage = np.array(mean(known, "stage_slowdown", total.ideal_s))
    worker = np.array(mean(known, "worker_slowdown", total.ideal_s), np.float64)
    estimate = np.minimum(dp_rank[:, None], stage[None, :])
    found: list[list[float | None]] = as_lists(np.where(np.isfinite(worker), estimate, np.nan))
    return found


def _at(parts: Iterable[Result], name: str) -> list[Any]:
    return _concatenated(parts, lambda each: each[name])


def _concatenated(parts: Iterable[Result], read: Callable[[Result], Iterable[Any]]) -> list[Any]:
    return [value for each in parts for value in read(each)]
