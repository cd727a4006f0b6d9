import json

from app.alerts.formats.registry import render_notice
from tests.alerts.notices import make_receiver, notice


def message(**given):
    return render_notice(notice(**given), make_receiver("cloudevents"))


def test_it_is_an_event_in_structured_mode():
    event = json.loads(message().body)
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "n-1",
        "source": "https://paceline.example/projects/default",
        "type": "paceline.alert.firing",
        "time": "2023-11-14T22:13:50.5Z",
        "datacontenttype": "application/json",
        "subject": "llm-70b",
    }
    assert message().content_type == "application/cloudevents+json; charset=utf-8"
    standard = json.loads(render_notice(notice(), make_receiver("standard")).body)
    assert data == standard["data"]


def test_no_attribute_is_empty():
    event = json.loads(message(job=None, base_url=None).body)
    assert "subject" not in event
    assert event["source"] == "/projects/default"
