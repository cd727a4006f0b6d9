"""How many days are left until the disk is full, by how it filled over the last week.

A thread of each process records how full the disk is, and asks PostgreSQL for its space: every
process keeps its own watch up to date, and of all, one saves a sample every ten minutes, so that a
restart forgets nothing. A straight line through the samples gives the growth; nothing is said
before an hour of them, and of a disk that does not fill.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import Connection, delete, func, select

from app.errors import Unavailable
from app.store.database import Store, insert_or_replace, now_s
from app.store.disk.reusable import SpaceMeter
from app.store.disk.usage import DiskUsage, DiskWatch
from app.store.tables import disk_samples

log = structlog.get_logger()

RECORD_EVERY_S = 30.0
SAMPLE_EVERY_S = 600.0
KEPT_FOR_S = 7 * 86_400.0
LEAST_SPAN_S = 3_600.0
LEAST_SAMPLES = 5
_DAY_S = 86_400.0


class DiskSample(NamedTuple):
    """Bytes in use at one moment, in Unix time of the database."""

    at_s: float
    used_bytes: int


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Of the fullest disk; `days_left` is None if not measured long enough, or not growing."""

    usage: DiskUsage
    days_left: float | None


def read_forecast(store: Store, watch: DiskWatch) -> DiskForecast | None:
    """The disk now, and when it is full; None where the disk is not known. Blocks: not on a loop.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    usage = watch.usage()
    if usage is None:
        return None
    with store.read() as conn:
        return forecast(usage, read_samples(conn))


def forecast(usage: DiskUsage, samples: Sequence[DiskSample]) -> DiskForecast:
    """The usage now, and how many days are left at the pace of the samples."""
    growth = bytes_per_s(samples)
    days_left = None if growth is None or growth <= 0 else usage.free_bytes / growth / _DAY_S
    return DiskForecast(usage, days_left)


def bytes_per_s(samples: Sequence[DiskSample]) -> float | None:
    """Slope of the line through the samples (least squares); None if they are too few."""
    if len(samples) < LEAST_SAMPLES or samples[-1].at_s - samples[0].at_s < LEAST_SPAN_S:
        return None
    at_s, used = np.array(samples, dtype=float).T
    from_mean_s = at_s - at_s.mean()
    return float(from_mean_s @ (used - used.mean()) / (from_mean_s @ from_mean_s))


def add_sample(store: Store, usage: DiskUsage) -> bool:
    """Save the used bytes, unless another process did so within ten minutes.

    Raises:
        StoreUnavailable: the database does not answer, or the disk is full.
    """
    with store.read() as conn:
        last_s, at_s = conn.scalar(select(func.max(disk_samples.c.at_s))), now_s(conn)
        if last_s is not None and last_s <= at_s < last_s + SAMPLE_EVERY_S:
            return False
    with store.write() as conn:
        at_s = now_s(conn)
        insert_or_replace(conn, disk_samples, [{"at_s": at_s, "used_bytes": usage.used_bytes}])
        # Also of the future, where the clock was set back.
        is_kept = disk_samples.c.at_s.between(at_s - KEPT_FOR_S, at_s)
        conn.execute(delete(disk_samples).where(~is_kept))
    return True


def read_samples(conn: Connection) -> list[DiskSample]:
    """All samples, the oldest first."""
    rows = conn.execute(select(disk_samples).order_by(disk_samples.c.at_s))
    return [DiskSample(*row) for row in rows]


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
