"""The janitor: removes rows past their project's retention and thins old ones, in small batches.

Afterwards a SQLite file gives pages that are no longer used back to the disk, and the tables of
PostgreSQL that many rows were removed from are vacuumed, so that new rows take their space.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

import structlog

from app.errors import LeaseLost, Unavailable
from app.store import retention
from app.store.database import Store
from app.store.retention import RetentionLimits
from app.store.shrinking.dead_rows import give_back_free_pages, vacuum_tables
from app.store.shrinking.thinning import ThinningDays

log = structlog.get_logger()

_FIRST_AFTER_S = 60.0  # not during the start
_CHECK_EVERY_S = 3600.0
_TURN_S = 20.0
_BETWEEN_TURNS_S = 40.0
_BETWEEN_BATCHES_S = 0.1  # lets others write
# Shrinking is never urgent: it waits this many times as long as a batch took, so that consumers
# that have a fifth of half a core to spare keep up beside it. Not longer, on a disk that stalls.
_PAUSE_PER_WORK = 9.0
_LONGEST_PAUSE_S = 2.0


class Janitor:
    """Sweeps once an hour; of several consumers' janitors one at a time."""

    def __init__(
        self,
        store: Store,
        usual: RetentionLimits,
        thinning: ThinningDays,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._usual = usual
        self._thinning = thinning
        self._monotonic = monotonic

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set."""
        pause_s = _FIRST_AFTER_S
        while not stop.wait(pause_s):
            pause_s = _CHECK_EVERY_S
            try:
                if not self.turn(stop):
                    pause_s = _BETWEEN_TURNS_S
            except (LeaseLost, Unavailable) as error:
                log.info("nothing old removed", reason=str(error))
            except Exception:
                # An error must end neither the consumer nor this thread.
                log.exception("removal failed")

    def turn(self, stop: threading.Event) -> bool:
        """Remove and thin old rows, and shrink the file, for up to _TURN_S; True if all is done.

        A vacuum of PostgreSQL may take longer. It ends when `stop` is set.

        Raises:
            LeaseLost: another process is sweeping.
            StoreUnavailable: the database does not answer.
        """
        until_s = self._monotonic() + _TURN_S
        removed: Counter[str] = Counter()
        is_done = True
        for batch in retention.sweep(self._store, self._usual, self._thinning):
            removed[batch.kind] += batch.number
            if self._monotonic() >= until_s or stop.wait(_BETWEEN_BATCHES_S):
                is_done = False
                break
        if removed:
            log.info(
                "old rows removed", **{kind.replace(" ", "_"): n for kind, n in removed.items()}
            )
        # After each turn: of much that is to go, no more than a few turns' is dead at a time.
        vacuum_tables(self._store, stop.is_set)
        return is_done and self._shrink(stop, until_s)

    def _shrink(self, stop: threading.Event, until_s: float) -> bool:
        """Give free pages of a SQLite file back, in short transactions; False if some are left."""
        freed_bytes = 0
        is_done = True
        began_s = time.perf_counter()
        for size_bytes in give_back_free_pages(self._store):
            freed_bytes += size_bytes
            pause_s = max(_BETWEEN_BATCHES_S, _PAUSE_PER_WORK * (time.perf_counter() - began_s))
            if self._monotonic() >= until_s or stop.wait(min(pause_s, _LONGEST_PAUSE_S)):
                is_done = False
                break
            began_s = time.perf_counter()
        if freed_bytes:
            log.info("database file shrunk", freed_bytes=freed_bytes)
        return is_done
