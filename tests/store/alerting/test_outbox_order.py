"""Order of messages per receiver, fairness between projects, and clocks set back."""

from collections import Counter
from typing import Any

import pytest

from app.alerts.receiver import FAILURES_TO_OPEN, LONGEST_DELAY_S, PROBE_EVERY_S
from app.store.alerting import receivers
from app.store.alerting.outbox import AFTER_A_SUCCESS_S, MAX_LEASE_S, MAX_PER_PROJECT
from tests.store.alerting.box import LEASE_S, Box


@pytest.fixture
def box(store):
    return Box(store)


def test_message_about_another_alert_does_not_wait_for_a_refused_one(box):
    box.add("a is over", kind="resolved", fingerprints=["aa"])
    [refused] = box.claim()
    box.fail(refused)
    box.add("b fires", fingerprints=["bb"])
    assert box.notices_of(box.claim()) == ["b fires"]
    assert box.states()["a is over"] == "due"


def test_message_about_another_alert_does_not_wait_for_one_in_flight(box):
    box.add("a fires", fingerprints=["aa"])
    [_] = box.claim()
    box.add("b fires", fingerprints=["bb"])
    assert box.notices_of(box.claim()) == ["b fires"]


@pytest.mark.sql_sensitive
def test_message_waits_for_an_older_one_that_lists_its_alert(box):
    box.add("b fires, as a does", fingerprints=["bb"], listed=["aa"])
    [_] = box.claim()
    box.add("a is over", kind="resolved", fingerprints=["aa"])
    assert box.claim() == []


@pytest.mark.sql_sensitive
def test_message_is_outdated_by_one_that_lists_all_its_alerts(box):
    box.add("a fires", fingerprints=["aa"])
    [refused] = box.claim()
    box.fail(refused)
    box.add("b fires, as a does", fingerprints=["bb"], listed=["aa"])
    assert box.states() == {"a fires": "outdated", "b fires, as a does": "due"}


@pytest.mark.sql_sensitive
def test_only_the_newest_refresh_waits(box):
    am = {"to": "am", "format": "alertmanager-push", "kind": "refresh"}
    box.add("a and b fire", fingerprints=["aa", "bb"], **am)
    [under_way] = box.claim()
    box.add("they still do", fingerprints=["aa", "bb"], **am)
    assert box.states() == {"a and b fire": "due", "they still do": "due"}
    box.deliver(under_way)
    box.add("and still", fingerprints=["aa", "bb"], **am)
    assert box.states()["they still do"] == "outdated"
    box.add("a is over", fingerprints=["aa"], **am | {"kind": "resolved"})
    assert box.states()["and still"] == "due", "who else would say that b fires?"
    box.add("b is over", fingerprints=["bb"], **am | {"kind": "resolved"})
    assert box.notices_of(box.claim()) == ["a is over", "b is over"]


@pytest.mark.sql_sensitive
def test_refresh_does_not_outdate_news(box):
    am = {"to": "am", "format": "alertmanager-push", "fingerprints": ["aa"]}
    box.add("a fires", **am)
    [refused] = box.claim()
    box.fail(refused)
    box.add("it still does", kind="refresh", **am)
    assert box.states() == {"a fires": "due", "it still does": "due"}
    assert box.notices_of(box.claim()) == ["a fires"]


def test_firing_that_is_over_is_not_sent_to_a_failing_receiver(store, box):
    box.add("a fires", fingerprints=["aa"])
    box.add("a is over", fingerprints=["aa"], kind="resolved")
    assert box.states()["a fires"] == "due", "it is about to be told"
    rest(store)
    box.add("b fires", fingerprints=["bb"])
    assert box.states() == {"a fires": "outdated", "a is over": "due", "b fires": "due"}


@pytest.mark.sql_sensitive
def test_message_in_flight_to_a_failing_receiver_is_not_outdated(store, box):
    box.add("a fires", fingerprints=["aa"])
    rest(store)
    [_] = box.claim(100.0 + PROBE_EVERY_S)
    box.add("a is over", fingerprints=["aa"], kind="resolved", now_s=100.0 + PROBE_EVERY_S)
    assert box.states() == {"a fires": "due", "a is over": "due"}


def test_receiver_with_one_incident_gets_only_the_last_state(box):
    pager = {"to": "pager", "format": "pagerduty"}
    box.add("a is over", kind="resolved", fingerprints=["aa"], **pager)
    [under_way] = box.claim()
    box.add("b fires", fingerprints=["bb"], **pager)
    assert box.claim() == [], "not at once, since nobody knows which of them comes first"
    box.fail(under_way)
    assert box.states() == {"a is over": "outdated", "b fires": "due"}
    assert box.notices_of(box.claim()) == ["b fires"]


