"""Results, findings and culprits with defaults for all fields that a test leaves out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from app.engine.report import Report, report_result
from app.formatting import percent
from app.result.finding import Culprit, Finding
from app.result.window_result import TopFix, Unexplained, WindowResult

HEADER = {"id": "1-4", "epoch": 1, "revision": 1, "state": "complete", "missing": []}
SIZES = {"tp_size": 1, "vpp_size": 1, "dsp_size": 1, "ep_size": 1}
# What nothing has measured.
_UNKNOWN = (
    "imputed",
    "launch_slowdown",
    "slowdown",
    "gpu_time_wasted",
    "gpu_hours_lost",
    "dp_rank_slowdown",
    "stage_slowdown",
    "worker_slowdown",
    "worker_slowdown_estimate",
    "m_w",
    "m_w_exact",
    "m_s",
    "stage_share",
    "stage_compute_s",
    "findings",
    "ruled_out",
    "fingerprint",
    "changes",
    "arrivals",
    "unexplained_share",
    "unexplained",
    "coverage",
    "advice",
)
_EMPTY: dict[str, Any] = {
    "schema": 1,
    "window": HEADER,
    "job": {"name": "job", "dp_size": 2, "pp_size": 2, "world_size": 4, **SIZES},
    "steps": [4, 5],
    "skipped_steps": [],
    "step_time_s": {"recorded": [], "simulated": [], "ideal": []},
    "structures": [],
    "fidelity": {"discrepancy": None, "verdict": None, "step_discrepancy": []},
    "clocks": {"residual_ms": None, "hosts": {}, "reason": None},
    "launch_delay": {"by_optype": {}, "by_worker": None, "others_waited": None},
    "step_slowdown": [],
    "optype_slowdown": {},
    "optype_time_s": {},
    "step_started_s": [],
    **dict.fromkeys(_UNKNOWN),
}
_FINDING: dict[str, Any] = {
    "cause": "slow-worker",
    "score": 1.0,
    "confidence": 0.9,
    "culprits": [{"dp_rank": 1, "stage": 1, "host": "host-b"}],
    "onset_step": 4,
    "end_step": None,
    "persistence": "chronic",
    "cost": 0.1,
    "cost_range": None,
    "evidence": {},
    "sentence": "dp 1, stage 1 on host-b is 1.6x slower than its peers",
}


_UNPLACED: dict[str, Any] = {
    "share_of_loss": None,
    "optype": None,
    "share_in_optype": None,
    "stage": None,
    "share_in_stage": None,
    "late_launch_share": 0.0,
    "stop_share": 0.0,
    "stop_steps": [],
    "sentence": None,
}


def result_of(value: Mapping[str, Any]) -> WindowResult:
    """From objects, lists and plain values."""
    return msgspec.convert(value, WindowResult)


def window_result(**given: Any) -> WindowResult:
    """A result of steps 4 and 5 of which only `given` is known.

    `window`, `job`, `step_time_s`, `fidelity`, `clocks` and `launch_delay` need only the fields
    that matter; records may be given in place of objects.
    """
    return result_of(_with_defaults(_EMPTY, _plain(given)))


def finding(cause: str = "slow-worker", **given: Any) -> Finding:
    """A finding: dp 1, stage 1 on host-b costs a tenth of the job's time since step 4."""
    return msgspec.convert(_FINDING | {"cause": cause} | _plain(given), Finding)


def unexplained(share: float = 0.0, **given: Any) -> Unexplained:
    """Loss that no finding has, in no place that stands out."""
    return msgspec.convert(_UNPLACED | {"share": share} | given, Unexplained)


def idle(share: float = 0.054) -> dict[str, Any]:
    """Idle time of all ranks between steps, as an object."""
    said = f"All ranks are idle for {percent(share)} of the GPU time between steps, 46 ms a step"
    sentence = f"{said}; the cause is not recorded"
    return {"kind": "idle-between-steps", "share": share, "sentence": sentence}


def top_fix(**given: Any) -> TopFix:
    """The advised fix: another host in place of host-b, a tenth faster."""
    known: dict[str, Any] = {
        **dict.fromkeys(("microbatches", "stop_minutes", "pays_after_minutes", "lost_minutes")),
        **dict.fromkeys(("pays_now", "what_if")),
        "fix": "replace-worker",
        "cause": "slow-worker",
        "title": "Replace host-b",
        "step_s": 1.0,
        "step_range_s": [0.9, 1.05],
        "step_s_before": 1.1,
        "speed_up": 1.1,
        "gpu_hours_per_day": 8.7,
        "gpu_hours_per_day_range": [4.4, 17.5],
        "confidence": 0.9,
        "risk": "The spare may be slow, too.",
        "stops_job": True,
        "lost_is_at_least": False,
        "paste": [],
        "needs": [],
        "can_be_tracked": True,
    }
    return msgspec.convert(known | given, TopFix)


def culprit(**given: Any) -> Culprit:
    """A culprit with these fields."""
    return Culprit(**given)


def report_as_json(report: Report) -> dict[str, Any]:
    """The result of a report as its JSON has it, lists and objects."""
    return report_result(report).as_json()


def _with_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _with_defaults(defaults[name], value)
        if isinstance(defaults.get(name), dict) and isinstance(value, dict)
        else value
        for name, value in {**defaults, **given}.items()
    }


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
