"""Which steps the charts over time show, and how long such a step takes."""

from collections.abc import Sequence
from typing import Any

from app.store import steps, windows
from app.store.engine import Connection

DRAWN_STEPS = 200

# Workers times steps of one chart: what is read and averaged for it, not what is drawn.
MAX_CELLS = 200_000

# As many of the last steps tell how long the next one will take.
_RECENT_STEPS = 8


def recorded_steps(conn: Connection, job_id: str, epoch: int) -> list[int]:
    """The steps of the step-time chart: the last ones of a run that have figures, ascending."""
    rows = steps.series(conn, job_id, epoch=epoch, limit=DRAWN_STEPS)
    return [row.step for row in rows if row.recorded_s is not None]


def with_other_windows(
    conn: Connection, job_id: str, result: dict[str, Any], axis_steps: Sequence[int]
) -> dict[str, Any]:
    """The window's result, its worker slowdowns by step joined to those of the windows beside it.

    Of a large job fewer steps are joined, the newest ones; the window's own are always there.
    """
    job, own = result["job"], result["steps"]
    num_steps = max(1, MAX_CELLS // (job["dp_size"] * job["pp_size"]))
    first = axis_steps[-num_steps:][0]
    found = windows.per_step_between(
        conn, job_id, result["window"]["epoch"], first=first, last=axis_steps[-1]
    )
    by_step = {
        step: slowdown
        for numbers, per_step in [*found, (own, result["per_step"])]
        for step, slowdown in zip(numbers, per_step["worker_slowdown"], strict=True)
        if step >= first or step in own
    }
    joined = sorted(by_step)
    per_step = {"worker_slowdown": [by_step[step] for step in joined]}
    return {**result, "steps": joined, "per_step": per_step}


def recent_step_s(conn: Connection, job_id: str, epoch: int) -> float | None:
    """Mean time of the last steps of the run, or of the run before if it has none yet."""
    for run in (epoch, epoch - 1):
        rows = steps.series(conn, job_id, epoch=run, limit=_RECENT_STEPS)
        times_s = [row.recorded_s for row in rows if row.recorded_s is not None]
        if times_s:
            return sum(times_s) / len(times_s)
    return None
