"""Windows in brief: what a line of the fleet says of one, without reading its whole result."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, select

from app.store.tables import window_briefs, windows
from app.store.upsert import replace

MOST_FINDINGS = 3
MOST_CULPRITS = 3

_COPIED = ("cause", "cost", "confidence", "onset_step", "persistence", "sentence")


def brief_of(result: Mapping[str, Any], *, num_gpus: int) -> dict[str, Any] | None:
    """The brief of a window's result (section 7 of the model); None where nothing was measured.

    `findings` is None where nobody could look for causes, and empty where none was found.
    """
    if result["slowdown"] is None:
        return None
    recorded_s: Sequence[float] = result["step_time_s"]["recorded"]
    findings = result["findings"]
    return {
        "gpu_hours_lost": result["gpu_hours_lost"],
        "gpu_hours": sum(recorded_s) * num_gpus / 3600,
        "step_s": sum(recorded_s) / len(recorded_s),
        "discrepancy": result["fidelity"]["discrepancy"],
        "clock_residual_ms": result.get("clocks", {}).get("residual_ms"),
        "num_findings": None if findings is None else len(findings),
        "findings": None
        if findings is None
        else [_short(each) for each in findings[:MOST_FINDINGS]],
    }


def save(
    conn: Connection, job_id: str, epoch: int, first_step: int, brief: dict[str, Any] | None
) -> None:
    """Save the brief of a window's newest revision; None removes what an older one said."""
    if brief is None:
        conn.execute(delete(window_briefs).where(*_is(job_id, epoch, first_step)))
        return
    since_s = _onset_s(conn, job_id, epoch, brief)
    key = {"job_id": job_id, "epoch": epoch, "first_step": first_step}
    replace(conn, window_briefs, [{**key, "brief": {**brief, "onset_at_s": since_s}}])


def _short(finding: Mapping[str, Any]) -> dict[str, Any]:
    culprits = finding["culprits"]
    return {
        **{name: finding[name] for name in _COPIED},
        "culprits": culprits[:MOST_CULPRITS],
        "num_culprits": len(culprits),
    }


def _onset_s(conn: Connection, job_id: str, epoch: int, brief: dict[str, Any]) -> float | None:
    """When (Unix time) the window came in which the costliest cause began; None if unknown."""
    step = brief["findings"][0]["onset_step"] if brief["findings"] else None
    if step is None:
        return None
    query = (
        select(windows.c.updated_s)
        .where(windows.c.job_id == job_id, windows.c.epoch == epoch, windows.c.first_step <= step)
        .order_by(windows.c.first_step.desc())
        .limit(1)
    )
    found: float | None = conn.execute(query).scalar_one_or_none()
    return found


def _is(job_id: str, epoch: int, first_step: int) -> tuple[Any, ...]:
    of = window_briefs.c
    return (of.job_id == job_id, of.epoch == epoch, of.first_step == first_step)
