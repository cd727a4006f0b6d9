import pytest

from app.errors import DeliveryNotFound, InvalidRequest
from app.store.alerting import deliveries, outbox, receivers
from app.store.alerting.deliveries import DeliveryAttempt, DeliveryCount
from tests.store import factories
from tests.store.factories import webhook_receiver


@pytest.fixture
def add_message(store):
    """Add a message about a job, or about a project only, to each receiver."""
    with store.write() as conn:
        for endpoint_id in ("one", "two"):
            receivers.add(conn, webhook_receiver(endpoint_id, name=f"Endpoint {endpoint_id}"))
    notices = iter(range(100))

    def add_message(job_id, *to, project=None):
        notice_id = f"notice-{next(notices)}"
        with store.write() as conn:
            return [
                factories.add_message(
                    conn,
                    endpoint_id,
                    notice_id=notice_id,
                    job_id=job_id,
                    rule=job_id and "slowdown",
                    kind="firing" if job_id else "test",
                    fingerprints=[],
                    project=project,
                )
                for endpoint_id in to
            ]

    return add_message


def claimed(store, now_s=100.0):
    with store.write() as conn:
        return outbox.claim(conn, now_s=now_s, lease_s=30.0, limit=10)


def test_messages_are_listed_newest_first_each_once_and_of_one_project(store, add_message):
    first = add_message("a/job", "one", "two")
    second = add_message("a/other", "one")
    add_message("b/job", "one")
    third = add_message(None, "one", project="a")
    with store.read() as conn:
        newest, cursor = deliveries.page(conn, "a", limit=2)
        oldest, end = deliveries.page(conn, "a", cursor=cursor, limit=2)
        with pytest.raises(InvalidRequest, match="cursor"):
            deliveries.page(conn, "a", cursor="W10")
    assert [each.delivery_id for each in newest + oldest] == [*third, *second, *first[::-1]]
    assert end is None
    assert [each.job_id for each in newest] == [None, "a/other"]


def test_deliveries_are_filtered_by_receiver_and_state(store, add_message):
    add_message("a/job", "one", "two")
    [delivery] = [each for each in claimed(store) if each.endpoint_id == "two"]
    with store.write() as conn:
        outbox.mark_delivered(conn, delivery, now_s=101.0)
    with store.read() as conn:
        [found], _ = deliveries.page(conn, "a", endpoint_id="two")
        assert (found.state, found.endpoint_name) == ("delivered", "Endpoint two")
        assert [each.endpoint_id for each in deliveries.page(conn, "a", state="due")[0]] == ["one"]
        assert deliveries.page(conn, "a", state="due", endpoint_id="two") == ([], None)


def test_delivery_record_has_the_last_failure(store, add_message):
    [delivery_id] = add_message("a/job", "one")
    [attempt] = claimed(store)
    with store.write() as conn:
        outbox.mark_failed(conn, attempt, detail="HTTP 500", next_at_s=105.0, now_s=101.0)
        found = deliveries.get(conn, "a", delivery_id)
        with pytest.raises(DeliveryNotFound, match=delivery_id):
            deliveries.get(conn, "b", delivery_id)
    assert (found.state, found.attempt, found.detail) == ("due", 1, "HTTP 500")
    assert (found.next_at_s, found.done_s, found.kind) == (105.0, None, "firing")


def test_delivery_record_outlives_its_receiver(store, add_message):
    [delivery_id] = add_message("a/job", "one")
    with store.write() as conn:
        receivers.remove(conn, "default", "one")
        found = deliveries.get(conn, "a", delivery_id)
    assert (found.endpoint_id, found.endpoint_name) == ("one", None)


def test_deliveries_are_counted_by_receiver_and_state(store, add_message):
    add_message("a/job", "one", "two")
    add_message("a/other", "one")
    claimed_deliveries = [each for each in claimed(store) if each.endpoint_id == "one"]
    add_message("b/job", "one")
    with store.write() as conn:
        for number, attempt in enumerate(claimed_deliveries):
            outbox.mark_delivered(conn, attempt, now_s=200.0 + number)
        assert deliveries.counts(conn, "a") == [
            DeliveryCount("one", "delivered", 2, 201.0),
            DeliveryCount("two", "due", 1, None),
        ]
        assert deliveries.counts(conn, "none") == []


def test_every_attempt_is_saved(store, add_message):
    [delivery_id] = add_message("a/job", "one")
    with store.write() as conn:
        failed = DeliveryAttempt(1, 100.0, 0.25, None, "no connection: \0" + "x" * 900)
        deliveries.add_attempt(conn, delivery_id, failed)
        deliveries.add_attempt(conn, delivery_id, DeliveryAttempt(2, 105.0, 0.5, 204, "HTTP 204"))
        first, second = deliveries.attempts_of(conn, "a", delivery_id)
        with pytest.raises(DeliveryNotFound):
            deliveries.attempts_of(conn, "b", delivery_id)
    assert second == DeliveryAttempt(2, 105.0, 0.5, 204, "HTTP 204")
    assert (first.status, len(first.detail)) == (None, 500)
