import socket
import threading
import traceback
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from app.errors import JobNotFound, StartUpFailed, StoreUnavailable
from app.store import jobs, runs, shards, tables
from app.store.database import Store, check_durable, parse_url
from app.store.shards import SpoolRow
from tests.postgres import database
from tests.store.factories import register, registration

pytestmark = pytest.mark.sql_sensitive


def test_failed_write_leaves_no_rows(store):
    register(store, "default/kept")
    with pytest.raises(JobNotFound), store.write() as conn:
        _register_and_fail(conn)
    with store.read() as conn:
        assert [job.job_id for job in jobs.page(conn)[0]] == ["default/kept"]


def _register_and_fail(conn):
    runs.register(conn, "default/lost", registration(), now_s=1.0)
    raise JobNotFound("another")


def test_reader_neither_waits_for_a_writer_nor_sees_its_rows(store):
    with store.write() as writing:
        runs.register(writing, "default/job", registration(), now_s=1.0)
        with store.read() as reading:
            assert jobs.page(reading)[0] == []


def test_snapshot_is_unchanged_by_concurrent_writes(store):
    with store.snapshot() as conn:
        assert jobs.page(conn)[0] == []
        register(store, "default/job")
        assert jobs.page(conn)[0] == []


def test_writers_wait_for_each_other(store):
    """A transaction that reads and then writes must not fail because another one wrote."""
    register(store)

    query = select(tables.jobs.c.epoch).with_for_update()

    def count_up():
        for _ in range(5):
            with store.write() as conn:
                found = conn.execute(query).scalar_one()
                conn.execute(text("UPDATE jobs SET epoch = :next"), {"next": found + 1})

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as conn:
        assert conn.execute(text("SELECT epoch FROM jobs")).scalar() == 21


def test_a_write_that_waits_too_long_is_unavailable(url):
    first, second = Store(url), Store(url, lock_wait_s=0.1)
    register(first)
    with first.write() as conn:
        conn.execute(text("UPDATE jobs SET epoch = 5"))
        with pytest.raises(StoreUnavailable), second.write() as other:
            other.execute(text("UPDATE jobs SET epoch = 6"))
    first.close()
    second.close()


def test_rows_of_an_unregistered_run_are_refused(store):
    with pytest.raises(IntegrityError), store.write() as conn:
        shards.add_spooled(conn, [SpoolRow("nobody", 1, 1, 0, b"")])


def test_database_settings_are_durable(store):
    check_durable(store)


def test_postgresql_without_synchronous_commit_is_refused(pg_server):
    with database(pg_server) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            name = conn.info.dbname
            conn.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        store = Store(url)
        with pytest.raises(StartUpFailed, match="synchronous_commit is off"):
            check_durable(store)
        store.close()


@pytest.fixture
def pg_store(pg_url):
    with closing(Store(pg_url)) as store:
        yield store


def test_broken_connection_is_unavailable_once_and_then_replaced(pg_store):
    with pytest.raises(StoreUnavailable), pg_store.read() as conn:
        conn.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    with pg_store.read() as conn:
        assert conn.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("statement_timeout", "5s"),
        ("lock_timeout", "2s"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("transaction_read_only", "on"),
    ],
)
def test_read_transaction_has_time_limits_and_is_read_only(pg_store, setting, value):
    with pg_store.read() as conn:
        assert conn.execute(text(f"SHOW {setting}")).scalar_one() == value


def test_a_statement_that_takes_too_long_is_unavailable(pg_store):
    too_long = [text("SET LOCAL statement_timeout = '50ms'"), text("SELECT pg_sleep(60)")]
    with pytest.raises(StoreUnavailable), pg_store.write() as conn:
        _run_all(conn, too_long)


def _run_all(conn, statements):
    for statement in statements:
        conn.execute(statement)


def test_a_server_that_hangs_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = Store(f"postgresql://nobody@127.0.0.1:{port}/nothing")
        with pytest.raises(StoreUnavailable), store.read():
            pass
        store.close()


@pytest.mark.parametrize("url", ["", "paceline.db", "mysql://host/db", "sqlite://", "http://x"])
def test_url_of_an_unknown_database_is_refused(url):
    with pytest.raises(StartUpFailed, match="sqlite:///PATH"):
        parse_url(url)


def test_a_password_is_not_in_the_refusal():
    with pytest.raises(StartUpFailed) as refusal:
        parse_url("mysql://user:hunter2@host/db")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@host:port/db",
        "postgresql://user:hunter2@[::1/db",
        "postgresql://user:hunter2@/db?host=a:x&host=b:y",
        "sqlite:///hunter2.db?timeout=long",
    ],
)
def test_url_that_cannot_be_read_is_refused_by_its_variable_without_its_password(url):
    with pytest.raises(StartUpFailed, match="PACELINE_DATABASE_URL cannot be read") as refusal:
        parse_url(url)
    whole = "".join(traceback.format_exception(refusal.value))
    assert "hunter2" not in whole
