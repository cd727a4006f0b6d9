"""Decoded results of windows, in an LRU cache that all charts of a page share."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from app.api.http.caching import ComputeCache
from app.store import joint_windows, windows
from app.store.database import Store
from app.store.joint_windows import ARRAYS_PER_RANK, ARRAYS_PER_WORKER

Result = Mapping[str, Any]

# Numbers in Python take 32 bytes each: about 64 MB in all.
MAX_NUMBERS_CACHED = 2_000_000
# Of a result without its arrays.
_MIN_NUMBERS = 2_000
# The charts of a page are asked for together, and the next revision has another key. Without this
# the cache would grow for hours, mostly by revisions that nobody asks for any more.
IDLE_S = 120.0


class ResultCache:
    """Results by job, window and revision; thread-safe. Shared: no caller may change one."""

    def __init__(self, *, max_numbers: int = MAX_NUMBERS_CACHED) -> None:
        self._cache = ComputeCache[Hashable, Result](
            max_size=max_numbers, size_of=num_numbers, idle_s=IDLE_S
        )

    def get(self, store: Store, job_id: str, window_id: str, *, per_step: bool = False) -> Result:
        """One window's result; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            found = windows.summary(conn, job_id, window_id)

        def read() -> Result:
            with store.read() as conn:
                return windows.get(conn, job_id, found.window_id, per_step=per_step)

        return self.get_or_compute((job_id, found.window_id, found.revision, per_step), read)

    def recent(self, store: Store, job_id: str, *, per_step: bool = False) -> Result:
        """What the job is judged by now; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            judged = joint_windows.judged_windows(conn, job_id)

        def read() -> Result:
            with store.read() as conn:
                return joint_windows.read_judged(conn, job_id, judged, per_step=per_step)

        return self.get_or_compute((job_id, "recent", judged.key, per_step), read)

    def get_or_compute(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """The result of this key; concurrent callers share one computation."""
        return self._cache.get(key, compute)


def num_numbers(result: Result) -> int:
    """Approximate count of numbers in a result."""
    num_workers: int = result["job"]["dp_size"] * result["job"]["pp_size"]
    num_steps = len(result["steps"])
    by_step = num_steps * num_workers if result.get("per_step") else 0
    arrivals = result.get("arrivals") or {}
    by_rank = len(arrivals.get("rank", ())) * (
        ARRAYS_PER_RANK + (num_steps if arrivals.get("per_step") else 0)
    )
    return _MIN_NUMBERS + ARRAYS_PER_WORKER * num_workers + 8 * num_steps + by_step + by_rank
