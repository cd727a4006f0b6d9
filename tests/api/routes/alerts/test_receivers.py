"""Receivers: created with a secret shown once, changed, tested, rotated and disabled."""

import socket
from dataclasses import replace
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from app.alerts.connection import parse_networks
from app.alerts.guard import SsrfGuard
from app.alerts.notice import Message
from app.alerts.receiver import FAILURES_TO_OPEN, PROBE_EVERY_S
from app.alerts.sending import attempt_headers
from app.api.http.limits import MANUAL_SENDS_S, MAX_MANUAL_SENDS
from app.store.alerting import outbox, receivers
from tests.alerts.http_receiver import Answer, receiver
from tests.api.alerting import SECRET, add_consumer, add_receiver, attempt, send
from tests.api.server import NOW_S, UnconnectedGuard, running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/receivers"
URL = "https://hooks.example.com:8443/secret-part?token=secret-part"
HOST = "https://hooks.example.com:8443"
NEW = {"name": "on call", "url": URL}
DAY_S = 86_400.0


async def make(api, **given):
    answer = await api.client.post(PATH, json=NEW | given)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def seen(api, endpoint_id):
    answer = await api.client.get(f"{PATH}/{endpoint_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def stored(api, endpoint_id):
    with api.store.read() as conn:
        return receivers.get(conn, "default", endpoint_id)


async def test_secret_is_shown_once_and_full_address_never(api):
    made = await make(api, headers={"X-Team": "secret-part"}, matchers=[], min_severity="warning")
    secret = made.pop("secret")
    Webhook(secret)  # valid for a receiver
    endpoint_id = made["receiver_id"]
    for path in (PATH, f"{PATH}/{endpoint_id}", "/api/v1/audit"):
        text = (await api.client.get(path)).text
        assert "secret-part" not in text
        assert secret not in text
    assert await seen(api, endpoint_id) == made
    assert made["address"] == HOST
    assert (made["header_names"], made["has_secret"]) == (["X-Team"], True)
    assert (made["is_of_settings"], made["min_severity"]) == (False, "warning")
    assert made["health"].pop("state") == "untried"
    assert not any(made.pop("health").values())
    assert set(made["deliveries"].values()) == {0}
    kept = stored(api, endpoint_id)
    assert (kept.url, kept.secrets, kept.headers) == (URL, (secret,), {"X-Team": "secret-part"})


async def test_list_has_the_health_of_each_receiver(api):
    await api.register("job-a")
    add_receiver(api, "ep_1")
    add_receiver(api, "ep_2", is_enabled=False)
    send(api)
    attempt(api)
    send(api, job="job-b")
    with api.store.write() as conn:
        receivers.mark_failed(conn, "ep_1", detail="HTTP 500", now_s=NOW_S)
    first, second = (await api.client.get(PATH)).json()["items"]
    assert (first["receiver_id"], first["health"]["state"]) == ("ep_1", "failing")
    assert (first["health"]["failures"], first["health"]["last_detail"]) == (1, "HTTP 500")
    assert (first["deliveries"]["due"], first["deliveries"]["delivered"]) == (1, 1)
    assert second["health"]["state"] == "off"
    with api.store.write() as conn:
        for _ in range(4):
            receivers.mark_failed(conn, "ep_1", detail="HTTP 500", now_s=NOW_S)
    assert (await seen(api, "ep_1"))["health"]["state"] == "resting"


async def test_disabled_receiver_can_be_enabled(api):
    add_receiver(api)
    with api.store.write() as conn:
        receivers.disable(conn, "ep_1", reason="it answered 410", now_s=NOW_S)
    found = await seen(api, "ep_1")
    assert found["health"]["state"] == "disabled"
    assert found["health"]["disabled_reason"] == "it answered 410"
    assert (await api.client.post(f"{PATH}/ep_1/test")).status_code == 409
    answer = await api.client.post(f"{PATH}/ep_1/enable")
    assert (answer.json()["health"]["state"], answer.json()["is_enabled"]) == ("untried", True)


def use_guard(api, guard):
    """Connect to receivers, by this guard."""
    api.app.state.service = replace(api.app.state.service, guard=guard)


def no_such_name(host):
    raise socket.gaierror(f"{host} is not known")


async def test_receiver_that_cannot_be_reached_is_unreachable_until_a_delivery(api):
    use_guard(api, SsrfGuard(resolver=no_such_name))
    made = await make(api)
    not_found = ("unreachable", "host name not found (DNS)")
    assert (made["health"]["state"], made["health"]["last_detail"]) == not_found
    assert made["health"]["failures"] == 0  # it is no failed delivery
    receiver_id = made["receiver_id"]
    with api.store.write() as conn:
        receivers.mark_succeeded(conn, receiver_id, NOW_S)
    assert (await seen(api, receiver_id))["health"]["state"] == "ok"
    # What the old address took proves nothing of the new one.
    change = {"url": "https://elsewhere.example.com/", "name": "moved"}
    changed = (await api.client.patch(f"{PATH}/{receiver_id}", json=change)).json()
    assert (changed["health"]["state"], changed["health"]["last_detail"]) == not_found
    use_guard(api, UnconnectedGuard())
    changed = (await api.client.patch(f"{PATH}/{receiver_id}", json={"url": URL})).json()
    assert (changed["health"]["state"], changed["health"]["last_detail"]) == ("untried", None)
    renamed = (await api.client.patch(f"{PATH}/{receiver_id}", json={"name": "night"})).json()
    assert renamed["health"] == changed["health"]


async def test_name_with_a_private_address_is_refused_when_saved(api):
    use_guard(api, SsrfGuard(resolver=lambda _: ["10.0.0.7"]))
    answer = await api.client.post(PATH, json=NEW)
    assert (answer.status_code, answer.json()["code"]) == (422, "endpoint_blocked")
    assert "PACELINE_WEBHOOK_ALLOW=NETWORK" in answer.json()["detail"]
    assert (await api.client.get(PATH)).json()["items"] == []


async def test_receiver_is_tested_before_it_is_saved(api):
    with receiver() as listening:
        port = int(listening.url.split(":")[2].split("/")[0])
        allowed = parse_networks(["127.0.0.0/8"])
        use_guard(api, SsrfGuard(allowed, allows_http=True, ports=frozenset({port})))
        wanted = {"name": "new", "url": f"{listening.url}/new"}
        answer = await api.client.post("/api/v1/receiver-tests", json=wanted)
        assert answer.status_code == 200, answer.text
        assert {**answer.json(), "took_s": 0} == {
            "delivered": True, "status": 204, "detail": "HTTP 204", "took_s": 0
        }  # fmt: skip
        listening.answer = Answer(503, body=b"come again")
        made = await make(api, url=f"{listening.url}/old", headers={"X-Team": "a"})
        change = {"url": f"{listening.url}/changed"}
        answer = await api.client.post(f"{PATH}/{made['receiver_id']}/test-change", json=change)
        found = answer.json()
        assert (found["delivered"], found["status"]) == (False, 503)
        assert found["detail"] == "HTTP 503 come again"
        paths = [(path, headers.get("x-team")) for path, headers, _ in listening.requests]
    assert paths == [("/hook/new", None), ("/hook/changed", "a")]
    assert stored(api, made["receiver_id"]).url.endswith("/old")
    [listed] = (await api.client.get(PATH)).json()["items"]
    assert listed["health"]["state"] == "untried"
    audit = (await api.client.get("/api/v1/audit")).json()["items"]
    tests = [each["detail"] for each in audit if each["action"] == "endpoint.test"]
    assert [each["is_saved"] for each in tests] == [False, False]


async def test_unsaved_tests_are_guarded_limited_and_need_admin(api):
    blocked = await api.client.post(
        "/api/v1/receiver-tests", json=NEW | {"url": "http://127.0.0.1:9/"}
    )
    assert (blocked.status_code, blocked.json()["code"]) == (422, "endpoint_blocked")
    _, read = api.token("read", "write")
    async with api.client_with(read) as client:
        assert (await client.post("/api/v1/receiver-tests", json=NEW)).status_code == 403
    use_guard(api, SsrfGuard(resolver=no_such_name))
    for _ in range(MAX_MANUAL_SENDS):
        answer = await api.client.post("/api/v1/receiver-tests", json=NEW)
        assert (answer.json()["delivered"], answer.json()["status"]) == (False, None)
        assert answer.json()["detail"] == "no connection: host name not found (DNS)"
    answer = await api.client.post("/api/v1/receiver-tests", json=NEW)
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_tests")


async def test_omitted_fields_of_a_change_stay(api):
    endpoint_id = (await make(api, headers={"X-Team": "a"}))["receiver_id"]
    before = stored(api, endpoint_id)
    answer = await api.client.patch(f"{PATH}/{endpoint_id}", json={"name": "others"})
    assert (answer.status_code, answer.json()["name"]) == (200, "others")
    after = stored(api, endpoint_id)
    assert (after.url, after.secrets, after.headers) == (URL, before.secrets, {"X-Team": "a"})
    await api.client.patch(f"{PATH}/{endpoint_id}", json={"headers": {}, "is_enabled": False})
    after = stored(api, endpoint_id)
    assert (after.headers, after.is_enabled) == ({}, False)


async def test_audit_has_changed_fields_without_secrets(api):
    made = await make(api, format="pagerduty", url=None, secret="k" * 32, headers={"X-A": "old-1"})
    change = {
        "matchers": [{"label": "job", "pattern": "llm-*"}],
        "min_severity": "critical",
        "secret": "secret-new" * 3,
        "headers": {"X-A": "new-2"},
        "url": "https://events.pagerduty.com/v2/hidden",
    }
    await api.client.patch(f"{PATH}/{made['receiver_id']}", json=change)
    answer = await api.client.get("/api/v1/audit?object_kind=endpoint")
    changes = answer.json()["items"][0]["detail"]["changes"]
    assert changes == {
        "matchers": {
            "old": [],
            "new": [{"label": "job", "pattern": "llm-*", "is_negative": False}],
        },
        "min_severity": {"old": "info", "new": "critical"},
        "url": "changed",
        "secrets": "changed",
        "headers": "changed",
    }
    for secret in ("secret-new", "k" * 32, "old-1", "new-2", "hidden"):
        assert secret not in answer.text


async def rest(api):
    """Make the receiver fail until it gets one message a minute."""
    with api.store.write() as conn:
        for _ in range(FAILURES_TO_OPEN):
            receivers.mark_failed(conn, "ep_1", detail="HTTP 500", now_s=NOW_S)
    assert (await seen(api, "ep_1"))["health"]["state"] == "resting"


def claim(api, **given):
    with api.store.write() as conn:
        wanted = {"now_s": NOW_S, "lease_s": 30.0, "limit": 10} | given
        return [each.delivery_id for each in outbox.claim(conn, **wanted)]


async def test_test_message_probes_a_resting_receiver(api):
    await api.register("job-a")
    add_receiver(api)
    add_consumer(api)
    send(api, now_s=NOW_S - 60)
    await rest(api)
    assert claim(api) == []
    delivery_id = (await api.client.post(f"{PATH}/ep_1/test")).json()["delivery_id"]
    assert claim(api) == [delivery_id]
    assert claim(api, now_s=NOW_S + PROBE_EVERY_S - 1) == []


@pytest.mark.parametrize("by", ["enable", "url", "secret"])
async def test_changed_resting_receiver_is_tried_at_once(api, by):
    await api.register("job-a")
    add_receiver(api, format="pagerduty", url="https://events.pagerduty.com/v2/a")
    sent = send(api)
    attempt(api, detail="HTTP 500", next_at_s=NOW_S + 3600)
    await rest(api)
    if by == "enable":
        answer = await api.client.post(f"{PATH}/ep_1/enable")
    else:
        change = {"url": "https://events.pagerduty.com/v2/enqueue", "secret": "k" * 32}
        answer = await api.client.patch(f"{PATH}/ep_1", json={by: change[by]})
    assert (answer.status_code, answer.json()["health"]["state"]) == (200, "untried")
    assert claim(api) == [sent]


async def test_waiting_messages_use_the_database_clock(api):
    """Otherwise an API with a fast clock would delay the message."""
    await api.register("job-a")
    add_receiver(api, format="pagerduty")
    sent = send(api)
    attempt(api, detail="HTTP 500", next_at_s=NOW_S + 3600)
    api.app.state.service = replace(api.app.state.service, now_s=lambda: NOW_S + 1800)
    await api.client.patch(f"{PATH}/ep_1", json={"secret": "k" * 32})
    assert claim(api) == [sent]


async def test_new_address_does_not_get_stored_secrets(api):
    endpoint_id = (await make(api, headers={"Authorization": "Bearer x"}))["receiver_id"]
    elsewhere = {"url": "https://mine.example.com/"}
    answer = await api.client.patch(f"{PATH}/{endpoint_id}", json=elsewhere)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    answer = await api.client.patch(f"{PATH}/{endpoint_id}", json=elsewhere | {"headers": {}})
    assert (answer.status_code, answer.json()["address"]) == (200, "https://mine.example.com")


async def test_after_a_rotation_both_secrets_sign_for_a_day(api):
    made = await make(api)
    path = f"{PATH}/{made['receiver_id']}"
    new = (await api.client.post(f"{path}/rotate")).json()
    assert new["old_is_good_until"] == "2026-09-22T14:13:20Z"
    assert new["secret"] != made["secret"]

    def signatures(at_s):
        webhook_receiver = stored(api, made["receiver_id"])
        headers = attempt_headers(webhook_receiver, Message("{}"), "msg_1", at_s)
        return headers["webhook-signature"].split()

    assert len(signatures(NOW_S + DAY_S - 1)) == 2
    assert len(signatures(NOW_S + DAY_S)) == 1
    newest = (await api.client.post(f"{path}/rotate")).json()
    assert stored(api, made["receiver_id"]).secrets == (newest["secret"], new["secret"])
    api.clock.now_s += 2 * DAY_S
    last = (await api.client.post(f"{path}/rotate")).json()
    assert stored(api, made["receiver_id"]).secrets == (last["secret"], newest["secret"])


@pytest.mark.parametrize("name", ["secret", "routing_key"])
async def test_password_of_a_format_is_never_shown(api, name):
    key = "routingkey" * 3
    made = await make(api, format="pagerduty", url=None, **{name: key})
    assert (made["secret"], made["has_secret"]) == (None, True)
    assert made["address"] == "https://events.pagerduty.com"
    path = f"{PATH}/{made['receiver_id']}"
    assert (await api.client.post(f"{path}/rotate")).status_code == 409
    answer = await api.client.patch(path, json={name: key[::-1]})
    assert answer.status_code == 200, answer.text
    assert stored(api, made["receiver_id"]).secrets == (key[::-1],)
    assert key not in (await api.client.get(path)).text


@pytest.fixture
async def mailing(anyio_backend, database_url):
    """The API of a service with a mail server."""
    server: dict[str, Any] = {
        "smtp_url": "smtp://mail.example",
        "smtp_from": "paceline@example.com",
    }
    async with running(database_url, **server) as api:
        yield api


async def test_e_mail_is_addressed_by_mailto(mailing):
    made = await make(mailing, format="email", url="mailto:oncall@example.com")
    assert (made["address"], made["secret"]) == ("mailto:oncall@example.com", None)
    add_consumer(mailing)
    path = f"{PATH}/{made['receiver_id']}"
    assert (await mailing.client.post(f"{path}/test")).status_code == 202
    elsewhere = {"url": "mailto:boss@elsewhere.example"}
    answer = await mailing.client.patch(path, json=elsewhere)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "PACELINE_SMTP_DOMAINS" in answer.json()["detail"]


async def test_email_receiver_needs_a_mail_server(api):
    given = {"format": "email", "url": "mailto:oncall@example.com"}
    answer = await api.client.post(PATH, json=NEW | given)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "PACELINE_SMTP_URL" in answer.json()["detail"]
    # As after the operator removed the mail server.
    add_receiver(api, **given)
    add_consumer(api)
    answer = await api.client.post(f"{PATH}/ep_1/test")
    assert (answer.status_code, "PACELINE_SMTP_URL" in answer.text) == (422, True)
    assert (await api.client.get("/api/v1/deliveries")).json()["items"] == []


async def test_test_messages_are_limited(api):
    for number in range(2):
        add_receiver(api, f"ep_{number}")
    add_consumer(api)
    for number in range(MAX_MANUAL_SENDS):
        answer = await api.client.post(f"{PATH}/ep_{number % 2}/test")
        assert answer.status_code == 202, answer.text
        api.clock.now_s += 1
    answer = await api.client.post(f"{PATH}/ep_0/test")
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_tests")
    assert int(answer.headers["retry-after"]) > 1
    api.clock.now_s += MANUAL_SENDS_S - MAX_MANUAL_SENDS
    add_consumer(api)
    assert (await api.client.post(f"{PATH}/ep_0/test")).status_code == 202


BAD: dict[str, dict] = {
    "no name": {"name": ""},
    "http": {"url": "http://hooks.example.com/"},
    "loopback": {"url": "https://127.0.0.1/"},
    "loopback as a number": {"url": "https://2130706433/"},
    "metadata": {"url": "https://169.254.169.254/latest"},
    "private in IPv6": {"url": "https://[::ffff:10.0.0.1]/"},
    "another port": {"url": "https://hooks.example.com:22/"},
    "a password": {"url": "https://user:password@hooks.example.com/"},
    "another scheme": {"url": "file:///etc/passwd"},
    "no address": {"url": None},
    "a signing secret of their own": {"secret": SECRET},
    "no routing key": {"format": "pagerduty"},
    "a secret of slack's": {"format": "slack", "secret": "x" * 20},
    "e-mail by https": {"format": "email"},
    "e-mail with a header in it": {"format": "email", "url": "mailto:a@example.com%0aBcc:b"},
    "another format": {"format": "pigeon"},
    "another project": {"project": "research"},
    "an id": {"endpoint_id": "settings"},
    "another severity": {"min_severity": "fatal"},
    "too many headers": {"headers": {f"X-{n}": "a" for n in range(17)}},
    **{
        f"header {name}": {"headers": {name: "a"}}
        for name in (
            *("Host", "Content-Length", "Transfer-Encoding", "Cookie", "Connection", "TE"),
            *("Upgrade", "Content-Type", "X-Forwarded-For", "webhook-signature", "a b", ":path"),
        )
    },
    "a header of two": {"headers": {"X-Team": "a\r\nHost: b"}},
    "a header that is no text": {"headers": {"X-Team": "ä"}},
    "a header with a space before it": {"headers": {"X-Team": " a"}},
    "a header with a space behind it": {"headers": {"Authorization": "Bearer a "}},
    "a header of a space": {"headers": {"X-Team": " "}},
}


@pytest.mark.parametrize("what", BAD)
async def test_invalid_receiver_gets_422(api, what):
    answer = await api.client.post(PATH, json=NEW | BAD[what])
    assert answer.status_code == 422, answer.text
    assert (await api.client.get(PATH)).json()["items"] == []


async def test_invalid_change_gets_422(api):
    path = f"{PATH}/{(await make(api))['receiver_id']}"
    for change in ({"url": "https://10.0.0.1/"}, {"headers": {"Host": "a"}}, {"secret": SECRET}):
        assert (await api.client.patch(path, json=change)).status_code == 422
    assert (await api.client.patch(path, json={"format": "slack"})).status_code == 422


async def test_private_addresses_need_the_operators_setting(anyio_backend, database_url):
    allowed: dict[str, Any] = {
        "webhook_allow": "10.0.0.0/8",
        "webhook_allow_http": True,
        "webhook_ports": "80,9000",
    }
    async with running(database_url, **allowed) as api:
        assert (await make(api, url="http://10.1.2.3:9000/"))["address"] == "http://10.1.2.3:9000"
        answer = await api.client.post(PATH, json=NEW | {"url": "http://192.168.0.1:9000/"})
    assert (answer.status_code, answer.json()["code"]) == (422, "endpoint_blocked")


async def test_test_message_is_sent_by_the_consumer(api):
    add_receiver(api)
    add_consumer(api)
    answer = await api.client.post(f"{PATH}/ep_1/test")
    assert answer.status_code == 202, answer.text
    with api.store.write() as conn:
        [message] = outbox.claim(conn, now_s=NOW_S, lease_s=30.0, limit=10)
    assert message.delivery_id == answer.json()["delivery_id"]
    assert (message.endpoint_id, message.kind, message.job_id) == ("ep_1", "test", None)
    assert "nothing is wrong" in message.payload
    found = (await api.client.get(f"/api/v1/deliveries/{message.delivery_id}")).json()
    assert (found["kind"], found["state"], found["attempts"]) == ("test", "due", [])


async def test_test_without_a_consumer_is_refused(api):
    add_receiver(api)
    answer = await api.client.post(f"{PATH}/ep_1/test")
    assert (answer.status_code, answer.json()["code"]) == (503, "no_consumer")
    assert "retry-after" in answer.headers
    assert (await api.client.get("/api/v1/deliveries")).json()["items"] == []


async def test_messages_of_a_removed_receiver_stay(api):
    await api.register("job-a")
    add_receiver(api)
    send(api)
    assert (await api.client.delete(f"{PATH}/ep_1")).status_code == 204
    answer = await api.client.delete(f"{PATH}/ep_1")
    assert (answer.status_code, answer.json()["code"]) == (404, "endpoint_not_found")
    [message] = (await api.client.get("/api/v1/deliveries")).json()["items"]
    assert (message["receiver_id"], message["receiver_name"]) == ("ep_1", None)


async def test_receiver_of_the_settings_is_visible_and_read_only(api):
    from tests.store.factories import webhook_receiver

    with api.store.write() as conn:
        receivers.put_settings_receiver(conn, webhook_receiver("settings", project=None, url=URL))
    _, text = api.token(project="research")
    async with api.client_with(text) as other:
        for method, path in (("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
            answer = await other.request(method, f"{PATH}/settings{path}", json={})
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("project", ["research", "default"])
async def test_address_of_the_settings_receiver_is_the_operators(api, project):
    from tests.store.factories import webhook_receiver

    add_consumer(api)
    with api.store.write() as conn:
        receivers.put_settings_receiver(conn, webhook_receiver("settings", project=None, url=URL))
        receivers.mark_failed(conn, "settings", detail="HTTP 500 of gw-7.internal", now_s=NOW_S)
    _, text = api.token(project=project)
    async with api.client_with(text) as other:
        for path in (PATH, f"{PATH}/settings"):
            answer = await other.get(path)
            assert "internal" not in answer.text
            assert "hooks.example.com" not in answer.text
        [found] = (await other.get(PATH)).json()["items"]
        assert (found["is_of_settings"], found["address"]) == (True, None)
        assert (found["health"]["state"], found["health"]["last_detail"]) == ("failing", None)
        for action in ("enable", "test"):
            answer = await other.post(f"{PATH}/settings/{action}")
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    known = await seen(api, "settings")
    assert (known["address"], known["health"]["last_detail"]) == (HOST, "HTTP 500 of gw-7.internal")
    assert (await api.client.post(f"{PATH}/settings/test")).status_code == 202
    assert (await api.client.post(f"{PATH}/settings/enable")).status_code == 200
    async with api.client_with(text) as other:
        assert "hooks.example.com" not in (await other.get("/api/v1/audit")).text


async def test_dead_mans_switch_says_how_often_and_can_be_changed(api):
    made = await make(
        api, format="healthchecks", url="https://hc-ping.com/secret", heartbeat_every_s=60
    )
    assert (made["heartbeat_every_s"], made["secret"], made["has_secret"]) == (60.0, None, False)
    path = f"{PATH}/{made['receiver_id']}"
    changed = await api.client.patch(path, json={"heartbeat_every_s": 300})
    assert changed.json()["heartbeat_every_s"] == 300.0
    assert (await make(api))["heartbeat_every_s"] is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "healthchecks"}, "say how often"),
        ({"format": "slack", "heartbeat_every_s": 60}, "is for people"),
        ({"heartbeat_every_s": 9}, "heartbeat_every_s"),
        ({"heartbeat_every_s": 90_000}, "heartbeat_every_s"),
    ],
)
async def test_dead_mans_switch_that_cannot_be_is_refused(api, given, words):
    answer = await api.client.post(PATH, json=NEW | given)
    assert answer.status_code == 422
    assert words in answer.text


async def test_receiver_of_alerts_is_not_turned_into_a_dead_mans_switch(api):
    made = await make(api)
    path = f"{PATH}/{made['receiver_id']}"
    answer = await api.client.patch(path, json={"heartbeat_every_s": 60})
    assert answer.status_code == 422
    assert "create another" in answer.text
