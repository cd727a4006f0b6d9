"""A report as the JSON object of the what-if model's section 7."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.engine.clocks.measure import Clocks
from app.engine.metrics import gpu_time_wasted, slowdown
from app.engine.op_times import OpTimes
from app.engine.report import Report
from app.trace.window import Window

RESULT_SCHEMA = 1
MAX_CLOCKS = 20

# Blocks that only a replay and a diagnosis fill; unknown is None.
_NOT_MEASURED = (
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
    "coverage",
    "per_step",
)


def report_as_json(report: Report) -> dict[str, Any]:
    """The whole result, with `per_step`; unknown is None, never 0 or NaN."""
    return {
        **_window_header(report.window),
        **_step_times(report),
        "clocks": _clocks(report.clocks),
        **_figures(report),
        "per_step": _per_step(report),
    }


def result_without_figures(window: Window) -> dict[str, Any]:
    """The result of a window without one complete step: its header, and nothing measured."""
    return {
        **_window_header(window),
        "step_time_s": {"recorded": [], "between": [], "simulated": [], "ideal": []},
        **without_replay("no step can be replayed"),
    }


def without_replay(reason: str) -> dict[str, Any]:
    """Every block that needs a replay or a diagnosis, empty; `reason` is that of the clocks."""
    return {
        "fidelity": {"discrepancy": None, "verdict": None, "step_discrepancy": []},
        "launch_delay": {"by_optype": {}, "by_worker": None, "others_waited": None},
        "structures": [],
        "clocks": {"residual_ms": None, "hosts": {}, "reason": reason},
        "step_slowdown": [],
        "optype_slowdown": {},
        "optype_time_s": {},
        **dict.fromkeys(_NOT_MEASURED),
    }


def header(
    window: Mapping[str, Any],
    job: Mapping[str, Any],
    steps: Sequence[int],
    skipped: Iterable[tuple[int, str]],
) -> dict[str, Any]:
    """The blocks that every result begins with; `skipped` has the steps left out and reasons."""
    return {
        "schema": RESULT_SCHEMA,
        "window": dict(window),
        "job": dict(job),
        "steps": list(steps),
        "skipped_steps": [{"step": step, "reason": reason} for step, reason in skipped],
    }


def _window_header(window: Window) -> dict[str, Any]:
    sizes = window.job.parallelism
    names = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size", "world_size")
    return header(
        {name: getattr(window, name) for name in ("id", "epoch", "revision", "state", "missing")},
        {"name": window.job.name} | {name: getattr(sizes, name) for name in names},
        window.steps,
        ((skip.step, skip.reason) for skip in window.skipped),
    )


def _step_times(report: Report) -> dict[str, Any]:
    return {
        "step_time_s": {
            "recorded": report.recorded_s.tolist(),
            "between": report.between_s.tolist(),
            "simulated": report.simulated_s.tolist(),
            "ideal": report.ideal_s.tolist(),
        },
        "structures": [list(steps) for steps in report.structures],
        "launch_slowdown": float(report.recorded_s.mean() / report.simulated_s.mean()),
        "fidelity": {
            "discrepancy": report.discrepancy,
            "verdict": "low" if report.is_low_fidelity else "ok",
            "step_discrepancy": report.step_discrepancy.tolist(),
        },
    }


def _clocks(clocks: Clocks) -> dict[str, Any]:
    """Clocks of the hosts with the largest residuals, worst first."""
    by_residual = sorted(clocks.hosts.items(), key=lambda each: (-each[1].residual_s, each[0]))
    return {
        "residual_ms": None if clocks.residual_s is None else clocks.residual_s * 1e3,
        "hosts": {
            name: {
                "offset_ms": clock.offset_s * 1e3,
                "drift_ppm": clock.drift_ppm,
                "residual_ms": clock.residual_s * 1e3,
            }
            for name, clock in by_residual[:MAX_CLOCKS]
        },
        "reason": clocks.reason,
    }


def _figures(report: Report) -> dict[str, Any]:
    ideal_s = report.ideal_s
    return {
        "slowdown": report.slowdown,
        "gpu_time_wasted": gpu_time_wasted(report.slowdown),
        "gpu_hours_lost": report.gpu_hours_lost,
        "launch_delay": {
            "by_optype": report.launch_delay.by_optype,
            "by_worker": report.launch_delay.by_worker.tolist(),
            "others_waited": report.launch_delay.others_waited.tolist(),
        },
        "step_slowdown": (report.simulated_s / ideal_s).tolist(),
        "optype_slowdown": {
            name: float(slowdown(step_s, ideal_s)) for name, step_s in report.optype_step_s.items()
        },
        "dp_rank_slowdown": slowdown(report.dp_rank_step_s, ideal_s).tolist(),
        "stage_slowdown": slowdown(report.stage_step_s, ideal_s).tolist(),
        "worker_slowdown": report.worker_slowdown.tolist(),
        "worker_slowdown_estimate": report.worker_slowdown_estimate.tolist(),
        "m_w": report.m_w,
        "m_w_exact": report.m_w_exact,
        "m_s": report.stage_share[-1],
        "stage_share": report.stage_share,
        **_op_times(report.op_times),
        # Nothing has looked for causes, so "none found" ([]) would be a claim.
        "findings": None,
        "ruled_out": None,
        "fingerprint": None,
        "changes": None,
        "arrivals": None,
        "unexplained_share": None,
        "coverage": None,
    }


def _op_times(times: OpTimes) -> dict[str, Any]:
    return {
        "stage_compute_s": {"forward": times.forward_s, "backward": times.backward_s},
        "optype_time_s": {
            name: {"recorded": each.recorded_s, "transfer": each.transfer_s, "wait": each.wait_s}
            for name, each in times.by_type.items()
        },
    }


def _per_step(report: Report) -> dict[str, Any]:
    ideal_s = report.ideal_s
    return {
        "optype_slowdown": {
            name: (step_s / ideal_s).tolist() for name, step_s in report.optype_step_s.items()
        },
        "dp_rank_slowdown": (report.dp_rank_step_s / ideal_s).T.tolist(),
        "stage_slowdown": (report.stage_step_s / ideal_s).T.tolist(),
        "worker_slowdown": (report.worker_step_s / ideal_s).transpose(2, 0, 1).tolist(),
    }
