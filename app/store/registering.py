"""How a run of a job begins; a run is one epoch of a job, between restarts."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, and_, func, or_, select, update

from app.errors import Conflict, EpochSuperseded, InvalidRequest, JobLimit, RunLimit
from app.store.projects import owns
from app.store.tables import jobs, runs
from app.store.upsert import add_new
from app.trace import user_types
from app.trace.job import Job, Parallelism
from app.trace.names import plain, project_of
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
    _check_agrees(job_id, registration_of(known._mapping), registration)
    return Registered(current, created=False)


def parallelism_of(row: RowMapping) -> Parallelism:
    """The parallel sizes in a row of `runs`."""
    return Parallelism(**{name: row[name] for name in Parallelism.__slots__})


def registration_of(row: RowMapping) -> Registration:
    """What a row of `runs` says."""
    return Registration(
        row["name"],
        parallelism_of(row),
        row["num_gpus"],
        row["framework"],
        row["labels"],
        row["run_key"],
        user_types.parse_stored(row["op_types"]),
    )


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
