"""Snapshot of one alert group for planning: its alerts, their last notifications, and receivers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.alerts.alert import AlertEvent, AlertState, Detail
from app.alerts.labels import inhibited_fingerprints, labels_by_current_rule, labels_of
from app.alerts.notice import NoticeAlert
from app.alerts.planning import CurrentAlert, LastNotified
from app.alerts.receiver import Receiver
from app.alerts.rule import SEVERITIES, Rule
from app.alerts.wording import alert_sentence
from app.store import jobs
from app.store.alerting import alert_rules, notifications
from app.store.alerting import alerts as stored_alerts
from app.store.alerting import receivers as stored_receivers
from app.store.alerting.notifications import AlertGroup, LastNotification
from app.store.database import Connection
from app.trace.job import project_of

# A group is held when it is first planned: so long after its alert began to fire at the latest,
# with the longest group wait and a claim that has lapsed.
_WOKEN_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The group's alerts, their last notifications, which are inhibited, and enabled receivers.

    `rule` is None if it was removed.
    """

    alerts: Sequence[CurrentAlert]
    notified: dict[str, LastNotification]
    inhibited: set[str]
    rule: Rule | None
    receivers: Sequence[Receiver]


def read_snapshot(
    conn: Connection, default_rules: Sequence[Rule], group: AlertGroup, now_s: float
) -> GroupSnapshot:
    """The group now; `default_rules` are the rules of projects that have none of their own."""
    project = project_of(group.job_id)
    job_states = stored_alerts.of_job(conn, group.job_id)
    rules = alert_rules.load_or_default(conn, project, default_rules)
    rule = next((rule for rule in rules if rule.name == group.rule), None)
    notified = notifications.last_notifications(conn, group.job_id, group.rule)
    states = [state for state in job_states if state.rule == group.rule]
    if rule is not None and states:
        _, job_labels = jobs.name_and_labels(conn, group.job_id)
        states = [
            replace(
                state,
                severity=rule.severity,
                labels=labels_by_current_rule(state, rule, job_labels),
                runbook_url=rule.runbook_url,
            )
            for state in states
        ]
    receivers = stored_receivers.of_alerts(conn, project)
    alerts = current_alerts(conn, states, notified, now_s)
    if rule is not None and group.held_since_s is not None:
        alerts += _missed_alerts(conn, group, rule, alerts, notified)
    return GroupSnapshot(
        alerts,
        notified,
        inhibited_fingerprints(job_states, rules),
        rule,
        [receiver for receiver in receivers if receiver.is_enabled],
    )


def current_alerts(
    conn: Connection,
    states: Sequence[AlertState],
    notified: Mapping[str, LastNotification],
    now_s: float,
) -> list[CurrentAlert]:
    """The firing alerts, and the resolved ones whose end has not been notified."""
    firing = {state.fingerprint: state for state in states if state.phase == "firing"}
    resting = {
        mark: row for mark, row in notified.items() if mark not in firing and row.kind != "resolved"
    }
    began = stored_alerts.newest_events(conn, sorted(firing), "firing")
    ended = stored_alerts.newest_events(conn, sorted(resting), "resolved")
    return [
        *(
            _firing_alert(state, began.get(mark), notified.get(mark))
            for mark, state in firing.items()
        ),
        *(_resolved_alert(mark, row, ended.get(mark), now_s) for mark, row in resting.items()),
    ]


