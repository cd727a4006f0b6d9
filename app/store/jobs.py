"""Jobs and their runs; a run is one epoch of a job, between restarts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    exists,
    func,
    or_,
    select,
    update,
)

from app.errors import (
    Conflict,
    EpochSuperseded,
    InvalidRequest,
    JobLimit,
    JobNotFound,
    RunLimit,
)
from app.store.counts import Counts
from app.store.drops import Drops, WorkerDrops
from app.store.paging import JobId, from_cursor, split, to_cursor
from app.store.projects import owns
from app.store.recordings import Plan, in_run, parsed
from app.store.score_tables import score_reports
from app.store.tables import drops, ingest_counts, jobs, recordings, runs, windows
from app.store.upsert import add_new
from app.store.windows import SUMMARY, WindowSummary, newest_with_figures, summary_of
from app.trace import user_types
from app.trace.job import Job, Parallelism
from app.trace.names import DEFAULT_PROJECT, plain, project_of, qualified
from app.trace.ops import BUILT_IN, OpTypes

TIMES = "times"  # the label that says whose clock a run's times are of, where not the GPUs'
ACTIVE_FOR_S = 86_400.0  # a job that died without a word is not counted for ever
MAX_NEW_RUNS = 600  # of a job, within:
RUNS_WITHIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Registration:
    """What a job says about one of its runs; `run_key` is equal on all its ranks."""

    name: str
    parallelism: Parallelism
    num_gpus: int
    framework: str | None
    labels: dict[str, str]
    run_key: str
    op_types: OpTypes = BUILT_IN

    @property
    def job(self) -> Job:
        """The job as results name it."""
        return Job(self.name, self.parallelism, self.num_gpus, self.op_types)


class Registered(NamedTuple):
    """The epoch of a run, and whether this registration began it."""

    epoch: int
    created: bool


class Heard(NamedTuple):
    """When (Unix time) a run registered, and something of it came last; None: nothing ever did."""

    registered_s: float
    last_data_s: float | None


class EndedRun(NamedTuple):
    """A run whose last window is still to be closed; superseded, or ended of itself."""

    job_id: str
    epoch: int
    is_superseded: bool


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


def register(
    conn: Connection,
    job_id: str,
    registration: Registration,
    *,
    now_s: float,
    most_active: int | None = None,
) -> Registered:
    """The epoch of this run: the same for the same run key, the next one for a new key.

    With `most_active`, a run begins only while its project has fewer other jobs that are at work
    or began a run within a day, and its job fewer than `MAX_NEW_RUNS` new ones.

    Raises:
        InvalidRequest: a text that a database cannot keep.
        JobLimit: the project has that many jobs.
        RunLimit: the job begins too many runs.
        EpochSuperseded: a newer run has registered since.
        Conflict: the same run registered with other parallel sizes, operation types or times.
    """
    _check_texts(registration)
    current = _lock(conn, job_id)
    known = conn.execute(
        select(runs).where(runs.c.job_id == job_id, runs.c.run_key == registration.run_key)
    ).one_or_none()
    if known is None:
        _check_active(conn, job_id, most_active, now_s)
        _begin_run(conn, job_id, current + 1, registration, now_s)
        return Registered(current + 1, created=True)
    if known.epoch != current:
        raise EpochSuperseded(job_id, known.epoch, current)
    _check_agrees(job_id, _registration(known._mapping), registration)
    return Registered(current, created=False)


def end(conn: Connection, job_id: str, *, now_s: float) -> None:
    """The current run has ended; a second call changes nothing."""
    epoch = _current_epoch(conn, job_id)
    conn.execute(_run_update(job_id, epoch).where(runs.c.ended_s.is_(None)).values(ended_s=now_s))


def touch(
    conn: Connection, job_id: str, *, last_data_s: float, last_step: int | None, epoch: int
) -> None:
    """Data of this run came in; times and steps never go back."""
    older = or_(runs.c.last_data_s.is_(None), runs.c.last_data_s < last_data_s)
    run = _run_update(job_id, epoch)
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
    return _registration(row._mapping)


def heard(conn: Connection, job_id: str, epoch: int) -> Heard:
    """When a run that has registered was heard of first and last."""
    query = select(runs.c.registered_s, runs.c.last_data_s)
    row = conn.execute(query.where(runs.c.job_id == job_id, runs.c.epoch == epoch)).one()
    return Heard(*row)


def starting_since(conn: Connection, job_id: str, epoch: int, *, within_s: float) -> float:
    """When (Unix time) the run registered, or the first of those before it that failed to start.

    These sent nothing, did not end, and registered at most `within_s` seconds before the run.
    """
    before = (runs.c.job_id == job_id, runs.c.epoch <= epoch)
    came_to_something = or_(runs.c.last_data_s.is_not(None), runs.c.ended_s.is_not(None))
    last = select(func.max(runs.c.epoch)).where(*before, runs.c.epoch < epoch, came_to_something)
    begun_s = select(runs.c.registered_s).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
    query = select(func.min(runs.c.registered_s)).where(
        *before,
        runs.c.epoch > func.coalesce(last.scalar_subquery(), 0),
        runs.c.registered_s >= begun_s.scalar_subquery() - within_s,
    )
    return float(conn.execute(query).scalar_one())


def watched(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """Runs that are not over, have sent something or may do so, and are not said to have stalled.

    Of a run that has registered more than a day ago and never sent anything, nobody waits for it.
    """
    may_begin = runs.c.registered_s > now_s - ACTIVE_FOR_S
    has_begun = runs.c.last_data_s.is_not(None)
    return _going(conn, runs.c.stalled_since_s.is_(None), or_(has_begun, may_begin))


def starting(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """Of these runs, those that have sent nothing so far."""
    may_begin = runs.c.registered_s > now_s - ACTIVE_FOR_S
    return _going(conn, runs.c.stalled_since_s.is_(None), runs.c.last_data_s.is_(None), may_begin)


def stalled(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """Runs that are not over and have stalled within a day."""
    return _going(conn, runs.c.stalled_since_s > now_s - ACTIVE_FOR_S)


def only_scored(conn: Connection, *, stalled: bool = False) -> list[tuple[str, int]]:
    """Runs that are not over, of which scores came, and of whose jobs never an operation.

    Of these none need come. With `stalled`, those alone that are said to have stalled.
    """
    any_run = runs.alias()
    is_scored = exists().where(
        score_reports.c.job_id == runs.c.job_id, score_reports.c.epoch == runs.c.epoch
    )
    is_recorded = exists().where(
        any_run.c.job_id == runs.c.job_id, any_run.c.last_data_s.is_not(None)
    )
    told = [runs.c.stalled_since_s.is_not(None)] if stalled else []
    return _going(conn, is_scored, ~is_recorded, *told)


def reopen(conn: Connection, job_id: str, epoch: int) -> None:
    """Something came for the run after its last window was closed: it is to be closed again."""
    run = _run_update(job_id, epoch)
    conn.execute(run.where(runs.c.is_closed).values(is_closed=False))


def unfinished(conn: Connection) -> list[EndedRun]:
    """Runs that are over, and whose last window has not been closed yet."""
    over = or_(runs.c.ended_s.is_not(None), runs.c.superseded_s.is_not(None))
    query = select(runs.c.job_id, runs.c.epoch, runs.c.ended_s).where(~runs.c.is_closed, over)
    rows = conn.execute(query.order_by(runs.c.job_id, runs.c.epoch))
    return [EndedRun(row.job_id, row.epoch, row.ended_s is None) for row in rows]


def over_through(conn: Connection, job_id: str) -> int:
    """The newest run that has ended and was closed; 0: none."""
    ended = (runs.c.ended_s.is_not(None), runs.c.is_closed)
    query = select(func.max(runs.c.epoch)).where(runs.c.job_id == job_id, *ended)
    return int(conn.execute(query).scalar_one() or 0)


def mark_closed(conn: Connection, job_id: str, epoch: int) -> None:
    """The run's last window has been closed."""
    conn.execute(_run_update(job_id, epoch).values(is_closed=True))


