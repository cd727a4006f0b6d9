"""Jobs as they are kept and shown, each with its current run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, or_, select

from app.errors import JobNotFound
from app.store.counts import Counts
from app.store.drops import Drops, WorkerDrops
from app.store.paging import JobId, from_cursor, split, to_cursor
from app.store.projects import owns
from app.store.recordings import Plan, in_run, parsed
from app.store.registering import Registration, parallelism_of, registration_of
from app.store.tables import drops, ingest_counts, jobs, recordings, runs, windows
from app.store.watching import update_of
from app.store.windows import SUMMARY, WindowSummary, newest_with_figures, summary_of
from app.trace import user_types
from app.trace.job import Parallelism
from app.trace.names import DEFAULT_PROJECT, plain, qualified
from app.trace.ops import BUILT_IN, OpTypes


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as its current run has it; `latest` is that run's newest window with figures.

    Of the ranks in `silent_ranks`, which are the `silent_workers` (dp_rank * pp_size + stage), in
    the same order, nothing comes while others go on; since `stalled_since_s` nothing comes of any.
    `counts` is what became of the run's operations, None before the first, `drops` what its
    recorders have dropped, None where none has said. `plans` say which steps it is to record.
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
    op_types: OpTypes = BUILT_IN
    silent_ranks: Sequence[int] | None = None
    silent_workers: Sequence[int] | None = None
    silent_since_s: float | None = None
    stalled_since_s: float | None = None
    counts: Counts | None = None
    drops: Drops | None = None
    plans: Sequence[Plan] = ()


def end(conn: Connection, job_id: str, *, now_s: float) -> None:
    """The current run has ended; a second call changes nothing."""
    epoch = _current_epoch(conn, job_id)
    conn.execute(update_of(job_id, epoch).where(runs.c.ended_s.is_(None)).values(ended_s=now_s))


def touch(
    conn: Connection, job_id: str, *, last_data_s: float, last_step: int | None, epoch: int
) -> None:
    """Data of this run came in; times and steps never go back."""
    older = or_(runs.c.last_data_s.is_(None), runs.c.last_data_s < last_data_s)
    run = update_of(job_id, epoch)
    conn.execute(run.where(older).values(last_data_s=last_data_s))
    if last_step is not None:
        lower = or_(runs.c.last_step.is_(None), runs.c.last_step < last_step)
        conn.execute(run.where(lower).values(last_step=last_step))


def get(conn: Connection, job_id: str) -> JobRecord:
    """The job.

    Raises:
        JobNotFound: it never registered.
    """
    row = conn.execute(_records().where(jobs.c.job_id == job_id)).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return _record(row._mapping)


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
        last = qualified(project, from_cursor(cursor, tuple[JobId])[0])
        query = query.where(jobs.c.job_id > last)
    rows, more = split([_record(row._mapping) for row in conn.execute(query)], limit)
    return rows, to_cursor(plain(rows[-1].job_id)) if more else None


def run(conn: Connection, job_id: str, epoch: int) -> Registration:
    """What one run registered with, current or not.

    Raises:
        JobNotFound: no such run registered.
    """
    query = select(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return registration_of(row._mapping)


def _current_epoch(conn: Connection, job_id: str) -> int:
    epoch = conn.execute(select(jobs.c.epoch).where(jobs.c.job_id == job_id)).scalar_one_or_none()
    if epoch is None:
        raise JobNotFound(job_id)
    return int(epoch)


def _records() -> Select[Any]:
    of_run = and_(windows.c.job_id == jobs.c.job_id, windows.c.epoch == jobs.c.epoch)
    current = and_(runs.c.job_id == jobs.c.job_id, runs.c.epoch == jobs.c.epoch)
    counted = and_(ingest_counts.c.job_id == jobs.c.job_id, ingest_counts.c.epoch == jobs.c.epoch)
    summary = [column.label(f"window_{column.name}") for column in SUMMARY]
    counts = [ingest_counts.c[name].label(f"count_{name}") for name in Counts.__slots__]
    dropped = and_(drops.c.job_id == jobs.c.job_id, drops.c.epoch == jobs.c.epoch)
    beside = [drops.c[name].label(f"drops_{name}") for name in Drops._fields]
    return (
        select(runs, *summary, *counts, *beside, recordings.c.plans)
        .select_from(jobs.join(runs, current))
        .join(windows, and_(of_run, windows.c.first_step == newest_with_figures()), isouter=True)
        .join(ingest_counts, counted, isouter=True)
        .join(drops, dropped, isouter=True)
        .join(recordings, recordings.c.job_id == jobs.c.job_id, isouter=True)
    )


def _record(row: RowMapping) -> JobRecord:
    made = ("parallelism", "latest", "op_types", "counts", "drops", "plans")
    values = {name: row[name] for name in JobRecord.__slots__ if name not in made}
    window = {column.name: row[f"window_{column.name}"] for column in SUMMARY}
    latest = None if window["epoch"] is None else summary_of(window)
    counted = {name: row[f"count_{name}"] for name in Counts.__slots__}
    return JobRecord(
        **values,
        parallelism=parallelism_of(row),
        latest=latest,
        op_types=user_types.parse_stored(row["op_types"]),
        counts=None if counted["accepted"] is None else Counts(**counted),
        drops=_drops(row),
        plans=in_run(parsed(row["plans"]), row["epoch"]),
    )


def _drops(row: RowMapping) -> Drops | None:
    total, num_workers, worst = (row[f"drops_{name}"] for name in Drops._fields)
    if total is None:
        return None
    return Drops(total, num_workers, [WorkerDrops(*each) for each in worst])
