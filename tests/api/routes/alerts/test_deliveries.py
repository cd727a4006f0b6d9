"""Deliveries: messages with their attempts, and replays."""

import pytest

from app.alerts.alert import fingerprint
from app.api.http.limits import MAX_MANUAL_SENDS
from app.store.alerting import deliveries, receivers
from app.store.alerting.deliveries import DeliveryAttempt
from tests.api.alerting import add_consumer, add_receiver, attempt, fire, send
from tests.api.server import NOW_S
from tests.store import factories

pytestmark = pytest.mark.anyio

PATH = "/api/v1/deliveries"


async def ask(api, path="", **params):
    answer = await api.client.get(f"{PATH}{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def sent(api):
    """Id of a message to receiver ep_1 about a firing alert of job-a."""
    await api.register("job-a")
    add_receiver(api)
    return send(api, fingerprints=[fire(api).fingerprint])


async def test_delivery_has_its_attempts_and_errors(api, sent):
    attempt(api, detail="HTTP 500 later", next_at_s=NOW_S + 60)
    with api.store.write() as conn:
        later = DeliveryAttempt(1, NOW_S, 0.25, 500, "HTTP 500 later")
        deliveries.add_attempt(conn, sent, later)
    [message] = (await ask(api))["items"]
    assert message == {
        "delivery_id": sent,
        **{"receiver_id": "ep_1", "receiver_name": "on call"},
        "receiver_format": "standard",
        **{"job_id": "job-a", "rule": "slowdown", "kind": "firing", "state": "due", "attempt": 1},
        "next_at": "2026-09-21T14:14:20Z",
        "detail": "HTTP 500 later",
        "created_at": "2026-09-21T14:13:20Z",
        "done_at": None,
        "fingerprints": [fingerprint("default/job-a", "slowdown", "")],
    }
    tried = {"attempt": 1, "at": "2026-09-21T14:13:20Z", "took_s": 0.25, "status": 500}
    tried["detail"] = "HTTP 500 later"
    assert await ask(api, f"/{sent}") == message | {"attempts": [tried]}
    assert (await ask(api, state="delivered"))["items"] == []
    attempt(api, now_s=NOW_S + 60)
    [done] = (await ask(api, state="delivered"))["items"]
    assert (done["attempt"], done["next_at"], done["done_at"]) == (2, None, "2026-09-21T14:14:20Z")


async def test_deliveries_can_be_filtered_by_alert(api, sent):
    await api.register("job-b")
    slow, hung = fire(api, "job-b"), fire(api, "job-b", "stalled")
    both = [slow.fingerprint, hung.fingerprint]
    two = send(api, job="job-b", fingerprints=both, notice_id="both")
    one = send(api, job="job-b", fingerprints=both[:1], notice_id="one")

    async def about(fingerprint, **params):
        found = (await ask(api, alert=fingerprint, **params))["items"]
        return [each["delivery_id"] for each in found]

    assert await about(slow.fingerprint) == [one, two]
    assert await about(hung.fingerprint) == [two]
    assert await about(hung.fingerprint, state="delivered") == []
    assert await about("f" * 16) == []
    assert (await api.client.get(PATH, params={"alert": "%"})).status_code == 422


async def test_errors_of_the_operators_receiver_are_hidden(api):
    await api.register("job-a")
    with api.store.write() as conn:
        operators = factories.webhook_receiver("settings", project=None)
        receivers.put_settings_receiver(conn, operators)
    sent = send(api, "settings")
    attempt(api, detail="HTTP 500 of gw-7.internal")
    with api.store.write() as conn:
        refused = DeliveryAttempt(1, NOW_S, 0.25, 500, "HTTP 500 of gw-7.internal")
        deliveries.add_attempt(conn, sent, refused)
    _, token = api.token()
    async with api.client_with(token) as other:
        for path in (PATH, f"{PATH}/{sent}"):
            assert "internal" not in (await other.get(path)).text
        [tried] = (await other.get(f"{PATH}/{sent}")).json()["attempts"]
    assert (tried["status"], tried["detail"]) == (None, None)
    [tried] = (await ask(api, f"/{sent}"))["attempts"]
    assert (tried["status"], tried["detail"]) == (500, "HTTP 500 of gw-7.internal")


async def test_replay_keeps_the_delivery_id(api, sent):
    attempt(api, detail="HTTP 500")
    assert (await ask(api, f"/{sent}"))["state"] == "failed"
    answer = await api.client.post(f"{PATH}/{sent}/replay")
    assert (answer.status_code, answer.json()["state"]) == (202, "due")
    assert answer.json()["delivery_id"] == sent
    again = await api.client.post(f"{PATH}/{sent}/replay")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    attempt(api)
    assert (await ask(api, f"/{sent}"))["state"] == "delivered"
    [entry] = (await api.client.get("/api/v1/audit?object_kind=delivery")).json()["items"]
    assert (entry["action"], entry["object_id"]) == ("delivery.replay", sent)


async def test_replays_are_limited(api, sent):
    attempt(api)
    for _ in range(MAX_MANUAL_SENDS):
        assert (await api.client.post(f"{PATH}/{sent}/replay")).status_code == 202
        attempt(api)
    answer = await api.client.post(f"{PATH}/{sent}/replay")
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_tests")
    add_consumer(api)
    answer = await api.client.post("/api/v1/receivers/ep_1/test")
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_tests")


async def test_test_message_cannot_be_replayed(api, sent):
    test = send(api, job=None, rule=None, kind="test", fingerprints=())
    attempt(api)
    answer = await api.client.post(f"{PATH}/{test}/replay")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


async def test_replay_to_a_disabled_receiver_is_refused(api, sent):
    attempt(api, detail="HTTP 410")
    with api.store.write() as conn:
        receivers.disable(conn, "ep_1", reason="it answered 410", now_s=NOW_S)
    answer = await api.client.post(f"{PATH}/{sent}/replay")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
