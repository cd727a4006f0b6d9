"""What Debian's Alertmanager takes from us, and what it sends itself, against what we send."""

import json
import time

import pytest

from app.alerts.connection import parse_networks
from app.alerts.formats.registry import render_notice
from app.alerts.guard import SsrfGuard
from app.alerts.sending import Transport, send
from tests.alerts.alertmanager_server import alertmanager, wait_for
from tests.alerts.http_receiver import receiver
from tests.alerts.notices import LABELS, make_receiver, notice, told

BASE_URL = "https://paceline.example"


@pytest.fixture(scope="module")
def transport():
    return Transport(SsrfGuard(parse_networks(["127.0.0.0/8"]), True, None))


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture
def pushed_to(tmp_path, hook):
    with alertmanager(tmp_path, hook_url=hook.url, external_url=BASE_URL) as url:
        yield make_receiver("alertmanager-push", url=url, secrets=())


def push(transport, to, given):
    answer = send(transport, to, render_notice(given, to), "msg_1", time.time())
    assert answer.status == 200, answer.detail


def of_alertmanager(hook, status, num_alerts):
    """The last thing that it told, once it is this."""

    def look():
        for _, _, body in reversed(list(hook.requests)):
            told_body = json.loads(body)
            if told_body["status"] == status and len(told_body["alerts"]) == num_alerts:
                return told_body
        return None

    return wait_for(look, lambda: str(hook.requests))


def of_ours(given):
    return json.loads(render_notice(given, make_receiver("alertmanager", name="on-call")).body)


def in_order(body):
    return body | {"alerts": sorted(body["alerts"], key=lambda alert: alert["fingerprint"])}


def test_our_body_matches_a_real_alertmanager(transport, hook, pushed_to):
    began_s = round(time.time() - 60.0, 3)
    odd = {**LABELS, "job": "llm-70b", "gpu.type": 'h200 "SXM" \\ <b> \N{SNOWMAN}', "cause": "x"}
    alerts = (
        told(starts_at_s=began_s, labels={**LABELS, "subject": "3-1"}),
        told(starts_at_s=began_s + 0.25, labels=odd, sentence="A & B <c> \N{SNOWMAN}"),
        told(starts_at_s=began_s + 1, labels={**LABELS, "subject": "4-1"}, runbook_url=None),
    )
    firing = notice(alerts=alerts, at_s=time.time())
    push(transport, pushed_to, firing)
    theirs, ours = of_alertmanager(hook, "firing", 3), of_ours(firing)
    assert set(theirs) == set(ours)
    assert in_order(theirs) == in_order(ours)

    ended_s = round(time.time() - 1.0, 3)
    over = tuple(
        told(
            starts_at_s=each.starts_at_s,
            labels=each.labels,
            sentence="It is over.",
            status="resolved",
            ends_at_s=ended_s,
        )
        for each in alerts
    )
    resolved = notice(kind="resolved", alerts=over, at_s=time.time())
    push(transport, pushed_to, resolved)
    theirs, ours = of_alertmanager(hook, "resolved", 3), of_ours(resolved)
    assert in_order(theirs) == in_order(ours)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["test", "notifier-unhealthy"])
def test_a_real_alertmanager_takes_notices_without_alerts(transport, hook, pushed_to, kind):
    push(transport, pushed_to, notice(kind=kind, alerts=(), at_s=time.time(), group_labels={}))
    assert of_alertmanager(hook, "firing", 1)["alerts"][0]["labels"]["project"] == "default"


@pytest.mark.nightly
def test_a_real_alertmanager_takes_odd_names(transport, pushed_to):
    for name in ("<!channel>", "a\r\nb", "\u202etxt", "x" * 10_000, "\N{SNOWMAN}" * 3000, '"\\'):
        labels = {**LABELS, "host": name, name: name, "subject": name}
        given = told(labels=labels, sentence=name, starts_at_s=time.time())
        push(transport, pushed_to, notice(alerts=(given,) * 3, at_s=time.time()))
