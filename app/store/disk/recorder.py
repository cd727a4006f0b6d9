"""Records how full the disk is, in a thread of each process; asks PostgreSQL for its space.

Every process keeps its own watch up to date; of all, one saves a sample every ten minutes.
"""

import threading
import time
from collections.abc import Callable

import structlog

from app.errors import Unavailable
from app.store.database import Store
from app.store.disk.forecast import add_sample
from app.store.disk.reusable import SpaceMeter
from app.store.disk.usage import DiskWatch

log = structlog.get_logger()

RECORD_EVERY_S = 30.0


class DiskRecorder:
    """Measures until stopped, whatever fails meanwhile."""

    def __init__(
        self,
        store: Store,
        watch: DiskWatch,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._watch = watch
        self._meter = SpaceMeter(monotonic=monotonic)

    def run(self, stop: threading.Event) -> None:
        """Record every 30 s until `stop` is set."""
        while True:
            try:
                self.record()
            except Unavailable as error:
                log.info("disk not recorded", reason=str(error))
            except Exception:
                # Whatever it is, the process has more important work.
                log.exception("disk not recorded")
            if stop.wait(RECORD_EVERY_S):
                return

    def record(self) -> None:
        """Measure once; save a sample if one is due.

        Raises:
            StoreUnavailable: the database does not answer, or the disk is full.
        """
        disk_bytes = self._watch.database_disk_bytes
        if disk_bytes is not None and not self._store.is_sqlite:
            space = self._meter.read(self._store)
            self._watch.note_database(space.size_bytes, space.reusable_bytes(disk_bytes))
        if usage := self._watch.usage():
            add_sample(self._store, usage)


def start_recording(store: Store, watch: DiskWatch, stop: threading.Event) -> None:
    """Record in a thread until `stop` is set."""
    recorder = DiskRecorder(store, watch)
    threading.Thread(target=recorder.run, args=(stop,), name="disk", daemon=True).start()
