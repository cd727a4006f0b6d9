"""Results of windows, decoded: the last used ones are kept, so that a page's charts share one."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from app.api.key_locks import KeyLocks
from app.api.places import Places
from app.store import windows
from app.store.engine import Store

Result = Mapping[str, Any]

# Numbers in Python take 32 bytes each: about 64 MB in all.
MAX_KEPT_NUMBERS = 2_000_000
# A result without its arrays has about as many.
_FEWEST = 2_000
# By worker: exact slowdown, estimate, two launch delays.
ARRAYS = 4
# Of arrivals, by rank: places, waits and how often it was late.
ARRIVAL_ARRAYS = 9
# Each reader of a range holds as many numbers as are kept in all.
MAX_RANGES = 4
_TOO_MANY = "too many others ask for several windows now: ask again in a moment"


class Results:
    """What windows' rows say, by job, window and revision; may be called from any thread.

    What it gives out is shared: nobody may change it. Take one of the places `at_range` to read
    several windows at once.
    """

    def __init__(self, *, max_kept_numbers: int = MAX_KEPT_NUMBERS) -> None:
        self._max = max_kept_numbers
        self._kept: OrderedDict[Hashable, tuple[Result, int]] = OrderedDict()
        self._keeping = threading.Lock()
        self._making = KeyLocks()
        self.at_range = Places(MAX_RANGES, _TOO_MANY)

    def get(self, store: Store, job_id: str, window_id: str, *, per_step: bool = False) -> Result:
        """One window's result; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            found = windows.summary(conn, job_id, window_id)

        def read() -> Result:
            with store.read() as conn:
                return windows.get(conn, job_id, found.window_id, per_step=per_step)

        return self.kept((job_id, found.window_id, found.revision, per_step), read)

    def kept(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result of this key, made once however many ask for it at the same time."""
        found = self._find(key)
        return self._made(key, make) if found is None else found

    def _made(self, key: Hashable, make: Callable[[], Result]) -> Result:
        with self._making.of(key):
            # Whoever waited here with the same wish as the one before finds it done.
            result = self._find(key)
            if result is None:
                result = make()
                self._keep(key, result)
            return result

    def _find(self, key: Hashable) -> Result | None:
        with self._keeping:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _keep(self, key: Hashable, result: Result) -> None:
        with self._keeping:
            self._kept[key] = result, num_numbers(result)
            # The newest stays, however large: it is about to be asked for again.
            while len(self._kept) > 1 and sum(n for _, n in self._kept.values()) > self._max:
                self._kept.popitem(last=False)


def num_numbers(result: Result) -> int:
    """About how many numbers a result holds."""
    num_workers: int = result["job"]["dp_size"] * result["job"]["pp_size"]
    num_steps = len(result["steps"])
    by_step = num_steps * num_workers if result.get("per_step") else 0
    arrivals = result.get("arrivals") or {}
    by_rank = len(arrivals.get("rank", ())) * (
        ARRIVAL_ARRAYS + (num_steps if arrivals.get("per_step") else 0)
    )
    return _FEWEST + ARRAYS * num_workers + 8 * num_steps + by_step + by_rank
