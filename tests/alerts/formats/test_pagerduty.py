import json

from app.alerts.formats.pagerduty import with_routing_key
from app.alerts.formats.registry import render_notice
from tests.alerts.notices import make_receiver, notice

IMAGE = "https://paceline.example/1.png"


def event(**given):
    return json.loads(render_notice(notice(**given), make_receiver("pagerduty")).body)


def test_one_incident_is_opened_acknowledged_and_resolved():
    events = [event(kind=kind) for kind in ("firing", "acknowledged", "resolved")]
    assert [each["event_action"] for each in events] == ["trigger", "acknowledge", "resolve"]
    assert len({each["dedup_key"] for each in events}) == 1
    assert len(events[0]["dedup_key"]) <= 255


def test_other_rules_and_jobs_have_incidents_of_their_own():
    keys = {event(group_key=key)["dedup_key"] for key in ("a", "b", "c" * 10_000)}
    assert len(keys) == 3


def test_the_pagerduty_summary_has_sentence_and_cause():
    found = event(image_url=IMAGE)
    payload = found["payload"]
    assert payload["summary"].startswith("llm-70b runs at 1.42")
    assert "high confidence, 90 %" in payload["summary"]
    assert payload["severity"] == "warning"
    assert payload["timestamp"] == "2023-11-14T22:13:50.5Z"
    assert payload["custom_details"]["Costs"] == "about 19 GPU-h each hour"
    assert found["client_url"] == found["links"][0]["href"] == notice().page_url
    assert found["links"][1]["href"] == "https://runbooks.example/slow"
    assert found["images"][0] | {"alt": ""} == {
        "src": IMAGE,
        "alt": "",
        "href": notice().page_url,
    }


def test_the_summary_is_as_long_as_it_may_be():
    summary = event(sentence="a" * 800, sub="b" * 800)["payload"]["summary"]
    assert len(summary) <= 1024


def test_the_routing_key_is_added_when_it_is_sent():
    body = render_notice(notice(), make_receiver("pagerduty")).body
    assert "routing_key" not in body
    sent = json.loads(with_routing_key(body, ("key-new", "key-old")))
    assert sent.pop("routing_key") == "key-new"
    assert sent == json.loads(body)
