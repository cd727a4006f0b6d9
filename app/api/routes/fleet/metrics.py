"""Metrics for Prometheus: counters of the service, and states of jobs.

A source that could not be read has no samples.
"""

import asyncio
import re
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import structlog
from anyio import to_thread
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from starlette.responses import PlainTextResponse, Response

from app.api.http.auth import header
from app.api.http.principal import ROOT, Principal
from app.api.routes.dependencies import ServiceDep, refusals
from app.api.routes.fleet.fleet_jobs import FleetJob, fleet_jobs
from app.api.routes.fleet.job_metrics import (
    Samples,
    fleet_samples,
    gauge,
    gauges,
    job_samples,
    slowest_workers,
)
from app.api.service.job_state import ENDED_STATES
from app.api.service.service import Service
from app.api.service.status import ServiceStatus
from app.errors import PacelineError
from app.ingest.queue import Lag
from app.store.as_of import BEHIND_AFTER_S, Processed
from app.store.disk.forecast import DiskForecast
from app.store.disk.table_sizes import TableSizes
from app.store.disk.usage import LEVELS, DiskLevel
from app.store.fleet import FleetLine
from app.store.runs import NotificationCounts, is_delivery_outcome
from app.store.service_state import ServiceState
from app.trace.job import project_of

_COUNTS = {
    "accepted": "Operations taken into windows.",
    "duplicate": "Operations in batches that had been taken before.",
    "conflict": "Operations in batches that came again with another content; the first one stands.",
    "late": "Operations that came when their window could no longer be revised.",
    "dead": "Operations in entries that no consumer could process; see paceline_dead_letters.",
}
_TOTALS = {
    "fenced_commits": "Commits refused because another consumer owned the shard.",
    "ops_replayed": "Operations of dead letters that were put back into the queue.",
    "entries_lost": "Entries that the queue had acknowledged and no longer held.",
    "canary_found": "Rounds of the canary that found its straggler.",
    "canary_missed": "Rounds of the canary that did not.",
}
_COUNTER_NAME = re.compile(r"[a-z][a-z_]*")


def _service_samples(
    state: ServiceState | None, lag: Lag | None, watch: ServiceStatus
) -> Iterator[Metric]:
    """Of queue and store; what could not be read is None and has no samples."""
    yield gauge("shards", "Parts of the event queue.", watch.num_shards)
    yield gauge("lossy_allowed", "1 if batches may be lost in a crash.", watch.allow_lossy)
    if state is not None:
        yield from _store_samples(state)
    if lag is not None:
        yield from _queue_samples(lag)


def _store_samples(state: ServiceState) -> Iterator[Metric]:
    for name, help_text in _COUNTS.items():
        yield _counter(f"ops_{name}", help_text, getattr(state.counts, name))
    lost = "Batches that were skipped by their worker's later ones and never came."
    yield _counter("batches_lost", lost, state.counts.lost_batches)
    for name, value in ({**dict.fromkeys(_TOTALS, 0), **state.totals}).items():
        if _COUNTER_NAME.fullmatch(name) and not is_delivery_outcome(name):
            yield _counter(name, _TOTALS.get(name, "A count of the whole service."), value)
    dead = "Dead letters that are neither replayed nor discarded."
    yield gauge("dead_letters", dead, state.dead_letters)
    yield gauge("outbox_due", "Alert messages that are still to be sent.", state.outbox_due)
    age_s = state.outbox_oldest_s or 0.0
    yield gauge("outbox_oldest_seconds", "Age of the oldest of these; 0 if none.", age_s)
    yield from _notification_samples(state.notifications)
    yield gauge("consumers_alive", "Consumers whose lease holds.", state.live_consumers)
    unheld = len(state.unheld_shards)
    yield gauge("shards_unheld", "Parts of the queue that no consumer works on.", unheld)
    moves = "How often a consumer took a part of the queue: at its start, or of one that died."
    yield _counter("shard_moves", moves, state.shard_moves)
    behind = f"How far consumers are behind; from {BEHIND_AFTER_S:g} on, states are unknown."
    behind_s = [shard.behind_s for shard in state.processed.of_shards]
    yield _by_shard("behind_seconds", behind, behind_s)
    yield from _watch_samples(state)


