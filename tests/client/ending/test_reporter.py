"""Telling how a recorder ended takes no longer than it may, whatever else is waited for."""

import threading
import time

import pytest
from paceline_client.ending import process_end
from paceline_client.ending.process_end import FINISHED, Reporter

from tests.client.hostile_servers import endless_lookups

WITHIN_S = 10.0
WATCHED = {"url": "http://nowhere", "token": "t", "path": "/exits", "ends_job": True, "report": {}}


def tell_and_wait(reporter):
    began_s = time.monotonic()
    reporter.tell(1, FINISHED, timeout_s=0.05)
    reporter.wait_told(0.05)
    assert time.monotonic() - began_s < WITHIN_S


@pytest.fixture
def unwatched(monkeypatch):
    """A reporter with one recorder, which has to tell by itself how that ends."""
    monkeypatch.setattr(process_end, "_can_start", lambda: False)
    reporter = Reporter()
    reporter.watch(1, WATCHED)
    return reporter


def test_a_name_that_takes_for_ever_to_look_up_holds_nobody(unwatched, monkeypatch):
    with endless_lookups(monkeypatch) as is_asked:
        tell_and_wait(unwatched)
        assert is_asked.wait(WITHIN_S)


def test_a_handler_that_interrupts_the_reporter_ends_in_time(unwatched):
    with unwatched._lock:  # of the same thread, which would wait for itself
        tell_and_wait(unwatched)
    tell_and_wait(unwatched)


def test_nobody_but_its_own_thread_waits_for_a_watcher_to_start(monkeypatch):
    begun, may_start = threading.Event(), threading.Event()

    def spawn(*_):
        begun.set()
        may_start.wait(WITHIN_S)
        raise OSError("no more processes")

    monkeypatch.setattr(process_end, "_spawn", spawn)
    reporter = Reporter()
    thread = threading.Thread(target=reporter.watch, args=(1, WATCHED))
    thread.start()
    assert begun.wait(WITHIN_S)
    tell_and_wait(reporter)
    may_start.set()
    thread.join(WITHIN_S)
    assert reporter._watched == {1: WATCHED}
