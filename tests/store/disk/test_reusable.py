"""Space inside the tables of a real PostgreSQL: after retention, pushes are taken again."""

import itertools
import os
import time

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.errors import DiskFull, StoreUnavailable
from app.store import retention, windows
from app.store.database import Store
from app.store.disk import reusable
from app.store.disk.forecast import DiskRecorder
from app.store.disk.reusable import DatabaseSpace, SpaceMeter
from app.store.disk.usage import DiskWatch
from app.store.retention import RetentionLimits
from app.store.shrinking import dead_rows
from app.store.shrinking.dead_rows import vacuum_tables
from tests.secret_keys import KEYS
from tests.store.factories import register, window

MB = 10**6
GB = 10**9
JOB = "default/job"
USUAL = RetentionLimits(raw_days=14.0, results_days=180.0)


@pytest.fixture
def store(pg_url):
    store = Store(pg_url, keys=KEYS)
    register(store, JOB)
    with store.write() as conn:
        # It comes once a minute, and where it is at it ours has nothing to do.
        for kind in ("", "toast."):
            conn.execute(text(f"ALTER TABLE windows SET ({kind}autovacuum_enabled = false)"))
    yield store
    store.close()


def fill(store, first_steps, *, days):
    """Save windows with a megabyte of operations each."""
    for first_step in first_steps:
        ops, updated_s = os.urandom(MB), time.time() - days * 86_400.0
        with store.write() as conn:
            windows.save(
                conn, JOB, window(first_step, state="complete", trace=ops, updated_s=updated_s)
            )
    tell_counters(store)


def tell_counters(store):
    """The server's counters lag by a second, or until told; these sessions are one connection's."""
    with store.write() as conn:
        conn.execute(text("SELECT pg_stat_force_next_flush()"))


def sweep(store):
    """Remove the operations that are older than 14 days."""
    for _ in retention.sweep(store, USUAL):
        pass
    tell_counters(store)


def database_bytes(store):
    with store.read() as conn:
        return conn.execute(text("SELECT pg_database_size(current_database())")).scalar_one()


class Disk:
    """A watch and its recorder, on a disk that the database fills to a share; and their clock."""

    def __init__(self, store, share):
        self._seconds = itertools.count()
        self.watch = DiskWatch(monotonic=self._seconds.__next__)
        self.watch.database_disk_bytes = int(database_bytes(store) / share)
        self.recorder = DiskRecorder(store, self.watch, monotonic=lambda: 0.0)

    def usage(self):
        self.recorder.record()
        return self.watch.usage()

    def takes(self):
        """Whether pushes are taken, and whether operations are stored."""
        self.recorder.record()
        try:
            self.watch.refuse_batches()
        except DiskFull:
            return False, self.watch.stores_operations
        return True, self.watch.stores_operations


def test_deleted_operations_make_room_although_the_database_stays_as_large(store):
    fill(store, range(50), days=15)
    fill(store, range(50, 80), days=1)
    size_bytes = database_bytes(store)
    disk = Disk(store, share=0.955)
    assert disk.takes() == (False, False)
    assert disk.usage().reusable_bytes == 0

    sweep(store)
    assert disk.takes() == (False, False), "dead rows take their space until they are vacuumed"
    assert vacuum_tables(store) == ["windows"]
    assert disk.takes() == (True, True)
    assert database_bytes(store) >= size_bytes
    assert vacuum_tables(store) == [], "nothing is left to do"

    # Within one scan, by the counters alone: new rows take the space, and the files do not grow.
    space = disk.recorder._meter.read(store)
    assert space.free_inside_bytes == pytest.approx(50 * MB * 2048 / 1996, rel=0.01)
    fill(store, range(80, 120), days=1)
    later = disk.recorder._meter.read(store)
    assert later.size_bytes - size_bytes < MB
    assert later.free_inside_bytes == pytest.approx(10 * MB * 2048 / 1996, rel=0.05)
    fill(store, range(120, 130), days=1)
    assert database_bytes(store) - size_bytes < 2 * MB
    assert disk.takes() == (False, False), "full again"


def test_whole_size_counts_once_a_crash_has_lost_the_counters(store):
    fill(store, range(40), days=15)
    fill(store, range(40, 50), days=1)
    sweep(store)
    vacuum_tables(store)
    meter = SpaceMeter()
    assert meter.read(store).free_inside_bytes > 35 * MB
    with store.write() as conn:
        conn.execute(text("SELECT pg_stat_reset()"))  # what a crash does
    assert meter.read(store).free_inside_bytes == 0
    assert vacuum_tables(store) == ["windows"]
    assert meter.read(store).free_inside_bytes > 35 * MB


def test_whole_size_counts_where_rows_take_too_long_to_scan(store, monkeypatch):
    fill(store, range(40), days=15)
    fill(store, range(40, 50), days=1)
    sweep(store)
    vacuum_tables(store)
    scans = []

    def too_slow(_conn, toast):
        scans.append(toast.name)
        raise StoreUnavailable("the database does not answer in time")

    monkeypatch.setattr(reusable, "_live_chunks", too_slow)
    meter = SpaceMeter(monotonic=lambda: 0.0)
    assert [meter.read(store).free_inside_bytes for _ in range(2)] == [0, 0]
    assert scans == ["windows"], "not again before its time"


@pytest.mark.parametrize(
    ("size_gb", "toast_gb", "free_gb", "counts_gb"),
    [
        (95, 90, 40, 40),
        (99, 90, 40, 10),  # each GB outside TOAST comes with ten inside
        (95, 50, 40, 5.5555),
        (100, 90, 40, 0),
        (120, 90, 40, 0),
        (95, 0, 0, 0),
    ],
)
def test_no_more_counts_than_fills_together_with_the_rest(size_gb, toast_gb, free_gb, counts_gb):
    space = DatabaseSpace(size_gb * GB, toast_gb * GB, free_gb * GB)
    assert space.reusable_bytes(100 * GB) == pytest.approx(counts_gb * GB, rel=1e-4)


def test_vacuum_ends_when_its_process_is_told_to(store, pg_url, monkeypatch):
    monkeypatch.setattr(dead_rows, "_LOOK_EVERY_S", 0.01)
    with psycopg.connect(pg_url) as other, store.outside_transactions() as conn:
        other.execute("SELECT pg_advisory_lock(1)")
        for name in ("lock_timeout", "statement_timeout"):
            conn.execute(text(f"SET {name} = 0"))
        driver = conn.connection.driver_connection
        with (
            pytest.raises(OperationalError, match="cancel"),
            dead_rows._cancelling(driver, lambda: True),
        ):
            conn.execute(text("SELECT pg_advisory_lock(1)"))
        conn.detach()


def test_sqlite_is_not_vacuumed(migrated_file):
    store = Store(f"sqlite:///{migrated_file}")
    assert vacuum_tables(store) == []
    store.close()
