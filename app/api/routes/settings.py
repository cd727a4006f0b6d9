"""Settings of the service, and how long the project's data is kept."""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.http.fields import RequestModel, ResponseModel
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import BODY_REFUSALS, CallerDep, Responses, ServiceDep, refusals
from app.api.service.service import PagesUrlReach, Service
from app.store import retention
from app.store.retention import RetentionPolicy
from app.store.shrinking import quota

router = APIRouter(tags=["settings"])

MAX_DAYS = 36_500.0
Days = Annotated[float, Field(ge=1, le=MAX_DAYS, allow_inf_nan=False)]
Gigabytes = Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)]
_REFUSALS: Responses = refusals(*BODY_REFUSALS)


class RetentionIn(RequestModel):
    """Retention in days and GB; null: use the service's setting."""

    raw_days: Days | None = Field(description="Retention of operations of closed windows, in days.")
    results_days: Days | None = Field(
        description="Retention of windows, ended runs and alerts, in days."
    )
    max_gb: Gigabytes | None = Field(
        None,
        description="GB that the project's windows may take in the database; beyond, the "
        "operations of the oldest go, then the oldest. Left out: as it is.",
    )


class RetentionOut(ResponseModel):
    """Retention of the project, and the service's setting."""

    raw_days: float
    results_days: float
    max_gb: float | None = Field(description="Null: no quota.")
    has_own_raw_days: bool
    has_own_results_days: bool
    has_own_max_gb: bool
    usual_raw_days: float
    usual_results_days: float
    usual_max_gb: float | None
    stored_gb: float = Field(description="GB that the project's windows take in the database.")


class SettingsOut(ResponseModel):
    """Settings of the service and of the project."""

    project: str
    version: str
    window_steps: int
    step_deadline_s: float
    revise_for_s: float
    silent_after_s: float
    session_hours: float
    max_jobs: int
    pages_url: str = Field(
        description="Address of the pages, to which links in messages point.",
        examples=["https://paceline.example"],
    )
    pages_url_reach: PagesUrlReach = Field(
        description="`public`: set by the operator. `host`: where the server listens, by the name "
        "or address of its machine. `loopback`: only the server's own machine reaches it."
    )
    retention: RetentionOut


@router.get(
    "/settings",
    operation_id="get_settings",
    summary="Get the settings",
    responses=refusals(),
)
def get_settings(service: ServiceDep, caller: CallerDep) -> SettingsOut:
    """Settings of the service and of the project, without secrets.

    Rules are under /rules, receivers under /receivers.
    """
    known = service.public_settings
    same = ("window_steps", "step_deadline_s", "revise_for_s", "silent_after_s", "session_hours")
    return SettingsOut(
        project=caller.project,
        version=version("paceline"),
        **{
            name: getattr(known, name)
            for name in (*same, "max_jobs", "pages_url", "pages_url_reach")
        },
        retention=_retention_out(service, caller.project),
    )


@router.put(
    "/settings/retention",
    operation_id="set_retention",
    summary="Set the project's retention",
    responses=_REFUSALS,
)
def set_retention(limits: RetentionIn, service: ServiceDep, caller: CallerDep) -> RetentionOut:
    """Needs the scope admin. Older data is deleted within the hour and cannot be restored."""
    with service.store.write() as conn:
        before = retention.project_limits(conn, caller.project)
        said = before | limits.model_dump(exclude_unset=True)
        changes = changed_fields(before, said)
        write_audit(
            conn, caller, "retention.set", caller.project, now_s=service.now_s(), changes=changes
        )
        retention.set_project_limits(conn, caller.project, **said)
    return _retention_out(service, caller.project)


def _retention_out(service: Service, project: str) -> RetentionOut:
    usual = service.public_settings.keep
    with service.store.read() as conn:
        found = {policy.project: policy for policy in retention.policies(conn, usual)}
        stored_bytes = quota.stored_bytes(conn, project)
    policy = found.get(project, RetentionPolicy(project, usual))
    return RetentionOut(
        raw_days=policy.limits.raw_days,
        results_days=policy.limits.results_days,
        max_gb=policy.limits.max_gb,
        has_own_raw_days=policy.is_own[0],
        has_own_results_days=policy.is_own[1],
        has_own_max_gb=policy.is_own[2],
        usual_raw_days=usual.raw_days,
        usual_results_days=usual.results_days,
        usual_max_gb=usual.max_gb,
        stored_gb=stored_bytes / 1e9,
    )
