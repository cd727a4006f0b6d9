"""Snapshot of one alert group for planning: its alerts, their last notifications, and receivers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.alerts.alert import AlertEvent, AlertState, Detail
from app.alerts.labels import inhibited_fingerprints, labels_by_current_rule, labels_of
from app.alerts.notice import NoticeAlert
from app.alerts.planning import CurrentAlert, LastNotified
from app.alerts.receiver import Receiver
from app.alerts.rule import SEVERITIES, Rule, Severity
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
    of_job = stored_alerts.of_job(conn, group.job_id)
    rules = alert_rules.load_or_default(conn, project, default_rules)
    rule = next((rule for rule in rules if rule.name == group.rule), None)
    notified = notifications.last_notifications(conn, group.job_id, group.rule)
    mine = [state for state in of_job if state.rule == group.rule]
    if rule is not None and mine:
        _, of_job_labels = jobs.name_and_labels(conn, group.job_id)
        mine = [_as_by_rule(state, rule, of_job_labels) for state in mine]
    known_receivers = stored_receivers.of_alerts(conn, project)
    receivers = [receiver for receiver in known_receivers if receiver.is_enabled]
    alerts = current_alerts(conn, mine, notified, now_s)
    if rule is not None and group.held_since_s is not None:
        alerts += _missed_alerts(conn, group, rule, alerts, notified)
    return GroupSnapshot(
        alerts,
        notified,
        inhibited_fingerprints(of_job, rules),
        rule,
        receivers,
    )


def _as_by_rule(state: AlertState, rule: Rule, of_job: Mapping[str, str]) -> AlertState:
    """The alert with severity, labels and runbook of the current rule."""
    labels, runbook_url = labels_by_current_rule(state, rule, of_job), rule.runbook_url
    return replace(state, severity=rule.severity, labels=labels, runbook_url=runbook_url)


def current_alerts(
    conn: Connection,
    states: Sequence[AlertState],
    notified: Mapping[str, LastNotification],
    now_s: float,
) -> list[CurrentAlert]:
    """The firing alerts, and the resolved ones whose end has not been notified."""
    firing = {state.fingerprint: state for state in states if state.phase == "firing"}
    resting = [
        each for each, row in notified.items() if each not in firing and row.kind != "resolved"
    ]
    began = stored_alerts.newest_events(conn, sorted(firing), "firing")
    ended = stored_alerts.newest_events(conn, sorted(resting), "resolved")
    return [
        *(
            _firing_alert(state, began.get(each), notified.get(each))
            for each, state in firing.items()
        ),
        *(_resolved_alert(each, notified[each], ended.get(each), now_s) for each in resting),
    ]


def _missed_alerts(
    conn: Connection,
    group: AlertGroup,
    rule: Rule,
    known: Sequence[CurrentAlert],
    notified: Mapping[str, LastNotification],
) -> list[CurrentAlert]:
    """Alerts that began and ended while the group's messages waited: told once, as over."""
    since_s = (group.held_since_s or 0.0) - _WOKEN_WITHIN_S
    began = stored_alerts.firings_since(conn, group.job_id, group.rule, since_s=since_s)
    told = {mark: row.event_id for mark, row in notified.items()}
    missed = {
        event.fingerprint: event
        for event in began
        if (event.event_id or 0) > told.get(event.fingerprint, -1)
    }
    for alert in known:
        missed.pop(alert.fingerprint, None)
    ended = stored_alerts.newest_events(conn, sorted(missed), "resolved")
    _, of_job = jobs.name_and_labels(conn, group.job_id)
    found = []
    for mark, event in missed.items():
        if mark not in ended or (ended[mark].event_id or 0) < (event.event_id or 0):
            continue
        labels = labels_of(rule, group.job_id, event.subject, culprit={}, of_job=of_job)
        row = LastNotification(
            "firing", event.at_s, event.event_id or 0, event.at_s, event.sentence, event.detail,
            labels, event.threshold, rule.runbook_url,
        )  # fmt: skip
        over = _resolved_alert(mark, row, ended[mark], ended[mark].at_s).entry
        over = replace(over, sentence=f"This is over: {event.sentence}")
        found.append(CurrentAlert(over, was_missed=True))
    return found


def last_notified(notified: Mapping[str, LastNotification]) -> dict[str, LastNotified]:
    """The last notifications in the form that planning takes."""
    return {
        fingerprint: LastNotified(row.kind, row.at_s, row.flaps)
        for fingerprint, row in notified.items()
    }


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
        else:
            rows[fingerprint] = _notification_row(by_fingerprint[fingerprint], last, row)
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
    alert = NoticeAlert(
        fingerprint=fingerprint,
        event_id=row.event_id,
        status="resolved",
        severity=_severity(row),
        labels=row.labels,
        sentence=f"This is over: {row.sentence}",
        starts_at_s=row.starts_at_s,
        ends_at_s=now_s,
        detail=Detail(on=row.detail.on, window_id=row.detail.window_id),
        threshold=row.threshold,
        runbook_url=row.runbook_url,
        was=row.detail,
        known_as=row.known_as,
    )
    if event is None or event.event_id is None or event.event_id <= row.event_id:
        return CurrentAlert(alert)
    ended = replace(
        alert,
        event_id=event.event_id,
        sentence=event.sentence,
        ends_at_s=event.at_s,
        detail=event.detail,
    )
    return CurrentAlert(ended)


def _severity(row: LastNotification) -> Severity:
    return next((each for each in SEVERITIES if each == row.labels.get("severity")), "warning")


def _notification_row(
    alert: NoticeAlert, last: LastNotified, row: LastNotification | None
) -> LastNotification:
    is_new = row is None or row.kind in ("resolved", "lapsed")
    return LastNotification(
        kind=last.kind,
        at_s=last.at_s,
        first_at_s=last.at_s if is_new or row is None else row.first_at_s,
        event_id=alert.event_id,
        starts_at_s=alert.starts_at_s,
        sentence=alert.sentence,
        detail=alert.detail,
        labels=alert.labels,
        threshold=alert.threshold,
        runbook_url=alert.runbook_url,
        known_as=alert.known_as or alert.labels,
        flaps=last.flaps,
    )
