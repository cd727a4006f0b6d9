"""Can batches be taken, and is anybody analysing them? One sentence for each thing that matters."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from app import words
from app.api.watch import Watch
from app.errors import PacelineError, Unavailable
from app.ingest.queue import Lag
from app.store.service_state import ServiceState

log = structlog.get_logger()

OLD_BACKLOG_S = 60.0
_NO_STORE = "not known while the database does not answer"
_STORE_WELL = "it answers, with this version's tables"
_LOSSY = "a crash may lose batches, as --allow-lossy or PACELINE_ALLOW_LOSSY allows"
_NO_QUEUE = "not known while the event queue does not answer"

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; no batch is taken while one that `ingest_needs` is not ok."""

    name: str
    ok: bool
    sentence: str
    ingest_needs: bool = False


async def look(watch: Watch) -> list[Check]:
    """Everything that was looked at: what batches need first, then what their analysis needs."""
    queue, state, lag = await asyncio.gather(
        _tried(watch.queue.get()), _tried(watch.checked_state.get()), _tried(watch.lag.get())
    )
    known_lag = None if isinstance(lag, PacelineError) else lag
    known_state = None if isinstance(state, PacelineError) else state
    return [
        _needed("queue", queue, _well("it answers", "keeps what it takes", watch.allow_lossy)),
        room(known_lag),
        _needed("store", state, _well(_STORE_WELL, "keeps commits", watch.allow_lossy)),
        _consumers(known_state),
        _shards(known_state, watch.num_shards),
        _backlog(known_lag),
        _durability(watch.allow_lossy),
    ]


def _well(answers: str, keeps: str, allow_lossy: bool) -> str:
    # Nobody has looked whether it keeps anything where it need not.
    return answers if allow_lossy else f"{answers}, and {keeps}"


async def _tried(answer: Awaitable[AnswerT]) -> AnswerT | PacelineError:
    try:
        return await answer
    except PacelineError as error:
        return error


def _needed(name: str, answer: object, well: str) -> Check:
    if not isinstance(answer, PacelineError):
        return Check(name, True, well, ingest_needs=True)
    reason = str(answer)
    log.warning("not ready", what=name, reason=reason)
    # Anybody may ask, so addresses, which come after the colon, are for the log alone.
    told = reason.partition(": ")[0] if isinstance(answer, Unavailable) else reason
    return Check(name, False, told, ingest_needs=True)


def room(lag: Lag | None) -> Check:
    """Whether any batch can be taken: one full server of several is no reason to send none."""
    if lag is None:
        return Check("room", False, _NO_QUEUE)
    if not lag.full:
        return Check("room", True, "the queue has room")
    num_shards = len(lag.entries)
    told = f"{len(lag.full)} of {num_shards} parts of the queue are full until consumers catch up"
    return Check("room", False, told, ingest_needs=len(lag.full) == num_shards)


def _consumers(state: ServiceState | None) -> Check:
    if state is None:
        return Check("consumers", False, _NO_STORE)
    if state.live_consumers == 0:
        return Check("consumers", False, "none is alive: what is taken waits to be analysed")
    verb = "is" if state.live_consumers == 1 else "are"
    return Check("consumers", True, f"{words.whole(state.live_consumers)} {verb} alive")


def _shards(state: ServiceState | None, num_shards: int) -> Check:
    if state is None:
        return Check("shards", False, _NO_STORE)
    if state.unheld_shards:
        unheld = f"{len(state.unheld_shards)} of {num_shards}"
        return Check("shards", False, f"no consumer works on {unheld} parts of the queue")
    return Check("shards", True, "consumers work on all parts of the queue")


def _backlog(lag: Lag | None) -> Check:
    if lag is None:
        return Check("backlog", False, _NO_QUEUE)
    waiting = sum(lag.entries)
    if not waiting:
        return Check("backlog", True, "no batch waits")
    oldest_s = max(age_s for age_s in lag.oldest_s if age_s is not None)
    batches = "1 batch waits" if waiting == 1 else f"{words.whole(waiting)} batches wait"
    told = f"{batches}, the oldest for {words.span(oldest_s)}"
    return Check("backlog", oldest_s <= OLD_BACKLOG_S, told)


def _durability(allow_lossy: bool) -> Check:
    if allow_lossy:
        return Check("durability", False, _LOSSY)
    return Check("durability", True, "a crash loses nothing that was acknowledged")