def _watch_samples(state: ServiceState) -> Iterator[Metric]:
    """Ages since the service is known to have worked; none of what never has."""
    consumers, canary = state.watches.get("consumers"), state.watches.get("canary")
    backlog = state.watches.get("backlog")
    turns_s = (consumer.last_turn_s for consumer in state.consumers)
    turned_s = [turn_s for turn_s in turns_s if turn_s is not None]
    if turned_s:
        age_s = max(0.0, state.at_s - max(turned_s))
        yield gauge("consumer_turn_age_seconds", "Since a consumer last finished a turn.", age_s)
    if canary is not None and canary.ok_s is not None:
        age_s = max(0.0, state.at_s - canary.ok_s)
        yield gauge("canary_age_seconds", "Since the canary was last found.", age_s)
        if canary.took_s is not None:
            took = "From the start of the last good round of the canary until it was found."
            yield gauge("canary_took_seconds", took, canary.took_s)
    down = "1 for each part of the service that receivers were told is down."
    watches = (watch for watch in (consumers, canary, backlog) if watch is not None)
    parts = (([watch.name], watch.notified_s is not None) for watch in watches)
    yield gauges("service_down", down, ["part"], parts)


def _notification_samples(counts: NotificationCounts) -> Iterator[Metric]:
    firing = "Alerts that fire now, of all projects."
    by_severity = (([severity], number) for severity, number in counts.firing.items())
    yield gauges("alerts_firing", firing, ["severity"], by_severity)
    outcomes = "Messages about alerts by what became of them; retried are attempts."
    counted = CounterMetricFamily("paceline_webhook_deliveries", outcomes, labels=["outcome"])
    for outcome, number in counts.outcomes.items():
        counted.add_metric([outcome], number)
    yield counted
    disabled = "Receivers of alerts that were given up, until a person enables them."
    yield gauge("notifier_disabled_endpoints", disabled, counts.disabled_endpoints)


def _queue_samples(lag: Lag) -> Iterator[Metric]:
    waiting = "Batches that wait in the queue, or are worked on."
    yield _by_shard("queue_entries", waiting, lag.entries)
    oldest_s = [age_s or 0.0 for age_s in lag.oldest_s]
    yield _by_shard("queue_oldest_seconds", "How long the oldest of these waits.", oldest_s)
    full = "Parts of the queue that take no batch until consumers have caught up."
    yield gauge("queue_full_shards", full, len(lag.full))
    if lag.memory_bytes is not None:
        yield gauge("queue_memory_bytes", "Memory that the queue uses.", lag.memory_bytes)
    if lag.log_bytes is not None:
        yield gauge("queue_disk_bytes", "Bytes of the queue's logs on disk.", lag.log_bytes)
    if lag.memory_limit_bytes is not None:
        limit = "Memory that the queue may use."
        yield gauge("queue_memory_limit_bytes", limit, lag.memory_limit_bytes)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"paceline_{name}", help_text, value=value)


def _by_shard(name: str, help_text: str, values: Sequence[float]) -> Metric:
    samples = (([str(shard)], value) for shard, value in enumerate(values))
    return gauges(name, help_text, ["shard"], samples)


def _disk_samples(
    sizes: TableSizes | None, forecast: DiskForecast | None, level: DiskLevel
) -> Iterator[Metric]:
    """What fills the disk, how much is free, and for how many days, as far as it is known."""
    if sizes is not None:
        yield from _size_samples(sizes)
    if forecast is None:
        return
    help_text = "What is stored: 0 all, 1 all with a warning, 2 no operations, 3 nothing new."
    yield gauge("disk_level", help_text, LEVELS.index(level))
    usage = forecast.usage
    free = "Free bytes of the disk that the data is on, the fullest if several."
    yield gauge("disk_free_bytes", free, usage.free_bytes)
    yield gauge("disk_used_ratio", "Used share of that disk, 0 to 1.", usage.used_share)
    if usage.reusable_bytes is not None:
        inside = "Those of these free bytes that are inside the tables of PostgreSQL."
        yield gauge("disk_reusable_bytes", inside, usage.reusable_bytes)
    if forecast.days_left is not None:
        left = "Days until that disk is full, as it grew over the last week, at least an hour."
        yield gauge("disk_days_left", left, forecast.days_left)


