"""Health: whether the process runs, can take batches, and has consumers.

Readiness has one sentence per check.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, TypeVar

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from app import formatting
from app.api.http.errors import problem
from app.api.http.fields import ResponseModel
from app.api.routes.dependencies import ServiceDep, refusals
from app.api.service.status import ServiceStatus
from app.errors import PacelineError, Unavailable
from app.ingest.queue import Lag
from app.store.as_of import BEHIND_AFTER_S, AsOf
from app.store.disk.usage import DiskWatch
from app.store.service_state import ServiceState
from app.store.shards import MAX_MOVES

log = structlog.get_logger()

_NO_STORE = "not known while the database does not answer"
_STORE_OK = "it answers, with this version's tables"
_LOSSY = "a crash may lose batches, as --allow-lossy or PACELINE_ALLOW_LOSSY allows"
_NO_QUEUE = "not known while the event queue does not answer"

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    """One check; batches are refused while a check with `ingest_needs` fails."""

    name: str
    ok: bool
    sentence: str
    ingest_needs: bool = False


async def check_readiness(watch: ServiceStatus) -> list[ReadinessCheck]:
    """All checks: first what taking batches needs, then what analysis needs."""
    queue, state, lag = await asyncio.gather(
        _answer_or_error(watch.queue.get()),
        _answer_or_error(watch.checked_state.get()),
        _answer_or_error(watch.lag.get()),
    )
    known_lag = None if isinstance(lag, PacelineError) else lag
    known_state = None if isinstance(state, PacelineError) else state
    return [
        _dependency_check(
            "queue", queue, _ok_text("it answers", "keeps what it takes", watch.allow_lossy)
        ),
        room_check(known_lag),
        _dependency_check("store", state, _ok_text(_STORE_OK, "keeps commits", watch.allow_lossy)),
        _consumers_check(known_state),
        _shards_check(known_state, watch.num_shards),
        _backlog_check(known_lag, known_state),
        disk_check(watch.disk),
        _durability_check(watch.allow_lossy),
    ]


def _ok_text(answers: str, keeps: str, allow_lossy: bool) -> str:
    # With --allow-lossy, durability is not checked.
    return answers if allow_lossy else f"{answers}, and {keeps}"


async def _answer_or_error(answer: Awaitable[AnswerT]) -> AnswerT | PacelineError:
    try:
        return await answer
    except PacelineError as error:
        return error


def _dependency_check(name: str, answer: object, well: str) -> ReadinessCheck:
    if not isinstance(answer, PacelineError):
        return ReadinessCheck(name, True, well, ingest_needs=True)
    reason = str(answer)
    log.warning("not ready", what=name, reason=reason)
    # The answer is public: addresses, which come after the colon, are only logged.
    text = reason.partition(": ")[0] if isinstance(answer, Unavailable) else reason
    return ReadinessCheck(name, False, text, ingest_needs=True)


def room_check(lag: Lag | None) -> ReadinessCheck:
    """Whether any queue server has room: one full server of several does not stop ingest."""
    if lag is None:
        return ReadinessCheck("room", False, _NO_QUEUE)
    if not lag.full:
        return ReadinessCheck("room", True, "the queue has room")
    num_shards = len(lag.entries)
    text = f"{len(lag.full)} of {num_shards} parts of the queue are full until consumers catch up"
    return ReadinessCheck("room", False, text, ingest_needs=len(lag.full) == num_shards)


def _consumers_check(state: ServiceState | None) -> ReadinessCheck:
    if state is None:
        return ReadinessCheck("consumers", False, _NO_STORE)
    number = state.live_consumers
    text = f"{formatting.count(number)} {'is' if number == 1 else 'are'} alive"
    if not number:
        text = "none is alive: what is taken waits to be analysed"
    return ReadinessCheck("consumers", number > 0, text)


def _shards_check(state: ServiceState | None, num_shards: int) -> ReadinessCheck:
    if state is None:
        return ReadinessCheck("shards", False, _NO_STORE)
    if state.unheld_shards:
        unheld = f"{len(state.unheld_shards)} of {num_shards}"
        return ReadinessCheck("shards", False, f"no consumer works on {unheld} parts of the queue")
    if state.restless_shards:
        text = (
            f"{len(state.restless_shards)} of {num_shards} parts of the queue went from one "
            f"consumer to another more than {MAX_MOVES} times in the last minute"
        )
        return ReadinessCheck("shards", False, text)
    return ReadinessCheck("shards", True, "consumers work on all parts of the queue")


def _backlog_check(lag: Lag | None, state: ServiceState | None) -> ReadinessCheck:
    if state is not None and (progress := state.processed.of_service).is_behind:
        return ReadinessCheck("backlog", False, behind_sentence(progress, state.at_s))
    if lag is None:
        return ReadinessCheck("backlog", False, _NO_QUEUE)
    waiting = sum(lag.entries)
    if not waiting:
        return ReadinessCheck("backlog", True, "no batch waits")
    oldest_s = max(age_s for age_s in lag.oldest_s if age_s is not None)
    batches = "1 batch waits" if waiting == 1 else f"{formatting.count(waiting)} batches wait"
    text = f"{batches}, the oldest for {formatting.duration(oldest_s)}"
    return ReadinessCheck("backlog", oldest_s < BEHIND_AFTER_S, text)


def behind_sentence(progress: AsOf, now_s: float) -> str:
    """How far consumers are behind, and what that means."""
    behind = formatting.duration(progress.behind_s)
    at = "" if progress.at_s is None else f" as of {formatting.utc_time(progress.at_s, now_s)}"
    return f"Paceline is {behind} behind: states are{at}, and what jobs do now is not known"


def disk_check(disk: DiskWatch) -> ReadinessCheck:
    """Whether batches can be stored; a warning alone stops no ingest."""
    if (sentence := disk.sentence()) is not None:
        return ReadinessCheck("disk", False, sentence, ingest_needs=disk.level == "stop")
    known = "the disk has room" if disk.usage() else "the data is on disks of other servers"
    return ReadinessCheck("disk", True, known)


def _durability_check(allow_lossy: bool) -> ReadinessCheck:
    text = _LOSSY if allow_lossy else "a crash loses nothing that was acknowledged"
    return ReadinessCheck("durability", not allow_lossy, text)


router = APIRouter(tags=["health"])

RETRY_AFTER_S = "2"


class HealthOut(ResponseModel):
    """The process runs."""

    status: Literal["ok"] = "ok"


class CheckOut(ResponseModel):
    """Result of one check."""

    ok: bool
    sentence: str


class ReadyOut(ResponseModel):
    """Batches can be accepted; `degraded` lists failed checks that only affect the analysis."""

    status: Literal["ready"] = "ready"
    degraded: list[str]
    checks: dict[str, CheckOut]


@router.get(
    "/healthz",
    operation_id="get_health",
    summary="Check that the process runs",
    responses=refusals(421, 500),
    openapi_extra={"security": []},
)
async def get_health() -> HealthOut:
    """Liveness probe; does not depend on the database, the queue or other processes."""
    return HealthOut()


@router.get(
    "/readyz",
    operation_id="get_readiness",
    summary="Check that batches can be accepted",
    response_model=ReadyOut,
    responses=refusals(421, 500, 503),
    openapi_extra={"security": []},
)
async def get_readiness(request: Request, service: ServiceDep) -> Response:
    """Readiness probe: 503 with the reason while the queue or the store is down or would lose data.

    Without a consumer, batches are still accepted and stored: 200, with the failed check in
    `degraded`.
    """
    checks = await check_readiness(service.status)
    checks_out = {check.name: CheckOut.model_validate(check) for check in checks}
    stops = [check for check in checks if check.ingest_needs and not check.ok]
    if stops:
        headers = {"retry-after": RETRY_AFTER_S}
        shown = {name: check.model_dump() for name, check in checks_out.items()}
        detail = "; ".join(f"{check.name}: {check.sentence}" for check in stops)
        return problem(request.scope, 503, "not_ready", detail, headers, checks=shown)
    ready = ReadyOut(degraded=[check.name for check in checks if not check.ok], checks=checks_out)
    return Response(ready.model_dump_json(), media_type="application/json")
