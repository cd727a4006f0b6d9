from dataclasses import replace

import pytest

from app.errors import InvalidRequest, JobNotFound
from app.store.alerting import alerts
from tests.store.factories import event, register


@pytest.fixture
def added(store):
    """Add events with their jobs; return them as stored."""

    def add(*events):
        for job_id in {each.job_id for each in events}:
            register(store, job_id)
        with store.write() as conn:
            return [replace(each, event_id=alerts.add_event(conn, each)) for each in events]

    return add


@pytest.mark.sql_sensitive
def test_transitions_are_listed_with_the_newest_first(store, added):
    for job_id in ("a/quiet", "b/job"):
        register(store, job_id)
    saved = added(
        event("a/job"),
        event("a/other", rule="worker", subject="3-1"),
        event("a/job", kind="resolved", threshold=None, reason="the job has ended", actor="ops"),
    )
    added(event("b/job"))
    with store.read() as conn:
        newest, cursor = alerts.event_page(conn, project="a", limit=2)
        oldest, end = alerts.event_page(conn, project="a", cursor=cursor, limit=2)
        assert newest + oldest == saved[::-1]
        assert end is None
        assert alerts.event_page(conn, job_id="a/job") == ([saved[2], saved[0]], None)
        assert alerts.event_page(conn, job_id="a/quiet") == ([], None)
        with pytest.raises(JobNotFound):
            alerts.event_page(conn, job_id="a/nobody")
        with pytest.raises(InvalidRequest, match="cursor"):
            alerts.event_page(conn, project="a", cursor="x")


@pytest.mark.sql_sensitive
def test_transitions_are_filtered_by_kind_and_job_name(store, added):
    first, second = added(event("a/LLM-1"), event("a/other", kind="pending"))
    with store.read() as conn:
        assert alerts.event_page(conn, project="a", kinds=["pending"])[0] == [second]
        assert alerts.event_page(conn, project="a", text="llm")[0] == [first]


@pytest.mark.sql_sensitive
def test_open_filter_lists_unresolved_firings(store, added):
    first, _, other, _ = added(
        event("a/job", subject="x"),
        event("a/job", subject="y"),
        event("a/job", subject="z"),
        event("a/job", subject="y", kind="resolved"),
    )
    added(event("a/job", subject="x", kind="acknowledged"))
    with store.read() as conn:
        found, _ = alerts.event_page(conn, project="a", is_open=True)
    assert found == [other, first]


def test_an_alert_has_its_own_history(store, added):
    first, _, last = added(
        event("a/job", kind="pending"), event("a/job", subject="x"), event("a/job")
    )
    with store.read() as conn:
        assert alerts.events_of_alert(conn, first.fingerprint) == [last, first]
        assert alerts.events_of_alert(conn, first.fingerprint, limit=1) == [last]
        assert alerts.events_of_alert(conn, "nothing") == []


def test_ribbon_events_are_firing_and_resolved_only(store, added):
    kinds = ("pending", "firing", "acknowledged", "no-data", "data-again", "resolved", "cleared")
    added(*(event("a/job", kind=kind) for kind in kinds))
    with store.read() as conn:
        found = alerts.firings_of_job(conn, "a/job", limit=10)
    assert [each.kind for each in found] == ["resolved", "firing"]


def test_long_texts_are_cut(store, added):
    [saved] = added(event("a/job", sentence="s" * 9000, actor="a" * 9000, reason="r\0" * 9000))
    with store.read() as conn:
        [found] = alerts.events_of_alert(conn, saved.fingerprint)
    texts = (found.sentence, found.actor or "", found.reason or "")
    assert [len(each) for each in texts] == [2000, 256, 500]
