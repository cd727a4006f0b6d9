"""The demo: whether a server can run the demo's jobs, starting and stopping them."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from app.api.http.fields import ResponseModel, timestamp_or_none
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import BODY_REFUSALS, CallerDep, ServiceDep, refusals
from app.api.service.service import Service
from app.errors import Conflict
from app.trace.job import DEFAULT_PROJECT

router = APIRouter(tags=["settings"])


class DemoOut(ResponseModel):
    """State of the demo's simulated jobs."""

    available: bool = Field(
        description="Whether this server can run them: `paceline serve`, project `default`."
    )
    running: bool
    ends_at: datetime | None = Field(
        description="When they end by themselves; null if they are off."
    )


@router.get("/demo", operation_id="get_demo", summary="Get the demo's state", responses=refusals())
def get_demo(service: ServiceDep, caller: CallerDep) -> DemoOut:
    """Whether this server can run the demo's jobs, and until when they run."""
    return _state(service, caller.project)


@router.post(
    "/demo",
    operation_id="start_demo",
    summary="Start the demo",
    status_code=202,
    responses=refusals(*BODY_REFUSALS, 409),
)
def start_demo(service: ServiceDep, caller: CallerDep) -> DemoOut:
    """Needs the scope admin. The six simulated jobs run for an hour, or until they are stopped."""
    if not _state(service, caller.project).available:
        raise Conflict(
            "this server cannot run the demo: only paceline serve can, in the project default; "
            "run paceline demo in a terminal"
        )
    with service.store.write() as conn:
        write_audit(conn, caller, "demo.start", caller.project, now_s=service.now_s())
    service.demo_switch.turn_on()
    return _state(service, caller.project)


@router.delete(
    "/demo",
    operation_id="stop_demo",
    summary="Stop the demo",
    responses=refusals(*BODY_REFUSALS),
)
def stop_demo(service: ServiceDep, caller: CallerDep) -> DemoOut:
    """Needs the scope admin. The jobs end; their figures stay."""
    if _state(service, caller.project).running:
        with service.store.write() as conn:
            write_audit(conn, caller, "demo.stop", caller.project, now_s=service.now_s())
        service.demo_switch.turn_off()
    return _state(service, caller.project)


def _state(service: Service, project: str) -> DemoOut:
    switch = service.demo_switch
    if switch.path is None or project != DEFAULT_PROJECT:
        return DemoOut(available=False, running=False, ends_at=None)
    is_on = switch.is_on(service.now_s())
    ends_at = timestamp_or_none(switch.ends_at_s() if is_on else None)
    return DemoOut(available=True, running=is_on, ends_at=ends_at)
