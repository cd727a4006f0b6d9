"""Alerts: what fires now, who looks after it, and every transition there was."""

from typing import Annotated, get_args

from fastapi import APIRouter, Query

from app.alerts.alert import Kind, Phase
from app.alerts.rule import Severity
from app.api.active_alerts import active_alerts, one_active
from app.api.alert_out import ActiveAlertOut, AlertOut, Fingerprint
from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.fields import PRINTABLE, Answer, Cursor, Limit
from app.errors import AlertNotFound
from app.store import alert_events, alerts
from app.store.alert_events import Wanted
from app.trace.names import JOB_PATTERN, project_of

router = APIRouter(tags=["alerts"])

MAX_HISTORY = 100
OfJob = Annotated[str | None, Query(pattern=JOB_PATTERN, description="Of this job only.")]
PartOfJob = Annotated[
    str, Query(max_length=128, pattern=PRINTABLE, description="Part of the job's id.")
]


class AlertsOut(Answer):
    """A page of transitions, newest first."""

    items: list[AlertOut]
    next_cursor: str | None


class ActiveAlertsOut(Answer):
    """A page of alerts that are pending or fire, the newest first."""

    items: list[ActiveAlertOut]
    next_cursor: str | None


class OneAlertOut(Answer):
    """An alert as it stands, null where it is at rest, and its last transitions, newest first."""

    alert: ActiveAlertOut | None
    history: list[AlertOut]


@router.get(
    "/alerts",
    operation_id="list_alerts",
    summary="List transitions of alerts",
    responses=refusals(404),
)
def list_alerts(
    service: ServiceDep,
    caller: CallerDep,
    job: OfJob = None,
    kind: Annotated[
        list[Kind],
        Query(max_length=len(get_args(Kind)), description="Of this kind, or any of several, only."),
    ] = [],  # noqa: B006 - FastAPI makes a new one for each request
    is_open: Annotated[
        bool, Query(alias="open", description="Only those that fire and have not been resolved.")
    ] = False,
    q: PartOfJob = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AlertsOut:
    """Transitions of all jobs, or of one, newest first, a page at a time."""
    with service.store.read() as conn:
        found, next_cursor = alert_events.page(
            conn,
            project=caller.project,
            job_id=None if job is None else caller.key(job),
            wanted=Wanted(frozenset(kind), q, is_open),
            cursor=cursor,
            limit=limit,
        )
    return AlertsOut(items=[AlertOut.of(event) for event in found], next_cursor=next_cursor)


@router.get(
    "/alerts/active",
    operation_id="list_active_alerts",
    summary="List alerts that fire or are pending",
    responses=refusals(404),
)
def list_active_alerts(
    service: ServiceDep,
    caller: CallerDep,
    phase: Annotated[Phase | None, Query(description="In this phase only.")] = None,
    severity: Annotated[Severity | None, Query(description="Of this severity only.")] = None,
    job: OfJob = None,
    q: PartOfJob = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ActiveAlertsOut:
    """As they stand, and whether a silence or another alert keeps them back, a page at a time."""
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
    return ActiveAlertsOut(items=items, next_cursor=next_cursor)


@router.get(
    "/alerts/{fingerprint}",
    operation_id="get_alert",
    summary="See one alert",
    responses=refusals(404),
)
def get_alert(fingerprint: Fingerprint, service: ServiceDep, caller: CallerDep) -> OneAlertOut:
    """Known by its fingerprint after it is resolved, too, for as long as results are kept."""
    with service.store.read() as conn:
        history = [
            event
            for event in alert_events.of_alert(conn, fingerprint, limit=MAX_HISTORY)
            if project_of(event.job_id) == caller.project
        ]
        try:
            now = one_active(conn, service, caller, fingerprint)
        except AlertNotFound:
            if not history:
                raise
            now = None
    return OneAlertOut(alert=now, history=[AlertOut.of(event) for event in history])
