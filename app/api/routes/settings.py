"""Settings: what the service goes by, and how long the project keeps what it has."""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.audited import note
from app.api.changes import changed
from app.api.deps import OF_BODIES, CallerDep, Responses, ServiceDep, refusals
from app.api.fields import Answer, Request
from app.api.service import Service
from app.store import retention
from app.store.retention import Policy

router = APIRouter(tags=["settings"])

MAX_DAYS = 36_500.0
Days = Annotated[float, Field(ge=1, le=MAX_DAYS, allow_inf_nan=False)]
_REFUSED: Responses = refusals(*OF_BODIES)


class RetentionIn(Request):
    """Days for which things are kept; null: as long as the service says."""

    raw_days: Days | None = Field(description="Operations of closed windows.")
    results_days: Days | None = Field(description="Windows, ended runs and alerts.")


class RetentionOut(Answer):
    """What is kept for how long in the project, and what the service would say."""

    raw_days: float
    results_days: float
    has_own_raw_days: bool
    has_own_results_days: bool
    usual_raw_days: float
    usual_results_days: float


class SettingsOut(Answer):
    """What the service was started with, and the project's own words."""

    project: str
    version: str
    window_steps: int
    step_deadline_s: float
    revise_for_s: float
    silent_after_s: float
    session_hours: float
    max_jobs: int
    retention: RetentionOut


@router.get(
    "/settings",
    operation_id="get_settings",
    summary="See what the service goes by",
    responses=refusals(),
)
def get_settings(service: ServiceDep, caller: CallerDep) -> SettingsOut:
    """No secret is among it; what is an alert is under /rules, where they go under /endpoints."""
    known = service.in_force
    same = ("window_steps", "step_deadline_s", "revise_for_s", "silent_after_s", "session_hours")
    return SettingsOut(
        project=caller.project,
        version=version("paceline"),
        **{name: getattr(known, name) for name in (*same, "max_jobs")},
        retention=_retention_out(service, caller.project),
    )


@router.put(
    "/settings/retention",
    operation_id="set_retention",
    summary="Set how long the project keeps what it has",
    responses=_REFUSED,
)
def set_retention(days: RetentionIn, service: ServiceDep, caller: CallerDep) -> RetentionOut:
    """Takes the scope admin: what is older goes within the hour, and cannot be brought back."""
    with service.store.write() as conn:
        said = days.model_dump()
        changes = changed(retention.own(conn, caller.project), said)
        note(conn, caller, "retention.set", caller.project, now_s=service.now_s(), changes=changes)
        retention.set_own(conn, caller.project, **said)
    return _retention_out(service, caller.project)


def _retention_out(service: Service, project: str) -> RetentionOut:
    usual = service.in_force.keep
    with service.store.read() as conn:
        found = {policy.project: policy for policy in retention.policies(conn, usual)}
    policy = found.get(project, Policy(project, usual, (False, False)))
    return RetentionOut(
        raw_days=policy.keep.raw_days,
        results_days=policy.keep.results_days,
        has_own_raw_days=policy.has_own[0],
        has_own_results_days=policy.has_own[1],
        usual_raw_days=usual.raw_days,
        usual_results_days=usual.results_days,
    )
