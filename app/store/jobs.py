"""Jobs, each with its current run; archived and deleted ones; labels set by people.

An archived job is kept like any other and only left out of lists and figures. A deleted one can be
restored for `RESTORABLE_FOR_S`; after that, retention removes its rows (app/store/retention.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, func, select, update

from app.errors import Conflict, InvalidRequest, JobBeingRemoved, JobNotFound
from app.store.alerting.tables import alerts
from app.store.database import JobId, from_cursor, of_run, one_row, same_run, split_page, to_cursor
from app.store.projects import owns
from app.store.recordings import RecordingPlan, parse_plans, plans_of_run
from app.store.runs import (
    TIMES_LABEL,
    IngestCounts,
    RecorderDrops,
    Registration,
    WorkerDrops,
    current_epoch,
    parallelism_of,
    registration_of,
)
from app.store.tables import drops, ingest_counts, jobs, recordings, runs, window_briefs, windows
from app.store.windows import (
    SUMMARY_COLUMNS,
    RecentSummary,
    WindowSummary,
    newest_with_figures,
    recent_summary,
    summary_of,
)
from app.trace import ops
from app.trace.exits import EndCause, EndedAs
from app.trace.job import DEFAULT_PROJECT, Parallelism, job_key, job_of
from app.trace.ops import BUILT_IN, OpTypes

Lifecycle = Literal["active", "archived", "deleted"]
LIFECYCLES: tuple[Lifecycle, ...] = get_args(Lifecycle)
RESTORABLE_FOR_S = 86_400.0
MAX_LABELS = 32
# They say how times were recorded, which only the recorder knows.
RECORDER_LABELS = (TIMES_LABEL, "host_times")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job and its current run.

    `latest` is that run's newest closed window with figures, or its open one before the first;
    `recent` are the steps that the job is judged by, None before the first figures. `labels` are
    those of the run, with the `edited_labels` over them.

    `silent_ranks` send nothing while others do; `silent_workers` (dp_rank * pp_size + stage) are
    their workers, in the same order. Since `stalled_since_s` no rank sends. `counts` is None
    before the first operation, `drops` None if no recorder has reported any. `plans` say which
    steps it is to record. `ended_as` and `end_cause` (app/trace/exits.py) are None unless its ranks
    have reported how they ended.
    """

    job_id: str
    name: str
    parallelism: Parallelism
    num_gpus: int
    framework: str | None
    labels: dict[str, str]
    epoch: int
    run_key: str
    registered_s: float
    ended_s: float | None
    last_data_s: float | None
    last_step: int | None
    latest: WindowSummary | None
    recent: RecentSummary | None = None
    op_types: OpTypes = BUILT_IN
    silent_ranks: Sequence[int] | None = None
    silent_workers: Sequence[int] | None = None
    silent_since_s: float | None = None
    stalled_since_s: float | None = None
    ended_as: EndedAs | None = None
    end_cause: EndCause | None = None
    counts: IngestCounts | None = None
    drops: RecorderDrops | None = None
    plans: Sequence[RecordingPlan] = ()
    edited_labels: Mapping[str, str] = field(default_factory=dict)
    archived_s: float | None = None
    deleted_s: float | None = None

    @property
    def lifecycle(self) -> Lifecycle:
        """Whether the job is active, archived or deleted."""
        if self.deleted_s is not None:
            return "deleted"
        return "active" if self.archived_s is None else "archived"

    @property
    def removal_s(self) -> float | None:
        """Unix time until which a deleted job can be restored."""
        return None if self.deleted_s is None else self.deleted_s + RESTORABLE_FOR_S


def get(conn: Connection, job_id: str) -> JobRecord:
    """The job; raises JobNotFound."""
    query = _RECORDS.where(jobs.c.job_id == job_id)
    return _record(one_row(conn, query, JobNotFound(job_id))._mapping)


def name_and_labels(conn: Connection, job_id: str) -> tuple[str, dict[str, str]]:
    """Those of the job's current run, as edited; raises JobNotFound as `get` does."""
    query = select(runs.c.name, runs.c.labels, jobs.c.edited_labels)
    query = query.select_from(jobs.join(runs, same_run(runs, jobs)))
    row = one_row(conn, query.where(jobs.c.job_id == job_id), JobNotFound(job_id))
    return row.name, row.labels | row.edited_labels


