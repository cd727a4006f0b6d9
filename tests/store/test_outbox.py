from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app.store import alerts, outbox
from tests.store.factories import register
from tests.store.test_alerts import EVENT

URL = "https://receiver.example/hook"
LEASE_S = 30.0


@pytest.fixture
def tell(store):
    """Add an event and its delivery."""
    for job_id in ("job", "other"):
        register(store, job_id)

    def tell(payload="{}", *, job_id="job", endpoint=URL, now_s=100.0):
        with store.write() as conn:
            event_id = alerts.add_event(conn, replace(EVENT, job_id=job_id))
            outbox.add(conn, event_id, endpoint, payload, now_s=now_s)
            return event_id

    return tell


@pytest.fixture
def claim(store):
    def claim(*, now_s, limit=10):
        with store.write() as conn:
            return outbox.claim(conn, now_s=now_s, lease_s=LEASE_S, limit=limit)

    return claim


@pytest.fixture
def fail(store):
    def fail(delivery, *, next_at_s, now_s=100.0):
        with store.write() as conn:
            outbox.failed(conn, delivery, detail="HTTP 500", next_at_s=next_at_s, now_s=now_s)

    return fail


def test_news_are_due_at_once_and_told_to_each_endpoint_once(store, tell, claim):
    event_id = tell("hello")
    with store.write() as conn:
        outbox.add(conn, event_id, URL, "again", now_s=100.0)
        outbox.add(conn, event_id, f"{URL}/2", "hello", now_s=100.0)
    found = claim(now_s=100.0)
    assert sorted((one.endpoint, one.payload, one.attempt) for one in found) == [
        (URL, "hello", 1),
        (f"{URL}/2", "hello", 1),
    ]
    assert len({one.delivery_id for one in found}) == 2


def test_a_claimed_delivery_is_nobody_elses_until_the_claim_lapses(tell, claim):
    tell()
    (first,) = claim(now_s=100.0)
    assert claim(now_s=100.0 + LEASE_S - 0.1) == []
    (second,) = claim(now_s=100.0 + LEASE_S)
    assert second == replace(first, attempt=2)


def test_senders_that_claim_at_once_share_the_work(tell, claim):
    for number in range(12):
        tell(endpoint=f"{URL}/{number}")
    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(lambda _: claim(now_s=100.0, limit=5), range(4)))
    ids = [one.delivery_id for share in shares for one in share]
    assert len(ids) == len(set(ids)) <= 12


def test_what_was_delivered_is_never_due_again(store, tell, claim):
    tell()
    (delivery,) = claim(now_s=100.0)
    with store.write() as conn:
        outbox.delivered(conn, delivery, now_s=101.0)
    assert claim(now_s=1e9) == []


def test_a_failed_attempt_is_repeated_when_it_is_due_under_the_same_id(tell, claim, fail):
    tell()
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=105.0)
    assert claim(now_s=104.9) == []
    assert claim(now_s=105.0) == [replace(first, attempt=2)]


def test_after_the_last_attempt_there_is_no_other(tell, claim, fail):
    tell()
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=None)
    assert claim(now_s=1e9) == []


def test_a_sender_whose_claim_lapsed_does_not_answer_for_the_next_one(store, tell, claim, fail):
    tell()
    (late,) = claim(now_s=100.0)
    (current,) = claim(now_s=200.0)
    fail(late, next_at_s=None)
    with store.write() as conn:
        outbox.delivered(conn, late, now_s=201.0)
    fail(current, next_at_s=300.0, now_s=201.0)
    assert [one.attempt for one in claim(now_s=300.0)] == [3]


def test_news_of_one_job_arrive_in_order(store, tell, claim):
    tell("firing")
    tell("resolved")
    tell("of another job", job_id="other")
    found = claim(now_s=100.0)
    assert sorted(one.payload for one in found) == ["firing", "of another job"]
    with store.write() as conn:
        for one in found:
            outbox.delivered(conn, one, now_s=101.0)
    assert [one.payload for one in claim(now_s=101.0)] == ["resolved"]


def test_a_message_that_failed_gives_way_to_the_one_that_replaces_it(tell, claim, fail):
    tell("firing")
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=105.0)
    tell("resolved", now_s=101.0)
    assert [one.payload for one in claim(now_s=101.0)] == ["resolved"]
    assert claim(now_s=110.0) == []


def test_a_message_that_fails_while_its_successor_waits_is_not_repeated(tell, claim, fail):
    tell("firing")
    (first,) = claim(now_s=100.0)
    tell("resolved", now_s=101.0)
    assert claim(now_s=101.0) == []
    fail(first, next_at_s=105.0, now_s=102.0)
    assert [one.payload for one in claim(now_s=102.0)] == ["resolved"]
    assert claim(now_s=110.0) == []
