"""Decoded results of windows, in an LRU cache that all charts of a page share."""

from collections.abc import Callable, Hashable

from app.api.http.caching import ComputeCache
from app.result.window_result import WindowResult
from app.store import joint_windows, windows
from app.store.database import Store
from app.store.joint_windows import ARRAYS_PER_RANK, ARRAYS_PER_WORKER

# Numbers in Python take 32 bytes each: about 64 MB in all.
MAX_NUMBERS_CACHED = 2_000_000
# Of a result without its arrays.
_MIN_NUMBERS = 2_000
# The charts of a page are asked for together, and the next revision has another key. Without this
# the cache would grow for hours, mostly by revisions that nobody asks for any more.
IDLE_S = 120.0


class ResultCache:
    """Results by job, window and revision; thread-safe."""

    def __init__(self, *, max_numbers: int = MAX_NUMBERS_CACHED) -> None:
        self._cache = ComputeCache[Hashable, WindowResult](
            max_size=max_numbers, size_of=num_numbers, idle_s=IDLE_S
        )

    def get(
        self, store: Store, job_id: str, window_id: str, *, per_step: bool = False
    ) -> WindowResult:
        """One window's result; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            found = windows.summary(conn, job_id, window_id)

        def read() -> WindowResult:
            with store.read() as conn:
                return windows.get(conn, job_id, found.window_id, per_step=per_step)

        return self.get_or_compute((job_id, found.window_id, found.revision, per_step), read)

    def recent(self, store: Store, job_id: str, *, per_step: bool = False) -> WindowResult:
        """What the job is judged by now; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            judged = joint_windows.judged_windows(conn, job_id)

        def read() -> WindowResult:
            with store.read() as conn:
                return joint_windows.read_judged(conn, job_id, judged, per_step=per_step)

        return self.get_or_compute((job_id, "recent", judged.key, per_step), read)

    def get_or_compute(self, key: Hashable, compute: Callable[[], WindowResult]) -> WindowResult:
        """The result of this key; concurrent callers share one computation."""
        return self._cache.get(key, compute)


def epoch_of(result: WindowResult) -> int:
    """The run that a stored result is of; only a profile's, which is not stored, has none."""
    return result.window.epoch or 0


def num_numbers(result: WindowResult) -> int:
    """Approximate count of numbers in a result."""
    num_workers = result.job.dp_size * result.job.pp_size
    num_steps = len(result.steps)
    by_step = num_steps * num_workers if result.per_step else 0
    by_rank = 0
    if arrivals := result.arrivals:
        of_rank = ARRAYS_PER_RANK + (num_steps if arrivals.per_step else 0)
        by_rank = len(arrivals.rank) * of_rank
    return _MIN_NUMBERS + ARRAYS_PER_WORKER * num_workers + 8 * num_steps + by_step + by_rank
