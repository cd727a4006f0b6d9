"""Settings of the service, how long the project's data is kept, and the demo's jobs."""

from datetime import datetime
from importlib.metadata import version
from typing import Annotated

from pydantic import Field

from app.api.http.fields import RequestModel, ResponseModel, timestamp_or_none
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep, refusals
from app.api.service.service import PagesUrlReach, Service
from app.errors import Conflict
from app.store import retention
from app.store.retention import RetentionPolicy
from app.trace.job import DEFAULT_PROJECT

router = ApiRouter("settings")

MAX_DAYS = 36_500.0
Days = Annotated[float, Field(ge=1, le=MAX_DAYS, allow_inf_nan=False)]
Gigabytes = Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)]


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


@router.get("/settings", summary="Get the settings")
def get_settings(service: ServiceDep, caller: CallerDep) -> SettingsOut:
    """Settings of the service and of the project, without secrets.

    Rules are under /rules, receivers under /receivers.
    """
    return SettingsOut.of_record(
        service.public_settings,
        project=caller.project,
        version=version("paceline"),
        retention=_retention_out(service, caller.project),
    )


@router.put("/settings/retention", summary="Set the project's retention")
def set_retention(limits: RetentionIn, service: ServiceDep, caller: CallerDep) -> RetentionOut:
    """Needs the scope admin. Older data is deleted within the hour and cannot be restored."""
    with service.store.write() as conn:
        before = retention.project_limits(conn, caller.project)
        after = before | limits.model_dump(exclude_unset=True)
        changes = changed_fields(before, after)
        write_audit(
            conn, caller, "retention.set", caller.project, now_s=service.now_s(), changes=changes
        )
        retention.set_project_limits(conn, caller.project, **after)
    return _retention_out(service, caller.project)


def _retention_out(service: Service, project: str) -> RetentionOut:
    usual = service.public_settings.keep
    with service.store.read() as conn:
        policies = {policy.project: policy for policy in retention.policies(conn, usual)}
        stored_bytes = retention.stored_bytes(conn, project)
    policy = policies.get(project, RetentionPolicy(project, usual))
    return RetentionOut.of_record(
        policy.limits,
        has_own_raw_days=policy.is_own[0],
        has_own_results_days=policy.is_own[1],
        has_own_max_gb=policy.is_own[2],
        usual_raw_days=usual.raw_days,
        usual_results_days=usual.results_days,
        usual_max_gb=usual.max_gb,
        stored_gb=stored_bytes / 1e9,
    )


class DemoOut(ResponseModel):
    """State of the demo's simulated jobs."""

    available: bool = Field(
        description="Whether this server can run them: `paceline serve`, project `default`."
    )
    running: bool
    ends_at: datetime | None = Field(
        description="When they end by themselves; null if they are off."
    )


@router.get("/demo", summary="Get the demo's state")
def get_demo(service: ServiceDep, caller: CallerDep) -> DemoOut:
    """Whether this server can run the demo's jobs, and until when they run."""
    return _demo_state(service, caller.project)


@router.post("/demo", summary="Start the demo", status_code=202, responses=refusals(409))
def start_demo(service: ServiceDep, caller: CallerDep) -> DemoOut:
    """Needs the scope admin. The six simulated jobs run for an hour, or until they are stopped."""
    if not _demo_state(service, caller.project).available:
        raise Conflict(
            "this server cannot run the demo: only paceline serve can, in the project default; "
            "run paceline demo in a terminal"
        )
    with service.store.write() as conn:
        write_audit(conn, caller, "demo.start", caller.project, now_s=service.now_s())
    service.demo_switch.turn_on()
    return _demo_state(service, caller.project)


@router.delete("/demo", summary="Stop the demo")
def stop_demo(service: ServiceDep, caller: CallerDep) -> DemoOut:
    """Needs the scope admin. The jobs end; their figures stay."""
    if _demo_state(service, caller.project).running:
        with service.store.write() as conn:
            write_audit(conn, caller, "demo.stop", caller.project, now_s=service.now_s())
        service.demo_switch.turn_off()
    return _demo_state(service, caller.project)


def _demo_state(service: Service, project: str) -> DemoOut:
    switch = service.demo_switch
    if switch.path is None or project != DEFAULT_PROJECT:
        return DemoOut(available=False, running=False, ends_at=None)
    is_on = switch.is_on(service.now_s())
    ends_at = timestamp_or_none(switch.ends_at_s() if is_on else None)
    return DemoOut(available=True, running=is_on, ends_at=ends_at)
