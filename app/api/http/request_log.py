"""Counts every answer by route and status; logs those with status 400 and above.

`ApiMetrics` are the counters of one API process for /metrics; they name no project, job or worker.
`RefusedJobs` are the jobs whose batches this process has refused for want of room, until that is
saved.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.alerts.picture_links import PICTURES_PATH
from app.api.http.auth import header
from app.api.http.principal import SHARE_PATH, TRACES_PATH, principal_of, project_of_request
from app.errors import JobNotFound, PacelineError, QueueUnavailable, StoreUnavailable
from app.store import as_of
from app.store.as_of import ANY_JOB, EVERY_JOB
from app.store.database import Connection
from app.trace.job import job_key

# The median of an acknowledgement is 2 to 10 ms; after 2 s the queue counts as unavailable.
_ACK_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ApiMetrics:
    """Counters of one process, in their own registry.

    Every operation of a readable batch counts as received, and then as refused or acknowledged. Of
    an unreadable batch the number is unknown: only `requests` counts it. A batch that was refused
    because the queue did not answer may be in the queue nevertheless.
    """

    def __init__(self) -> None:
        # No `_created` series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._batches = self._counter("batches_received", "Batches that could be read.")
        self._refused_whole = self._counter(
            "batches_refused", "Those refused whole, by why.", "reason"
        )
        self._received = self._counter("ops_received", "Operations in batches that could be read.")
        self._refused = self._counter("ops_refused", "Those that were not taken, by why.", "reason")
        self._rejected_spans = self._counter("spans_rejected", "Spans (OTLP) that were not taken.")
        self._requests = self._counter("requests", "Answers, by route and status.", "route status")
        self._scrape_errors = self._counter(
            "scrape_errors", "Readings of store, queue or jobs that failed: not shown.", "source"
        )
        self._ack_s = Histogram(
            "paceline_ack_seconds",
            "From the whole of a batch's body to its 202.",
            registry=self.registry,
            buckets=_ACK_BUCKETS_S,
        )
        self._refused_rows = self._refused.labels("invalid")
        self._answers: dict[tuple[str, int], Counter] = {}
        for source in ("queue", "store", "jobs"):
            self._scrape_errors.labels(source)

    def batch(self, *, rows: int, refused: int, ack_s: float) -> None:
        """Count an acknowledged batch; `refused` of its rows were invalid."""
        self._batches.inc()
        self._received.inc(rows)
        if refused:
            self._refused_rows.inc(refused)
        self._ack_s.observe(ack_s)

    def refuse(self, *, rows: int, reason: str) -> None:
        """Count a readable batch that was refused whole; `reason` is the problem's code."""
        self._batches.inc()
        self._refused_whole.labels(reason).inc()
        self._received.inc(rows)
        self._refused.labels(reason).inc(rows)

    def reject_spans(self, number: int) -> None:
        """Count spans that were not taken."""
        self._rejected_spans.inc(number)

    def request(self, route: str, status: int) -> None:
        """Count an answer; status 0 if the caller had disconnected before."""
        answers = self._answers.get((route, status))
        if answers is None:  # cached: `labels` costs more than all the rest
            answers = self._answers[route, status] = self._requests.labels(route, status)
        answers.inc()

    def scrape_failed(self, source: str) -> None:
        """Count a source that could not be read for /metrics."""
        self._scrape_errors.labels(source).inc()

    def _counter(self, name: str, help_text: str, labels: str = "") -> Counter:
        return Counter(f"paceline_{name}", help_text, labels.split(), registry=self.registry)


# Pushes that a job is judged by; not annotations, of which any token may send too many.
_DATA = re.compile(r"/api/v1/jobs/([^/]+)/(?:ops|exits)")
# Beyond this number, all jobs of the project count as refused.
_MAX_JOBS = 2000
_FOR_WANT_OF_ROOM = (429, 503)
_PART_IS_AWAY = "paceline.part_is_away"


def note_failure(scope: Scope, error: PacelineError) -> None:
    """Note in the request whether it fails since a part of the service does not answer."""
    scope[_PART_IS_AWAY] = isinstance(error, (QueueUnavailable, StoreUnavailable))


