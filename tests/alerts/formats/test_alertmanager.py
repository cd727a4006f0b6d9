import json

import pytest

from app.alerts.formats.alertmanager import push_url
from app.alerts.formats.registry import render_notice
from tests.alerts.notices import LABELS, make_receiver, notice, told

DONE = {"status": "resolved", "ends_at_s": 1_700_000_099.0}


def body(**given):
    return json.loads(render_notice(notice(**given), make_receiver("alertmanager")).body)


def pushed(**given):
    return json.loads(render_notice(notice(**given), make_receiver("alertmanager-push")).body)


def test_the_body_is_an_alertmanagers():
    """The rest is compared with a real Alertmanager's."""
    found = body(num_more=3)
    assert (found["version"], found["status"], found["truncatedAlerts"]) == ("4", "firing", 3)
    [alert] = found["alerts"]
    assert found["commonAnnotations"] == alert["annotations"]
    assert alert["labels"] == {
        "alertname": "PacelineSlowdown",
        "job": "llm-70b",
        "project": "default",
        "rule": "slowdown",
        "severity": "warning",
        "team": "pretraining",
    }
    assert (alert["startsAt"], alert["endsAt"]) == (
        "2023-11-14T22:13:20.25Z",
        "0001-01-01T00:00:00Z",
    )
    assert alert["annotations"] == {
        "summary": notice().sentence,
        "description": "dp 3, stage 1 on host-017 is 1.6\u00d7 slower than its peers. "
        "It costs about 19 GPU-h an hour, 30 % of the time of 64 GPUs. "
        "Cause: slow worker (high confidence, 90 %).",
        "slowdown": "1.42",
        "since_step": "1204",
        "gpu_hours_lost_per_hour": "18.90",
        "confidence": "high, 90 %",
        "culprits": "host-017 (dp 3, stage 1)",
        "cause": "slow-worker",
        "worker": "3-1",
        "host": "host-017",
        "runbook_url": "https://runbooks.example/slow",
    }


def test_another_culprit_does_not_make_it_another_alert():
    moved = told(labels={**LABELS, "worker": "5-0", "host": "host-018"})
    [before], [after] = body()["alerts"], body(alerts=(moved,))["alerts"]
    assert before["labels"] == after["labels"]
    assert before["fingerprint"] == after["fingerprint"]


def test_an_alert_keeps_its_first_labels_for_alertmanager():
    renamed = told(labels={**LABELS, "team": "other", "severity": "critical"}, known_as=LABELS)
    for found in (body(alerts=(renamed,))["alerts"][0], pushed(alerts=(renamed,))[0]):
        assert found["labels"] == body()["alerts"][0]["labels"]


def test_what_an_alert_is_about_is_a_label():
    of_worker = told(labels={**LABELS, "subject": "3-1"})
    [found] = body(alerts=(of_worker,))["alerts"]
    assert found["labels"]["worker"] == found["labels"]["subject"] == "3-1"
    assert "host" not in found["labels"]


def test_labels_have_names_that_prometheus_takes():
    odd = told(labels={**LABELS, "gpu.type": "h200", "7b": "yes", "empty": "", "": "none"})
    [found] = body(alerts=(odd,))["alerts"]
    assert found["labels"]["gpu_type"] == "h200"
    assert found["labels"]["_7b"] == "yes"
    assert "empty" not in found["labels"]


def test_a_group_resolves_with_its_last_alert():
    one, other = told(**DONE), told(fingerprint="f" * 16)
    assert body(alerts=(one, other))["status"] == "firing"
    ended = body(alerts=(one,))
    assert ended["status"] == ended["alerts"][0]["status"] == "resolved"
    assert ended["alerts"][0]["endsAt"] == "2023-11-14T22:14:59Z"


def test_common_is_what_all_alerts_have():
    one, other = told(), told(labels={**LABELS, "team": "other"}, sentence="Another.")
    found = body(alerts=(one, other))
    assert "team" not in found["commonLabels"]
    assert "summary" not in found["commonAnnotations"]
    assert found["commonAnnotations"]["slowdown"] == "1.42"


def test_an_alert_that_is_pushed_fires_until_more_is_known():
    [alert] = pushed()
    assert alert["startsAt"] == "2023-11-14T22:13:20.25Z"
    assert alert["endsAt"] == "2023-11-15T02:13:50.5Z"
    [ended] = pushed(kind="resolved", alerts=(told(**DONE),))
    assert ended["endsAt"] == "2023-11-14T22:14:59Z"
    assert ended["labels"] == alert["labels"]
    [tried] = pushed(kind="test", alerts=())
    assert tried["endsAt"] == "2023-11-14T22:14:50.5Z"


@pytest.mark.parametrize(
    ("url", "pushed_to"),
    [
        ("https://am.example", "https://am.example/api/v2/alerts"),
        ("https://am.example/", "https://am.example/api/v2/alerts"),
        ("https://am.example/am/", "https://am.example/am/api/v2/alerts"),
        ("https://am.example/api/v2/alerts", "https://am.example/api/v2/alerts"),
        ("https://am.example/am?key=a/b", "https://am.example/am/api/v2/alerts?key=a/b"),
        ("https://am.example/api/v2/alerts?key=a", "https://am.example/api/v2/alerts?key=a"),
    ],
)
def test_the_address_of_an_alertmanager_may_have_a_query(url, pushed_to):
    assert push_url(url) == pushed_to


def test_assignee_and_note_are_annotations():
    alert = told(assigned_to="Maria", note="drained\nnow")
    for annotations in (
        body(alerts=(alert,))["alerts"][0]["annotations"],
        pushed(alerts=(alert,))[0]["annotations"],
    ):
        assert (annotations["assigned_to"], annotations["note"]) == ("Maria", "drained now")
    assert "assigned_to" not in body()["alerts"][0]["annotations"]
