"""Runs of a job: registration, activity, end, and counts. A run is one epoch of a job.

A run is watched from its registration until its last window is closed. Every operation that was
taken from the queue is in exactly one of five counts of its run; collectives inside groups are
counted apart. Recorders report what they dropped before it was sent. Totals are of the whole
service, outlive processes, and only grow.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import ColumnElement, Connection, RowMapping, Update, delete, func, select, update

from app.alerts.rule import Severity
from app.errors import Conflict, EpochSuperseded, JobBeingRemoved, JobLimit, JobNotFound, RunLimit
from app.store import audit
from app.store.alerting.tables import alerts, endpoints
from app.store.columns import checked_text
from app.store.database import insert, insert_new, insert_or_replace, of_run, one_row, value_of_run
from app.store.dead_letters import DeadLetter
from app.store.projects import create_if_missing, owns
from app.store.tables import drops, ingest_counts, jobs, runs, totals
from app.trace import ops
from app.trace.job import Job, Parallelism, job_of, project_of
from app.trace.ops import BUILT_IN, OpTypes

TIMES_LABEL = "times"  # label of runs whose times are not by the GPUs' clocks
ACTIVE_FOR_S = 86_400.0  # a job that died silently does not count for ever
MAX_NEW_RUNS = 600  # of a job, within:
NEW_RUNS_WITHIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of one run of a job; `run_key` is equal on all its ranks."""

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


class RegisteredRun(NamedTuple):
    """The epoch of a run, and whether this registration began it."""

    epoch: int
    created: bool


def register(
    conn: Connection,
    job_id: str,
    registration: Registration,
    *,
    now_s: float,
    max_active_jobs: int | None = None,
) -> RegisteredRun:
    """The epoch of this run: the same for the same run key, the next one for a new key.

    A new run of an archived or deleted job lists it again, with an entry in the audit.
    With `max_active_jobs`, a new run needs fewer other jobs of the project that are active or
    began a run within a day, and fewer than `MAX_NEW_RUNS` new runs of the job.

    Raises:
        InvalidRequest: a text has characters that a database cannot store.
        JobLimit: the project has the maximum number of active jobs.
        RunLimit: the job begins too many runs.
        EpochSuperseded: a newer run has registered since.
        JobBeingRemoved: the job was deleted and its rows are being removed.
        Conflict: the same run registered with other parallel sizes, operation types or times.
    """
    _check_texts(registration)
    current = _lock_job(conn, job_id)
    known = conn.execute(
        select(runs).where(runs.c.job_id == job_id, runs.c.run_key == registration.run_key)
    ).one_or_none()
    if known is None:
        _check_job_limit(conn, job_id, max_active_jobs, now_s)
        _list_again(conn, job_id, now_s)
        _begin_run(conn, job_id, current + 1, registration, now_s)
        return RegisteredRun(current + 1, created=True)
    if known.epoch != current:
        raise EpochSuperseded(job_id, known.epoch, current)
    _check_agrees(job_id, registration_of(known._mapping), registration)
    return RegisteredRun(current, created=False)


def current_epoch(conn: Connection, job_id: str, *, for_update: bool = False) -> int:
    """The current run's epoch; `for_update` locks the job until commit. Raises JobNotFound."""
    query = select(jobs.c.epoch).where(jobs.c.job_id == job_id)
    query = query.with_for_update() if for_update else query
    return int(one_row(conn, query, JobNotFound(job_id)).epoch)


def parallelism_of(row: RowMapping) -> Parallelism:
    """The parallel sizes in a row of `runs`."""
    return Parallelism(**{name: row[name] for name in Parallelism.__slots__})


# Fields of a registration that are columns of `runs`.
_REGISTERED = ("name", "num_gpus", "framework", "labels", "run_key")


def registration_of(row: RowMapping) -> Registration:
    """The registration in a row of `runs`."""
    return Registration(
        parallelism=parallelism_of(row),
        op_types=ops.parse_stored_op_types(row["op_types"]),
        **{name: row[name] for name in _REGISTERED},
    )


def _check_texts(registration: Registration) -> None:
    labels = registration.labels
    named = {"name": [registration.name], "run_key": [registration.run_key]}
    named |= {"framework": [registration.framework or ""], "labels": [*labels, *labels.values()]}
    for field, texts in named.items():
        for text in texts:
            checked_text(field, text, len(text))


