"""What each running job is judged by, worked out once when a window closes."""

from typing import NamedTuple

import structlog

from app.alerts.readings.facts import window_position
from app.result.recent import RECENT_WINDOWS, recent_result
from app.result.stored import split_by_step
from app.result.window_result import WindowResult
from app.store import windows
from app.store.database import Store

log = structlog.get_logger()


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
        _, first_step = window_position(str(result.window.id))
        if result.slowdown is None:
            had_figures = parts.pop(first_step, None) is not None
        else:
            parts[first_step] = split_by_step(result)[0]
            had_figures = True
        kept = sorted(parts)[-RECENT_WINDOWS:]
        is_among = had_figures and bool(kept) and first_step >= kept[0]
        self._parts = {each: parts[each] for each in kept}
        return self._judged(kept[-1], list(self._parts.values())) if is_among else None

    def _loaded(self) -> dict[int, WindowResult]:
        job_id, epoch = self._run
        with self._store.read() as conn:
            found = windows.last_closed(conn, job_id, epoch, limit=RECENT_WINDOWS)
            return {each.first_step: windows.get(conn, job_id, each.window_id) for each in found}

    def _judged(self, first_step: int, parts: list[WindowResult]) -> JudgedResult:
        try:
            return JudgedResult(first_step, recent_result(parts))
        except MemoryError:
            raise
        except Exception:
            # A bug of Paceline. The newest window's own figures are still valid.
            log.exception("recent windows not joined", job=self._run[0], window=first_step)
            return JudgedResult(first_step, parts[-1])
