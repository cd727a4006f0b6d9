"""One attempt, over a real connection."""

import json
import socket
import time

import pytest
from standardwebhooks.webhooks import Webhook

from app.alerts.connection import parse_networks
from app.alerts.formats.registry import RENDERERS, render_notice
from app.alerts.guard import SsrfGuard
from app.alerts.notice import Message
from app.alerts.sending import Transport, attempt_headers, is_allowed_header, send
from app.alerts.smtp import parse_mail_server
from app.errors import StartUpFailed
from tests.alerts.http_receiver import Answer, receiver
from tests.alerts.notices import OLD_SECRET, SECRET, make_receiver, notice

NOW_S = 1_700_000_000.5
KEY = "routing-key-0123456789abcdef0123"


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture(scope="module")
def transport():
    return Transport(
        SsrfGuard(parse_networks(["127.0.0.0/8"]), True, None, lambda _: ["127.0.0.1"])
    )


def attempt(transport, url, format_="standard", *, now_s=NOW_S, **given):
    to = make_receiver(format_, url=url, **given)
    return send(transport, to, render_notice(notice(), to), "msg_1", now_s)


def test_a_receiver_can_verify_what_it_gets(hook, transport):
    answer = attempt(transport, hook.url, now_s=time.time(), secrets=(SECRET, OLD_SECRET))
    assert (answer.status, answer.detail, answer.is_success) == (204, "HTTP 204", True)
    assert answer.took_s > 0
    ((path, headers, body),) = hook.requests
    assert path == "/hook"
    for secret in (SECRET, OLD_SECRET):
        assert Webhook(secret).verify(body, headers)["data"]["job_id"] == "llm-70b"
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["webhook-id"] == "msg_1"
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"] == "Paceline"


def test_a_day_after_a_rotation_only_the_new_secret_signs(hook, transport):
    given = {"secrets": (SECRET, OLD_SECRET), "old_secret_until_s": NOW_S}
    for now_s, num_signatures in ((NOW_S - 1, 2), (NOW_S, 1)):
        attempt(transport, hook.url, now_s=now_s, **given)
        assert hook.requests[-1][1]["webhook-signature"].count("v1,") == num_signatures


@pytest.mark.parametrize("format_", [name for name in RENDERERS if name != "email"])
def test_a_secret_is_sent_to_its_own_receiver_only(hook, transport, format_):
    secret = KEY if format_ in ("pagerduty", "alertmanager-push") else SECRET
    attempt(transport, hook.url, format_, secrets=(secret,))
    ((_, headers, body),) = hook.requests
    where = [name for name, value in headers.items() if secret.removeprefix("whsec_") in value]
    assert where == (["authorization"] if format_ == "alertmanager-push" else [])
    assert (secret.encode() in body) == (format_ == "pagerduty")


def test_pagerduty_gets_its_routing_key(hook, transport):
    attempt(transport, hook.url, "pagerduty", secrets=(KEY, "old"))
    assert json.loads(hook.requests[0][2])["routing_key"] == KEY


def test_an_alertmanager_is_pushed_to_at_its_api(hook, transport):
    base = hook.url.removesuffix("/hook")
    attempt(transport, base, "alertmanager-push", secrets=(KEY,))
    attempt(transport, f"{base}/am/", "alertmanager-push", secrets=())
    (first, headers, _), (second, others, _) = hook.requests
    assert (first, second) == ("/api/v2/alerts", "/am/api/v2/alerts")
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in others


@pytest.mark.parametrize("status", [301, 307, 400, 404, 410, 429, 500, 503])
def test_a_refusal_detail_has_status_and_first_words(hook, transport, status):
    hook.answer = Answer(status, {"Retry-After": "120"}, body=b"no\0\xffway\r\n")
    answer = attempt(transport, hook.url)
    assert (answer.status, answer.detail) == (status, f"HTTP {status} no  way")
    assert answer.retry_after == "120"
    assert not answer.is_success
    assert answer.is_overloaded == (status in (429, 503))


def test_a_broken_connection_is_named_in_the_detail(hook, transport):
    hook.answer = Answer("reset")
    answer = attempt(transport, hook.url)
    assert (answer.status, answer.is_overloaded) == (None, False)
    assert answer.detail in (
        "no connection: the connection was broken off",
        "no connection: the answer is not HTTP",
    )


def test_a_silent_receiver_times_out(hook):
    hook.answer = Answer("silence")
    here = parse_networks(["127.0.0.0/8"])
    impatient = Transport(SsrfGuard(here, True, None, total_s=0.1))
    answer = attempt(impatient, hook.url)
    assert (answer.status, answer.detail) == (None, "no answer in time")
    assert answer.is_overloaded


def test_an_unknown_host_name_is_named_in_the_detail():
    def unknown(host):
        raise socket.gaierror(-2, "Name or service not known")

    answer = attempt(Transport(SsrfGuard(resolver=unknown)), "https://nobody.example/")
    assert answer.detail == "no connection: host name not found (DNS)"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x", "https://10.0.0.1/", "https://me@a.example/"]
)
def test_what_the_guard_blocks_is_an_answer_too(url):
    answer = attempt(Transport(SsrfGuard()), url)
    assert answer.status is None
    assert answer.detail.startswith("blocked: the receiver's ")


def test_only_the_environments_endpoint_may_be_anywhere(hook):
    strict = Transport(SsrfGuard())
    assert attempt(strict, hook.url, endpoint_id="settings", project=None).status == 204
    assert attempt(strict, hook.url).detail.startswith("blocked: ")
    assert len(hook.requests) == 1


def test_without_a_mail_server_e_mail_says_what_to_set(transport):
    answer = attempt(transport, "mailto:a@example.com", "email")
    assert answer.detail == "no mail server is set up: the operator sets PACELINE_SMTP_URL"


@pytest.mark.parametrize(
    ("url", "sender"),
    [
        ("http://mail.example", "a@b.example"),
        ("smtp://", "a@b.example"),
        ("mail.example", "a@b.example"),
        ("smtp://mail.example", None),
        ("smtp://mail.example", "a@b.example\r\nBcc: c@d.example"),
    ],
)
def test_an_invalid_mail_server_is_refused_at_the_start(url, sender):
    with pytest.raises(StartUpFailed, match="PACELINE_SMTP_"):
        parse_mail_server(url, sender)


def test_receivers_may_ask_for_few_headers():
    own = {
        "Authorization": "Basic YTpi",
        "X-Team": "gpu",
        "Host": "internal",
        "Content-Length": "1",
        "Transfer-Encoding": "chunked",
        "Cookie": "a=b",
        "Connection": "keep-alive",
        "X-Forwarded-For": "127.0.0.1",
        "X-Two": "a\r\nHost: internal",
        "X-Wide": "\u2603",
        "X Space": "a",
        "webhook-id": "forged",
        "Content-Type": "text/html",
    }
    headers = attempt_headers(make_receiver(headers=own), Message("{}"), "msg_1", NOW_S)
    assert headers["authorization"] == "Basic YTpi"
    assert headers["x-team"] == "gpu"
    assert set(headers) == {
        "authorization",
        "x-team",
        "content-type",
        "user-agent",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
    assert headers["webhook-id"] == "msg_1"
    assert headers["content-type"] == "application/json"
    assert not is_allowed_header("X-Long", "a" * 1001)
