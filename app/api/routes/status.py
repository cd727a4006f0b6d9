"""The state of the service itself, for its status page: every part, and when it last worked."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import Literal, TypeVar

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app import formatting
from app.api.http.fields import ResponseModel, UnixTime, timestamp, timestamp_or_none
from app.api.routes.alerts.receiver_schemas import ReceiverState, receiver_state
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep
from app.api.routes.health import CheckOut, check_readiness
from app.api.service.service import PublicSettings, Service
from app.errors import PacelineError
from app.ingest.queue import Lag
from app.store.alerting import receivers
from app.store.alerting.receivers import ReceiverHealth
from app.store.alerting.service_watches import Watch
from app.store.service_state import ServiceState

CanaryState = Literal["off", "waiting", "found", "missing"]
ServiceHealth = Literal["ok", "degraded", "down"]
AnswerT = TypeVar("AnswerT")


class QueueOut(ResponseModel):
    """The event queue, all parts together."""

    entries: int = Field(description="Batches that wait, or are worked on.")
    oldest_s: float | None = Field(description="How long the oldest of these waits; null: none.")
    shards: int
    full_shards: int = Field(description="Parts that take no batch until consumers catch up.")
    unheld_shards: int | None = Field(
        description="Parts that no consumer works on; null while the database does not answer."
    )
    memory_bytes: int | None
    memory_limit_bytes: int | None


class ConsumerOut(ResponseModel):
    """One consumer of the last hour."""

    name: str
    is_alive: bool = Field(description="Whether its lease holds.")
    last_turn_at: UnixTime | None = Field(
        validation_alias="last_turn_s",
        description="When it last finished a turn with shards, to a few seconds; null: never.",
    )
    shards: list[int] = Field(description="The parts of the queue that it works on.")


class ConsumersOut(ResponseModel):
    """The consumers, and whether receivers were told that all of them are dead."""

    items: list[ConsumerOut]
    last_turn_at: datetime | None = Field(description="When any of them last finished a turn.")
    dead_after_s: float | None = Field(
        description="Seconds without a turn after which receivers are told; null: never."
    )
    told_at: datetime | None = Field(description="When they were told of the present outage.")


class CanaryOut(ResponseModel):
    """The canary: a job with a known straggler, pushed through the whole service."""

    state: CanaryState = Field(
        description="`off` by setting; `waiting`: no round has ended yet; `found`: the last "
        "round named the straggler; `missing`: it did not."
    )
    every_s: float | None
    found_at: datetime | None = Field(description="When it was last found.")
    age_s: float | None = Field(description="Seconds since then.")
    took_s: float | None = Field(description="From its push until it was found, the last time.")
    detail: str | None = Field(description="Why the last round did not find it.")
    missing_after_s: float = Field(
        description="Seconds without a found canary after which receivers are told."
    )
    told_at: datetime | None = Field(description="When they were told of the present outage.")


class HeartbeatOut(ResponseModel):
    """A dead-man's switch of the project: a receiver that gets heartbeats."""

    receiver_id: str = Field(validation_alias="endpoint_id")
    name: str
    every_s: float = Field(validation_alias="heartbeat_every_s")
    state: ReceiverState
    written_at: UnixTime | None = Field(description="When the last heartbeat was written.")
    delivered_at: UnixTime | None = Field(
        validation_alias="last_ok_s", description="When one was last delivered."
    )


class DiskOut(ResponseModel):
    """The disk that the data is on."""

    free_bytes: int
    used_share: float = Field(description="0 to 1.")
    days_left: float | None = Field(
        description="Days until it is full at the present pace; null: not known, or not filling."
    )
    reusable_bytes: int | None = Field(
        description="Those of free_bytes that are inside the tables of PostgreSQL, where deleted "
        "rows were; null: the disk is not that of a PostgreSQL."
    )


class OutboxOut(ResponseModel):
    """Messages that are still to be sent, of all projects."""

    due: int = Field(validation_alias="outbox_due")
    oldest_s: float | None = Field(validation_alias="outbox_oldest_s")


class StatusOut(ResponseModel):
    """Every part of the service; null where it cannot be read now."""

    state: ServiceHealth = Field(
        description="`down`: batches are refused, or nothing is analysed; `degraded`: a check "
        "failed, or the canary was not found."
    )
    sentence: str
    at: datetime
    checks: dict[str, CheckOut] = Field(description="As /readyz has them.")
    queue: QueueOut | None
    consumers: ConsumersOut | None
    canary: CanaryOut | None
    heartbeats: list[HeartbeatOut] | None
    outbox: OutboxOut | None
    disk: DiskOut | None = Field(description="null if it is another machine's.")


router = ApiRouter("health")


