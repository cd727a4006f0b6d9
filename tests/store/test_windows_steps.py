import pytest

from app.errors import JobNotFound
from app.store import windows
from app.store.windows import StepRow
from tests.store.factories import register


def row(step, *, epoch=1, slowdown=1.5):
    return StepRow(epoch, step, 3.0, 2.9, 2.0, slowdown, f"{epoch}-0")


def test_step_series_is_ascending_and_has_skipped_steps(store):
    register(store)
    rows = [row(1), StepRow(1, 2, None, None, None, None, "1-0", "rank 3 did not report"), row(3)]
    with store.write() as conn:
        windows.save_steps(conn, "job", rows[::-1])
        assert windows.step_series(conn, "job") == rows


@pytest.mark.sql_sensitive
def test_a_step_saved_again_is_replaced(store):
    register(store)
    with store.write() as conn:
        windows.save_steps(conn, "job", [row(1), row(2)])
        windows.save_steps(conn, "job", [row(2, slowdown=1.1)])
        windows.save_steps(conn, "job", [])
        assert [found.slowdown for found in windows.step_series(conn, "job")] == [1.5, 1.1]


@pytest.mark.sql_sensitive
def test_limited_step_series_has_the_last_steps(store):
    register(store)
    with store.write() as conn:
        windows.save_steps(conn, "job", [row(step) for step in range(10)])
        found = windows.step_series(conn, "job", first=2, last=8, limit=3)
    assert [step.step for step in found] == [6, 7, 8]


def test_step_series_is_of_the_current_run_by_default(store):
    for key in ("a", "b"):
        register(store, run_key=key)
    with store.write() as conn:
        windows.save_steps(conn, "job", [row(1), row(7, epoch=2)])
        assert [step.step for step in windows.step_series(conn, "job")] == [7]
        assert [step.step for step in windows.step_series(conn, "job", epoch=1)] == [1]


def test_step_series_of_an_unknown_job_is_not_found(store):
    with store.read() as conn, pytest.raises(JobNotFound):
        windows.step_series(conn, "nobody")
