"""Registered jobs as pushes need them: cached for seconds, and for an hour without the database.

While the database is away, known jobs go on pushing: the event queue keeps their batches.
"""

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from app.api.http.caching import LookupCache
from app.errors import Conflict, EpochSuperseded
from app.store import jobs
from app.store.database import Store
from app.store.jobs import JobRecord
from app.trace.job import job_of

FRESH_S = 2.0
# The consumers check a batch again before they count it, so this may be long.
STALE_S = 3600.0
# After one rank has reported the end of the job, the others may still send.
MIN_TAKEN_AFTER_END_S = 600.0


class RegistrationCache:
    """Looks a job up once for all workers that push at the same time.

    Batches are taken for `taken_after_end_s` seconds after a job's end: as long as they can
    revise a window, and for at least `MIN_TAKEN_AFTER_END_S`.
    """

    def __init__(
        self, store: Store, *, monotonic: Callable[[], float], revise_for_s: float = 0.0
    ) -> None:
        self.taken_after_end_s = max(revise_for_s, MIN_TAKEN_AFTER_END_S)
        self._store = store
        self._cache = LookupCache(
            self._look_up, fresh_s=FRESH_S, stale_s=STALE_S, monotonic=monotonic
        )

    async def find(self, job_id: str) -> JobRecord:
        """The job as it was at most `FRESH_S` ago, or when the database last answered.

        Raises:
            JobNotFound: never registered.
            StoreUnavailable: the database does not answer, and the job is not known here.
        """
        return await self._cache.get(job_id)

    async def find_now(self, job_id: str) -> JobRecord:
        """The job as it is now: a refusal is final for a worker, so it rests on this.

        Raises:
            JobNotFound: never registered.
            StoreUnavailable: the database does not answer.
        """
        return await self._cache.get_now(job_id)

    def forget(self, job_id: str) -> None:
        """Look the job up next time; may be called from any thread."""
        self._cache.forget(job_id)

    def check_epoch(self, job: JobRecord, epoch: int, now_s: float) -> None:
        """Return if the job takes batches of this epoch.

        Raises:
            EpochSuperseded: the job is in another epoch.
            Conflict: the job ended more than `taken_after_end_s` ago.
        """
        if epoch != job.epoch:
            raise EpochSuperseded(job.job_id, epoch, job.epoch)
        if job.ended_s is not None and now_s - job.ended_s > self.taken_after_end_s:
            raise Conflict(f"job {job_of(job.job_id)!r} has ended: register its next run first")

    async def _look_up(self, job_id: str) -> JobRecord:
        return await run_in_threadpool(self._read, job_id)

    def _read(self, job_id: str) -> JobRecord:
        with self._store.read() as conn:
            return jobs.get(conn, job_id)
