import threading
import time

import pytest

from app.consumer.janitor import Janitor
from app.errors import LeaseLost
from app.store import windows
from app.store.database import Store
from app.store.retention import RetentionLimits
from app.store.shrinking.thinning import ThinningDays
from tests.store.factories import register, window

JOB = "default/job"
NUM_WINDOWS = 250  # removed in batches of 100
USUAL = RetentionLimits(raw_days=14.0, results_days=180.0)
NOT_DUE = ThinningDays(steps_days=1000.0, windows_days=1000.0, hours_days=1000.0)


class Stop(threading.Event):
    """A stop event that is set after `passes` waits and records their timeouts."""

    def __init__(self, passes=10**9):
        super().__init__()
        self.waits = []
        self._passes = passes

    def wait(self, timeout=None):
        self.waits.append(timeout)
        return len(self.waits) > self._passes


@pytest.fixture
def store(new_url):
    store = Store(new_url())
    register(store, JOB)
    with store.write() as conn:
        for first_step in range(NUM_WINDOWS):
            old_s = time.time() - 15 * 86_400
            record = window(first_step, state="complete", trace=b"ops", updated_s=old_s)
            windows.save(conn, JOB, record)
    yield store
    store.close()


def num_left(store):
    with store.read() as conn:
        return sum(windows.trace(conn, JOB, f"1-{step}") is not None for step in range(NUM_WINDOWS))


def test_janitor_pauses_between_batches(store):
    stop = Stop()
    assert Janitor(store, USUAL, NOT_DUE, monotonic=lambda: 0.0).turn(stop)
    assert num_left(store) == 0
    assert len(stop.waits) == 3


def test_turn_ends_at_its_time_limit_and_the_next_one_continues(store):
    ticks = iter([0.0, 1.0, 20.0, 100.0, 101.0])
    sweeping = Janitor(store, USUAL, NOT_DUE, monotonic=ticks.__next__)
    assert not sweeping.turn(Stop())
    assert num_left(store) == 50
    assert sweeping.turn(Stop())
    assert num_left(store) == 0


def test_stop_ends_the_sweep_between_two_batches(store):
    assert not Janitor(store, USUAL, NOT_DUE).turn(Stop(0))
    assert num_left(store) == 150


def test_janitor_sweeps_hourly_and_continues_after_a_full_turn(store):
    ticks = iter([0.0, 30.0, 100.0, 101.0, 102.0, 200.0])
    stop = Stop(4)
    Janitor(store, USUAL, NOT_DUE, monotonic=ticks.__next__).run(stop)
    between_turns = [wait for wait in stop.waits if wait in (60.0, 40.0, 3600.0)]
    assert between_turns == [60.0, 40.0, 3600.0]
    assert num_left(store) == 0


@pytest.mark.parametrize("error", [LeaseLost("another"), ValueError("broken")])
def test_janitor_goes_on_after_any_error(store, error):
    sweeping = Janitor(store, USUAL, NOT_DUE, monotonic=_raising(error))
    stop = Stop(3)
    sweeping.run(stop)
    assert stop.waits == [60.0, 3600.0, 3600.0, 3600.0]


def _raising(error):
    def monotonic():
        raise error

    return monotonic


def test_shrinking_waits_for_a_multiple_of_its_work_but_not_for_ever(store, monkeypatch):
    ticks = iter([0.0, 0.05, 0.05, 10.05, 10.05, 10.0501, 10.0501, 11.0])
    monkeypatch.setattr("app.consumer.janitor.time.perf_counter", ticks.__next__)
    monkeypatch.setattr("app.consumer.janitor.give_back_free_pages", lambda _: iter([1, 1, 1]))
    stop = Stop()
    later = RetentionLimits(raw_days=1000.0, results_days=1000.0)
    assert Janitor(store, later, NOT_DUE).turn(stop)
    assert stop.waits == [pytest.approx(0.45), 2.0, 0.1]