def _check_agrees(job_id: str, known: Registration, registration: Registration) -> None:
    differs = None
    if known.parallelism != registration.parallelism:
        differs = "parallel sizes"
    # In any order: the codes follow the first registration's order.
    elif set(known.op_types.user) != set(registration.op_types.user):
        differs = "op_types"
    # Two importers of one run would take each other's batches for changed ones of their own.
    elif known.labels.get(TIMES_LABEL) != registration.labels.get(TIMES_LABEL):
        differs = f"times (label {TIMES_LABEL})"
    if differs is not None:
        raise Conflict(
            f"this run of job {job_of(job_id)!r} has registered with other {differs}: "
            "all its ranks must name the same, and a new run needs a new run_key"
        )


def _check_job_limit(
    conn: Connection, job_id: str, max_active_jobs: int | None, now_s: float
) -> None:
    # Two concurrent registrations may exceed the limit by one: harmless.
    if max_active_jobs is None:
        return
    _check_run_limit(conn, job_id, now_s)
    of_other_jobs = (owns(project_of(job_id), runs.c.job_id), runs.c.job_id != job_id)
    # Ended ones count too: registering and ending in a loop would fill the tables as well.
    is_new = runs.c.registered_s > now_s - ACTIVE_FOR_S
    goes_on = ~runs.c.is_closed & runs.c.ended_s.is_(None) & runs.c.superseded_s.is_(None)
    is_active = is_new | (goes_on & (runs.c.last_data_s > now_s - ACTIVE_FOR_S))
    counted = select(func.count(runs.c.job_id.distinct())).where(*of_other_jobs, is_active)
    num_active = conn.execute(counted).scalar_one()
    if num_active >= max_active_jobs:
        raise JobLimit(
            f"this project has {num_active} jobs that are active or began a run within a day, and "
            f"may have {max_active_jobs}: run further ones under the id of one of these",
            retry_after_s=60,
        )


def _check_run_limit(conn: Connection, job_id: str, now_s: float) -> None:
    is_new = runs.c.registered_s > now_s - NEW_RUNS_WITHIN_S
    counted = select(func.count()).select_from(runs).where(runs.c.job_id == job_id, is_new)
    if conn.execute(counted).scalar_one() >= MAX_NEW_RUNS:
        raise RunLimit(
            f"job {job_of(job_id)!r} has begun {MAX_NEW_RUNS} runs within an hour: give all ranks "
            "of one run the same run_key",
            retry_after_s=60,
        )


def _lock_job(conn: Connection, job_id: str) -> int:
    """The job's epoch; 0 of a new job."""
    # All ranks register at once: the second waits here until the first has committed.
    insert_new(conn, jobs, [{"job_id": job_id, "epoch": 0}])
    query = select(jobs.c.epoch, jobs.c.removal_began_s).where(jobs.c.job_id == job_id)
    epoch, removal_began_s = conn.execute(query.with_for_update()).one()
    if removal_began_s is not None:
        raise JobBeingRemoved(job_id)
    return int(epoch)


def _list_again(conn: Connection, job_id: str, now_s: float) -> None:
    """List an archived or deleted job, as a new run of it begins."""
    is_hidden = jobs.c.archived_s.is_not(None) | jobs.c.deleted_s.is_not(None)
    hidden = select(jobs.c.deleted_s).where(jobs.c.job_id == job_id, is_hidden)
    row = conn.execute(hidden).one_or_none()
    if row is None:
        return
    conn.execute(update(jobs).filter_by(job_id=job_id).values(archived_s=None, deleted_s=None))
    project = project_of(job_id)
    create_if_missing(conn, project, now_s=now_s)
    audit.add(
        conn,
        project=project,
        at_s=now_s,
        action="job.unarchive" if row.deleted_s is None else "job.restore",
        object_kind="job",
        object_id=job_of(job_id),
        detail={"reason": "a new run began"},
    )


def _begin_run(
    conn: Connection, job_id: str, epoch: int, registration: Registration, now_s: float
) -> None:
    older = update(runs).filter_by(job_id=job_id, superseded_s=None)
    conn.execute(older.values(superseded_s=now_s))
    registered = {name: getattr(registration, name) for name in _REGISTERED}
    registered |= asdict(registration.parallelism)
    registered["op_types"] = ops.describe_op_types(registration.op_types)
    run = {"job_id": job_id, "epoch": epoch, "registered_s": now_s, "is_closed": False}
    conn.execute(runs.insert().values(run | registered))
    conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(epoch=epoch))


def end(conn: Connection, job_id: str, *, now_s: float) -> None:
    """Record the end of the current run; a second call changes nothing."""
    epoch = current_epoch(conn, job_id)
    conn.execute(update_run(job_id, epoch).where(runs.c.ended_s.is_(None)).values(ended_s=now_s))


