"""The mover: takes operations of closed windows from the database into object storage.

In a thread of its own: where the storage is away, operations stay in the database, and nothing else
waits.
"""

import threading

import structlog

from app.errors import Unavailable
from app.store.database import Store
from app.store.objects import moves
from app.store.objects.bucket import Bucket

log = structlog.get_logger()

_CHECK_EVERY_S = 30.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0


class Mover:
    """Moves what is due and deletes what is not needed; of several, each a window at a time."""

    def __init__(self, store: Store, bucket: Bucket, *, after_s: float) -> None:
        self._store = store
        self._bucket = bucket
        self._after_s = after_s
        self.num_failures = 0  # in a row

    def run(self, stop: threading.Event) -> None:
        """Move until `stop` is set."""
        pause_s = _FIRST_PAUSE_S
        while not stop.wait(pause_s):
            pause_s = self.turn(stop)

    def turn(self, stop: threading.Event) -> float:
        """Move all that is due now; seconds until the next turn."""
        moved = deleted = 0
        try:
            while not stop.is_set() and moves.move_one(
                self._store, self._bucket, after_s=self._after_s
            ):
                moved += 1
            while not stop.is_set() and (more := moves.delete_some(self._store, self._bucket)):
                deleted += more
        except Unavailable as error:
            return self._failed(str(error))
        except Exception:
            # An error must end neither the consumer nor this thread.
            log.exception("moving operations failed")
            return self._failed("")
        if self.num_failures:
            log.info("object storage answers again")
        self.num_failures = 0
        if moved or deleted:
            log.info("operations moved to object storage", windows=moved, deleted=deleted)
        return _CHECK_EVERY_S

    def _failed(self, reason: str) -> float:
        if not self.num_failures and reason:
            log.warning("operations stay in the database", reason=reason)
        self.num_failures += 1
        pause_s: float = _FIRST_PAUSE_S * 2 ** min(self.num_failures - 1, 10)
        return min(pause_s, _LONGEST_PAUSE_S)
