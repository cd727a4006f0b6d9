"""SQLite files shrink; PostgreSQL is left alone."""

import sqlite3

import pytest

from app.store.database import Store
from app.store.migrations import migrate
from app.store.shrinking import dead_rows
from app.store.shrinking.dead_rows import give_back_free_pages
from app.store.tables import dead_letters

NUM_ROWS = 10
ROW_BYTES = 1 << 20


def fill_and_empty(store):
    row = {"job_id": "a/b", "num_ops": 0, "deliveries": 1, "reason": "", "received_s": 1.0,
           "died_s": 1.0, "state": "dead", "body": bytes(ROW_BYTES)}  # fmt: skip
    with store.write() as conn:
        for number in range(NUM_ROWS):
            conn.execute(dead_letters.insert().values(row | {"entry_id": str(number)}))
    with store.write() as conn:
        conn.execute(dead_letters.delete())


def pages(path):
    connection = sqlite3.connect(path)
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0]
             for name in ("page_count", "freelist_count", "auto_vacuum")]  # fmt: skip
    connection.close()
    return found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "paceline.db"


@pytest.fixture
def file_store(path):
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    yield store
    store.close()


def test_a_file_gives_its_free_pages_back_in_small_transactions(file_store, path, monkeypatch):
    monkeypatch.setattr(dead_rows, "_MIN_KEPT_PAGES", 100)
    fill_and_empty(file_store)
    before, free, kind = pages(path)
    assert kind == 2
    assert free > NUM_ROWS * 250
    freed = list(give_back_free_pages(file_store))
    after, left, _ = pages(path)
    assert sum(freed) == 4096 * (before - after)
    assert max(freed) <= 4096 * 1000
    assert 100 <= left <= max(100, before // 20)
    assert list(give_back_free_pages(file_store)) == []


def test_few_free_pages_stay_for_the_rows_to_come(file_store):
    with file_store.write() as conn:
        conn.execute(dead_letters.delete())
    assert list(give_back_free_pages(file_store)) == []


def test_postgresql_is_left_alone(pg_url):
    store = Store(pg_url)
    assert list(give_back_free_pages(store)) == []
    store.close()
