"""Alerts: firing ones; acknowledgement, assignee and notes; mutes; and all transitions.

An active alert names the silences that match it and the alerts that inhibit it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, get_args

from fastapi import Query

from app.alerts.alert import AlertEvent, AlertEventKind, AlertState, Phase
from app.alerts.labels import inhibited_fingerprints
from app.alerts.notice import builtin_runbook
from app.alerts.rule import Rule, Severity
from app.alerts.wording import alert_sentence, cost_sentence
from app.api.http.fields import PRINTABLE, Cursor, Limit, ResponseModel
from app.api.http.principal import Principal
from app.api.routes.alerts.alert_schemas import (
    ActiveAlertOut,
    AlertOut,
    AssigneeIn,
    Fingerprint,
    NoteIn,
)
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, PageOut, ServiceDep, refusals
from app.api.service.service import Service
from app.errors import AlertNotFound, Conflict
from app.store.alerting import alert_rules, alerts, notifications
from app.store.alerting import silences as stored_silences
from app.store.database import Connection
from app.trace.job import JOB_PATTERN, job_of, project_of

MAX_NOTES = 50  # of an alert while it is active
MAX_MUTED_BY = 20  # of the silences, and of the alerts, that mute an alert


def active_alerts(
    conn: Connection, service: Service, project: str, states: Sequence[AlertState]
) -> list[ActiveAlertOut]:
    """These alerts of a project for an answer, in their order."""
    if not states:
        return []
    now_s = service.database_time(conn)
    silences = stored_silences.active(conn, project, now_s=now_s)
    in_force = alert_rules.load_or_default(conn, project, service.public_settings.rules)
    rules = {rule.name: rule for rule in in_force}
    by_job = {job_id: alerts.of_job(conn, job_id) for job_id in {state.job_id for state in states}}
    processed = service.processed(conn)
    inhibited = {
        fingerprint
        for of_job in by_job.values()
        for fingerprint in inhibited_fingerprints(of_job, rules.values())
    }
    return [
        ActiveAlertOut.of_record(
            state.detail,
            state,
            processed.of(state.job_id),
            sentence=alert_sentence(state),
            sub=cost_sentence(state.detail),
            runbook_url=state.runbook_url or builtin_runbook(state.detail),
            silenced_by=[
                silence.silence_id for silence in silences if silence.mutes(state.labels, now_s)
            ][:MAX_MUTED_BY],
            inhibited_by=_inhibited_by(state, by_job[state.job_id], rules)
            if state.fingerprint in inhibited
            else [],
        )
        for state in states
    ]


_MOST_COUNTED = 500


def num_notifying(conn: Connection, service: Service, project: str) -> int:
    """Firing alerts of a project that are neither silenced nor inhibited; of the newest 500."""
    firing, _ = alerts.page(conn, project, phase="firing", limit=_MOST_COUNTED)
    shown = active_alerts(conn, service, project, firing)
    return sum(not (alert.silenced_by or alert.inhibited_by) for alert in shown)


def active_alert(
    conn: Connection, service: Service, caller: Principal, fingerprint: str
) -> ActiveAlertOut:
    """A pending or firing alert of the caller's project; raises AlertNotFound if there is none."""
    state = alerts.get(conn, caller.project, fingerprint)
    return active_alerts(conn, service, caller.project, [state])[0]


def _inhibited_by(
    state: AlertState, of_job: Iterable[AlertState], rules: dict[str, Rule]
) -> list[str]:
    host = state.labels.get("host")
    inhibiting = []
    for other in of_job:
        rule = rules.get(other.rule)
        if other.phase != "firing" or rule is None or other.fingerprint == state.fingerprint:
            continue
        if state.rule in rule.inhibits or (rule.on == "host" and other.subject == host):
            inhibiting.append(other.fingerprint)
    return inhibiting[:MAX_MUTED_BY]


router = ApiRouter("alerts")

MAX_HISTORY = 100
OfJob = Annotated[str | None, Query(pattern=JOB_PATTERN, description="Only alerts of this job.")]
PartOfJob = Annotated[
    str, Query(max_length=128, pattern=PRINTABLE, description="Part of the job's id.")
]


class TransitionsOut(PageOut[AlertOut]):
    """A page of transitions, newest first."""


class AlertsOut(PageOut[ActiveAlertOut]):
    """A page of pending and firing alerts, newest first."""


class OneAlertOut(ResponseModel):
    """The alert, null if neither pending nor firing, and its last transitions, newest first."""

    alert: ActiveAlertOut | None
    history: list[AlertOut]


