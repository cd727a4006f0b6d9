"""Parts of the joint result of several windows: their weights, clocks, delays and times."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.engine.metrics import EQUAL_TIMES
from app.engine.result import MAX_CLOCKS
from app.trace.window import Floats

Result = Mapping[str, Any]

# Of results that the first releases wrote.
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
        """Those of windows with figures."""
        times = [each["step_time_s"] for each in known]
        recorded_s, simulated_s, ideal_s = (
            np.array([sum(each[name]) for each in times])
            for name in ("recorded", "simulated", "ideal")
        )
        steps = np.array([float(len(each["steps"])) for each in known])
        return cls(recorded_s, simulated_s, ideal_s, steps)

    @property
    def lost_s(self) -> Floats:
        """What the steps lost, seconds."""
        return self.simulated_s - self.ideal_s

    @property
    def has_loss(self) -> bool:
        """Whether anything was lost but by rounding."""
        return bool(abs(self.lost_s.sum()) > EQUAL_TIMES * self.ideal_s.sum())


def clocks(known: Sequence[Result]) -> dict[str, Any]:
    """Of each host its worst window; the residual is the worst one, too."""
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


def launch_delay(known: Sequence[Result], total: Weights) -> dict[str, Any]:
    """Means over steps; a window without a type was not late with it."""
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


def op_times(known: Sequence[Result], total: Weights) -> dict[str, Any]:
    """Of the windows that have them: results of older releases do not."""
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
    """A window without the type spent nothing on it."""
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


def mean(known: Iterable[Result], name: str, weights: Floats) -> list[Any]:
    """The weighted mean of an array over the windows."""
    total: Any = 0.0
    for each, weight in zip(known, weights, strict=True):
        total = total + np.asarray(each[name], np.float64) * weight
    found: list[Any] = (total / weights.sum()).tolist()
    return found


def weighted(values: Sequence[float], weights: Floats) -> float:
    """The weighted mean."""
    return float(np.dot(np.asarray(values, np.float64), weights) / weights.sum())