def _missed_alerts(
    conn: Connection,
    group: AlertGroup,
    rule: Rule,
    known: Sequence[CurrentAlert],
    notified: Mapping[str, LastNotification],
) -> list[CurrentAlert]:
    """Alerts that began and ended while the group's messages waited: notified once, as over."""
    since_s = (group.held_since_s or 0.0) - _WOKEN_WITHIN_S
    began = stored_alerts.firings_since(conn, group.job_id, group.rule, since_s=since_s)
    notified_id = {mark: row.event_id for mark, row in notified.items()}
    missed = {
        event.fingerprint: event
        for event in began
        if (event.event_id or 0) > notified_id.get(event.fingerprint, -1)
    }
    for alert in known:
        missed.pop(alert.fingerprint, None)
    ended = stored_alerts.newest_events(conn, sorted(missed), "resolved")
    _, of_job = jobs.name_and_labels(conn, group.job_id)
    alerts = []
    for mark, event in missed.items():
        if mark not in ended or (ended[mark].event_id or 0) < (event.event_id or 0):
            continue
        row = LastNotification(
            "firing",
            event.at_s,
            event_id=event.event_id or 0,
            starts_at_s=event.at_s,
            sentence=event.sentence,
            detail=event.detail,
            labels=labels_of(rule, group.job_id, event.subject, culprit={}, of_job=of_job),
            threshold=event.threshold,
            runbook_url=rule.runbook_url,
        )
        over = _resolved_alert(mark, row, ended[mark], ended[mark].at_s).entry
        over = replace(over, sentence=f"This is over: {event.sentence}")
        alerts.append(CurrentAlert(over, was_missed=True))
    return alerts


def notification_rows(
    alerts: Iterable[CurrentAlert],
    after: Mapping[str, LastNotified],
    notified: Mapping[str, LastNotification],
) -> dict[str, LastNotification]:
    """The rows to save after notifying; a resolved alert keeps the state of its firing."""
    by_fingerprint = {alert.fingerprint: alert.entry for alert in alerts}
    rows: dict[str, LastNotification] = {}
    for fingerprint, last in after.items():
        row = notified.get(fingerprint)
        if row is not None and last.kind != "firing":
            rows[fingerprint] = replace(row, kind=last.kind, at_s=last.at_s, flaps=last.flaps)
            continue
        alert = by_fingerprint[fingerprint]
        rows[fingerprint] = LastNotification(
            last.kind,
            last.at_s,
            last.flaps,
            first_at_s=last.at_s if row is None or row.is_at_rest else row.first_at_s,
            event_id=alert.event_id,
            starts_at_s=alert.starts_at_s,
            sentence=alert.sentence,
            detail=alert.detail,
            labels=alert.labels,
            threshold=alert.threshold,
            runbook_url=alert.runbook_url,
            known_as=alert.known_as or alert.labels,
        )
    return rows


def _firing_alert(
    state: AlertState, event: AlertEvent | None, row: LastNotification | None
) -> CurrentAlert:
    """`event` is its firing; None if retention has removed it from a very old alert."""
    alert = NoticeAlert(
        fingerprint=state.fingerprint,
        event_id=0 if event is None or event.event_id is None else event.event_id,
        status="firing",
        severity=state.severity,
        labels=state.labels,
        sentence=alert_sentence(state),
        starts_at_s=state.began_at_s if state.firing_at_s is None else state.firing_at_s,
        ends_at_s=None,
        detail=state.detail,
        threshold=state.threshold,
        runbook_url=state.runbook_url,
        # Labels of the first notification; none if the alert has begun anew.
        known_as={} if row is None or row.kind == "resolved" else row.known_as,
        assigned_to=state.assigned_to,
        note=state.note,
    )
    return CurrentAlert(
        alert,
        is_acked=state.acked_at_s is not None,
        is_no_data=state.is_no_data,
        is_waning=state.below_s > 0 or state.ceased_s is not None,
    )


def _resolved_alert(
    fingerprint: str, row: LastNotification, event: AlertEvent | None, now_s: float
) -> CurrentAlert:
    """`event` is its resolution, if it is newer than the last notification."""
    event_id, sentence, ends_at_s = row.event_id, f"This is over: {row.sentence}", now_s
    detail = Detail(on=row.detail.on, window_id=row.detail.window_id)
    if event is not None and event.event_id is not None and event.event_id > row.event_id:
        event_id, sentence, ends_at_s = event.event_id, event.sentence, event.at_s
        detail = event.detail
    named = row.labels.get("severity")
    alert = NoticeAlert(
        fingerprint=fingerprint,
        event_id=event_id,
        status="resolved",
        severity=next((severity for severity in SEVERITIES if severity == named), "warning"),
        labels=row.labels,
        sentence=sentence,
        starts_at_s=row.starts_at_s,
        ends_at_s=ends_at_s,
        detail=detail,
        threshold=row.threshold,
        runbook_url=row.runbook_url,
        was=row.detail,
        known_as=row.known_as,
    )
    return CurrentAlert(alert)
