"""Database faults (rows 15 to 18): a 503 each, and then a recovery."""

import threading

import pytest
from sqlalchemy import text

from app.errors import StoreUnavailable
from app.store import jobs, runs
from app.store.database import Store, now_s, without_time_limits
from tests.store.factories import register, registration


@pytest.fixture
def pg_store(pg_url):
    store = Store(pg_url)
    yield store
    store.close()


def pids(store, number):
    """Backend pids of `number` concurrent connections; all stay in the pool."""
    found = []
    together = threading.Barrier(number)

    def ask():
        with store.read() as conn:
            together.wait()
            found.append(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def terminate(store, pid):
    with store.write() as conn:
        conn.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})


def test_row_16_killed_idle_connections_are_replaced_without_an_error(pg_store, pg_url):
    killer = Store(pg_url)
    before = pids(pg_store, 4)
    for pid in before:
        terminate(killer, pid)
    register(pg_store)
    assert not set(pids(pg_store, 4)) & set(before)
    killer.close()


def test_row_16_killed_backend_loses_only_its_own_transaction(pg_store, pg_url):
    killer = Store(pg_url)
    with pytest.raises(StoreUnavailable), pg_store.write() as conn:
        _register_and_lose_the_connection(conn, killer)
    register(pg_store, "kept")
    with pg_store.read() as conn:
        found = conn.execute(text("SELECT job_id FROM jobs")).scalars().all()
    assert found == ["kept"]
    killer.close()


def _register_and_lose_the_connection(conn, killer):
    pid = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
    runs.register(conn, "lost", registration(), now_s=1.0)
    terminate(killer, pid)
    runs.end(conn, "lost", now_s=2.0)


def test_row_17_full_disk_is_unavailable_and_loses_no_committed_row(tmp_path):
    store = Store(f"sqlite:///{tmp_path / 'paceline.db'}")
    with store.write() as conn:
        conn.execute(text("CREATE TABLE many (blob BLOB)"))
        conn.execute(text("INSERT INTO many VALUES ('kept')"))
        # A limit per connection: the pool has only one in this thread.
        conn.execute(text("PRAGMA max_page_count = 20"))

    def add():
        with store.write() as conn:
            conn.execute(text("INSERT INTO many VALUES (randomblob(1000000))"))

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            add()
    with store.read() as conn:
        assert conn.execute(text("SELECT blob FROM many")).scalars().all() == ["kept"]
        conn.execute(text("PRAGMA max_page_count = 100000"))
    add()
    store.close()


@pytest.mark.parametrize(
    "code", ["53100", "53200", "53300", "58030", "57P03", "40001", "40P01", "25P03"]
)
def test_row_17_transient_postgresql_errors_are_unavailable(pg_store, code):
    """Disk full, out of memory, too many connections, I/O error, start-up, conflicts."""
    fail = text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")
    with pytest.raises(StoreUnavailable), pg_store.write() as conn:
        conn.execute(fail)
    with pg_store.read() as conn:
        assert conn.scalar(text("SELECT 1")) == 1


def test_row_18_locked_table_is_unavailable_until_released(pg_url, pg_store):
    hasty = Store(pg_url, lock_wait_s=0.05)
    register(hasty)
    with pg_store.write() as locking:
        locking.execute(text("LOCK TABLE jobs"))
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                register(hasty)
            with pytest.raises(StoreUnavailable), hasty.read() as conn:
                jobs.page(conn)
    assert register(hasty, run_key="run-2") == 2
    hasty.close()


def test_row_18_idle_transaction_is_ended_and_releases_its_locks(pg_url, pg_store):
    other = Store(pg_url)
    register(pg_store)
    with pytest.raises(StoreUnavailable), pg_store.write() as conn:
        _write_fall_asleep_and_write(conn, other)
    assert register(other, run_key="run-2") == 2
    other.close()


def _write_fall_asleep_and_write(conn, other):
    conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = '50ms'"))
    conn.execute(text("UPDATE jobs SET epoch = 5"))
    # Waits until the server ends our session and releases the lock.
    with other.write() as waiting:
        waiting.execute(text("LOCK TABLE jobs"))
    conn.execute(text("UPDATE jobs SET epoch = 6"))


def limits(conn):
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
    return [conn.execute(text(f"SHOW {name}")).scalar_one() for name in names]


def test_lifted_time_limits_apply_to_one_transaction_only(pg_store):
    with pg_store.snapshot() as conn:
        without_time_limits(conn)
        assert limits(conn) == ["0", "0", "2s"]
    with pg_store.snapshot() as conn:
        assert limits(conn) == ["5s", "10s", "2s"]


def test_database_clock_advances_within_a_transaction(store):
    with store.read() as conn:
        first = later = now_s(conn)
        while (
            later == first
        ):  # floats resolve a quarter of a microsecond: two readings may be equal
            later = now_s(conn)
        assert first < later < first + 60
