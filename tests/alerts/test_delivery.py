import json
import random
import time

import pytest
from standardwebhooks.webhooks import Webhook

from app.alerts.delivery import Endpoint, deliver, make_client
from app.alerts.formats import standard
from app.errors import StartUpFailed
from tests.alerts.factories import SECRET, alert
from tests.alerts.receiver import Answer, receiver

PAYLOAD = standard.body(alert())


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture
def client():
    with make_client(timeout_s=5.0) as client:
        yield client


def attempt(client, url, *, number=1, payload=PAYLOAD, now_s=None):
    return deliver(
        client,
        Endpoint(url, SECRET),
        delivery_id="msg_1",
        payload=payload,
        attempt=number,
        now_s=time.time() if now_s is None else now_s,
        rng=random.Random(1),
    )


def test_a_receiver_can_verify_what_it_gets(hook, client):
    outcome = attempt(client, hook.url)
    assert (outcome.result, outcome.detail, outcome.next_at_s) == ("delivered", "HTTP 204", None)
    ((path, headers, body),) = hook.requests
    assert path == "/hook"
    assert Webhook(SECRET).verify(body, headers) == json.loads(PAYLOAD)
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["webhook-id"] == "msg_1"
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"] == "Paceline"


def test_the_id_is_the_same_in_every_attempt_and_the_signature_fresh(hook, client):
    for number, now_s in ((1, 1_700_000_000.0), (2, 1_700_000_005.0)):
        attempt(client, hook.url, number=number, now_s=now_s)
    (_, first, _), (_, second, _) = hook.requests
    assert first["webhook-id"] == second["webhook-id"]
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1700000000", "1700000005")
    assert first["webhook-signature"] != second["webhook-signature"]


def test_the_secret_travels_with_no_message(hook, client):
    attempt(client, hook.url)
    assert SECRET.removeprefix("whsec_") not in str(hook.requests)
    assert SECRET not in repr(Endpoint(hook.url, SECRET))


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refused_message_is_tried_again(hook, client, status):
    hook.answer = Answer(status, body=b"no\0\xffway")
    outcome = attempt(client, hook.url, now_s=1000.0)
    assert (outcome.result, outcome.detail) == ("retry", f"HTTP {status} no  way")
    assert 1004.0 <= outcome.next_at_s <= 1006.0


def test_the_last_attempt_has_no_successor(hook, client):
    hook.answer = Answer(500)
    assert attempt(client, hook.url, number=9).result == "retry"
    assert attempt(client, hook.url, number=10).result == "given up"


def test_an_overloaded_receiver_is_left_alone_as_long_as_it_asks(hook, client):
    hook.answer = Answer(429, {"Retry-After": "400"})
    assert attempt(client, hook.url, number=4, now_s=1000.0).next_at_s == 1400.0
    hook.answer = Answer(503)
    assert attempt(client, hook.url, number=1, now_s=1000.0).next_at_s == 1030.0


def test_a_redirect_is_not_followed(hook, client):
    with receiver() as elsewhere:
        hook.answer = Answer(307, {"Location": elsewhere.url})
        outcome = attempt(client, hook.url)
        assert (outcome.result, outcome.detail) == ("retry", "HTTP 307")
        assert elsewhere.requests == []


def test_a_receiver_that_wants_no_more_gets_no_more(hook, client):
    hook.answer = Answer(410)
    assert attempt(client, hook.url).result == "given up"


def test_a_connection_that_breaks_is_tried_again(hook, client):
    hook.answer = Answer("reset")
    outcome = attempt(client, hook.url)
    assert outcome.result == "retry"
    assert outcome.detail.startswith("not reached: ")


def test_nobody_listening_is_tried_again(client):
    with receiver() as gone:
        url = gone.url
    assert attempt(client, url).detail == "not reached: ConnectError"


def test_a_receiver_that_is_silent_holds_nobody_up(hook):
    hook.answer = Answer("silence")
    with make_client(timeout_s=0.1) as impatient:
        outcome = attempt(impatient, hook.url, now_s=1000.0)
    assert (outcome.result, outcome.detail) == ("retry", "no answer in time")
    assert outcome.next_at_s == 1030.0


def test_a_long_answer_is_cut_off(hook, client):
    hook.answer = Answer(500, body=b"x" * 1_000_000)
    assert attempt(client, hook.url).detail == "HTTP 500 " + "x" * 256


@pytest.mark.parametrize(
    "url", ["", "receiver.example", "ftp://a/b", "https:///x", "https://me:pw@a/b", "http://x:y/z"]
)
def test_a_url_that_cannot_be_used_is_refused_at_the_start(url):
    with pytest.raises(StartUpFailed, match="URL"):
        Endpoint(url, SECRET)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_!" + "c2VjcmV0" * 5, "c2VjcmV0" * 5]
)
def test_a_secret_that_keeps_nothing_secret_is_refused_at_the_start(secret):
    with pytest.raises(StartUpFailed, match="whsec_") as refusal:
        Endpoint("https://receiver.example", secret)
    assert not secret or secret == "whsec_" or secret not in str(refusal.value)