def note_data(
    conn: Connection, job_id: str, *, last_data_s: float, last_step: int | None, epoch: int
) -> None:
    """Record that data of this run came in; times and steps never go back."""
    older = runs.c.last_data_s.is_(None) | (runs.c.last_data_s < last_data_s)
    run = update_run(job_id, epoch)
    conn.execute(run.where(older).values(last_data_s=last_data_s))
    if last_step is not None:
        lower = runs.c.last_step.is_(None) | (runs.c.last_step < last_step)
        conn.execute(run.where(lower).values(last_step=last_step))


class SilentRanks(NamedTuple):
    """Ranks that send no batches while others do, or since when no rank does; Unix times.

    `silent_workers` are the workers of these ranks, each as dp_rank * pp_size + stage.
    """

    silent_ranks: tuple[int, ...] = ()
    silent_workers: tuple[int, ...] = ()
    silent_since_s: float | None = None
    stalled_since_s: float | None = None


class RunActivity(NamedTuple):
    """When (Unix time) a run registered, when its last data came and of which step, and silence."""

    registered_s: float
    last_data_s: float | None
    last_step: int | None
    silence: SilentRanks


def activity(conn: Connection, job_id: str, epoch: int) -> RunActivity:
    """The activity of a run that has registered."""
    names = (*RunActivity._fields[:-1], *SilentRanks._fields)
    query = select(*(runs.c[name] for name in names)).where(*of_run(runs, job_id, epoch))
    registered_s, last_data_s, last_step, ranks, workers, *since_s = conn.execute(query).one()
    silence = SilentRanks(ranks or (), workers or (), *since_s)
    return RunActivity(registered_s, last_data_s, last_step, silence)


def save_silent_ranks(conn: Connection, job_id: str, epoch: int, silence: SilentRanks) -> None:
    """Save which ranks of a run are silent, or since when all are."""
    values = {name: None if value == () else value for name, value in silence._asdict().items()}
    conn.execute(update_run(job_id, epoch).values(values))


class EndedRun(NamedTuple):
    """A run that has ended or was superseded, and whose last window is not closed yet."""

    job_id: str
    epoch: int
    is_superseded: bool


def starting_since(conn: Connection, job_id: str, epoch: int, *, within_s: float) -> float:
    """When (Unix time) the run registered, or the first failed start before it did.

    A failed start is a run that sent nothing, did not end, and registered at most `within_s`
    seconds before the run.
    """
    before = (runs.c.job_id == job_id, runs.c.epoch <= epoch)
    has_started = runs.c.last_data_s.is_not(None) | runs.c.ended_s.is_not(None)
    last = select(func.max(runs.c.epoch)).where(*before, runs.c.epoch < epoch, has_started)
    begun_s = select(runs.c.registered_s).where(*of_run(runs, job_id, epoch))
    query = select(func.min(runs.c.registered_s)).where(
        *before,
        runs.c.epoch > func.coalesce(last.scalar_subquery(), 0),
        runs.c.registered_s >= begun_s.scalar_subquery() - within_s,
    )
    return float(conn.execute(query).scalar_one())