def _size_samples(sizes: TableSizes) -> Iterator[Metric]:
    database = "Bytes of the database, free pages included."
    yield gauge("database_bytes", database, sizes.database_bytes)
    by_table = "Bytes of a table with its indexes; of large SQLite files an estimate."
    tables = (([table], number) for table, number in sorted(sizes.tables.items()))
    yield gauges("table_bytes", by_table, ["table"], tables)


log = structlog.get_logger()

router = APIRouter(tags=["health"])

ReadingT = TypeVar("ReadingT")


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Get metrics for Prometheus",
    response_class=PlainTextResponse,
    responses=refusals(401, 403, 421, 429, 500),
    openapi_extra={"security": [{}, {"token": []}]},
)
async def get_metrics(request: Request, service: ServiceDep) -> Response:
    """Metrics in the Prometheus text format. Without a token: counts and sums only, no names.

    With a token of the scope read, also the jobs of its project with the highest loss, and their
    slowest workers; with PACELINE_TOKEN, those of all projects.

    Counters of this process restart at 0. Counts of processed operations come from the database and
    are the same in every process. Once all batches are processed, received = refused + accepted +
    duplicate + conflict + late + dead, summed over all processes. A source that cannot be read has
    no samples, and increments `paceline_scrape_errors_total`.
    """
    caller = await _optional_caller(request, service)
    watch = service.status
    state, lag, lines, sizes, forecast = await asyncio.gather(
        _or_none(service, "store", watch.state.get()),
        _or_none(service, "queue", watch.lag.get()),
        _or_none(service, "jobs", watch.jobs.get()),
        _or_none(service, "tables", watch.table_sizes.get()),
        _or_none(service, "disk", watch.disk_forecast.get()),
    )
    text = generate_latest(service.metrics.registry)
    text += generate_latest(Samples(_service_samples(state, lag, watch)))
    text += generate_latest(Samples(_disk_samples(sizes, forecast, watch.disk.level)))
    if state is not None and lines is not None:
        work = partial(_shared_job_text, service, caller, lines, state.processed)
        making = to_thread.run_sync(work, limiter=service.metrics_threads)
        text += await _or_none(service, "jobs", making) or b""
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _optional_caller(request: Request, service: Service) -> Principal | None:
    if header(request.scope, b"authorization") is None:
        return None
    access = service.auth
    caller = access.recent(request.scope) or await access.admit(request.scope)
    caller.check("read")
    return caller


def _shared_job_text(
    service: Service, caller: Principal | None, lines: list[FleetLine], processed: Processed
) -> bytes:
    """The same for all scrapers of a project, however often they ask."""
    sees = None if caller is None else (caller == ROOT, caller.project)
    work = partial(_job_text, service, caller, lines, processed)
    return service.metrics_texts.get((sees, int(service.now_s())), work)


def _job_text(
    service: Service, caller: Principal | None, lines: list[FleetLine], processed: Processed
) -> bytes:
    known = fleet_jobs(
        lines, now_s=service.now_s(), alert_slowdown=service.alert_slowdown, processed=processed
    )
    text = generate_latest(Samples(fleet_samples(known)))
    if caller is not None:
        text += generate_latest(Samples(_named_jobs(service, caller, known)))
    return text


def _named_jobs(service: Service, caller: Principal, known: list[FleetJob]) -> Iterator[Metric]:
    running = [job for job in known if job.state not in ENDED_STATES]
    if caller != ROOT:
        running = [job for job in running if project_of(job.line.job_id) == caller.project]
    running.sort(key=lambda job: (-(job.lost_per_hour or 0.0), job.line.job_id))
    most = service.metrics_top_jobs
    workers = slowest_workers(service.store, service.results, running)
    return job_samples(running[:most], max(0, len(running) - most), workers)


async def _or_none(service: Service, source: str, reading: Awaitable[ReadingT]) -> ReadingT | None:
    try:
        return await reading
    except PacelineError as error:
        service.metrics.scrape_failed(source)
        log.warning("not measured", source=source, reason=str(error))
        return None