def page(
    conn: Connection,
    *,
    project: str = DEFAULT_PROJECT,
    lifecycle: Lifecycle = "active",
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[JobRecord], str | None]:
    """A project's jobs in the order of their ids, and the cursor of the next page."""
    query = _RECORDS.where(owns(project, jobs.c.job_id), is_in(lifecycle))
    if cursor is not None:
        # Without its project, which is the caller's own whatever a cursor says.
        last = job_key(project, from_cursor(cursor, tuple[JobId])[0])
        query = query.where(jobs.c.job_id > last)
    rows = conn.execute(query.order_by(jobs.c.job_id).limit(limit + 1))
    records, more = split_page([_record(row._mapping) for row in rows], limit)
    return records, to_cursor(job_of(records[-1].job_id)) if more else None


def registration(conn: Connection, job_id: str, epoch: int) -> Registration:
    """What one run registered with, current or not; raises JobNotFound."""
    query = select(runs).where(*of_run(runs, job_id, epoch))
    return registration_of(one_row(conn, query, JobNotFound(job_id))._mapping)


# Built once: a consumer asks it in every turn.
_LABELS_OF_RUN = (
    select(runs.c.labels, jobs.c.edited_labels)
    .select_from(jobs.join(runs))
    .where(jobs.c.job_id == bindparam("of_job"), runs.c.epoch == bindparam("of_epoch"))
)


def labels_of_run(conn: Connection, job_id: str, epoch: int) -> dict[str, str] | None:
    """Labels that one run registered, with the job's edited ones over them; None without it."""
    row = conn.execute(_LABELS_OF_RUN, {"of_job": job_id, "of_epoch": epoch}).one_or_none()
    return None if row is None else dict(row.labels | row.edited_labels)


def is_in(lifecycle: Lifecycle) -> ColumnElement[bool]:
    """Whether a row of `jobs` is active, archived or deleted, as a condition."""
    if lifecycle == "deleted":
        return jobs.c.deleted_s.is_not(None)
    is_archived = jobs.c.archived_s.is_not(None)
    return jobs.c.deleted_s.is_(None) & (is_archived if lifecycle == "archived" else ~is_archived)


def count_by_lifecycle(conn: Connection, project: str) -> dict[Lifecycle, int]:
    """Number of a project's jobs that are archived, and of those that can be restored."""
    has_run = select(runs.c.job_id).where(runs.c.job_id == jobs.c.job_id).exists()
    counted = select(func.count()).select_from(jobs).where(owns(project, jobs.c.job_id), has_run)
    return {
        lifecycle: int(conn.execute(counted.where(is_in(lifecycle))).scalar_one())
        for lifecycle in LIFECYCLES[1:]
    }


class JobMatch(NamedTuple):
    """A job that matches a search; `labels` as in `JobRecord`."""

    job_id: str
    name: str
    labels: dict[str, str]
    is_archived: bool


def matching(conn: Connection, project: str, words: Sequence[str], *, limit: int) -> list[JobMatch]:
    """A project's jobs with each of the words in their id, name or labels, ignoring case.

    First those that are not archived, then those whose name begins with the first word, then by
    how late they began.
    """
    query = select(
        *(jobs.c.job_id, runs.c.name, runs.c.labels, jobs.c.edited_labels),
        *(jobs.c.archived_s, runs.c.registered_s),
    )
    query = query.select_from(jobs.join(runs, same_run(runs, jobs)))
    query = query.where(owns(project, jobs.c.job_id), jobs.c.deleted_s.is_(None))
    wanted = [word.casefold() for word in words]
    ranked = []
    for job_id, name, registered, edited, archived_s, registered_s in conn.execute(query):
        match = JobMatch(job_id, name, registered | edited, archived_s is not None)
        texts = _searched_texts(match)
        if all(word in "\n".join(texts) for word in wanted):
            begins = bool(wanted) and any(text.startswith(wanted[0]) for text in texts[:2])
            ranked.append(((match.is_archived, not begins, -registered_s, job_id), match))
    return [match for _, match in sorted(ranked, key=lambda pair: pair[0])[:limit]]


def _searched_texts(job: JobMatch) -> list[str]:
    labels = (f"{name}={text}" for name, text in job.labels.items())
    return [text.casefold() for text in (job_of(job.job_id), job.name, *labels)]


def with_alerts(conn: Connection, project: str) -> list[str]:
    """Keys of a project's jobs that have a pending or firing alert."""
    query = select(alerts.c.job_id).where(owns(project, alerts.c.job_id)).distinct()
    return list(conn.execute(query).scalars())


def archive(conn: Connection, job_id: str, *, now_s: float) -> bool:
    """Archive a job; False if it was archived before. Raises JobNotFound."""
    return _set(conn, job_id, jobs.c.archived_s.is_(None), archived_s=now_s)


