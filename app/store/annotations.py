"""Annotations: events beside training that people and programs report, such as a deploy.

Each is of one job, or of all jobs of a project that its matchers fit.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Literal

from sqlalchemy import ColumnElement, Connection, delete, func, or_, select

from app.alerts.labels import Matcher
from app.errors import AnnotationNotFound, InvalidRequest, TooManyRequests
from app.store import jobs
from app.store.alerting.alerts import MAX_ACTOR, check_matchers
from app.store.columns import checked_text, clipped
from app.store.database import HexId, ListOrder, from_cursor, insert_new, of_run, one_row, to_cursor
from app.store.runs import current_epoch
from app.store.tables import annotations, run_hosts
from app.trace.job import job_of, project_of

AnnotationKind = Literal[
    "deploy",
    "checkpoint",
    "config-change",
    "maintenance",
    "node-drained",
    "node-not-ready",
    "pod-evicted",
    "job-requeued",
    "note",
    "other",
]

# Of a job, and beside them of the whole project; when another one comes, the oldest goes.
MAX_ANNOTATIONS = 1000
MAX_PER_MINUTE = 60  # of a job, and of the whole project
MAX_TEXT = 500
MAX_SOURCE = 64
MAX_KEY = 128
# A host's clock may be ahead of the server's.
MAX_AHEAD_S = 3600.0
_MINUTE_S = 60.0
_ID_BYTES = 12
_HOST_LABEL = "host"


@dataclass(frozen=True, slots=True)
class Annotation:
    """One event, from `at_s` to `ends_s` (Unix seconds; None: a moment).

    Without `job_id` it is of every job of the project that the matchers fit. `step` and its run's
    `epoch` are None unless the reporter gave a step. `host` is the one that it is about.
    """

    annotation_id: str
    project: str
    job_id: str | None
    matchers: Sequence[Matcher]
    kind: AnnotationKind
    text: str
    host: str | None
    at_s: float
    ends_s: float | None
    epoch: int | None
    step: int | None
    source: str
    author: str
    created_s: float

    def is_of(self, labels: Mapping[str, str], hosts: Iterable[str]) -> bool:
        """Whether the matchers fit a job with these labels on these hosts."""
        names = [*hosts]
        return all(
            any(fnmatchcase(name, matcher.pattern) for name in names) != matcher.is_negative
            if matcher.label == _HOST_LABEL
            else matcher.matches(labels)
            for matcher in self.matchers
        )


_TABLE = annotations
_COLUMNS = tuple(_TABLE.c[field.name] for field in fields(Annotation))
_ORDER = ListOrder((_TABLE.c.at_s, _TABLE.c.annotation_id), tuple[float, HexId])
_NEWEST_FIRST = (_TABLE.c.at_s.desc(), _TABLE.c.annotation_id.desc())


def new_id(project: str, job_id: str | None, idempotency_key: str | None) -> str:
    """A new id; the same one for every attempt with the same key and job."""
    if idempotency_key is None:
        return secrets.token_hex(_ID_BYTES)
    named = "\0".join((project, job_id or "", idempotency_key))
    return hashlib.sha256(named.encode()).hexdigest()[: 2 * _ID_BYTES]


def add(conn: Connection, wanted: Annotation) -> tuple[Annotation, bool]:
    """Save an annotation; returns it and whether it is new.

    With an id that is stored already, the stored one. Over MAX_ANNOTATIONS the oldest are removed.

    Raises:
        JobNotFound: the job never registered.
        InvalidRequest: a text is too long, or a time or a step does not fit.
        TooManyRequests: MAX_PER_MINUTE were added in the last minute.
    """
    _check(wanted)
    if wanted.job_id is not None:
        epoch = current_epoch(conn, wanted.job_id)
        wanted = replace(wanted, epoch=None if wanted.step is None else epoch)
    query = select(*_COLUMNS).where(_TABLE.c.annotation_id == wanted.annotation_id)
    if (stored := conn.execute(query).one_or_none()) is not None:
        return Annotation(*stored), False
    _check_rate(conn, wanted)
    wanted = replace(wanted, author=clipped(wanted.author, MAX_ACTOR))
    insert_new(conn, _TABLE, [asdict(wanted)])  # another process may have stored the same attempt
    _remove_oldest(conn, wanted)
    return wanted, True


def get(conn: Connection, project: str, annotation_id: str) -> Annotation:
    """One annotation of a project, of a job or of all; raises AnnotationNotFound."""
    query = select(*_COLUMNS).filter_by(project=project, annotation_id=annotation_id)
    return Annotation(*one_row(conn, query, AnnotationNotFound(annotation_id)))


def remove(conn: Connection, project: str, annotation_id: str) -> Annotation:
    """Delete an annotation and return it; raises as `get` does."""
    removed = delete(_TABLE).filter_by(project=project, annotation_id=annotation_id)
    row = one_row(conn, removed.returning(*_COLUMNS), AnnotationNotFound(annotation_id))
    return Annotation(*row)


@dataclass(frozen=True, slots=True)
class AnnotationFilter:
    """Which annotations are wanted: those that overlap [since_s, until_s), of these kinds."""

    since_s: float | None = None
    until_s: float | None = None
    kinds: Sequence[AnnotationKind] = ()


def page(
    conn: Connection,
    project: str,
    wanted: AnnotationFilter,
    *,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[Annotation], str | None]:
    """All annotations of a project and its jobs, the newest first, and the next page's cursor."""
    query = select(*_COLUMNS).where(_TABLE.c.project == project, *_conditions(wanted))
    rows, more = _ORDER.page(conn, query, cursor, limit)
    return [Annotation(*row) for row in rows], more


