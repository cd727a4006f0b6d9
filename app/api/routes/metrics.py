"""Metrics: every counter of the promise, for Prometheus."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import structlog
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import PlainTextResponse, Response

from app.api.deps import ServiceDep, only_refusals
from app.api.exposition import Snapshot
from app.api.service import Service
from app.errors import PacelineError

log = structlog.get_logger()

router = APIRouter(tags=["health"])

AnswerT = TypeVar("AnswerT")


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Read what is counted and measured",
    response_class=PlainTextResponse,
    responses=only_refusals(421, 500),
    openapi_extra={"security": []},
)
async def get_metrics(service: ServiceDep) -> Response:
    """In the text format of Prometheus; no project, job or worker is named.

    What this process counts begins at 0 with it; what became of operations is kept in the
    database, and the same whichever process is asked. In the end received = refused + accepted +
    duplicate + conflict + late + dead, summed over all processes. What cannot be read now has no
    sample, and `paceline_scrape_errors_total` grows.
    """
    watch = service.watch
    state, lag = await asyncio.gather(
        _or_none(service, "store", watch.state.get()),
        _or_none(service, "queue", watch.lag.get()),
    )
    now = Snapshot(state, lag, watch.num_shards, watch.allow_lossy)
    text = generate_latest(service.measured.registry) + generate_latest(now)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _or_none(service: Service, source: str, reading: Awaitable[AnswerT]) -> AnswerT | None:
    try:
        return await reading
    except PacelineError as error:
        service.measured.scrape_failed(source)
        log.warning("not measured", source=source, reason=str(error))
        return None
