"""Alerts: firing ones; acknowledgement, assignee and notes; mutes; and all transitions.

An active alert names the silences that match it and the alerts that inhibit it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter, Query

from app.alerts.alert import AlertEvent, AlertEventKind, AlertState, Phase
from app.alerts.labels import Silence, inhibited_fingerprints
from app.alerts.rule import Rule, Severity
from app.alerts.wording import alert_sentence
from app.api.http.fields import PRINTABLE, Cursor, Limit, ResponseModel
from app.api.http.principal import Principal
from app.api.routes.alerts.alert_schemas import (
    ActiveAlertOut,
    AlertOut,
    AssigneeIn,
    Fingerprint,
    NoteIn,
    active_alert_out,
)
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import BODY_REFUSALS, CallerDep, Responses, ServiceDep, refusals
from app.api.service.service import Service
from app.errors import AlertNotFound, Conflict
from app.store.alerting import alert_rules, alerts, notifications
from app.store.alerting import silences as stored_silences
from app.store.alerting.alerts import EventFilter
from app.store.database import Connection
from app.trace.job import JOB_PATTERN, job_of, project_of

MAX_NOTES = 50  # of an alert while it is active
MAX_MUTED_BY = 20  # of the silences, and of the alerts, that mute an alert


def rules_of_project(conn: Connection, service: Service, project: str) -> Sequence[Rule]:
    """The project's own rules, or the service's defaults."""
    own = alert_rules.load(conn, project).rules
    return service.public_settings.rules if own is None else own


def active_alerts(
    conn: Connection, service: Service, project: str, states: Sequence[AlertState]
) -> list[ActiveAlertOut]:
    """These alerts of a project for an answer, in their order."""
    if not states:
        return []
    now_s = service.database_time(conn)
    silences = stored_silences.active(conn, project, now_s=now_s)
    rules = {rule.name: rule for rule in rules_of_project(conn, service, project)}
    of_jobs = {job_id: alerts.of_job(conn, job_id) for job_id in {state.job_id for state in states}}
    processed = service.processed(conn)
    kept_back = {
        fingerprint
        for of_job in of_jobs.values()
        for fingerprint in inhibited_fingerprints(of_job, rules.values())
    }
    return [
        active_alert_out(
            state,
            processed.of(state.job_id),
            silenced_by=_silenced_by(state, silences, now_s),
            inhibited_by=_inhibited_by(state, of_jobs[state.job_id], rules)
            if state.fingerprint in kept_back
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
    """One alert of the caller's project for an answer.

    Raises:
        AlertNotFound: there is none, or it is neither pending nor firing.
    """
    state = alerts.get(conn, caller.project, fingerprint)
    return active_alerts(conn, service, caller.project, [state])[0]


def _silenced_by(state: AlertState, silences: Iterable[Silence], now_s: float) -> list[str]:
    muted = (each.silence_id for each in silences if each.mutes(state.labels, now_s))
    return list(muted)[:MAX_MUTED_BY]


def _inhibited_by(
    state: AlertState, of_job: Iterable[AlertState], rules: dict[str, Rule]
) -> list[str]:
    host = state.labels.get("host")
    found = []
    for other in of_job:
        rule = rules.get(other.rule)
        if other.phase != "firing" or rule is None or other.fingerprint == state.fingerprint:
            continue
        if state.rule in rule.inhibits or (rule.on == "host" and other.subject == host):
            found.append(other.fingerprint)
    return found[:MAX_MUTED_BY]


router = APIRouter(tags=["alerts"])

MAX_HISTORY = 100
OfJob = Annotated[str | None, Query(pattern=JOB_PATTERN, description="Only alerts of this job.")]
PartOfJob = Annotated[
    str, Query(max_length=128, pattern=PRINTABLE, description="Part of the job's id.")
]


class TransitionsOut(ResponseModel):
    """A page of transitions, newest first."""

    items: list[AlertOut]
    next_cursor: str | None


class AlertsOut(ResponseModel):
    """A page of pending and firing alerts, newest first."""

    items: list[ActiveAlertOut]
    next_cursor: str | None


class OneAlertOut(ResponseModel):
    """The alert, null if neither pending nor firing, and its last transitions, newest first."""

    alert: ActiveAlertOut | None
    history: list[AlertOut]


@router.get(
    "/alerts",
    operation_id="list_alerts",
    summary="List pending and firing alerts",
    responses=refusals(404),
)
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
        found, next_cursor = alerts.page(
            conn,
            caller.project,
            phase=phase,
            job_id=None if job is None else caller.key(job),
            severity=severity,
            text=q,
            cursor=cursor,
            limit=limit,
        )
        items = active_alerts(conn, service, caller.project, found)
    return AlertsOut(items=items, next_cursor=next_cursor)


@router.get(
    "/alerts/transitions",
    operation_id="list_alert_transitions",
    summary="List transitions of alerts",
    responses=refusals(404),
)
def list_alert_transitions(
    service: ServiceDep,
    caller: CallerDep,
    job: OfJob = None,
    kind: Annotated[
        list[AlertEventKind],
        Query(
            max_length=len(get_args(AlertEventKind)),
            description="Only transitions of these kinds.",
        ),
    ] = [],  # noqa: B006 - FastAPI makes a new one for each request
    is_open: Annotated[
        bool, Query(alias="open", description="Only transitions of alerts that are still firing.")
    ] = False,
    q: PartOfJob = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> TransitionsOut:
    """Transitions of the alerts of all jobs or of one job, newest first, a page at a time."""
    with service.store.read() as conn:
        found, next_cursor = alerts.event_page(
            conn,
            project=caller.project,
            job_id=None if job is None else caller.key(job),
            wanted=EventFilter(frozenset(kind), q, is_open),
            cursor=cursor,
            limit=limit,
        )
    return TransitionsOut(items=[AlertOut.of(event) for event in found], next_cursor=next_cursor)


@router.get(
    "/alerts/{fingerprint}",
    operation_id="get_alert",
    summary="Get an alert",
    responses=refusals(404),
)
def get_alert(fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep) -> OneAlertOut:
    """The alert and its last transitions. Resolved alerts stay readable while results are kept."""
    with service.store.read() as conn:
        history = [
            event
            for event in alerts.events_of_alert(conn, fingerprint, limit=MAX_HISTORY)
            if project_of(event.job_id) == caller.project
        ]
        try:
            now = active_alert(conn, service, caller, fingerprint)
        except AlertNotFound:
            if not history:
                raise
            now = None
    return OneAlertOut(alert=now, history=[AlertOut.of(event) for event in history])


_REFUSALS: Responses = refusals(404, 409, *BODY_REFUSALS)


@router.post(
    "/alerts/{fingerprint}/acknowledge",
    operation_id="acknowledge_alert",
    summary="Acknowledge an alert",
    responses=_REFUSALS,
)
def acknowledge_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Stops notifications until the alert is resolved; its receivers get a last one about this."""

    def acknowledge(conn: Connection, state: AlertState, now_s: float) -> bool:
        if state.phase != "firing":
            raise Conflict("it does not fire yet: there is nothing to acknowledge")
        is_new = alerts.acknowledge(conn, fingerprint, by=caller.name, at_s=now_s)
        if is_new:
            notifications.wake_group(conn, state.job_id, state.rule, at_s=now_s)
        return is_new

    done = _Change("acknowledged", "alert.acknowledge")
    return _change(service, caller, fingerprint, acknowledge, done)


