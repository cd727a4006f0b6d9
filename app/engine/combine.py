"""The result of several windows together, from their results: as if all their steps were one's.

T, T_ideal and every T_keep are means over steps, so each ratio to T_ideal is the mean of the
windows', weighted by what their steps would take without stragglers. Shares of the loss are
weighted by the loss.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from app.engine.combine_arrivals import combined_arrivals
from app.engine.combine_parts import (
    Result,
    Weights,
    clocks,
    launch_delay,
    mean,
    op_times,
    weighted,
)
from app.engine.metrics import MAX_DISCREPANCY, gpu_time_wasted

_BY_IDEAL = ("dp_rank_slowdown", "stage_slowdown", "worker_slowdown")
_BY_LOSS = ("m_w", "m_w_exact", "m_s")


def combined(results: Sequence[Result]) -> dict[str, Any]:
    """Section 7's object of at least one window, ascending and of one run, without `per_step`.

    Windows without figures add their skipped steps and nothing else. The estimate of S_w and the
    share of a stage are exact; M_W is of each window's own slowest workers, lost GPU-hours are
    against each window's own ideal, and times by stage and type are of windows that have them. What
    was found is the newest window's: see app.diagnosis.merged.
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
        "clocks": clocks(known),
        "slowdown": slowdown,
        "gpu_time_wasted": gpu_time_wasted(slowdown),
        "gpu_hours_lost": sum(each["gpu_hours_lost"] for each in known),
        "launch_delay": launch_delay(known, total),
        "step_slowdown": _joined(known, lambda each: each["step_slowdown"]),
        "optype_slowdown": _optypes(known, total),
        "stage_share": _stage_share(known, total),
        **op_times(known, total),
        **combined_arrivals(known),
    }


def per_step_combined(parts: Sequence[Result]) -> dict[str, Any]:
    """`per_step` of successive windows, one after the other.

    A type that one window lacks cost nothing there: its slowdown alone is 1.
    """
    names = {name: None for each in parts for name in each["optype_slowdown"]}
    num_steps = [len(each["stage_slowdown"]) for each in parts]
    by_type = {
        name: [
            value
            for each, size in zip(parts, num_steps, strict=True)
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
        "skipped_steps": _joined(results, lambda each: each["skipped_steps"]),
    }


def _times(known: Sequence[Result], total: Weights) -> dict[str, Any]:
    recorded_s, simulated_s = total.recorded_s.sum(), total.simulated_s.sum()
    return {
        "steps": _joined(known, lambda each: each["steps"]),
        "structures": _joined(known, lambda each: each.get("structures", ())),
        "step_time_s": {
            name: [value for each in known for value in _of_steps(each, name)]
            for name in ("recorded", "between", "simulated", "ideal")
        },
        "launch_slowdown": float(recorded_s / simulated_s),
        "fidelity": _fidelity(known, float(abs(simulated_s - recorded_s) / recorded_s)),
    }


def _of_steps(result: Result, name: str) -> Sequence[float | None]:
    """Times by step; unknown where the release that wrote the result did not measure them."""
    found: Sequence[float | None] | None = result["step_time_s"].get(name)
    return [None] * len(result["steps"]) if found is None else found


def _fidelity(known: Sequence[Result], discrepancy: float) -> dict[str, Any]:
    """Windows that are off in either direction may be right in the mean: that proves nothing."""
    all_ = [each["fidelity"] for each in known]
    num_low = sum(each["verdict"] == "low" for each in all_)
    is_low = discrepancy > MAX_DISCREPANCY or 2 * num_low > len(known)
    return {
        "discrepancy": discrepancy,
        "verdict": "low" if is_low else "ok",
        "low_windows": num_low,
        "step_discrepancy": _joined(all_, lambda each: each.get("step_discrepancy", ())),
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


def _estimate(known: Sequence[Result], total: Weights) -> list[list[float]]:
    dp_rank = np.array(mean(known, "dp_rank_slowdown", total.ideal_s))
    stage = np.array(mean(known, "stage_slowdown", total.ideal_s))
    found: list[list[float]] = np.minimum(dp_rank[:, None], stage[None, :]).tolist()
    return found


def _at(parts: Iterable[Result], name: str) -> list[Any]:
    return _joined(parts, lambda each: each[name])


def _joined(parts: Iterable[Result], read: Callable[[Result], Iterable[Any]]) -> list[Any]:
    return [value for each in parts for value in read(each)]
