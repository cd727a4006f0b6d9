import json

from app.alerts.formats.registry import render
from tests.alerts.notices import endpoint, notice


def message(**given):
    return render(notice(**given), endpoint("cloudevents"))


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
    standard = json.loads(render(notice(), endpoint("standard")).body)
    assert data == standard["data"]


def test_no_attribute_is_empty():
    event = json.loads(message(job=None, base_url=None).body)
    assert "subject" not in event
    assert event["source"] == "/projects/default"
