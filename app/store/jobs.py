"""Jobs, each with its current run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, select

from app.errors import JobNotFound
from app.store.database import JobId, from_cursor, split_page, to_cursor
from app.store.projects import owns
from app.store.recordings import RecordingPlan, parse_plans, plans_of_run
from app.store.runs import (
    IngestCounts,
    RecorderDrops,
    Registration,
    WorkerDrops,
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
from app.trace.job import DEFAULT_PROJECT, Parallelism, job_key, job_of
from app.trace.ops import BUILT_IN, OpTypes


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job and its current run.

    `latest` is that run's newest closed window with figures, or its open one before the first;
    `recent` are the steps that the job is judged by, None before the first figures.
    `silent_ranks` send nothing while others do; `silent_workers` (dp_rank * pp_size + stage) are
    their workers, in the same order. Since `stalled_since_s` no rank sends. `counts` is None
    before the first operation, `drops` None if no recorder has reported any. `plans` say which
    steps it is to record.
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
    counts: IngestCounts | None = None
    drops: RecorderDrops | None = None
    plans: Sequence[RecordingPlan] = ()


def get(conn: Connection, job_id: str) -> JobRecord:
    """The job.

    Raises:
        JobNotFound: it never registered.
    """
    row = conn.execute(_records().where(jobs.c.job_id == job_id)).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return _record(row._mapping)


def name_and_labels(conn: Connection, job_id: str) -> tuple[str, dict[str, str]]:
    """Those of the job's current run; raises JobNotFound as `get` does."""
    current = and_(runs.c.job_id == jobs.c.job_id, runs.c.epoch == jobs.c.epoch)
    query = select(runs.c.name, runs.c.labels).select_from(jobs.join(runs, current))
    row = conn.execute(query.where(jobs.c.job_id == job_id)).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return row.name, row.labels


def page(
    conn: Connection,
    *,
    project: str = DEFAULT_PROJECT,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[JobRecord], str | None]:
    """A project's jobs in the order of their ids, and the cursor of the next page."""
    query = _records().where(owns(project, jobs.c.job_id)).order_by(jobs.c.job_id).limit(limit + 1)
    if cursor is not None:
        # Without its project, which is the caller's own whatever a cursor says.
        last = job_key(project, from_cursor(cursor, tuple[JobId])[0])
        query = query.where(jobs.c.job_id > last)
    rows, more = split_page([_record(row._mapping) for row in conn.execute(query)], limit)
    return rows, to_cursor(job_of(rows[-1].job_id)) if more else None


def registration(conn: Connection, job_id: str, epoch: int) -> Registration:
    """What one run registered with, current or not.

    Raises:
        JobNotFound: no such run registered.
    """
    query = select(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return registration_of(row._mapping)


def _records() -> Select[Any]:
    of_run = and_(windows.c.job_id == jobs.c.job_id, windows.c.epoch == jobs.c.epoch)
    current = and_(runs.c.job_id == jobs.c.job_id, runs.c.epoch == jobs.c.epoch)
    same_window = and_(
        *(window_briefs.c[key] == windows.c[key] for key in ("job_id", "epoch", "first_step"))
    )
    counted = and_(ingest_counts.c.job_id == jobs.c.job_id, ingest_counts.c.epoch == jobs.c.epoch)
    summary = [column.label(f"window_{column.name}") for column in SUMMARY_COLUMNS]
    counts = [ingest_counts.c[name].label(f"count_{name}") for name in IngestCounts.__slots__]
    dropped = and_(drops.c.job_id == jobs.c.job_id, drops.c.epoch == jobs.c.epoch)
    beside = [drops.c[name].label(f"drops_{name}") for name in RecorderDrops._fields]
    return (
        select(runs, *summary, *counts, *beside, recordings.c.plans, window_briefs.c.brief)
        .select_from(jobs.join(runs, current))
        .join(windows, and_(of_run, windows.c.first_step == newest_with_figures()), isouter=True)
        .join(window_briefs, same_window, isouter=True)
        .join(ingest_counts, counted, isouter=True)
        .join(drops, dropped, isouter=True)
        .join(recordings, recordings.c.job_id == jobs.c.job_id, isouter=True)
    )


def _record(row: RowMapping) -> JobRecord:
    made = ("parallelism", "latest", "recent", "op_types", "counts", "drops", "plans")
    values = {name: row[name] for name in JobRecord.__slots__ if name not in made}
    window = {column.name: row[f"window_{column.name}"] for column in SUMMARY_COLUMNS}
    latest = None if window["epoch"] is None else summary_of(window)
    counted = {name: row[f"count_{name}"] for name in IngestCounts.__slots__}
    return JobRecord(
        **values,
        parallelism=parallelism_of(row),
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
    return RecorderDrops(total, num_workers, [WorkerDrops(*each) for each in worst])
