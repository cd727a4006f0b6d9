"""Jobs whose batches this process has refused for want of room, until that is saved.

What a refused worker did is not known before it has sent it again: by then, that nothing came of
it says nothing about its job.
"""

import re
import threading

from starlette.types import Scope

from app.api.http.principal import principal_of, project_of_request
from app.api.http.request_kinds import kind_of
from app.errors import JobNotFound
from app.store import as_of
from app.store.as_of import EVERY_JOB
from app.store.database import Connection

_OF_JOB = re.compile(r"/api/v1/jobs/([^/]+)(?:/.*)?")
# More are as good as all.
_MAX_JOBS = 2000
_FOR_WANT_OF_ROOM = (429, 503)


class RefusedJobs:
    """Noted on the event loop, saved by another thread every few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: set[str] = set()

    def note(self, scope: Scope, status: int) -> None:
        """Note an answer, if it refuses what a worker has pushed until there is room again.

        Who has no valid token names no job, and counts only where the service itself has no room:
        else anybody could keep it from judging a job.
        """
        if status not in _FOR_WANT_OF_ROOM or not kind_of(scope).is_push:
            return
        job_id: str | None = EVERY_JOB if status == 503 else None
        if project_of_request(scope) is not None:
            job_id = _job_of(scope)
        if job_id is not None:
            with self._lock:
                self._jobs.add(EVERY_JOB if len(self._jobs) >= _MAX_JOBS else job_id)

    def save(self, conn: Connection, now_s: float) -> None:
        """Save what was noted since the last time."""
        with self._lock:
            noted, self._jobs = self._jobs, set()
        try:
            as_of.note_refused(conn, noted, now_s=now_s)
        except Exception:
            with self._lock:
                self._jobs |= noted
            raise


def _job_of(scope: Scope) -> str | None:
    """The job whose token this is, or that its path names; None where that is none of its own."""
    caller = principal_of(scope)
    named = _OF_JOB.fullmatch(scope["path"])
    name = caller.job if named is None else named[1]
    try:
        return None if name is None else caller.key(name)
    except JobNotFound:
        return None