@router.get("/status", summary="Get the state of the service itself")
async def get_status(service: ServiceDep, caller: CallerDep) -> StatusOut:
    """Queue, consumers, canary, dead-man's switches, outbox and disk.

    Answers while the database or the queue does not: what cannot be read is null, and the failed
    check says why.
    """
    watch = service.status
    checks, state, lag, disk, heartbeats = await asyncio.gather(
        check_readiness(watch),
        _or_none(watch.state.get()),
        _or_none(watch.lag.get()),
        _or_none(watch.disk_forecast.get()),
        _or_none(run_in_threadpool(_heartbeats, service, caller.project)),
    )
    consumers = None if state is None else _consumers(state, service.public_settings)
    canary = None if state is None else _canary(state, service.public_settings)
    failed = [check for check in checks if not check.ok]
    health, sentence = _summary(
        [check.sentence for check in failed if check.ingest_needs],
        [f"{check.name}: {check.sentence}" for check in failed if check.name != "durability"],
        consumers,
        canary,
    )
    return StatusOut(
        state=health,
        sentence=sentence,
        at=timestamp(service.now_s()),
        checks={check.name: check for check in checks},
        queue=None if lag is None else _queue(lag, state),
        consumers=consumers,
        canary=canary,
        heartbeats=heartbeats,
        outbox=state,
        disk=None if disk is None else DiskOut.of_record(disk.usage, disk),
    )


def _summary(
    stops: list[str], failed: list[str], consumers: ConsumersOut | None, canary: CanaryOut | None
) -> tuple[ServiceHealth, str]:
    """State of the service, and its worst problem in one sentence."""
    if stops:
        return "down", f"No batch is accepted: {stops[0]}."
    if consumers is not None and not any(consumer.is_alive for consumer in consumers.items):
        return "down", "No consumer is alive: batches are accepted and wait, nothing is analysed."
    if consumers is not None and consumers.told_at is not None:
        return "down", "No consumer finishes a turn: batches wait, nothing is analysed."
    if canary is not None and canary.state == "missing":
        reason = canary.detail or "no round of it has ended in time"
        return "degraded", f"The canary was not found: {reason}."
    if failed:
        return "degraded", f"Something needs a look: {failed[0]}."
    if canary is None or canary.age_s is None:
        return "ok", "Every part works."
    return "ok", f"Every part works; the canary was found {formatting.duration(canary.age_s)} ago."


def _queue(lag: Lag, state: ServiceState | None) -> QueueOut:
    return QueueOut.of_record(
        lag,
        entries=sum(lag.entries),
        oldest_s=max((age_s for age_s in lag.oldest_s if age_s is not None), default=None),
        shards=len(lag.entries),
        full_shards=len(lag.full),
        unheld_shards=None if state is None else len(state.unheld_shards),
    )


def _consumers(state: ServiceState, settings: PublicSettings) -> ConsumersOut:
    watch = state.watches.get("consumers")
    turns_s = [consumer.last_turn_s for consumer in state.consumers]
    turns_s.append(None if watch is None else watch.ok_s)
    turned_s = [turn_s for turn_s in turns_s if turn_s is not None]
    return ConsumersOut(
        items=state.consumers,
        last_turn_at=timestamp_or_none(max(turned_s, default=None)),
        dead_after_s=settings.consumers_dead_after_s,
        told_at=timestamp_or_none(None if watch is None else watch.notified_s),
    )


def _canary(state: ServiceState, settings: PublicSettings) -> CanaryOut:
    every_s = settings.canary_every_s
    watch = state.watches.get("canary") if every_s is not None else None
    ok_s = None if watch is None else watch.ok_s
    return CanaryOut(
        state=_canary_state(watch, settings, state.at_s),
        every_s=every_s,
        found_at=timestamp_or_none(ok_s),
        age_s=None if ok_s is None else max(0.0, state.at_s - ok_s),
        took_s=None if watch is None else watch.took_s,
        detail=None if watch is None else watch.detail,
        missing_after_s=settings.canary_missing_after_s,
        told_at=timestamp_or_none(None if watch is None else watch.notified_s),
    )


def _canary_state(watch: Watch | None, settings: PublicSettings, now_s: float) -> CanaryState:
    if settings.canary_every_s is None:
        return "off"
    if watch is None:
        return "waiting"
    # Rounds may have ceased altogether: then nothing says what is wrong.
    is_late = watch.down_s(now_s) >= settings.canary_missing_after_s
    if watch.detail is not None or watch.notified_s is not None or is_late:
        return "missing"
    return "waiting" if watch.ok_s is None else "found"


def _heartbeats(service: Service, project: str) -> list[HeartbeatOut]:
    with service.store.read() as conn:
        every = receivers.without_secrets(conn, project)
        switches = [receiver for receiver in every if receiver.heartbeat_every_s is not None]
        health = receivers.health(conn, [receiver.endpoint_id for receiver in switches])
        written = receivers.heartbeats_of(conn, project)
    heartbeats = []
    for receiver in switches:
        known = health.get(receiver.endpoint_id, ReceiverHealth())
        state, written_at = receiver_state(receiver, known), written.get(receiver.endpoint_id)
        heartbeats.append(
            HeartbeatOut.of_record(receiver, known, state=state, written_at=written_at)
        )
    return heartbeats


async def _or_none(reading: Awaitable[AnswerT]) -> AnswerT | None:
    # The failed check says why; unknown figures are null.
    try:
        return await reading
    except PacelineError:
        return None
