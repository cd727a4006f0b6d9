import random
from dataclasses import replace

import httpx
import pytest

from app.alerts.delivery import Endpoint, make_client
from app.alerts.retry import RETRY_DELAYS_S
from app.consumer.sender import Sender
from app.errors import StoreUnavailable
from app.store import alerts, outbox
from app.store.engine import Store
from tests.alerts.factories import SECRET
from tests.alerts.receiver import Answer, receiver
from tests.consumer.jobs import SIZES
from tests.consumer.place import Script
from tests.store.test_alerts import EVENT


@pytest.fixture
def hook():
    with receiver() as told:
        yield told


@pytest.fixture
def client():
    with make_client() as client:
        yield client


@pytest.fixture
def sender(place, hook, client):
    return make_sender(place, hook.url, client)


def make_sender(place, url, client):
    endpoint = Endpoint(url, SECRET)
    clock, rng = place.unix_clock, random.Random(1)
    return Sender(place.store, endpoint, client, unix_time=clock, rng=rng)


def tell(place, url, payload="{}", job_id="job"):
    """An alert of this job fires."""
    place.register(job_id, SIZES)
    with Store.write(place.store) as conn:
        event_id = alerts.add_event(conn, replace(EVENT, job_id=job_id))
        outbox.add(conn, event_id, url, payload, now_s=place.unix_clock())


def state(place):
    return place.rows("outbox", "state", "attempt", "detail")


def ids(hook):
    return [headers["webhook-id"] for _, headers, _ in hook.requests]


def test_what_is_due_is_delivered_once(place, hook, sender):
    tell(place, hook.url, '{"type":"slowdown.firing"}')
    assert sender.send_due() == 1
    assert sender.send_due() == 0
    [(_, headers, body)] = hook.requests
    assert body == b'{"type":"slowdown.firing"}'
    assert headers["webhook-id"].startswith("msg_")
    assert state(place) == [("delivered", 1, None)]


def test_a_refused_message_is_sent_again_under_its_id_when_its_time_has_come(place, hook, sender):
    tell(place, hook.url)
    hook.answer = Answer(500, body=b"later")
    sender.send_due()
    assert state(place) == [("due", 1, "HTTP 500 later")]
    [(next_at_s,)] = place.rows("outbox", "next_at_s")
    wait_s = next_at_s - place.unix_clock()
    assert 4 <= wait_s <= 6
    hook.answer = Answer(204)
    place.pass_time(wait_s - 0.1)
    assert sender.send_due() == 0
    place.pass_time(0.2)
    assert sender.send_due() == 1
    assert len(set(ids(hook))) == 1
    assert len(ids(hook)) == 2
    assert state(place) == [("delivered", 2, None)]


def test_after_the_last_attempt_it_is_given_up(place, hook, sender):
    tell(place, hook.url)
    hook.answer = Answer(500)
    waited_s = []
    for _ in RETRY_DELAYS_S:
        assert sender.send_due() == 1
        [(next_at_s,)] = place.rows("outbox", "next_at_s")
        waited_s.append(next_at_s - place.unix_clock())
        place.unix_clock.now_s = next_at_s
    assert state(place) == [("failed", len(RETRY_DELAYS_S), "HTTP 500")]
    place.pass_time(1e6)
    assert sender.send_due() == 0
    assert waited_s[:-1] == pytest.approx(RETRY_DELAYS_S[1:], rel=0.2)
    assert len(hook.requests) == len(RETRY_DELAYS_S)


def test_a_receiver_that_is_gone_gets_no_more(place, hook, sender):
    tell(place, hook.url)
    hook.answer = Answer(410)
    sender.send_due()
    assert state(place) == [("failed", 1, "HTTP 410")]


def test_what_was_meant_for_another_endpoint_is_sent_nowhere(place, hook, sender):
    tell(place, "https://former.example/hook")
    sender.send_due()
    assert hook.requests == []
    assert state(place) == [("failed", 1, "the endpoint is no longer configured")]


def test_a_message_whose_delivery_could_not_be_written_down_comes_again_under_its_id(
    place, hook, sender
):
    tell(place, hook.url)
    place.fuse.blow(2, StoreUnavailable("no answer"))  # after the claim's two points
    with pytest.raises(StoreUnavailable):
        sender.send_due()
    assert sender.send_due() == 0, "claimed still"
    place.pass_time(61.0)
    assert sender.send_due() == 1
    assert len(ids(hook)) == 2
    assert len(set(ids(hook))) == 1
    assert state(place) == [("delivered", 2, None)]


def test_several_senders_send_each_message_once(place, hook, client):
    senders = [make_sender(place, hook.url, client) for _ in range(3)]
    for number in range(6):
        tell(place, hook.url, job_id=f"job-{number}")
    while any(sender.send_due() for sender in senders):
        pass
    assert len(set(ids(hook))) == len(ids(hook)) == 6


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), RuntimeError("unforeseen")])
def test_trouble_with_one_message_is_not_the_end_of_all(place, error):
    tell(place, "https://receiver.example/1")
    sent = []

    def answer(request):
        sent.append(request.headers["webhook-id"])
        if len(sent) == 1:
            raise error
        return httpx.Response(204)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        sender = make_sender(place, "https://receiver.example/1", client)
        sender.run(Waits(place, 90))
    assert len(sent) == 2
    assert len(set(sent)) == 1
    assert state(place) == [("delivered", 2, None)]


class Waits(Script):
    """Set after so many waits."""

    def __init__(self, place, num_waits):
        super().__init__(place, ())
        self._left = num_waits

    def wait(self, timeout=None):
        super().wait(timeout)
        self._left -= 1
        return self._left < 0