def watched(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """Unfinished runs that are not stalled and have sent data, or registered within a day."""
    may_begin = runs.c.registered_s > now_s - ACTIVE_FOR_S
    has_begun = runs.c.last_data_s.is_not(None)
    return unfinished(conn, runs.c.stalled_since_s.is_(None), has_begun | may_begin)


def starting(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """The watched runs that have sent no data so far."""
    may_begin = runs.c.registered_s > now_s - ACTIVE_FOR_S
    is_new = (runs.c.stalled_since_s.is_(None), runs.c.last_data_s.is_(None))
    return unfinished(conn, *is_new, may_begin)


def stalled(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """Unfinished runs that have stalled within a day."""
    return unfinished(conn, runs.c.stalled_since_s > now_s - ACTIVE_FOR_S)


def ended_not_closed(conn: Connection) -> list[EndedRun]:
    """Runs that have ended or were superseded, and whose last window is not closed yet."""
    over = runs.c.ended_s.is_not(None) | runs.c.superseded_s.is_not(None)
    query = select(runs.c.job_id, runs.c.epoch, runs.c.ended_s).where(~runs.c.is_closed, over)
    rows = conn.execute(query.order_by(runs.c.job_id, runs.c.epoch))
    return [EndedRun(row.job_id, row.epoch, row.ended_s is None) for row in rows]


def newest_closed(conn: Connection, job_id: str) -> int:
    """The newest run that has ended and was closed; 0: none."""
    ended = (runs.c.ended_s.is_not(None), runs.c.is_closed)
    query = select(func.max(runs.c.epoch)).where(runs.c.job_id == job_id, *ended)
    return int(conn.execute(query).scalar_one() or 0)


def reopen(conn: Connection, job_id: str, epoch: int) -> bool:
    """Reopen a closed run, for which data came: it is to be closed again. False if it was open."""
    run = update_run(job_id, epoch)
    return conn.execute(run.where(runs.c.is_closed).values(is_closed=False)).rowcount > 0


def mark_closed(conn: Connection, job_id: str, epoch: int) -> None:
    """Mark the run as closed: its last window is closed."""
    conn.execute(update_run(job_id, epoch).values(is_closed=True))


def unfinished(conn: Connection, *conditions: ColumnElement[bool]) -> list[tuple[str, int]]:
    """Job id and epoch of the unfinished runs that meet the conditions."""
    going = (runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None), ~runs.c.is_closed)
    query = select(runs.c.job_id, runs.c.epoch).where(*going, *conditions)
    rows = conn.execute(query.order_by(*query.selected_columns))
    return [(row.job_id, row.epoch) for row in rows]


def update_run(job_id: str, epoch: int) -> Update:
    """An UPDATE of one run's row."""
    return update(runs).where(*of_run(runs, job_id, epoch))


@dataclass(frozen=True, slots=True)
class IngestCounts:
    """Numbers of operations that were accepted, duplicate and so on, and three further fields.

    `lost_batches` were skipped by their worker's later ones and never came, `last_conflict` is a
    sample of a batch that came again with another content. `in_groups` counts collectives inside
    groups that were "accepted", "duplicate" (with their batch), "late", or "refused" as too many
    were in memory; None where none came.
    """

    accepted: int = 0
    duplicate: int = 0
    conflict: int = 0
    late: int = 0
    dead: int = 0
    lost_batches: int = 0
    last_conflict: dict[str, Any] | None = None
    in_groups: dict[str, int] | None = None

    @property
    def taken(self) -> int:
        """Operations taken from the queue."""
        return self.accepted + self.duplicate + self.conflict + self.late + self.dead


_NUMBERS = tuple(field.name for field in fields(IngestCounts) if field.type is int)


def save(conn: Connection, job_id: str, epoch: int, counts: IngestCounts) -> None:
    """Save a run's counts."""
    insert_or_replace(conn, ingest_counts, [{"job_id": job_id, "epoch": epoch, **asdict(counts)}])


def load(conn: Connection, job_id: str, epoch: int) -> IngestCounts:
    """The saved counts of a run; all 0 if there are none."""
    query = select(*(ingest_counts.c[name] for name in IngestCounts.__slots__))
    row = conn.execute(query.where(*of_run(ingest_counts, job_id, epoch))).one_or_none()
    return IngestCounts() if row is None else IngestCounts(*row)


def add_to_project(conn: Connection, project: str, counts: IngestCounts) -> None:
    """Add to a project's sums, for operations whose run is unknown or has been removed."""
    for name in _NUMBERS:
        if n := getattr(counts, name):
            add_to_total(conn, f"{name}{PROJECT_SEPARATOR}{project}", n)


def count_dead_letter(conn: Connection, letter: DeadLetter) -> None:
    """Count a new dead letter in its run, or in its project's sums if the run is unknown."""
    if letter.epoch is None or not has_run(conn, letter.job_id, letter.epoch):
        add_to_project(conn, project_of(letter.job_id), IngestCounts(dead=letter.num_ops))
        return
    run = (letter.job_id, letter.epoch)
    before = load(conn, *run)
    save(conn, *run, replace(before, dead=before.dead + letter.num_ops))


def service_counts(conn: Connection) -> IngestCounts:
    """Sums of the whole service, with runs that have been removed; they never go down."""
    of_projects = summed_project_totals(conn)
    sums = (func.coalesce(func.sum(ingest_counts.c[name]), 0) for name in _NUMBERS)
    # PostgreSQL sums up to a Decimal.
    of_runs = zip(_NUMBERS, map(int, conn.execute(select(*sums)).one()), strict=True)
    values: dict[str, Any] = {name: n + of_projects.get(name, 0) for name, n in of_runs}
    return IngestCounts(**values)


def remove(conn: Connection, job_id: str, epoch: int) -> None:
    """Remove a run's counts, after adding them to its project's sums."""
    add_to_project(conn, project_of(job_id), load(conn, job_id, epoch))
    conn.execute(delete(ingest_counts).where(*of_run(ingest_counts, job_id, epoch)))


def has_run(conn: Connection, job_id: str, epoch: int) -> bool:
    """Whether the run exists."""
    return value_of_run(conn, runs.c.epoch, job_id, epoch) is not None


MAX_WORST = 8  # workers that a run's row names
_MAX_SUM = 2**53  # recorders may report anything; every JSON reader holds this

RankDrops = tuple[int, int, int, int]  # rank, dp_rank, stage, operations


class WorkerDrops(NamedTuple):
    """Operations that the recorders of one worker dropped."""

    dp_rank: int
    stage: int
    dropped: int


class RecorderDrops(NamedTuple):
    """Operations dropped in a run, by how many workers, and the few that dropped most."""

    total: int
    num_workers: int
    worst: Sequence[WorkerDrops]


def save_drops(conn: Connection, job_id: str, epoch: int, by_rank: Sequence[RankDrops]) -> None:
    """Save the drops that each rank of a run has reported, and of the workers that have any."""
    sums: Counter[tuple[int, int]] = Counter()
    for _, dp_rank, stage, dropped in by_rank:
        sums[dp_rank, stage] += dropped
    workers = [WorkerDrops(*worker, min(n, _MAX_SUM)) for worker, n in sums.items() if n]
    worst = sorted(workers, key=lambda worker: (-worker.dropped, worker.dp_rank, worker.stage))
    by_worker = RecorderDrops(min(sums.total(), _MAX_SUM), len(workers), worst[:MAX_WORST])
    values = {**by_worker._asdict(), "by_rank": list(by_rank)}
    insert_or_replace(conn, drops, [{"job_id": job_id, "epoch": epoch, **values}])


def drops_of_worker(
    conn: Connection, job_id: str, epoch: int, dp_rank: int, stage: int
) -> int | None:
    """Operations that the recorders of one worker dropped; None if not reported."""
    rows: list[RankDrops] = value_of_run(conn, drops.c.by_rank, job_id, epoch) or []
    own = [dropped for _, *worker, dropped in rows if worker == [dp_rank, stage]]
    return min(sum(own), _MAX_SUM) if own else None


PROJECT_SEPARATOR = "/"  # between a count's name and its project


def add_to_total(conn: Connection, name: str, n: int) -> None:
    """Add `n` to a count."""
    statement = insert(conn, totals).values(name=name, value=n)
    more = {"value": totals.c.value + statement.excluded.value}
    conn.execute(statement.on_conflict_do_update(index_elements=[totals.c.name], set_=more))


def service_totals(conn: Connection) -> dict[str, int]:
    """The service's counts by name, without those of single projects or entries."""
    rows = conn.execute(select(totals).order_by(totals.c.name))
    return {row.name: row.value for row in rows if row.name.isidentifier()}


def summed_project_totals(conn: Connection) -> dict[str, int]:
    """The counts of single projects, summed over all of them, by their names."""
    sums: Counter[str] = Counter()
    for row in conn.execute(select(totals).where(totals.c.name.like(f"%{PROJECT_SEPARATOR}%"))):
        sums[row.name.partition(PROJECT_SEPARATOR)[0]] += row.value
    return dict(sums)


# Of a message, or ("retried") of an attempt.
DeliveryOutcome = Literal["delivered", "retried", "failed", "silenced", "outdated"]
_DELIVERY_TOTAL = "webhook_deliveries_"


@dataclass(frozen=True, slots=True)
class NotificationCounts:
    """Firing alerts by severity, disabled receivers, and all outcomes so far."""

    firing: dict[Severity, int]
    disabled_endpoints: int
    outcomes: dict[DeliveryOutcome, int]


def notification_counts(conn: Connection) -> NotificationCounts:
    """The current counts over all projects."""
    query = select(alerts.c.severity, func.count()).where(alerts.c.phase == "firing")
    rows = conn.execute(query.group_by(alerts.c.severity))
    firing: dict[str, int] = dict(rows.all())
    disabled = select(func.count()).where(endpoints.c.disabled_at_s.is_not(None))
    counted = service_totals(conn)
    return NotificationCounts(
        firing={severity: firing.get(severity, 0) for severity in get_args(Severity)},
        disabled_endpoints=int(conn.execute(disabled).scalar_one()),
        outcomes={
            name: counted.get(f"{_DELIVERY_TOTAL}{name}", 0) for name in get_args(DeliveryOutcome)
        },
    )


def count_deliveries(conn: Connection, outcome: DeliveryOutcome, number: int = 1) -> None:
    """Count messages, or attempts, with this outcome."""
    if number:
        add_to_total(conn, f"{_DELIVERY_TOTAL}{outcome}", number)


def is_delivery_outcome(name: str) -> bool:
    """Whether a count of the service is that of an outcome."""
    return name.startswith(_DELIVERY_TOTAL)
