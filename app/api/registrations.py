"""Which job may push, as the database says: remembered for a moment, so that pushing is fast.

While the database is away, jobs that were known go on pushing: the event queue keeps their batches.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from app.api.last_known import LastKnown
from app.errors import Conflict, EpochSuperseded, PacelineError, StoreUnavailable
from app.store import jobs
from app.store.engine import Store
from app.store.jobs import JobRecord
from app.trace.names import plain

REMEMBER_S = 2.0
MAX_REMEMBERED = 10_000
# The consumers look again before they count a batch, so this may be long.
GOOD_WITHOUT_STORE_S = 3600.0
# One rank says that the job has ended, and the others are still sending.
TAKEN_AFTER_END_S = 600.0


@dataclass(frozen=True, slots=True)
class _Lookup:
    found: asyncio.Task[JobRecord]
    until_s: float


class Registrations:
    """Looks a job up once for all workers that push at the same time.

    What comes within `taken_after_end_s` seconds of a job's end is taken: as long as it can revise
    a window, and for `TAKEN_AFTER_END_S` at least.
    """

    def __init__(
        self, store: Store, *, monotonic: Callable[[], float], revise_for_s: float = 0.0
    ) -> None:
        self.taken_after_end_s = max(revise_for_s, TAKEN_AFTER_END_S)
        self._store = store
        self._monotonic = monotonic
        self._lookups: OrderedDict[str, _Lookup] = OrderedDict()
        self._last_known = LastKnown[JobRecord](
            good_for_s=GOOD_WITHOUT_STORE_S, max_kept=MAX_REMEMBERED, monotonic=monotonic
        )

    async def find(self, job_id: str) -> JobRecord:
        """The job as it was at most `REMEMBER_S` ago, or when the database last answered.

        Raises:
            JobNotFound: never registered.
            StoreUnavailable: the database does not answer, and has not for long, or never told.
        """
        if (known := self._last_known.while_away(job_id)) is not None:
            return known
        try:
            return await self._as_stored(job_id)
        except StoreUnavailable:
            self._last_known.note_away()
            if (known := self._last_known.of(job_id)) is None:
                raise
            return known

    async def _as_stored(self, job_id: str) -> JobRecord:
        lookup = self._lookups.get(job_id)
        if lookup is None or lookup.until_s <= self._monotonic():
            lookup = self._begin(job_id)
        try:
            # Shielded: one caller that hangs up must not cancel the others' answer.
            return await asyncio.shield(lookup.found)
        except PacelineError:
            self._lookups.pop(job_id, None)
            raise

    async def find_anew(self, job_id: str) -> JobRecord:
        """The job as it is now: a refusal is final for a worker, so it rests on this.

        Raises:
            JobNotFound: never registered.
            StoreUnavailable: the database does not answer.
        """
        self._lookups.pop(job_id, None)
        return await self._as_stored(job_id)

    def forget(self, job_id: str) -> None:
        """Look the job up next time; may be called from any thread."""
        self._lookups.pop(job_id, None)
        self._last_known.forget(job_id)

    def check_epoch(self, job: JobRecord, epoch: int, now_s: float) -> None:
        """Returns if the job takes batches of this epoch.

        Raises:
            EpochSuperseded: it is in another.
            Conflict: it has ended, and those of its ranks that ended later have had their time.
        """
        if epoch != job.epoch:
            raise EpochSuperseded(job.job_id, epoch, job.epoch)
        if job.ended_s is not None and now_s - job.ended_s > self.taken_after_end_s:
            raise Conflict(f"job {plain(job.job_id)!r} has ended: register its next run first")

    def _begin(self, job_id: str) -> _Lookup:
        found = asyncio.create_task(run_in_threadpool(self._read, job_id))
        lookup = _Lookup(found, self._monotonic() + REMEMBER_S)
        self._lookups[job_id] = lookup
        while len(self._lookups) > MAX_REMEMBERED:
            self._lookups.popitem(last=False)
        return lookup

    def _read(self, job_id: str) -> JobRecord:
        with self._store.read() as conn:
            job = jobs.get(conn, job_id)
        self._last_known.keep(job_id, job)
        return job
