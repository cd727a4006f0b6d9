"""Quotas: the oldest operations go first, then the oldest windows, and no more than needed."""

import pytest

from app.store import projects, retention
from app.store.database import Store
from app.store.retention import RetentionLimits
from tests.store.factories import register
from tests.store.test_retention import JOB, kept, save_window, sweep

RAW_BYTES = 100_000


@pytest.fixture
def filled(store: Store):
    """Four closed windows of 100 kB operations each, the oldest first, and an open one."""
    register(store, JOB)
    for number in range(4):
        save_window(store, 2 * number, days=10 - number, trace=bytes(RAW_BYTES))
    save_window(store, 8, days=20, state="open", trace=bytes(RAW_BYTES))
    return store


def limits(max_bytes):
    return RetentionLimits(14.0, 180.0, max_bytes / 1e9)


def stored(store):
    with store.read() as conn:
        return retention.stored_bytes(conn, "default")


def test_stored_bytes_are_those_of_operations_and_results(filled):
    with filled.read() as conn:
        assert retention.stored_bytes(conn, "default") > 5 * RAW_BYTES
        assert retention.stored_bytes(conn, "other") == 0


def test_within_the_quota_nothing_goes(filled):
    assert sweep(filled, limits(stored(filled) + 1)) == {}  # a byte is less than the last digit


@pytest.mark.sql_sensitive
def test_the_oldest_operations_go_first_and_no_more_than_needed(filled):
    most = stored(filled) - RAW_BYTES - 1
    assert sweep(filled, limits(most)) == {("default", "operations of windows over the quota"): 2}
    assert kept(filled)[0] == {0: False, 2: False, 4: True, 6: True, 8: True}
    assert stored(filled) <= most
    assert sweep(filled, limits(most)) == {}


def test_windows_go_when_no_operations_are_left_and_open_ones_stay(filled):
    assert sweep(filled, limits(RAW_BYTES)) == {
        ("default", "operations of windows over the quota"): 4,
        ("default", "windows over the quota"): 4,
    }
    assert kept(filled) == ({8: True}, [8, 9])


def test_a_dry_run_counts_the_same_and_removes_nothing(filled):
    most = limits(stored(filled) - RAW_BYTES - 1)
    found = {each.kind: each.number for each in retention.count_old(filled, most)}
    assert found == {"operations of windows over the quota": 2}
    assert all(kept(filled)[0].values())


def test_a_quota_of_one_project_does_not_touch_another(filled):
    register(filled, "other/job")
    save_window(filled, 0, days=9, job_id="other/job", trace=bytes(RAW_BYTES))
    with filled.write() as conn:
        projects.create_if_missing(conn, "other", now_s=1.0)
        retention.set_project_limits(
            conn, "other", raw_days=None, results_days=None, max_gb=RAW_BYTES / 2e9
        )
    found = sweep(filled, RetentionLimits(14.0, 180.0))
    assert found == {("other", "operations of windows over the quota"): 1}
