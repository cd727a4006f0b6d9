"""Health: does the process run, and can it do its work?"""

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import ServiceDep, only_refusals
from app.api.errors import problem
from app.api.fields import Answer
from app.api.readiness import Check, look

router = APIRouter(tags=["health"])

RETRY_AFTER_S = "2"


class HealthOut(Answer):
    """The process runs."""

    status: Literal["ok"] = "ok"


class CheckOut(Answer):
    """One thing that was looked at."""

    ok: bool
    sentence: str


class ReadyOut(Answer):
    """Batches can be taken; `degraded` are the checks that only their analysis would need."""

    status: Literal["ready"] = "ready"
    degraded: list[str]
    checks: dict[str, CheckOut]


@router.get(
    "/healthz",
    operation_id="get_health",
    summary="Ask whether the process runs",
    responses=only_refusals(421, 500),
    openapi_extra={"security": []},
)
async def get_health() -> HealthOut:
    """Asks nobody else, so it answers whatever else is down."""
    return HealthOut()


@router.get(
    "/readyz",
    operation_id="get_readiness",
    summary="Ask whether batches can be taken",
    response_model=ReadyOut,
    responses=only_refusals(421, 500, 503),
    openapi_extra={"security": []},
)
async def get_readiness(request: Request, service: ServiceDep) -> Response:
    """Answers 503 with the reason while queue or store are down, or would lose what they take.

    Without a consumer, batches are still taken and kept: that is 200, and named in `degraded`.
    """
    checks = await look(service.watch)
    told = {check.name: CheckOut(ok=check.ok, sentence=check.sentence) for check in checks}
    if reasons := [_reason(check) for check in checks if check.ingest_needs and not check.ok]:
        headers = {"retry-after": RETRY_AFTER_S}
        shown = {name: check.model_dump() for name, check in told.items()}
        detail = "; ".join(reasons)
        return problem(request.scope, 503, "not_ready", detail, headers, checks=shown)
    degraded = [check.name for check in checks if not check.ok]
    ready = ReadyOut(degraded=degraded, checks=told)
    return Response(ready.model_dump_json(), media_type="application/json")


def _reason(check: Check) -> str:
    return f"{check.name}: {check.sentence}"