def unarchive(conn: Connection, job_id: str) -> bool:
    """List an archived job again; False if it was not archived. Raises as `archive` does."""
    return _set(conn, job_id, jobs.c.archived_s.is_not(None), archived_s=None)


def delete(conn: Connection, job_id: str, *, now_s: float) -> bool:
    """Mark a job as deleted; False if it was deleted before. Raises as `archive` does."""
    return _set(conn, job_id, jobs.c.deleted_s.is_(None), deleted_s=now_s)


def restore(conn: Connection, job_id: str) -> bool:
    """Take back the deletion; False if the job was not deleted.

    Raises:
        JobNotFound: it never registered.
        JobBeingRemoved: part of it is removed already.
    """
    began = select(jobs.c.removal_began_s).where(jobs.c.job_id == job_id).with_for_update()
    if conn.execute(began).scalar_one_or_none() is not None:
        raise JobBeingRemoved(job_id)
    return _set(conn, job_id, jobs.c.deleted_s.is_not(None), deleted_s=None)


def edit_labels(
    conn: Connection, job_id: str, changes: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """Set labels over the registered ones; None removes an edit. Returns the old and new edits.

    Raises:
        JobNotFound: the job never registered.
        InvalidRequest: a label is the recorder's own.
        Conflict: more than `MAX_LABELS` would be set.
    """
    own = sorted(set(changes) & set(RECORDER_LABELS))
    if own:
        raise InvalidRequest(f"labels: {own[0]!r} is set by the recorder, register the job with it")
    query = select(jobs.c.edited_labels).where(jobs.c.job_id == job_id).with_for_update()
    before: dict[str, str] = one_row(conn, query, JobNotFound(job_id)).edited_labels
    after = {name: text for name, text in (before | dict(changes)).items() if text is not None}
    if len(after) > MAX_LABELS:
        raise Conflict(f"job {job_of(job_id)!r} would have {len(after)} labels, of {MAX_LABELS}")
    conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(edited_labels=after))
    return before, after


def _set(conn: Connection, job_id: str, changes_it: ColumnElement[bool], **values: Any) -> bool:
    changed = conn.execute(update(jobs).where(jobs.c.job_id == job_id, changes_it).values(**values))
    if not changed.rowcount:
        current_epoch(conn, job_id)
    return changed.rowcount > 0


# All columns of a `JobRecord`, of all jobs.
_IS_LATEST = same_run(windows, jobs) & (windows.c.first_step == newest_with_figures())
_RECORDS = (
    select(
        *(runs, jobs.c.edited_labels, jobs.c.archived_s, jobs.c.deleted_s),
        *(column.label(f"window_{column.name}") for column in SUMMARY_COLUMNS),
        *(ingest_counts.c[name].label(f"count_{name}") for name in IngestCounts.__slots__),
        *(drops.c[name].label(f"drops_{name}") for name in RecorderDrops._fields),
        *(recordings.c.plans, window_briefs.c.brief),
    )
    .select_from(jobs.join(runs, same_run(runs, jobs)))
    .join(windows, _IS_LATEST, isouter=True)
    .join(window_briefs, isouter=True)
    .join(ingest_counts, isouter=True)
    .join(drops, isouter=True)
    .join(recordings, isouter=True)
)


def _record(row: RowMapping) -> JobRecord:
    composed = ("parallelism", "labels", "latest", "recent", "op_types", "counts", "drops", "plans")
    values = {name: row[name] for name in JobRecord.__slots__ if name not in composed}
    window = [row[f"window_{column.name}"] for column in SUMMARY_COLUMNS]
    latest = None if window[0] is None else summary_of(window)
    counted = {name: row[f"count_{name}"] for name in IngestCounts.__slots__}
    return JobRecord(
        **values,
        parallelism=parallelism_of(row),
        labels=row["labels"] | row["edited_labels"],
        latest=latest,
        recent=recent_summary(latest, row["brief"]),
        op_types=ops.parse_stored_op_types(row["op_types"]),
        counts=None if counted["accepted"] is None else IngestCounts(**counted),
        drops=_recorder_drops(row),
        plans=plans_of_run(parse_plans(row["plans"]), row["epoch"]),
    )


def _recorder_drops(row: RowMapping) -> RecorderDrops | None:
    total, num_workers, worst = (row[f"drops_{name}"] for name in RecorderDrops._fields)
    if total is None:
        return None
    return RecorderDrops(total, num_workers, [WorkerDrops(*worker) for worker in worst])
