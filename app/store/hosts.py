"""Hosts: the host of each worker, the runs of a host, and how often jobs blamed it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, or_, select

from app.store.database import (
    Int64,
    from_cursor,
    insert_new,
    insert_or_replace,
    split_page,
    to_cursor,
)
from app.store.projects import is_kept, owns
from app.store.tables import hosts, run_hosts, runs, window_losses
from app.trace.job import Placement

WorkerKey = tuple[int, int]  # dp_rank, stage


def save(
    conn: Connection,
    job_id: str,
    epoch: int,
    names: Mapping[WorkerKey, str],
    placements: Mapping[WorkerKey, Placement] | None = None,
) -> None:
    """Save the hosts and placements of a run's workers."""
    rows = [[*worker, name] for worker, name in sorted(names.items())]
    placed = [[*worker, *each] for worker, each in sorted((placements or {}).items())]
    values = {"names": rows, "placements": placed or None}
    insert_or_replace(conn, hosts, [{"job_id": job_id, "epoch": epoch, **values}])


def load(conn: Connection, job_id: str, epoch: int) -> dict[WorkerKey, str]:
    """Host by (dp_rank, stage), of the workers that have reported it."""
    query = select(hosts.c.names).where(hosts.c.job_id == job_id, hosts.c.epoch == epoch)
    rows = conn.execute(query).scalar_one_or_none() or []
    return {(dp_rank, stage): name for dp_rank, stage, name in rows}


def placements(conn: Connection, job_id: str, epoch: int) -> dict[WorkerKey, Placement]:
    """Rack and switch by (dp_rank, stage), of the workers that have reported them."""
    query = select(hosts.c.placements).where(hosts.c.job_id == job_id, hosts.c.epoch == epoch)
    rows = conn.execute(query).scalar_one_or_none() or []
    return {(dp_rank, stage): Placement(rack, switch) for dp_rank, stage, rack, switch in rows}


# The greatest character: texts that begin with a prefix sort below prefix + this.
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class HostRun:
    """A run that had workers on a host."""

    job_id: str
    epoch: int
    name: str
    registered_s: float
    ended_s: float | None
    superseded_s: float | None
    last_data_s: float | None
    dp_size: int
    pp_size: int

    @property
    def num_workers(self) -> int:
        """Of the whole run, on all hosts."""
        return self.dp_size * self.pp_size


_RUN_COLUMNS = tuple(runs.c[name] for name in HostRun.__slots__)


def add_to_run(conn: Connection, job_id: str, epoch: int, hosts: Iterable[str]) -> None:
    """Add hosts to a run."""
    names = sorted(set(hosts))
    insert_new(
        conn, run_hosts, [{"job_id": job_id, "epoch": epoch, "host": each} for each in names]
    )


def jobs_on(conn: Connection, project: str, beginning: str) -> set[str]:
    """Keys of a project's jobs that have, or had, a host whose name begins with this."""
    host = run_hosts.c.host
    spellings = {beginning, beginning.lower()}
    begins = or_(*(and_(host >= each, host < each + _LAST_CHARACTER) for each in sorted(spellings)))
    query = select(run_hosts.c.job_id).where(begins, owns(project, run_hosts.c.job_id)).distinct()
    return set(conn.execute(query).scalars())


def matching(conn: Connection, project: str, words: Collection[str], *, limit: int) -> list[str]:
    """Hosts of a project's jobs with each of the words in their names, ignoring case, by name."""
    name = func.lower(run_hosts.c.host)
    has_words = (name.contains(word.lower(), autoescape=True) for word in words)
    query = select(run_hosts.c.host).distinct().where(owns(project, run_hosts.c.job_id), *has_words)
    query = query.where(is_kept(run_hosts.c.job_id)).order_by(run_hosts.c.host)
    return list(conn.execute(query.limit(limit)).scalars())


def named_by_other_projects(conn: Connection, project: str, hosts: Collection[str]) -> set[str]:
    """The hosts that unfinished runs of other projects name, too."""
    same_run = and_(run_hosts.c.job_id == runs.c.job_id, run_hosts.c.epoch == runs.c.epoch)
    query = select(run_hosts.c.host).select_from(run_hosts.join(runs, same_run)).distinct()
    query = query.where(run_hosts.c.host.in_(sorted(hosts)), ~owns(project, runs.c.job_id))
    query = query.where(runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None))
    return set(conn.execute(query).scalars())


def runs_on(conn: Connection, project: str, host: str, *, limit: int) -> list[HostRun]:
    """A project's runs on a host, those that began last first."""
    same_run = and_(run_hosts.c.job_id == runs.c.job_id, run_hosts.c.epoch == runs.c.epoch)
    query = select(*_RUN_COLUMNS).select_from(run_hosts.join(runs, same_run))
    query = query.where(run_hosts.c.host == host)
    query = query.where(owns(project, runs.c.job_id), is_kept(runs.c.job_id))
    query = query.order_by(runs.c.registered_s.desc(), runs.c.job_id, runs.c.epoch.desc())
    return [HostRun(*row) for row in conn.execute(query.limit(limit))]


_LOSS = window_losses.c
_BLAME = (func.count(_LOSS.job_id.distinct()), func.max(_LOSS.slowdown), func.max(_LOSS.updated_s),
           func.sum(_LOSS.gpu_s))  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlamedHost:
    """A host and how many jobs blamed it; `slowdown` is the largest, None if unknown."""

    host: str
    num_jobs: int
    slowdown: float | None
    last_s: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class BlamingRun:
    """GPU time that one run lost to a host, in `num_windows` windows."""

    job_id: str
    epoch: int
    num_windows: int
    first_step: int
    last_first_step: int
    slowdown: float | None
    last_s: float
    gpu_s: float


def blamed_hosts(
    conn: Connection,
    project: str,
    *,
    since_s: float,
    min_jobs: int,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[BlamedHost], str | None]:
    """Hosts that at least `min_jobs` jobs of a project blamed since a time, most jobs first.

    The cursor is an offset: the list is short and changes slowly.
    """
    first = 0 if cursor is None else max(0, from_cursor(cursor, tuple[Int64])[0])
    jobs, slowdown, last_s, gpu_s = _BLAME
    query = (
        select(_LOSS.name, jobs, slowdown, last_s, gpu_s)
        .where(_LOSS.kind == "host", _LOSS.updated_s >= since_s)
        .where(owns(project, _LOSS.job_id), is_kept(_LOSS.job_id))
        .group_by(_LOSS.name)
        .having(jobs >= min_jobs)
        .order_by(jobs.desc(), gpu_s.desc(), _LOSS.name)
        .offset(first)
        .limit(limit + 1)
    )
    rows, more = split_page([BlamedHost(*row) for row in conn.execute(query)], limit)
    return rows, to_cursor(first + limit) if more else None


def blaming_runs(conn: Connection, project: str, host: str, *, since_s: float) -> list[BlamingRun]:
    """What each run of a project lost to a host since a time, the newest first."""
    _, slowdown, last_s, gpu_s = _BLAME
    query = (
        select(_LOSS.job_id, _LOSS.epoch, func.count(), func.min(_LOSS.first_step),
               func.max(_LOSS.first_step), slowdown, last_s, gpu_s)
        .where(_LOSS.kind == "host", _LOSS.name == host, _LOSS.updated_s >= since_s)
        .where(owns(project, _LOSS.job_id), is_kept(_LOSS.job_id))
        .group_by(_LOSS.job_id, _LOSS.epoch)
        .order_by(last_s.desc(), _LOSS.job_id)
    )  # fmt: skip
    return [BlamingRun(*row) for row in conn.execute(query)]