@router.get("/alerts", summary="List pending and firing alerts", responses=refusals(404))
def list_alerts(
    service: ServiceDep,
    caller: CallerDep,
    phase: Annotated[Phase | None, Query(description="Only alerts in this phase.")] = None,
    severity: Annotated[Severity | None, Query(description="Only alerts of this severity.")] = None,
    job: OfJob = None,
    q: PartOfJob = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AlertsOut:
    """Pending and firing alerts, with the silences and alerts that mute each of them."""
    with service.store.read() as conn:
        states, next_cursor = alerts.page(
            conn,
            caller.project,
            phase=phase,
            job_id=None if job is None else caller.key(job),
            severity=severity,
            text=q,
            cursor=cursor,
            limit=limit,
        )
        items = active_alerts(conn, service, caller.project, states)
    return AlertsOut(items=items, next_cursor=next_cursor)


@router.get("/alerts/transitions", summary="List transitions of alerts", responses=refusals(404))
def list_alert_transitions(
    service: ServiceDep,
    caller: CallerDep,
    job: OfJob = None,
    kind: Annotated[
        list[AlertEventKind],
        Query(
            max_length=len(get_args(AlertEventKind)), description="Only transitions of these kinds."
        ),
    ] = [],  # noqa: B006 - FastAPI makes a new one per request
    is_open: Annotated[
        bool, Query(alias="open", description="Only transitions of alerts that are still firing.")
    ] = False,
    q: PartOfJob = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> TransitionsOut:
    """Transitions of the alerts of all jobs or of one job, newest first, a page at a time."""
    with service.store.read() as conn:
        events, next_cursor = alerts.event_page(
            conn,
            project=caller.project,
            job_id=None if job is None else caller.key(job),
            kinds=frozenset(kind),
            text=q,
            is_open=is_open,
            cursor=cursor,
            limit=limit,
        )
    items = [AlertOut.of_record(event.detail, event) for event in events]
    return TransitionsOut(items=items, next_cursor=next_cursor)


@router.get("/alerts/{fingerprint}", summary="Get an alert")
def get_alert(fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep) -> OneAlertOut:
    """The alert and its last transitions. Resolved alerts stay readable while results are kept."""
    with service.store.read() as conn:
        history = [
            AlertOut.of_record(event.detail, event)
            for event in alerts.events_of_alert(conn, fingerprint, limit=MAX_HISTORY)
            if project_of(event.job_id) == caller.project
        ]
        try:
            alert = active_alert(conn, service, caller, fingerprint)
        except AlertNotFound:
            if not history:
                raise
            alert = None
    return OneAlertOut(alert=alert, history=history)


@router.post(
    "/alerts/{fingerprint}/acknowledge", summary="Acknowledge an alert", responses=refusals(409)
)
def acknowledge_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Stops notifications until the alert is resolved; its receivers get a last one about this."""

    def acknowledge(conn: Connection, state: AlertState, now_s: float) -> bool:
        if state.phase != "firing":
            raise Conflict("it does not fire yet: there is nothing to acknowledge")
        return alerts.acknowledge(conn, fingerprint, by=caller.name, at_s=now_s)

    return _change(service, caller, fingerprint, "acknowledged", "acknowledge", acknowledge)


@router.delete(
    "/alerts/{fingerprint}/acknowledge",
    summary="Remove an acknowledgement",
    responses=refusals(409),
)
def unacknowledge_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Receivers are notified of the alert again. Idempotent."""

    def unacknowledge(conn: Connection, _state: AlertState, _now_s: float) -> bool:
        return alerts.unacknowledge(conn, fingerprint)

    return _change(service, caller, fingerprint, "unacknowledged", "unacknowledge", unacknowledge)


@router.post("/alerts/{fingerprint}/assign", summary="Assign an alert", responses=refusals(409))
def assign_alert(
    fingerprint: Fingerprint, given: AssigneeIn, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Names who works on the alert; later notifications name them, too. Idempotent."""
    to = given.to.strip()

    def assign(conn: Connection, _state: AlertState, now_s: float) -> bool:
        return alerts.assign(conn, fingerprint, to=to, by=caller.name, at_s=now_s)

    return _change(service, caller, fingerprint, "assigned", "assign", assign, to)


@router.delete(
    "/alerts/{fingerprint}/assign",
    summary="Remove the assignee of an alert",
    responses=refusals(409),
)
def unassign_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """The alert is assigned to nobody. Idempotent."""

    def unassign(conn: Connection, _state: AlertState, _now_s: float) -> bool:
        return alerts.unassign(conn, fingerprint)

    return _change(service, caller, fingerprint, "unassigned", "unassign", unassign)


@router.post(
    "/alerts/{fingerprint}/notes",
    summary="Add a note to an alert",
    status_code=201,
    responses=refusals(409),
)
def add_note(
    fingerprint: Fingerprint, given: NoteIn, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """The note stays in the alert's history; later notifications have the last one."""
    text = given.text.strip()

    def note(conn: Connection, state: AlertState, now_s: float) -> bool:
        if alerts.num_notes(conn, fingerprint, since_s=state.began_at_s) >= MAX_NOTES:
            raise Conflict(f"the alert has {MAX_NOTES} notes, the maximum")
        alerts.set_note(conn, fingerprint, text=text, by=caller.name, at_s=now_s)
        return True

    return _change(service, caller, fingerprint, "note", "note", note, text)


def _change(
    service: Service,
    caller: Principal,
    fingerprint: str,
    kind: AlertEventKind,
    action: str,
    apply: Callable[[Connection, AlertState, float], bool],
    text: str | None = None,
) -> ActiveAlertOut:
    """Apply a person's action on an alert, with its transition and audit entry.

    `apply` returns False where nothing changed. Returns the alert after it. Receivers get nothing
    before the next notification.
    """
    with service.store.write() as conn:
        state = alerts.get(conn, caller.project, fingerprint)
        now_s = service.database_time(conn)
        if apply(conn, state, now_s):
            if kind in ("acknowledged", "unacknowledged"):
                notifications.wake_group(conn, state.job_id, state.rule, at_s=now_s)
            sentence = alert_sentence(state, kind)
            event = AlertEvent.of_state(state, kind, now_s, sentence, text, caller.name)
            alerts.add_event(conn, event)
            detail = {"job": job_of(state.job_id), "rule": state.rule, "subject": state.subject}
            detail |= {} if text is None else {"text": text}
            write_audit(conn, caller, f"alert.{action}", fingerprint, now_s=now_s, **detail)
        shown = active_alert(conn, service, caller, fingerprint)
    service.announcer.announce({"event": "alert", "job_id": state.job_id})
    return shown
