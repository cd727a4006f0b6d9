"""Alerts of release 0005 survive an upgrade and a downgrade."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from app.alerts.alert import Detail, fingerprint
from app.alerts.rule import Rule
from app.store.alerting import (
    alert_rules,
    alerts,
    deliveries,
    notifications,
    outbox,
    receivers,
    silences,
)
from app.store.alerting.tables import endpoints
from app.store.database import Store, is_migrated
from app.store.migrations import downgrade, migrate
from tests.secret_keys import KEYS
from tests.store import release_0005 as old
from tests.store.factories import (
    add_audit_entry,
    add_message,
    alert,
    event,
    register,
    silence,
    webhook_receiver,
)

FIRING_SINCE_S = 60.0


@pytest.fixture
def filled(url):
    """A database of revision 0005 with alerts."""
    store = Store(url, keys=KEYS)
    for job_id in (old.FIRING, old.PENDING, old.AT_REST, old.OTHER):
        register(store, job_id, labels={"team": "Ä", "job": "not this"})
    downgrade(url, "0005")
    with store.write() as conn:
        old.fill(conn)
        assert old.content(conn) == old.ROWS
    yield store
    store.close()


@pytest.fixture
def upgraded(filled, url):
    migrate(url)
    return filled


def test_migration_keeps_firing_alerts_and_drops_resolved_ones(upgraded):
    with upgraded.read() as conn:
        [state] = alerts.of_job(conn, old.FIRING)
        assert alerts.of_job(conn, old.AT_REST) == []
    detail = Detail(
        value=1.42,
        slowdown=1.42,
        gpu_time_wasted=1 - 1 / 1.42,
        since_step=1204,
        window_id="2-1220",
    )
    assert state == alert(
        old.FIRING,
        began_at_s=FIRING_SINCE_S,
        firing_at_s=FIRING_SINCE_S,
        epoch=2,
        window_id="2-1220",
        num_windows=4,
        threshold=1.2,
        labels={
            "team": "Ä",
            "alertname": "PacelineSlowdown",
            "project": "a",
            "job": "llm",
            "rule": "slowdown",
            "severity": "warning",
        },
        detail=detail,
    )


def test_migration_keeps_the_window_count_of_pending_alerts(upgraded):
    with upgraded.read() as conn:
        [state] = alerts.of_job(conn, old.PENDING)
    assert (state.phase, state.num_windows, state.firing_at_s) == ("pending", 2, None)
    assert (state.epoch, state.window_id, state.threshold) == (1, "1-16", 1.1)


def test_migration_keeps_last_notifications_and_wakes_their_groups(upgraded):
    identity = fingerprint(old.FIRING, "slowdown", "")
    with upgraded.write() as conn:
        messages = notifications.last_notifications(conn, old.FIRING, "slowdown")
        assert notifications.last_notifications(conn, old.PENDING, "slowdown") == {}
        groups = notifications.claim_groups(conn, now_s=1.0, lease_s=1.0, limit=9)
        [state] = alerts.of_job(conn, old.FIRING)
    assert set(messages) == {identity}
    assert (messages[identity].kind, messages[identity].event_id) == ("firing", 3)
    assert (messages[identity].at_s, messages[identity].starts_at_s) == (60.0, 60.0)
    assert (messages[identity].labels, messages[identity].detail) == (state.labels, state.detail)
    assert {group.job_id for group in groups} == {old.FIRING, old.PENDING}


def test_migration_keeps_event_ids_and_fills_new_columns(upgraded):
    with upgraded.write() as conn:
        found, _ = alerts.event_page(conn, project="a")
        [resolved, _] = alerts.event_page(conn, project="b")[0]
        new = alerts.add_event(conn, event(old.OTHER))
    assert [(each.event_id, each.kind, each.threshold) for each in found] == [
        (3, "firing", 1.2),
        (2, "resolved", 1.1),
        (1, "firing", 1.2),
    ]
    assert {each.fingerprint for each in found} == {fingerprint(old.FIRING, "slowdown", "")}
    assert found[0].detail.since_step == 1204
    assert (found[0].severity, found[0].subject, found[0].sentence) == (
        "warning",
        "",
        "It is firing: é.",
    )
    assert resolved.detail == Detail()
    assert new > 5


def test_migration_moves_due_messages_to_the_settings_receiver(upgraded):
    with upgraded.write() as conn:
        [due] = outbox.claim(conn, now_s=100.0, lease_s=1.0, limit=9)
        states = {each.delivery_id: each.state for each in deliveries.page(conn, "b")[0]}
        assert receivers.get(conn, "a", "settings").url == old.HOOK
    assert (due.delivery_id, due.attempt, due.kind) == (f"msg_{3:032x}", 3, "firing")
    assert due.fingerprints == [fingerprint(old.FIRING, "slowdown", "")]
    assert (due.payload, due.content_type) == ('{"a": "é"}', "application/json")
    assert states == {f"msg_{4:032x}": "delivered", f"msg_{5:032x}": "failed"}


def test_downgrade_restores_the_original_rows(upgraded, url):
    downgrade(url, "0005")
    expected = {name: [dict(row) for row in rows] for name, rows in old.ROWS.items()}
    # Resolved states are dropped, and of two addresses only the last one is kept.
    del expected["alert_states"][2]
    expected["outbox"][0]["endpoint"] = old.HOOK
    with upgraded.read() as conn:
        found = old.content(conn)
    assert found == expected
    migrate(url)
    downgrade(url, "0005")
    with upgraded.read() as conn:
        assert old.content(conn) == expected


def test_downgrade_drops_what_the_older_release_cannot_hold(upgraded, url):
    with upgraded.write() as conn:
        fill_newer_rows(conn)
    downgrade(url, "0005")
    with upgraded.read() as conn:
        found = old.content(conn)
    known = len(old.ROWS["alert_events"])
    [stalled] = found["alert_events"][known:]
    assert (stalled["rule"], stalled["kind"], stalled["threshold"]) == ("stalled", "firing", 0.0)
    assert {row["rule"] for row in found["alert_states"]} == {"slowdown"}
    messages = {row["delivery_id"]: row for row in found["outbox"]}
    assert len(messages) == len(old.ROWS["outbox"]) + 1
    [new] = [row for row in messages.values() if row["endpoint"] == "https://receiver.example/hook"]
    assert (new["event_id"], new["state"]) == (3, "outdated")
    migrate(url)
    assert is_migrated(url)


def fill_newer_rows(conn):
    """Add rows of this release, some of which the older one can read."""
    [state] = alerts.of_job(conn, old.FIRING)
    alerts.save(conn, [replace(state, acked_by="ops"), alert(old.FIRING, "worker", "1-0")])
    alerts.add_event(conn, event(old.FIRING, kind="acknowledged", at_s=90.0))
    alerts.add_event(conn, event(old.FIRING, "stalled", threshold=None, at_s=91.0))
    receivers.add(conn, webhook_receiver(project="a"))
    # As before 0020: encrypted receivers go with its downgrade.
    plain = update(endpoints).where(endpoints.c.sealed.is_not(None))
    conn.execute(plain.values(sealed=None, url="https://receiver.example/hook"))
    for notice_id in ("first", "repeated"):
        about = [state.fingerprint]
        delivery_id = add_message(conn, notice_id=notice_id, job_id=old.FIRING, fingerprints=about)
        deliveries.add_attempt(conn, delivery_id, 1, 1.0, 1.0, 500, "HTTP 500")
    [delivery] = outbox.claim(conn, now_s=100.0, lease_s=1.0, limit=1)
    add_message(conn, notice_id="test", job_id=None, rule=None, kind="test", project="a")
    add_message(conn, notice_id="about nothing known", job_id=old.AT_REST, fingerprints=["ff"])
    for each in (delivery, *outbox.claim(conn, now_s=100.0, lease_s=1.0, limit=9)):
        outbox.mark_silenced(conn, each, now_s=101.0)
    alert_rules.replace_all(conn, "a", [Rule("r", "stalled")], text="", now_s=1.0)
    silences.add(conn, silence())
    add_audit_entry(conn, "a")


def test_downgrade_to_0013_drops_assignees_and_notes(upgraded, url):
    with upgraded.write() as conn:
        [state] = alerts.of_job(conn, old.FIRING)
        alerts.assign(conn, state.fingerprint, to="Maria", by="ops", at_s=7.0)
        alerts.add_event(conn, event(old.FIRING, kind="note", reason="see OPS-17"))
    downgrade(url, "0013")
    migrate(url)
    with upgraded.read() as conn:
        [found] = alerts.of_job(conn, old.FIRING)
        assert (found.assigned_to, found.phase) == (None, "firing")
        assert "note" not in {each.kind for each in alerts.event_page(conn)[0]}
