"""A sender without the key of a receiver's secrets, as after a rotation."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.consumer.dispatcher import Dispatcher
from app.consumer.sender import OutboxSender
from app.store.alerting import receivers
from app.store.credentials import resealing
from app.store.credentials.sealing import SecretKeys, new_key, parse_keys
from app.store.database import Store
from tests.consumer.notifier import NotifierTwin
from tests.secret_keys import KEY

HOUR_S = 3600.0
OTHER_KEY = bytes(32)


@pytest.fixture
def url(new_url):
    return new_url()


@pytest.fixture
def notifier(url, hook):
    """Dispatcher and sender with the key."""
    with closing(NotifierTwin(url)) as notifier:
        notifier.add_receiver("hook", hook.url)
        yield notifier


@pytest.fixture(params=[(), (OTHER_KEY,)], ids=["no key", "another key"])
def keyless(request, url, notifier):
    """Dispatcher and sender of a consumer without the key."""
    store = Store(url, keys=SecretKeys(request.param))
    keyless = _Parts(replace(notifier.context, store=store))
    yield keyless
    keyless.sender.close()
    store.close()


class _Parts:
    def __init__(self, context):
        self.store = context.store
        self.dispatcher, self.sender = Dispatcher(context), OutboxSender(context)

    def dispatch(self):
        while self.dispatcher.dispatch_due():
            pass
        begun = self.sender.send_due()
        self.sender.settle()
        return begun


def messages(notifier):
    return notifier.rows("outbox", "state", "attempt", "detail")


def kinds(hook):
    return [json.loads(body)["type"] for _, _, body in hook.requests]


def test_sender_without_the_key_uses_up_no_message_and_disables_no_receiver(
    notifier, keyless, hook
):
    """For longer than ten attempts take, and than a failing receiver is kept."""
    notifier.fire()
    for _ in range(60):
        assert keyless.dispatch() == 0
        notifier.pass_time(HOUR_S / 2)
    [health] = notifier.rows("endpoints", "is_enabled", "failures", "failing_since_s", "probe_at_s")
    assert health == (True, 0, None, None)
    repeats = [(state, attempt) for state, attempt, _ in messages(notifier)]
    assert set(repeats[:-1]) == {("outdated", 0)}, "the last repeat says the same"
    assert repeats[-1] == ("due", 0)
    assert notifier.rows("delivery_attempts", "attempt") == []
    assert notifier.send() == 1, "the key is back"
    assert messages(notifier)[-1] == ("delivered", 1, None)
    assert kinds(hook) == ["alert.firing"]


def test_message_says_once_why_it_waits(notifier, keyless):
    notifier.fire()
    with capture_logs() as lines:
        for _ in range(3):
            keyless.dispatch()
            notifier.pass_time(10)
    [(_, _, detail)] = messages(notifier)
    assert "its secrets are encrypted" in detail
    waiting = [each for each in lines if each["event"] == "alerts wait for a key"]
    assert [(each["receiver"], each["messages"]) for each in waiting] == [("hook", 1)]


@pytest.mark.parametrize("keyless", [(OTHER_KEY,)], ids=["another key"], indirect=True)
def test_receivers_whose_key_is_here_get_their_messages(notifier, keyless, hook):
    own = notifier.add_receiver("own", hook.url)
    with keyless.store.write() as conn:
        receivers.remove(conn, "default", "own")
        receivers.add(conn, own)
    notifier.fire()
    assert keyless.dispatch() == 1
    assert sorted(state for state, _, _ in messages(notifier)) == ["delivered", "due"]


def test_consumer_with_the_old_key_only_gives_way_after_a_rotation(notifier, url, hook):
    both = Store(url, keys=parse_keys(f"{new_key()},{KEY}", "tests"))
    notifier.fire()
    resealing.reseal(both)
    assert notifier.dispatch() == 0
    sender = OutboxSender(replace(notifier.context, store=both))
    assert sender.send_due() == 1
    sender.close()
    both.close()
    assert messages(notifier) == [("delivered", 1, None)]
    assert len(hook.requests) == 1


def test_secrets_that_were_changed_fail_since_no_key_opens_them(notifier, hook):
    with notifier.store.write() as conn:
        sealed = conn.execute(text("SELECT sealed FROM endpoints")).scalar_one()
        conn.execute(text("UPDATE endpoints SET sealed = :sealed"), {"sealed": sealed[:-8]})
    notifier.fire()
    assert notifier.dispatch() == 1
    [(state, attempt, detail)] = messages(notifier)
    assert (state, attempt) == ("due", 1)
    assert "were changed" in detail
    assert hook.requests == []
