"""Jobs whose batches this process has refused for want of room, until that is saved.

What a refused worker did is not known before it has sent it again: by then, that nothing came of
it says nothing about its job.
"""

import re
import threading

from starlette.types import Scope

from app.api.http.principal import TRACES_PATH, principal_of, project_of_request
from app.errors import JobNotFound, PacelineError, QueueUnavailable, StoreUnavailable
from app.store import as_of
from app.store.as_of import ANY_JOB, EVERY_JOB
from app.store.database import Connection
from app.trace.job import job_key

# What a job is judged by; not annotations, of which anybody with a token may send too many.
_DATA = re.compile(r"/api/v1/jobs/([^/]+)/(?:ops|exits)")
# More of a project are as good as all of it.
_MAX_JOBS = 2000
_FOR_WANT_OF_ROOM = (429, 503)


_PART_IS_AWAY = "paceline.part_is_away"


def note_failure(scope: Scope, error: PacelineError) -> None:
    """Note in the request whether it fails since a part of the service does not answer."""
    scope[_PART_IS_AWAY] = isinstance(error, (QueueUnavailable, StoreUnavailable))


class RefusedJobs:
    """Noted on the event loop, saved by another thread every few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: set[str] = set()
        self._has_taken = False  # anything, since it was saved last

    def note(self, scope: Scope, status: int) -> None:
        """Note an answer, if it refuses what a worker has pushed until there is room again.

        Who has no valid token names no job, and counts only where the service itself has no room:
        else anybody could keep it from judging a job.
        """
        path = scope["path"]
        is_data = scope["method"] == "POST" and (path == TRACES_PATH or _DATA.fullmatch(path))
        if is_data and status < 300:
            self._has_taken = True
        if status not in _FOR_WANT_OF_ROOM or not is_data:
            return
        project = project_of_request(scope)
        if project is None:
            job_id = EVERY_JOB if status == 503 else None
        elif len(self._jobs) >= _MAX_JOBS:
            job_id = job_key(project, EVERY_JOB)
        else:
            job_id = _job_of(scope)
        names = (job_id, ANY_JOB if scope.get(_PART_IS_AWAY) else None)
        with self._lock:
            self._jobs.update(name for name in names if name is not None)

    def save(self, conn: Connection, now_s: float) -> None:
        """Save what was noted since the last time.

        Where others' pushes were taken meanwhile, the service is not away: one that fails among
        many, or is made to fail, says nothing of the rest.
        """
        with self._lock:
            noted, self._jobs = self._jobs, set()
            if self._has_taken:
                noted.discard(ANY_JOB)
            self._has_taken = False
        try:
            as_of.note_refused(conn, noted, now_s=now_s)
        except Exception:
            with self._lock:
                self._jobs |= noted
            raise


def _job_of(scope: Scope) -> str | None:
    """The job whose token this is, or that its path names; None where that is none of its own.

    Spans name their jobs inside: those refused with a project's token may be of any of its jobs.
    """
    caller = principal_of(scope)
    named = _DATA.fullmatch(scope["path"])
    name = caller.job if named is None else named[1]
    try:
        return job_key(caller.project, EVERY_JOB) if name is None else caller.key(name)
    except JobNotFound:
        return None