def _going(conn: Connection, *conditions: ColumnElement[bool]) -> list[tuple[str, int]]:
    """Job id and epoch of the runs that are not over and meet these."""
    going = (runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None), ~runs.c.is_closed)
    query = select(runs.c.job_id, runs.c.epoch).where(*going, *conditions)
    rows = conn.execute(query.order_by(*query.selected_columns))
    return [(row.job_id, row.epoch) for row in rows]


def _check_texts(registration: Registration) -> None:
    labels = registration.labels
    named = {"name": [registration.name], "run_key": [registration.run_key]}
    named |= {"framework": [registration.framework or ""], "labels": [*labels, *labels.values()]}
    for field, texts in named.items():
        for text in texts:
            if "\0" in text or not _is_unicode(text):
                raise InvalidRequest(f"{field} holds a character that is no text")


def _check_agrees(job_id: str, known: Registration, registration: Registration) -> None:
    differs = None
    if known.parallelism != registration.parallelism:
        differs = "parallel sizes"
    # In any order: the first registration's order says which code each one has.
    elif set(known.op_types.user) != set(registration.op_types.user):
        differs = "op_types"
    # What one way in sends, the other takes for batches of its own that have changed.
    elif known.labels.get(TIMES) != registration.labels.get(TIMES):
        differs = f"times (label {TIMES})"
    if differs is not None:
        raise Conflict(
            f"this run of job {plain(job_id)!r} has registered with other {differs}: "
            "all its ranks must name the same, and a new run needs a new run_key"
        )