@router.delete(
    "/alerts/{fingerprint}/acknowledge",
    operation_id="unacknowledge_alert",
    summary="Remove an acknowledgement",
    responses=_REFUSALS,
)
def unacknowledge_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Receivers are notified of the alert again. Idempotent."""

    def unacknowledge(conn: Connection, state: AlertState, now_s: float) -> bool:
        was_set = alerts.unacknowledge(conn, fingerprint)
        if was_set:
            notifications.wake_group(conn, state.job_id, state.rule, at_s=now_s)
        return was_set

    done = _Change("unacknowledged", "alert.unacknowledge")
    return _change(service, caller, fingerprint, unacknowledge, done)


@router.post(
    "/alerts/{fingerprint}/assign",
    operation_id="assign_alert",
    summary="Assign an alert",
    responses=_REFUSALS,
)
def assign_alert(
    fingerprint: Fingerprint, given: AssigneeIn, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Names who works on the alert; later notifications name them, too. Idempotent."""
    to = given.to.strip()

    def assign(conn: Connection, _state: AlertState, now_s: float) -> bool:
        return alerts.assign(conn, fingerprint, to=to, by=caller.name, at_s=now_s)

    return _change(service, caller, fingerprint, assign, _Change("assigned", "alert.assign", to))


@router.delete(
    "/alerts/{fingerprint}/assign",
    operation_id="unassign_alert",
    summary="Remove the assignee of an alert",
    responses=_REFUSALS,
)
def unassign_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """The alert is assigned to nobody. Idempotent."""

    def unassign(conn: Connection, _state: AlertState, _now_s: float) -> bool:
        return alerts.unassign(conn, fingerprint)

    return _change(service, caller, fingerprint, unassign, _Change("unassigned", "alert.unassign"))


@router.post(
    "/alerts/{fingerprint}/notes",
    operation_id="add_note",
    summary="Add a note to an alert",
    status_code=201,
    responses=_REFUSALS,
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

    return _change(service, caller, fingerprint, note, _Change("note", "alert.note", text))


@dataclass(frozen=True, slots=True)
class _Change:
    """What a person did to an alert: its transition, its audit action, and its text."""

    kind: AlertEventKind
    action: str
    text: str | None = None


def _change(
    service: Service,
    caller: Principal,
    fingerprint: str,
    apply: Callable[[Connection, AlertState, float], bool],
    change: _Change,
) -> ActiveAlertOut:
    """Apply a change to an alert, with its transition and audit entry; returns the alert after it.

    `apply` returns False where nothing changed. Receivers get nothing before the next notification.
    """
    with service.store.write() as conn:
        state = alerts.get(conn, caller.project, fingerprint)
        now_s = service.database_time(conn)
        if apply(conn, state, now_s):
            _save_transition(conn, caller, state, change, now_s=now_s)
        shown = active_alert(conn, service, caller, fingerprint)
    service.announcer.announce({"event": "alert", "job_id": state.job_id})
    return shown


def _save_transition(
    conn: Connection, caller: Principal, state: AlertState, change: _Change, *, now_s: float
) -> None:
    event = AlertEvent(
        fingerprint=state.fingerprint,
        job_id=state.job_id,
        rule=state.rule,
        subject=state.subject,
        kind=change.kind,
        at_s=now_s,
        severity=state.severity,
        sentence=alert_sentence(state, change.kind),
        threshold=state.threshold,
        detail=state.detail,
        actor=caller.name,
        reason=change.text,
    )
    alerts.add_event(conn, event)
    detail = {"job": job_of(state.job_id), "rule": state.rule, "subject": state.subject}
    if change.text is not None:
        detail["text"] = change.text
    write_audit(conn, caller, change.action, state.fingerprint, now_s=now_s, **detail)
