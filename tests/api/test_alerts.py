import pytest

from app.store import alerts
from app.store.alerts import AlertEvent
from app.trace.names import qualified

pytestmark = pytest.mark.anyio

PATH = "/api/v1/alerts"


def fire(api, job_id, at_s=0.0):
    key = qualified("default", job_id)
    event = AlertEvent(key, "slowdown", "firing", at_s, "1-16", 1.3, 1.1, 0, "It is slow.")
    with api.store.write() as conn:
        return alerts.add_event(conn, event)


async def test_an_alert_tells_what_was_seen(api):
    await api.register("job-a")
    event_id = fire(api, "job-a")
    page = (await api.client.get(PATH)).json()
    assert page["next_cursor"] is None
    assert page["items"] == [
        {
            "event_id": event_id,
            "job_id": "job-a",
            "rule": "slowdown",
            "kind": "firing",
            "at": "1970-01-01T00:00:00Z",
            "window_id": "1-16",
            "slowdown": 1.3,
            "threshold": 1.1,
            "since_step": 0,
            "sentence": "It is slow.",
        }
    ]


async def test_alerts_are_listed_newest_first_each_once_and_by_job(api):
    for name in ("job-a", "job-b"):
        await api.register(name)
    ids = [fire(api, name) for name in ("job-a", "job-b", "job-a")]
    first = (await api.client.get(PATH, params={"limit": 2})).json()
    query = {"limit": 2, "cursor": first["next_cursor"]}
    second = (await api.client.get(PATH, params=query)).json()
    found = [alert["event_id"] for alert in first["items"] + second["items"]]
    assert found == list(reversed(ids))
    of_one = (await api.client.get(PATH, params={"job": "job-b"})).json()
    assert [alert["job_id"] for alert in of_one["items"]] == ["job-b"]


async def test_alerts_of_an_unknown_job_are_not_found(api):
    assert (await api.client.get(PATH, params={"job": "none"})).status_code == 404
