"""Window ranges: all windows counted, a limited number listed."""

import pytest

from app.errors import InvalidRequest, JobNotFound, WindowNotFound
from app.store import windows
from app.store.windows import StepRow
from tests.store.factories import register, window


@pytest.fixture
def conn(store):
    register(store)
    with store.write() as conn:
        yield conn


def given(conn, *first_steps, with_steps=True):
    """Windows of two steps of 10 s plus straggler time that grows by 1 s per window."""
    for at, first in enumerate(first_steps):
        one = window(first, last_step=first + 1, num_steps=2, revision=1)
        windows.save(conn, "job", one)
        rows = [
            StepRow(1, step, 11.0 + at, 10.0 + at, 10.0, 1.0 + at / 10, f"1-{first}")
            for step in (first, first + 1)
        ]
        windows.save_steps(conn, "job", rows if with_steps else rows[:1])


def test_range_has_its_end_windows_and_those_between(conn):
    given(conn, 0, 2, 4, 6)
    found = windows.window_range(conn, "job", "1-2", "1-5")
    assert found == windows.WindowRange(1, [2, 4], 5, 2, 4, 2, 2)


def test_long_window_range_lists_a_spread_with_both_ends(conn, monkeypatch):
    given(conn, *range(0, 16, 2))
    monkeypatch.setattr(windows, "MAX_LISTED", 3)
    found = windows.window_range(conn, "job", "1-0", "1-14")
    assert found.first_steps == [0, 6, 12, 14]
    assert (found.num_windows, found.num_steps) == (8, 16)


def test_loss_of_a_range_is_the_sum_over_its_windows(conn):
    given(conn, 0, 2, 4)
    given_span = windows.window_range(conn, "job", "1-0", "1-4")
    # Lost per window of two steps: 0 of 22 s, 1/11 of 24 s, 2/12 of 26 s; four GPUs.
    expected = 4 * (24 / 11 + 26 * 2 / 12)
    assert windows.gpu_s_lost(conn, "job", given_span, num_gpus=4) == pytest.approx(expected)


def test_loss_of_a_range_needs_all_steps(conn):
    given(conn, 0, 2, with_steps=False)
    found = windows.window_range(conn, "job", "1-0", "1-2")
    assert windows.gpu_s_lost(conn, "job", found, num_gpus=4) is None


def test_skipped_steps_have_no_loss(conn):
    given(conn, 0, 4)
    windows.save_steps(
        conn, "job", [StepRow(1, 3, None, None, None, None, "1-4", "rank 3 was silent")]
    )
    found = windows.window_range(conn, "job", "1-0", "1-4")
    assert windows.gpu_s_lost(conn, "job", found, num_gpus=1) == pytest.approx(24 / 11)


@pytest.mark.parametrize("ends", [("1-2", "1-0"), ("1-0", "2-0")])
def test_range_ends_in_the_wrong_order_are_refused(conn, ends):
    given(conn, 0, 2)
    with pytest.raises(InvalidRequest):
        windows.window_range(conn, "job", *ends)


def test_empty_range_and_unknown_job_are_not_found(conn):
    given(conn, 0)
    with pytest.raises(WindowNotFound):
        windows.window_range(conn, "job", "1-100", "1-200")
    with pytest.raises(JobNotFound):
        windows.window_range(conn, "gone", "1-0", "1-2")
