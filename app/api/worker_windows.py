"""One worker's figures in the last windows of a run, as its page draws them."""

from typing import Any

from app.charts.worker_course import WorkerWindow, worker_window
from app.store import windows
from app.store.engine import Connection
from app.store.paging import to_cursor

MAX_WINDOWS = 60
# Workers times steps (or windows) that are read for one picture.
MAX_CELLS = 1_000_000


def worker_windows(
    conn: Connection, job_id: str, result: dict[str, Any], dp_rank: int, stage: int
) -> list[WorkerWindow]:
    """The windows of the result's run up to its own, ascending; the newest ones step by step.

    Of a large job fewer are read.
    """
    workers = result["job"]["dp_size"] * result["job"]["pp_size"]
    epoch, first_step = result["window"]["epoch"], _first_step(result)
    newest, _ = windows.page(
        conn,
        job_id,
        cursor=to_cursor(epoch, first_step + 1),
        limit=max(1, min(MAX_WINDOWS, MAX_CELLS // workers)),
    )
    measured = [each for each in newest if each.epoch == epoch and each.slowdown is not None]
    found: list[WorkerWindow] = []
    cells = MAX_CELLS
    for each in measured:
        cells -= workers * each.num_steps
        has_steps = cells >= 0 or not found
        window = windows.get(conn, job_id, each.window_id, per_step=has_steps)
        per_step = (window.get("per_step") or {}).get("worker_slowdown")
        found.append(
            worker_window(
                each.window_id,
                window["steps"],
                window["worker_slowdown"],
                dp_rank,
                stage,
                per_step,
            )
        )
    return found[::-1]


def _first_step(result: dict[str, Any]) -> int:
    """That of its window, or of the last one of a range."""
    return int(result["window"]["id"].rpartition("-")[2])
