"""State of store and queue, for probes, metrics and pages.

Anybody may request /readyz and /metrics at any rate. So answers are cached for a second, concurrent
callers share one query, and a store that hangs holds one thread. `LossWarnings` says what a crash
could lose, where that is allowed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
from starlette.concurrency import run_in_threadpool

from app.api.http.caching import LookupCache
from app.errors import PacelineError, QueueUnavailable, StartUpFailed, StoreUnavailable, Unavailable
from app.ingest.queue import QueueWriter
from app.store import as_of, fleet, projects, service_state
from app.store.as_of import Processed
from app.store.database import Store, check_durable, durability_weaknesses
from app.store.disk.forecast import read_forecast
from app.store.disk.table_sizes import read_table_sizes
from app.store.disk.usage import DiskWatch
from app.store.fleet import FleetLine
from app.store.service_state import ServiceState

MAX_WAIT_S = 3.0
# At most one read a second, however many scrapers there are.
STATE_TTL_S = 1.0
# The lines of thousands of jobs take a fraction of a second to read.
JOBS_TTL_S = 5.0
# A small file is read whole for its tables' sizes, in a tenth of a second.
SIZES_TTL_S = 300.0
FORECAST_TTL_S = 5.0

AnswerT = TypeVar("AnswerT")


class SharedQuery(Generic[AnswerT]):
    """One query for all callers within `fresh_s`, errors included.

    `get` raises `late` if there is no answer after `max_wait_s`.
    """

    def __init__(
        self,
        query: Callable[[], Awaitable[AnswerT]],
        *,
        fresh_s: float,
        late: PacelineError,
        monotonic: Callable[[], float],
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._late = late
        self._max_wait_s = max_wait_s
        self._cache = LookupCache[None, AnswerT](
            lambda _: query(), fresh_s=fresh_s, keep_errors=True, monotonic=monotonic
        )

    async def get(self) -> AnswerT:
        """The answer; raises what the query raises, or `late`."""
        try:
            async with asyncio.timeout(self._max_wait_s):
                return await self._cache.get(None)
        except TimeoutError:
            raise self._late from None


class ServiceStatus:
    """State of the whole service, as this process sees it."""

    def __init__(
        self,
        store: Store,
        writer: QueueWriter,
        *,
        is_migrated: Callable[[], bool],
        num_shards: int,
        lease_s: float,
        allow_lossy: bool,
        disk: DiskWatch,
        now_s: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self.disk = disk
        self._is_migrated = is_migrated
        self._now_s = now_s
        self.num_shards = num_shards
        self.lease_s = lease_s
        self.allow_lossy = allow_lossy
        # Own threads: those of the routes may all wait for the store.
        self._threads = anyio.CapacityLimiter(2)
        no_store = StoreUnavailable(f"the database does not answer within {MAX_WAIT_S:g} s")
        no_queue = QueueUnavailable(f"the event queue does not answer within {MAX_WAIT_S:g} s")

        def of_store(read: Callable[[], AnswerT], fresh_s: float) -> SharedQuery[AnswerT]:
            async def query() -> AnswerT:
                return await anyio.to_thread.run_sync(read, limiter=self._threads)

            return SharedQuery(query, fresh_s=fresh_s, late=no_store, monotonic=monotonic)

        self.state = of_store(self._read, STATE_TTL_S)
        self.processed = of_store(self._read_processed, STATE_TTL_S)
        self.jobs = of_store(self._read_jobs, JOBS_TTL_S)
        self.table_sizes = of_store(lambda: read_table_sizes(store), SIZES_TTL_S)
        self.disk_forecast = of_store(lambda: read_forecast(store, disk), FORECAST_TTL_S)
        self.checked_state = of_store(self._check_and_read, 0.0)
        self.lag = SharedQuery(writer.lag, fresh_s=STATE_TTL_S, late=no_queue, monotonic=monotonic)
        self.queue = SharedQuery(writer.check, fresh_s=0.0, late=no_queue, monotonic=monotonic)

    def _check_and_read(self) -> ServiceState:
        if not self._is_migrated():
            raise StartUpFailed(
                "the database has other tables than this version: run paceline migrate"
            )
        if not self.allow_lossy:
            check_durable(self._store)
        return self._read()

    def _read(self) -> ServiceState:
        with self._store.read() as conn:
            return service_state.read(
                conn, num_shards=self.num_shards, lease_s=self.lease_s, now_s=self._now_s()
            )

    def _read_processed(self) -> Processed:
        with self._store.read() as conn:
            return as_of.read(conn, num_shards=self.num_shards, now_s=self._now_s())

    def _read_jobs(self) -> list[FleetLine]:
        with self._store.read() as conn:
            return [line for project in projects.names(conn) for line in fleet.lines(conn, project)]


WARNINGS_TTL_S = 10.0  # a corrected setting removes the banner within this time


class LossWarnings:
    """Warnings that queue or store may lose data; none where that is refused."""

    def __init__(
        self, store: Store, writer: QueueWriter, *, is_allowed: bool, monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._writer = writer
        self._is_allowed = is_allowed
        self._known: tuple[str, ...] = ()
        late = Unavailable("queue or store do not answer")
        self._query = SharedQuery(
            self._read, fresh_s=WARNINGS_TTL_S, late=late, monotonic=monotonic
        )

    async def sentences(self) -> tuple[str, ...]:
        """The warnings; the last known ones while queue or store are away."""
        if self._is_allowed:
            with suppress(Unavailable):
                self._known = await self._query.get()
        return self._known

    async def _read(self) -> tuple[str, ...]:
        queue, store = await asyncio.gather(
            self._writer.weaknesses(), run_in_threadpool(durability_weaknesses, self._store)
        )
        return (*queue, *store)
