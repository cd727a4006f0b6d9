"""Acknowledging: somebody looks after an alert, until it is resolved."""

from fastapi import APIRouter

from app.alerts.alert import AlertEvent, AlertState, Kind
from app.alerts.wording import sentence
from app.api.active_alerts import one_active
from app.api.alert_out import ActiveAlertOut, Fingerprint
from app.api.audited import note
from app.api.deps import OF_BODIES, CallerDep, Responses, ServiceDep, refusals
from app.api.principal import Principal
from app.errors import Conflict
from app.store import alert_events, alert_groups, alerts
from app.store.engine import Connection
from app.trace.names import plain

router = APIRouter(tags=["alerts"])

_REFUSED: Responses = refusals(404, 409, *OF_BODIES)


@router.post(
    "/alerts/{fingerprint}/acknowledge",
    operation_id="acknowledge_alert",
    summary="Say that somebody looks after an alert",
    responses=_REFUSED,
)
def acknowledge_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Until it is resolved nobody is told of it again; receivers that know of it are told this."""
    with service.store.write() as conn:
        state = alerts.get(conn, caller.project, fingerprint)
        if state.phase != "firing":
            raise Conflict("it does not fire yet: there is nothing to acknowledge")
        now_s = service.database_time(conn)
        if alerts.acknowledge(conn, fingerprint, by=caller.name, at_s=now_s):
            _write_down(conn, caller, state, "acknowledged", now_s=now_s)
        shown = one_active(conn, service, caller, fingerprint)
    service.announcer.announce({"event": "alert", "job_id": state.job_id})
    return shown


@router.delete(
    "/alerts/{fingerprint}/acknowledge",
    operation_id="unacknowledge_alert",
    summary="Take an acknowledgement back",
    responses=_REFUSED,
)
def unacknowledge_alert(
    fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep
) -> ActiveAlertOut:
    """Receivers are told of it again. Saying it twice changes nothing."""
    with service.store.write() as conn:
        state = alerts.get(conn, caller.project, fingerprint)
        if alerts.unacknowledge(conn, fingerprint):
            _write_down(conn, caller, state, "unacknowledged", now_s=service.database_time(conn))
        shown = one_active(conn, service, caller, fingerprint)
    service.announcer.announce({"event": "alert", "job_id": state.job_id})
    return shown


def _write_down(
    conn: Connection, caller: Principal, state: AlertState, kind: Kind, *, now_s: float
) -> None:
    event = AlertEvent(
        fingerprint=state.fingerprint,
        job_id=state.job_id,
        rule=state.rule,
        subject=state.subject,
        kind=kind,
        at_s=now_s,
        severity=state.severity,
        sentence=sentence(state, kind),
        threshold=state.threshold,
        detail=state.detail,
        actor=caller.name,
    )
    alert_events.add(conn, event)
    alert_groups.wake(conn, state.job_id, state.rule, at_s=now_s)
    deed = "alert.acknowledge" if kind == "acknowledged" else "alert.unacknowledge"
    told = {"job": plain(state.job_id), "rule": state.rule, "subject": state.subject}
    note(conn, caller, deed, state.fingerprint, now_s=now_s, **told)
