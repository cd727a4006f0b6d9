"""Metrics: every counter of the promise, and how jobs do, for Prometheus."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import structlog
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from app.api.auth import header
from app.api.deps import ServiceDep, only_refusals
from app.api.exposition import Snapshot
from app.api.fleet import Standing, standings
from app.api.job_samples import JobSamples, Sums
from app.api.principal import ROOT, Principal
from app.api.service import Service
from app.api.worst_workers import worst_workers
from app.errors import PacelineError
from app.store.fleet import FleetLine
from app.trace.names import project_of

log = structlog.get_logger()

router = APIRouter(tags=["health"])

AnswerT = TypeVar("AnswerT")


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Read what is counted and measured",
    response_class=PlainTextResponse,
    responses=only_refusals(401, 403, 421, 429, 500),
    openapi_extra={"security": [{}, {"token": []}]},
)
async def get_metrics(request: Request, service: ServiceDep) -> Response:
    """In the text format of Prometheus. Without a token, nobody is named: counts and sums alone.

    With a token of the scope read, jobs of its project are named, those that lose most, and their
    slowest workers; with PACELINE_TOKEN, jobs of all projects.

    What this process counts begins at 0 with it; what became of operations is kept in the
    database, and the same whichever process is asked. In the end received = refused + accepted +
    duplicate + conflict + late + dead, summed over all processes. What cannot be read now has no
    sample, and `paceline_scrape_errors_total` grows.
    """
    caller = await _caller(request, service)
    watch = service.watch
    state, lag, lines = await asyncio.gather(
        _or_none(service, "store", watch.state.get()),
        _or_none(service, "queue", watch.lag.get()),
        _or_none(service, "jobs", watch.jobs.get()),
    )
    text = generate_latest(service.measured.registry)
    text += generate_latest(Snapshot(state, lag, watch.num_shards, watch.allow_lossy))
    if state is not None and lines is not None:
        is_watched = state.live_consumers > 0
        making = run_in_threadpool(_of_jobs, service, caller, lines, is_watched)
        text += await _or_none(service, "jobs", making) or b""
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _caller(request: Request, service: Service) -> Principal | None:
    if header(request.scope, b"authorization") is None:
        return None
    access = service.access
    caller = access.recent(request.scope) or await access.admit(request.scope)
    caller.check("read")
    return caller


def _of_jobs(
    service: Service, caller: Principal | None, lines: list[FleetLine], is_watched: bool
) -> bytes:
    known = standings(
        lines, now_s=service.now_s(), thresholds=service.thresholds, is_watched=is_watched
    )
    text = generate_latest(Sums(known))
    if caller is not None:
        text += generate_latest(_named(service, caller, known))
    return text


def _named(service: Service, caller: Principal, known: list[Standing]) -> JobSamples:
    running = [each for each in known if each.state != "finished"]
    if caller != ROOT:
        running = [each for each in running if project_of(each.line.job_id) == caller.project]
    running.sort(key=lambda each: (-(each.lost_per_hour or 0.0), each.line.job_id))
    most = service.metrics_top_jobs
    workers = worst_workers(service.store, service.results, running)
    return JobSamples(running[:most], max(0, len(running) - most), workers)


async def _or_none(service: Service, source: str, reading: Awaitable[AnswerT]) -> AnswerT | None:
    try:
        return await reading
    except PacelineError as error:
        service.measured.scrape_failed(source)
        log.warning("not measured", source=source, reason=str(error))
        return None
