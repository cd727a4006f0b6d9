"""Several windows read as one result: a range, a whole run, or the recent steps of a job.

Pages, API, fleet and alerts judge a job by its `recent` result: the recent steps of a running job
(app.result.recent), worked out once when a window closes, and of a finished one its whole run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import structlog
from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from app.result.arrivals import MAX_RANKS
from app.result.join import joint_result
from app.result.recent import RECENT_WINDOWS, recent_result, result_since
from app.result.stored import split_by_step
from app.result.window_result import WindowResult
from app.store import windows as stored
from app.store.database import Store, of_run, value_of_run
from app.store.jobs import registration
from app.store.tables import runs, windows
from app.store.windows import WindowRange, WindowSummary

log = structlog.get_logger()

# Numbers of a result by worker: exact slowdown, estimate, two launch delays.
ARRAYS_PER_WORKER = 4
# Of arrivals, by rank: positions, waits and counts of being late.
ARRAYS_PER_RANK = 9
# Workers x windows x arrays by worker (and by step) that are read for one result.
MAX_RANGE_NUMBERS = 2_000_000
# Each takes at least a millisecond to read.
MAX_RANGE_WINDOWS = 240
# Windows that are named of those left out.
MAX_LEFT_OUT_NAMED = 100


def read_range(
    conn: Connection,
    job_id: str,
    span: WindowRange,
    *,
    per_step: bool = False,
    since_step: int | None = None,
) -> WindowResult:
    """The result of a range of windows; of too many or too large ones, of some evenly spaced.

    With `since_step` the steps before it are left out of the first window.
    """
    run = registration(conn, job_id, span.epoch)
    by_step = span.most_steps if per_step else 0
    kept = thinned_windows(
        span.first_steps, max_windows_at_once(run.parallelism.num_workers, by_step)
    )
    parts = [stored.get(conn, job_id, f"{span.epoch}-{first_step}", per_step=per_step)
             for first_step in kept]  # fmt: skip
    left_out_gpu_hours = 0.0
    if since_step is not None and not per_step:
        first, parts[0] = parts[0], result_since(parts[0], since_step)
        left_out_gpu_hours = (first.gpu_hours_lost or 0.0) - (parts[0].gpu_hours_lost or 0.0)
    if len(kept) == span.num_windows:
        return joint_result(parts)
    lost_s = stored.gpu_s_lost(conn, job_id, span, num_gpus=run.num_gpus)
    if lost_s is not None:
        lost_s -= 3600 * left_out_gpu_hours
    return _partial_result(joint_result(parts), span, kept, lost_s)


def _partial_result(
    result: WindowResult, span: WindowRange, kept: Sequence[int], lost_gpu_s: float | None
) -> WindowResult:
    """The result with the windows that were not read; its loss covers all windows."""
    read = set(kept)
    left_out = [f"{span.epoch}-{first}" for first in span.first_steps if first not in read]
    window = replace(
        result.window,
        left_out=tuple(left_out[:MAX_LEFT_OUT_NAMED]),
        num_left_out=span.num_windows - len(kept),
    )
    lost = None if lost_gpu_s is None else lost_gpu_s / 3600
    return replace(result, window=window, gpu_hours_lost=lost)


def max_windows_at_once(num_workers: int, by_step: int = 0) -> int:
    """How many windows of a job are read for one result, each with figures of `by_step` steps."""
    numbers = num_workers * (ARRAYS_PER_WORKER + by_step)
    numbers += min(MAX_RANKS, num_workers) * (ARRAYS_PER_RANK + by_step)
    return max(2, min(MAX_RANGE_NUMBERS // numbers, MAX_RANGE_WINDOWS))


def thinned_windows(first_steps: Sequence[int], max_windows: int) -> list[int]:
    """As many windows as can be read, evenly spaced, including the first and the last."""
    if len(first_steps) <= max_windows:
        return list(first_steps)
    at = np.unique(np.linspace(0, len(first_steps) - 1, max_windows).round().astype(int))
    return [first_steps[index] for index in at]


def whole_run(conn: Connection, job_id: str, epoch: int) -> WindowRange | None:
    """All windows of a run; None before the first one."""
    ends = select(func.min(windows.c.first_step), func.max(windows.c.first_step))
    first, last = conn.execute(ends.where(*of_run(windows, job_id, epoch))).one()
    if first is None:
        return None
    return stored.window_range(conn, job_id, f"{epoch}-{first}", f"{epoch}-{last}")


@dataclass(frozen=True, slots=True)
class JudgedWindows:
    """The windows that a job is judged by now; `key` changes with any of them.

    Either all windows of a finished run (`span`), or the last closed ones, ascending: before the
    first one the open one.
    """

    key: tuple[Any, ...]
    last: Sequence[WindowSummary] = ()
    span: WindowRange | None = None


def judged_windows(conn: Connection, job_id: str) -> JudgedWindows:
    """The windows that the current run is judged by; raises JobNotFound or WindowNotFound."""
    latest = stored.summary(conn, job_id, "latest")
    if latest.slowdown is None:
        return JudgedWindows((latest.window_id, latest.revision), [latest])
    if value_of_run(conn, runs.c.ended_s, job_id, latest.epoch) is not None:
        span = whole_run(conn, job_id, latest.epoch)
        if span is not None:
            key = (span.epoch, span.first_steps[0], span.last_step, span.num_windows)
            return JudgedWindows((*key, span.revisions), span=span)
    last = [latest]
    if latest.state != "open":
        last = stored.last_closed(conn, job_id, latest.epoch, limit=RECENT_WINDOWS)
    return JudgedWindows(tuple((window.window_id, window.revision) for window in last), last)


def read_judged(
    conn: Connection, job_id: str, judged: JudgedWindows, *, per_step: bool = False
) -> WindowResult:
    """The result of these windows."""
    if judged.span is not None:
        return read_range(conn, job_id, judged.span, per_step=per_step)
    ids = [window.window_id for window in judged.last]
    parts = [stored.get(conn, job_id, window_id, per_step=per_step) for window_id in ids]
    if parts[-1].slowdown is None or parts[-1].window.state == "open":
        return parts[-1]
    # Steps that are not recent have figures by step all the same.
    return joint_result(parts) if per_step else recent_result(parts)


class JudgedResult(NamedTuple):
    """The result of the recent steps, and the first step of the newest window among them."""

    first_step: int
    result: WindowResult


class RecentResults:
    """Results of the last closed windows of one run, read from the store when first needed."""

    def __init__(self, store: Store, job_id: str, epoch: int) -> None:
        self._store = store
        self._run = job_id, epoch
        self._parts: dict[int, WindowResult] | None = None

    def add(self, result: WindowResult) -> JudgedResult | None:
        """Add a closed window, or its revision; None where the recent steps are the same after."""
        parts = self._loaded() if self._parts is None else self._parts
        _, first_step = stored.parse_window_id(self._run[0], str(result.window.id))
        if result.slowdown is None:
            had_figures = parts.pop(first_step, None) is not None
        else:
            parts[first_step] = split_by_step(result)[0]
            had_figures = True
        kept = sorted(parts)[-RECENT_WINDOWS:]
        is_among = had_figures and bool(kept) and first_step >= kept[0]
        self._parts = {first: parts[first] for first in kept}
        return self._judged(kept[-1], list(self._parts.values())) if is_among else None

    def _loaded(self) -> dict[int, WindowResult]:
        job_id, epoch = self._run
        with self._store.read() as conn:
            last = stored.last_closed(conn, job_id, epoch, limit=RECENT_WINDOWS)
            return {part.first_step: stored.get(conn, job_id, part.window_id) for part in last}

    def _judged(self, first_step: int, parts: list[WindowResult]) -> JudgedResult:
        try:
            return JudgedResult(first_step, recent_result(parts))
        except MemoryError:
            raise
        except Exception:
            # A bug of Paceline. The newest window's own figures are still valid.
            log.exception("recent windows not joined", job=self._run[0], window=first_step)
            return JudgedResult(first_step, parts[-1])