def page_of_job(
    conn: Connection,
    job_id: str,
    wanted: AnnotationFilter,
    *,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[Annotation], str | None]:
    """A job's annotations and fitting ones of the project, as `page` gives; raises JobNotFound."""
    events = of_job(conn, job_id, wanted)
    if cursor is not None:
        before = from_cursor(cursor, _ORDER.shape)
        events = [event for event in events if (event.at_s, event.annotation_id) < before]
    if len(events) <= limit:
        return events, None
    last = events[limit - 1]
    return events[:limit], to_cursor(last.at_s, last.annotation_id)


def of_job(
    conn: Connection,
    job_id: str,
    wanted: AnnotationFilter | None = None,
    *,
    limit: int = 2 * MAX_ANNOTATIONS,
) -> list[Annotation]:
    """A job's annotations and the project's that fit it, the newest first; raises JobNotFound."""
    _, labels = jobs.name_and_labels(conn, job_id)
    of_project = (_TABLE.c.project == project_of(job_id)) & _TABLE.c.job_id.is_(None)
    query = select(*_COLUMNS).where(or_(_TABLE.c.job_id == job_id, of_project))
    query = query.where(*_conditions(wanted or AnnotationFilter()))
    rows = conn.execute(query.order_by(*_NEWEST_FIRST).limit(limit))
    events = [Annotation(*row) for row in rows]
    all_labels = {**labels, "job": job_of(job_id), "project": project_of(job_id)}
    hosts: Sequence[str] = ()
    if any(matcher.label == _HOST_LABEL for event in events for matcher in event.matchers):
        current_run = of_run(run_hosts, job_id, current_epoch(conn, job_id))
        hosts = conn.scalars(select(run_hosts.c.host).where(*current_run)).all()
    return [event for event in events if event.job_id is not None or event.is_of(all_labels, hosts)]


def _conditions(wanted: AnnotationFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.since_s is not None:
        conditions.append(func.coalesce(_TABLE.c.ends_s, _TABLE.c.at_s) >= wanted.since_s)
    if wanted.until_s is not None:
        conditions.append(_TABLE.c.at_s < wanted.until_s)
    if wanted.kinds:
        conditions.append(_TABLE.c.kind.in_(sorted(wanted.kinds)))
    return conditions


def _check(wanted: Annotation) -> None:
    checked_text("text", wanted.text, MAX_TEXT)
    checked_text("source", wanted.source, MAX_SOURCE)
    checked_text("host", wanted.host or "", MAX_ACTOR)
    check_matchers(wanted.matchers)
    if not wanted.text and not wanted.host and wanted.kind in ("note", "other"):
        raise InvalidRequest(f"text: an annotation of kind {wanted.kind} needs one")
    if wanted.at_s > wanted.created_s + MAX_AHEAD_S:
        raise InvalidRequest("at: want a time that is not more than an hour ahead")
    if wanted.ends_s is not None and wanted.ends_s < wanted.at_s:
        raise InvalidRequest("ends_at: want a time that is not before `at`")
    if wanted.job_id is None and wanted.step is not None:
        raise InvalidRequest("step: only an annotation of one job has a step")


def _check_rate(conn: Connection, wanted: Annotation) -> None:
    since_s = wanted.created_s - _MINUTE_S
    counted = select(func.count()).select_from(_TABLE).where(*_beside(wanted))
    number = conn.execute(counted.where(_TABLE.c.created_s > since_s)).scalar_one()
    if number >= MAX_PER_MINUTE:
        whose = "the project" if wanted.job_id is None else f"job {job_of(wanted.job_id)!r}"
        message = f"{whose} has had {MAX_PER_MINUTE} annotations in a minute, the maximum"
        raise TooManyRequests(message, retry_after_s=int(_MINUTE_S))


def _remove_oldest(conn: Connection, added: Annotation) -> None:
    query = select(_TABLE.c.annotation_id).where(*_beside(added)).order_by(*_NEWEST_FIRST)
    old = conn.scalars(query.offset(MAX_ANNOTATIONS).limit(MAX_PER_MINUTE)).all()
    if old:
        conn.execute(delete(_TABLE).where(_TABLE.c.annotation_id.in_(old)))


def _beside(wanted: Annotation) -> tuple[ColumnElement[bool], ...]:
    """Conditions of the annotations that are counted together with this one."""
    if wanted.job_id is not None:
        return (_TABLE.c.job_id == wanted.job_id,)
    return (_TABLE.c.project == wanted.project, _TABLE.c.job_id.is_(None))
