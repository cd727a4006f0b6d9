"""Health: does the process run, and can it do its work?"""

import asyncio
from typing import Literal

import structlog
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from app.api.deps import ServiceDep, refusals
from app.api.errors import problem
from app.api.fields import Answer
from app.api.service import Service
from app.errors import PacelineError, Unavailable
from app.store import jobs

log = structlog.get_logger()

router = APIRouter(tags=["health"])

RETRY_AFTER_S = "2"


class HealthOut(Answer):
    """The process runs."""

    status: Literal["ok"] = "ok"


class ReadyOut(Answer):
    """Everything that the API needs answers and keeps what it is given."""

    status: Literal["ready"] = "ready"
    checks: dict[str, str]


@router.get(
    "/healthz",
    operation_id="get_health",
    summary="Ask whether the process runs",
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
    responses={status: told for status, told in refusals().items() if status == 503},
    openapi_extra={"security": []},
)
async def get_readiness(request: Request, service: ServiceDep) -> Response:
    """Answers 503 with the reason while queue or store are down, or would lose what they take."""
    queue, store = await asyncio.gather(_queue(service), run_in_threadpool(_store, service))
    checks = {"queue": queue, "store": store}
    reasons = [f"{name}: {found}" for name, found in checks.items() if found != "ok"]
    if reasons:
        headers = {"retry-after": RETRY_AFTER_S}
        return problem(request.scope, 503, "not_ready", "; ".join(reasons), headers, checks=checks)
    return Response(ReadyOut(checks=checks).model_dump_json(), media_type="application/json")


async def _queue(service: Service) -> str:
    try:
        await service.writer.check()
    except PacelineError as error:
        return _reason("queue", error)
    return "ok"


def _store(service: Service) -> str:
    try:
        if not service.is_migrated():
            return "the database has other tables than this version: run paceline migrate"
        with service.store.read() as conn:
            jobs.page(conn, cursor=None, limit=1)
    except PacelineError as error:
        return _reason("store", error)
    return "ok"


def _reason(what: str, error: PacelineError) -> str:
    # Anybody may ask, so addresses, which come after the colon, are for the log alone.
    log.warning("not ready", what=what, reason=str(error))
    return str(error).partition(": ")[0] if isinstance(error, Unavailable) else str(error)
