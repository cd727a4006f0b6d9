"""`CredentialCache`: tokens and sessions, looked up once for all requests that use them.

Ids of no record are in a cache of their own: made-up ids evict no token. While the database is
away, known records stay valid for ten minutes; one can be revoked meanwhile only if the database
is away from this process alone.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog
from cachetools import TTLCache
from starlette.concurrency import run_in_threadpool

from app.api.http.caching import LookupCache
from app.errors import PacelineError
from app.store import tokens
from app.store.database import Connection, Store

log = structlog.get_logger()

# Every process refuses a revoked token or session within 5 s; the fifth second is for the lookup.
FRESH_S = 4.0
STALE_S = 600.0
MAX_CREDENTIALS = 10_000


class Credential(Protocol):
    """A token or a session; times are Unix seconds."""

    @property
    def expires_s(self) -> float | None:
        """When it expires by itself, if ever."""

    @property
    def last_used_s(self) -> float | None:
        """When it was last used, to the minute."""


C = TypeVar("C", bound=Credential)


class Marker(Protocol):
    """Notes in the database that the record with this id is in use."""

    def __call__(self, conn: Connection, record_id: str, /, *, now_s: float) -> None:
        """Note the use at this Unix time."""


class CredentialCache(Generic[C]):
    """Records by their ids; `find` reads one, `mark_used` notes its use."""

    def __init__(
        self,
        store: Store,
        find: Callable[[Connection, str], C | None],
        mark_used: Marker,
        *,
        monotonic: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._find_row = find
        self._mark_row = mark_used
        self._monotonic = monotonic
        self._now_s = now_s
        self._found: LookupCache[str, C | None] = LookupCache(
            self._look_up,
            fresh_s=FRESH_S,
            stale_s=STALE_S,
            max_keys=MAX_CREDENTIALS,
            keep_if=lambda record: record is not None,
            monotonic=monotonic,
        )
        self._unknown = self._no_unknown_ids()
        self._marking: set[asyncio.Task[None]] = set()

    async def find(self, record_id: str) -> C | None:
        """The record as it was at most `FRESH_S` ago, or when the database last answered.

        None if there is none.

        Raises:
            StoreUnavailable: the database does not answer, and the record is not known here.
        """
        if record_id in self._unknown:
            return None
        found = await self._found.get(record_id)
        if found is None:
            self._unknown[record_id] = None
        return found

    def good_until_s(self, record_id: str, record: C) -> float:
        """Monotonic time until which the record need not be looked up again."""
        until_s = self._found.fresh_until_s(record_id)
        if record.expires_s is None:
            return until_s
        return min(until_s, self._monotonic() + record.expires_s - self._now_s())

    def note_use(self, record_id: str, record: C) -> None:
        """Record in the background that it is in use, at most once a minute."""
        now_s = self._now_s()
        is_due = (record.last_used_s or 0.0) < tokens.used_minute_s(now_s)
        if is_due and not self._found.is_away():
            task = asyncio.create_task(run_in_threadpool(self._mark, record_id, now_s))
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)

    def forget(self, record_id: str) -> None:
        """Look the record up next time; may be called from any thread."""
        self._found.forget(record_id)
        self._unknown = self._no_unknown_ids()  # replaced, as TTLCache is not thread-safe

    async def close(self) -> None:
        """Wait until every use is recorded."""
        await asyncio.gather(*self._marking)

    def _no_unknown_ids(self) -> TTLCache[str, None]:
        return TTLCache(MAX_CREDENTIALS, FRESH_S, timer=self._monotonic)

    async def _look_up(self, record_id: str) -> C | None:
        return await run_in_threadpool(self._read, record_id)

    def _read(self, record_id: str) -> C | None:
        with self._store.read() as conn:
            return self._find_row(conn, record_id)

    def _mark(self, record_id: str, now_s: float) -> None:
        try:
            with self._store.write() as conn:
                self._mark_row(conn, record_id, now_s=now_s)
        except PacelineError as error:
            log.warning("use not noted", credential=record_id, reason=str(error))