def _check_active(conn: Connection, job_id: str, most: int | None, now_s: float) -> None:
    # Two that register at the same moment may both be the last one: that does no harm.
    if most is None:
        return
    _check_runs(conn, job_id, now_s)
    of_others = (owns(project_of(job_id), runs.c.job_id), runs.c.job_id != job_id)
    # Ended ones too: who registers and ends without end would fill the tables all the same.
    is_new = runs.c.registered_s > now_s - ACTIVE_FOR_S
    goes_on = and_(~runs.c.is_closed, runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None))
    is_active = or_(is_new, and_(goes_on, runs.c.last_data_s > now_s - ACTIVE_FOR_S))
    counted = select(func.count(runs.c.job_id.distinct())).where(*of_others, is_active)
    num_active = conn.execute(counted).scalar_one()
    if num_active >= most:
        raise JobLimit(
            f"this project has {num_active} jobs that are active or began a run within a day, and "
            f"may have {most}: run further ones under the id of one of these",
            retry_after_s=60,
        )


def _check_runs(conn: Connection, job_id: str, now_s: float) -> None:
    is_new = runs.c.registered_s > now_s - RUNS_WITHIN_S
    counted = select(func.count()).select_from(runs).where(runs.c.job_id == job_id, is_new)
    if conn.execute(counted).scalar_one() >= MAX_NEW_RUNS:
        raise RunLimit(
            f"job {plain(job_id)!r} has begun {MAX_NEW_RUNS} runs within an hour: give all ranks "
            "of one run the same run_key",
            retry_after_s=60,
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lock(conn: Connection, job_id: str) -> int:
    # All ranks register at once: the second waits here until the first has committed.
    add_new(conn, jobs, [{"job_id": job_id, "epoch": 0}])
    query = select(jobs.c.epoch).where(jobs.c.job_id == job_id).with_for_update()
    return int(conn.execute(query).scalar_one())


def _begin_run(
    conn: Connection, job_id: str, epoch: int, registration: Registration, now_s: float
) -> None:
    older = and_(runs.c.job_id == job_id, runs.c.superseded_s.is_(None))
    conn.execute(update(runs).where(older).values(superseded_s=now_s))
    values = {
        **asdict(registration.parallelism),
        "name": registration.name,
        "num_gpus": registration.num_gpus,
        "framework": registration.framework,
        "labels": registration.labels,
        "op_types": user_types.describe(registration.op_types),
        "run_key": registration.run_key,
    }
    conn.execute(
        runs.insert().values(
            job_id=job_id, epoch=epoch, registered_s=now_s, is_closed=False, **values
        )
    )
    conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(epoch=epoch))


def _run_update(job_id: str, epoch: int) -> Any:
    return update(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)


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


def _parallelism(row: RowMapping) -> Parallelism:
    return Parallelism(**{name: row[name] for name in Parallelism.__slots__})


def _registration(row: RowMapping) -> Registration:
    return Registration(
        row["name"],
        _parallelism(row),
        row["num_gpus"],
        row["framework"],
        row["labels"],
        row["run_key"],
        user_types.parse_stored(row["op_types"]),
    )


def _record(row: RowMapping) -> JobRecord:
    made = ("parallelism", "latest", "op_types", "counts", "drops", "plans")
    values = {name: row[name] for name in JobRecord.__slots__ if name not in made}
    window = {column.name: row[f"window_{column.name}"] for column in SUMMARY}
    latest = None if window["epoch"] is None else summary_of(window)
    counted = {name: row[f"count_{name}"] for name in Counts.__slots__}
    return JobRecord(
        **values,
        parallelism=_parallelism(row),
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
