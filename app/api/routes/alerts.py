"""Alerts: when jobs began and ceased to straggle."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.alerts.alert import Kind
from app.api.deps import CallerDep, ServiceDep, refusals
from app.api.fields import Answer, Cursor, Limit, timestamp
from app.store import alerts
from app.store.alerts import AlertEvent
from app.trace.names import JOB_PATTERN, plain

router = APIRouter(tags=["alerts"])


class AlertOut(Answer):
    """One transition of an alert; never changed once it is written."""

    event_id: int
    job_id: str
    rule: str
    kind: Kind
    at: datetime
    window_id: str | None
    slowdown: float | None = Field(description="Null where the job ended while it straggled.")
    threshold: float
    since_step: int | None
    sentence: str

    @classmethod
    def of(cls, event: AlertEvent) -> "AlertOut":
        """The transition as the API says it."""
        made = {"at": timestamp(event.at_s), "job_id": plain(event.job_id)}
        names = [name for name in cls.model_fields if name not in made]
        return cls(**made, **{name: getattr(event, name) for name in names})


class AlertsOut(Answer):
    """A page of transitions, newest first."""

    items: list[AlertOut]
    next_cursor: str | None


@router.get(
    "/alerts",
    operation_id="list_alerts",
    summary="List alerts",
    responses=refusals(404),
)
def list_alerts(
    service: ServiceDep,
    caller: CallerDep,
    job: Annotated[
        str | None,
        Query(pattern=JOB_PATTERN, description="Of this job only."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AlertsOut:
    """Transitions of all jobs, or of one, newest first, a page at a time."""
    key = None if job is None else caller.key(job)
    with service.store.read() as conn:
        found, next_cursor = alerts.page(
            conn, project=caller.project, job_id=key, cursor=cursor, limit=limit
        )
    return AlertsOut(items=[AlertOut.of(event) for event in found], next_cursor=next_cursor)
