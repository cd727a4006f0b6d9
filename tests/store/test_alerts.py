from dataclasses import replace

import pytest

from app.alerts.alert import AlertState
from app.errors import JobNotFound
from app.store import alerts
from app.store.alerts import AlertEvent
from tests.store.factories import register

EVENT = AlertEvent("job", "slowdown", "firing", 5.5, "1-8", 1.42, 1.1, 0, "It is slow: 1.42.")


def test_a_rule_is_at_rest_until_its_state_is_saved(store):
    register(store)
    state = AlertState(True, 4, 2, 1204, "2-1220", 1.42)
    with store.write() as conn:
        assert alerts.alert_state(conn, "job", "slowdown") == AlertState()
        alerts.save_state(conn, "job", "slowdown", AlertState())
        alerts.save_state(conn, "job", "slowdown", state)
        assert alerts.alert_state(conn, "job", "slowdown") == state
        assert alerts.alert_state(conn, "job", "another") == AlertState()


def test_transitions_are_listed_with_the_newest_first(store):
    for job_id in ("a/job", "a/other", "a/quiet", "b/job"):
        register(store, job_id)
    own = replace(EVENT, job_id="a/job")
    with store.write() as conn:
        events = [
            own,
            replace(own, job_id="a/other"),
            replace(own, kind="resolved", slowdown=None, since_step=None, window_id=None),
        ]
        saved = [replace(event, event_id=alerts.add_event(conn, event)) for event in events]
        alerts.add_event(conn, replace(EVENT, job_id="b/job"))
        newest, cursor = alerts.page(conn, project="a", limit=2)
        oldest, end = alerts.page(conn, project="a", cursor=cursor, limit=2)
        assert newest + oldest == saved[::-1]
        assert end is None
        assert alerts.page(conn, job_id="a/job") == ([saved[2], saved[0]], None)
        assert alerts.page(conn, job_id="a/quiet") == ([], None)
        with pytest.raises(JobNotFound):
            alerts.page(conn, job_id="a/nobody")