class RefusedJobs:
    """Noted on the event loop, saved by another thread every few seconds.

    The steps of a refused worker are not known until it has sent them again: until then, missing
    data says nothing about its job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: set[str] = set()
        self._has_taken = False  # anything, since it was saved last

    def note(self, scope: Scope, status: int) -> None:
        """Note an answer, if it refuses what a worker has pushed until there is room again.

        A caller without a valid token names no job, and counts only where the service itself has
        no room: otherwise any caller could keep the service from judging a job.
        """
        path = scope["path"]
        is_data = scope["method"] == "POST" and (path == TRACES_PATH or _DATA.fullmatch(path))
        # The report of a rank's end needs no queue, nor do spans that wait for their step.
        if is_data and status == 202 and path.endswith("/ops"):
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
    """The job of the token, or the job in the path; None if that is not the caller's own.

    Spans name their jobs inside: those refused with a project's token may be of any of its jobs.
    """
    caller = principal_of(scope)
    named = _DATA.fullmatch(scope["path"])
    name = caller.job if named is None else named[1]
    try:
        return job_key(caller.project, EVERY_JOB) if name is None else caller.key(name)
    except JobNotFound:
        return None


log = structlog.get_logger()

# A flood of refusals must not fill a disk; the next line says how many were left out.
MAX_LINES_PER_S = 20
_MAX_PATH_CHARS = 200
_MAX_LENGTH_CHARS = 15
_PROBES = {"healthz", "readyz", "metrics"}


class RequestLog:
    """Counts and logs answers; `nouns` are the routes that are counted by name."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        measured: ApiMetrics,
        nouns: Iterable[str],
        refused: RefusedJobs,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._measured = measured
        self._nouns = frozenset(nouns)
        self._refused = refused
        self._monotonic = monotonic
        self._lines = LogRateLimit(monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun_s, status = self._monotonic(), 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            route = route_label(scope["path"], self._nouns)
            self._measured.request(route, status)
            self._refused.note(scope, status)
            if status >= 400:
                self._log(scope, route, status, 1e3 * (self._monotonic() - begun_s))

    def _log(self, scope: Scope, route: str, status: int, took_ms: float) -> None:
        left_out = self._lines.take()
        if left_out is None:
            return
        write = log.warning if status >= 500 else log.info
        length = header(scope, b"content-length")
        write(
            "request refused",
            method=scope["method"],
            route=route,
            # Without the query, which may hold secrets.
            path=loggable_path(scope["path"]),
            status=status,
            code=scope.get("problem"),
            ms=round(took_ms, 1),
            bytes=None if length is None else length[:_MAX_LENGTH_CHARS].decode("latin-1"),
            **({"lines_left_out": left_out} if left_out else {}),
        )


def loggable_path(path: str) -> str:
    """The path for the log: without links, which are as good as a token."""
    for links in (PICTURES_PATH, SHARE_PATH):
        if path.startswith(links):
            return f"{links}..."
    return path[:_MAX_PATH_CHARS]


class LogRateLimit:
    """Lets `MAX_LINES_PER_S` lines per second through."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._second_began = float("-inf")
        self._written = 0
        self._left_out = 0

    def take(self) -> int | None:
        """Number of lines left out before this one; None to leave this one out as well."""
        now_s = self._monotonic()
        if now_s - self._second_began >= 1.0:
            self._second_began, self._written = now_s, 0
        if self._written >= MAX_LINES_PER_S:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def route_labels(paths: Iterable[str]) -> set[str]:
    """Labels of routes with these paths: words of the route, never of a caller."""
    return {_label(path) for path in paths}


def route_label(path: str, nouns: Iterable[str]) -> str:
    """Label of a request: ops, windows, ..., a probe's name, static, page or other.

    Spans of OTLP are `traces`.
    """
    if path == TRACES_PATH:
        return "traces"
    if path.startswith("/api/"):
        noun = _label(path)
        return noun if noun in nouns else "other"
    first = path[1:].partition("/")[0]
    return first if first in _PROBES or first == "static" else "page"


def _label(path: str) -> str:
    """The noun: `ops` of /api/v1/jobs/llm-70b/ops, `jobs` of /api/v1/jobs/llm-70b."""
    parts = path.split("/", 6)
    place = 5 if len(parts) > 5 and parts[3] == "jobs" else 3
    return parts[place] if len(parts) > place else ""