def test_failed_message_restarts_when_a_new_one_waits_for_it(box):
    box.add("a and b fire", fingerprints=["aa", "bb"])
    [refused] = box.claim()
    box.fail(refused)
    box.add("a is over", kind="resolved", fingerprints=["aa"], now_s=200.0)
    [again] = box.claim(200.0)
    assert (box.notices_of([again]), again.attempt) == (["a and b fire"], 1)


def test_failed_messages_are_retried_soon_after_a_success(box):
    for number in range(2):
        box.add(f"{number}", rule=f"r-{number}", now_s=100.0)
    first, second = box.claim()
    box.fail(first, next_at_s=10_000.0)
    box.deliver(second, now_s=101.0)
    assert box.claim(101.0 + AFTER_A_SUCCESS_S - 0.1) == []
    assert box.notices_of(box.claim(101.0 + AFTER_A_SUCCESS_S)) == ["0"]


def test_success_of_one_receiver_retries_nothing_of_another(box):
    box.add("0", to="dead")
    box.add("1", to="well")
    dead, well = sorted(box.claim(), key=lambda each: each.endpoint_id)
    box.fail(dead, next_at_s=10_000.0)
    box.deliver(well)
    assert box.claim(9_999.0) == []


@pytest.mark.sql_sensitive
def test_projects_take_turns_however_many_messages_one_has(box):
    for number in range(40):
        box.add(f"l{number}", to=f"loud-{number // 2}", project="loud", rule=f"{number}", now_s=50)
    for number in range(3):
        box.add(f"c{number}", to=f"calm-{number}", project="calm", now_s=99.0)
    first = box.claim(limit=6)
    assert Counter(each.endpoint_id.split("-")[0] for each in first) == {"loud": 3, "calm": 3}
    rest = box.claim()
    assert Counter(each.endpoint_id.split("-")[0] for each in rest) == {"loud": MAX_PER_PROJECT - 3}
    assert box.claim() == []


@pytest.mark.sql_sensitive
def test_projects_take_turns_at_the_shared_receiver(box):
    for number in range(9):
        box.add(f"l{number}", project="loud", job_id=f"loud/{number}", now_s=50.0)
        box.add(f"n{number}", project="noisy", job_id=f"noisy/{number}", now_s=60.0)
    first, second = box.claim()
    assert {first.job_id, second.job_id} == {"loud/0", "noisy/0"}
    box.add("c", project="calm", now_s=99.0)
    box.deliver(first)
    assert [each.job_id for each in box.claim()] == ["calm/job"]
    box.deliver(second)
    [third] = box.claim()
    assert third.job_id in ("loud/1", "noisy/1")


def test_failing_receiver_gets_a_test_message_first(store, box):
    box.add("a", project="loud", now_s=50.0)
    given: dict[str, Any] = {"kind": "test", "job_id": None, "rule": None, "fingerprints": []}
    box.add("test", project="calm", **given)
    rest(store)
    assert [each.kind for each in box.claim(100.0 + PROBE_EVERY_S)] == ["test"]


@pytest.mark.parametrize("column", ["next_at_s", "lease_until_s"])
def test_messages_do_not_wait_for_a_clock_set_back(box, column):
    box.add("a", now_s=100.0)
    [delivery] = box.claim(1e9)
    if column == "next_at_s":
        box.fail(delivery, now_s=1e9, next_at_s=1e9 + 5)
    assert len(box.claim(100.0)) == 1


def test_messages_wait_for_times_by_the_right_clock(box):
    box.add("a")
    [delivery] = box.claim()
    box.fail(delivery, next_at_s=100.0 + LONGEST_DELAY_S)
    assert box.claim(100.0) == []
    assert LEASE_S < MAX_LEASE_S


def test_probe_time_by_a_clock_ahead_is_ignored(store, box):
    box.add("a")
    rest(store, now_s=1e9)
    assert len(box.claim(100.0)) == 1


def test_clock_read_slightly_earlier_is_not_set_back(store, box):
    """As when one sender has just claimed the probe and another asks."""
    box.add("a")
    rest(store, now_s=100.002)
    assert box.claim(100.0) == []


def rest(store, *, now_s=100.0):
    """Make the receiver fail until it is only probed."""
    with store.write() as conn:
        for _ in range(FAILURES_TO_OPEN):
            receivers.mark_failed(conn, "hook", detail="HTTP 500", now_s=now_s)
