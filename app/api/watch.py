"""What probes and pages ask of store and queue as a whole: shared, bounded in time, and aside.

Anybody may ask for /readyz and /metrics, as often as they like. So who asks while another's
question is on its way gets the same answer, and a store that hangs holds one thread, no more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from app.errors import PacelineError, QueueUnavailable, StartUpFailed, StoreUnavailable
from app.ingest.queue import QueueWriter
from app.store import fleet, projects, service_state
from app.store.durability import check_durable
from app.store.engine import Store
from app.store.fleet import FleetLine
from app.store.service_state import ServiceState

WITHIN_S = 3.0
# A scrape reads at most once a second, whoever asks.
KEEP_S = 1.0
# Of thousands of jobs the lines take a part of a second to read.
KEEP_JOBS_S = 5.0

AnswerT = TypeVar("AnswerT")


class Shared(Generic[AnswerT]):
    """One answer for all who ask within `keep_s`, or while it is on its way."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[AnswerT]],
        *,
        keep_s: float,
        late: PacelineError,
        monotonic: Callable[[], float],
        within_s: float = WITHIN_S,
    ) -> None:
        self._ask = ask
        self._keep_s = keep_s
        self._late = late
        self._monotonic = monotonic
        self._within_s = within_s
        self._asked: asyncio.Task[AnswerT] | None = None
        self._keep_until_s = 0.0

    async def get(self) -> AnswerT:
        """The answer; whatever the question raises, or `late` after `within_s`."""
        task = self._asked
        if task is None or (task.done() and self._monotonic() >= self._keep_until_s):
            task = self._asked = asyncio.ensure_future(self._ask())
            # Nobody may be left to hear of its failure.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._keep_until_s = self._monotonic() + self._keep_s
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise self._late from None


class Watch:
    """The whole service as this process sees it."""

    def __init__(
        self,
        store: Store,
        writer: QueueWriter,
        *,
        is_migrated: Callable[[], bool],
        num_shards: int,
        lease_s: float,
        allow_lossy: bool,
        now_s: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._is_migrated = is_migrated
        self._now_s = now_s
        self.num_shards = num_shards
        self.lease_s = lease_s
        self.allow_lossy = allow_lossy
        # Their own threads: the routes' may all be waiting for the store.
        self._threads = anyio.CapacityLimiter(2)
        no_store = StoreUnavailable(f"the database does not answer within {WITHIN_S:g} s")
        no_queue = QueueUnavailable(f"the event queue does not answer within {WITHIN_S:g} s")

        def store_shared(read: Callable[[], AnswerT], keep_s: float) -> Shared[AnswerT]:
            async def ask() -> AnswerT:
                return await anyio.to_thread.run_sync(read, limiter=self._threads)

            return Shared(ask, keep_s=keep_s, late=no_store, monotonic=monotonic)

        self.state = store_shared(self._read, KEEP_S)
        self.jobs = store_shared(self._read_jobs, KEEP_JOBS_S)
        self.checked_state = store_shared(self._check_and_read, 0.0)
        self.lag = Shared(writer.lag, keep_s=KEEP_S, late=no_queue, monotonic=monotonic)
        self.queue = Shared(writer.check, keep_s=0.0, late=no_queue, monotonic=monotonic)

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

    def _read_jobs(self) -> list[FleetLine]:
        with self._store.read() as conn:
            return [line for project in projects.names(conn) for line in fleet.lines(conn, project)]
