"""Windows from one to another: all of them counted, and few enough of them listed."""

import pytest

from app.errors import InvalidRequest, JobNotFound, WindowNotFound
from app.store import spans, steps, windows
from app.store.steps import StepRow
from tests.store.factories import register, window


@pytest.fixture
def conn(store):
    register(store)
    with store.write() as conn:
        yield conn


def given(conn, *first_steps, with_steps=True):
    """Windows of two steps, of 10 s each, of which stragglers took 1 s more in each window."""
    for at, first in enumerate(first_steps):
        one = window(first, last_step=first + 1, num_steps=2, revision=1)
        windows.save(conn, "job", one)
        rows = [
            StepRow(1, step, 11.0 + at, 10.0 + at, 10.0, 1.0 + at / 10, f"1-{first}")
            for step in (first, first + 1)
        ]
        steps.save(conn, "job", rows if with_steps else rows[:1])


def test_the_windows_between_two_are_those_and_what_is_between(conn):
    given(conn, 0, 2, 4, 6)
    found = spans.between(conn, "job", "1-2", "1-5")
    assert found == spans.Span(1, [2, 4], 5, 2, 4, 2, 2)


def test_of_very_many_some_are_listed_with_both_ends(conn, monkeypatch):
    given(conn, *range(0, 16, 2))
    monkeypatch.setattr(spans, "MAX_LISTED", 3)
    found = spans.between(conn, "job", "1-0", "1-14")
    assert found.first_steps == [0, 6, 12, 14]
    assert (found.num_windows, found.num_steps) == (8, 16)


def test_what_was_lost_is_the_sum_of_what_each_window_lost(conn):
    given(conn, 0, 2, 4)
    given_span = spans.between(conn, "job", "1-0", "1-4")
    # Two steps a window: none of 22 s, 1 of 11 of 24 s, 2 of 12 of 26 s; four GPUs.
    expected = 4 * (24 / 11 + 26 * 2 / 12)
    assert spans.gpu_s_lost(conn, "job", given_span, num_gpus=4) == pytest.approx(expected)


def test_what_was_lost_is_not_known_without_all_steps(conn):
    given(conn, 0, 2, with_steps=False)
    found = spans.between(conn, "job", "1-0", "1-2")
    assert spans.gpu_s_lost(conn, "job", found, num_gpus=4) is None


def test_skipped_steps_lost_nothing(conn):
    given(conn, 0, 4)
    steps.save(conn, "job", [StepRow(1, 3, None, None, None, None, "1-4", "rank 3 was silent")])
    found = spans.between(conn, "job", "1-0", "1-4")
    assert spans.gpu_s_lost(conn, "job", found, num_gpus=1) == pytest.approx(24 / 11)


@pytest.mark.parametrize("ends", [("1-2", "1-0"), ("1-0", "2-0")])
def test_ends_in_the_wrong_order_are_refused(conn, ends):
    given(conn, 0, 2)
    with pytest.raises(InvalidRequest):
        spans.between(conn, "job", *ends)


def test_none_is_not_found_and_neither_is_an_unknown_job(conn):
    given(conn, 0)
    with pytest.raises(WindowNotFound):
        spans.between(conn, "job", "1-100", "1-200")
    with pytest.raises(JobNotFound):
        spans.between(conn, "gone", "1-0", "1-2")
