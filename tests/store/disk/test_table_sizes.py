"""Bytes of tables: counted where the file is small, estimated where it is large."""

import shutil

import pytest

from app.store import windows
from app.store.database import Store
from app.store.disk import table_sizes
from app.store.disk.table_sizes import read_table_sizes
from tests.store.factories import register, window

pytestmark = pytest.mark.sql_sensitive


def fill(store):
    register(store)
    with store.write() as conn:
        for number in range(300):
            record = window(first_step=8 * number, slowdown=1.5)
            windows.save(conn, "job", record)


def test_table_with_the_most_rows_is_the_largest(store):
    fill(store)
    sizes = read_table_sizes(store)
    assert max(sizes.tables, key=sizes.tables.__getitem__) == "windows"
    assert not sizes.are_estimates
    assert sum(sizes.tables.values()) <= sizes.database_bytes


def test_estimate_of_a_large_file_is_close_to_the_count(migrated_file, tmp_path, monkeypatch):
    store = Store(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'large.db')}")
    fill(store)
    counted = read_table_sizes(store).tables["windows"]
    monkeypatch.setattr(table_sizes, "COUNTED_UP_TO_BYTES", 0)
    sizes = read_table_sizes(store)
    assert sizes.are_estimates
    assert 0.5 < sizes.tables["windows"] / counted < 2.0
    store.close()
