"""Hosts: the host of each worker, the runs of a host, and how often jobs blamed it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from app.store.database import (
    Int64,
    from_cursor,
    insert_new,
    insert_or_replace,
    same_run,
    split_page,
    to_cursor,
    value_of_run,
)
from app.store.projects import is_kept, owns
from app.store.tables import hosts, run_hosts, runs, window_losses
from app.trace.job import Placement

WorkerKey = tuple[int, int]  # dp_rank, stage

_SAME_RUN = same_run(run_hosts, runs)


def save(
    conn: Connection,
    job_id: str,
    epoch: int,
    names: Mapping[WorkerKey, str],
    placements: Mapping[WorkerKey, Placement] | None = None,
) -> None:
    """Save the hosts and placements of a run's workers."""
    rows = [[*worker, name] for worker, name in sorted(names.items())]
    placed = [[*worker, *place] for worker, place in sorted((placements or {}).items())]
    values = {"names": rows, "placements": placed or None}
    insert_or_replace(conn, hosts, [{"job_id": job_id, "epoch": epoch, **values}])


def load(conn: Connection, job_id: str, epoch: int) -> dict[WorkerKey, str]:
    """Host by (dp_rank, stage), of the workers that have reported it."""
    rows = value_of_run(conn, hosts.c.names, job_id, epoch) or []
    return {(dp_rank, stage): name for dp_rank, stage, name in rows}


def placements(conn: Connection, job_id: str, epoch: int) -> dict[WorkerKey, Placement]:
    """Rack and switch by (dp_rank, stage), of the workers that have reported them."""
    rows = value_of_run(conn, hosts.c.placements, job_id, epoch) or []
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
    key = {"job_id": job_id, "epoch": epoch}
    insert_new(conn, run_hosts, [{**key, "host": host} for host in sorted(set(hosts))])


def jobs_on(conn: Connection, project: str, beginning: str) -> set[str]:
    """Keys of a project's jobs that have, or had, a host whose name begins with this."""
    host = run_hosts.c.host
    spellings = {beginning, beginning.lower()}
    begins = or_(*(and_(host >= text, host < text + _LAST_CHARACTER) for text in sorted(spellings)))
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
    query = select(run_hosts.c.host).select_from(run_hosts.join(runs, _SAME_RUN)).distinct()
    query = query.where(run_hosts.c.host.in_(sorted(hosts)), ~owns(project, runs.c.job_id))
    query = query.where(runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None))
    return set(conn.execute(query).scalars())


def runs_on(conn: Connection, project: str, host: str, *, limit: int) -> list[HostRun]:
    """A project's runs on a host, those that began last first."""
    query = select(*_RUN_COLUMNS).select_from(run_hosts.join(runs, _SAME_RUN))
    query = query.where(run_hosts.c.host == host)
    query = query.where(owns(project, runs.c.job_id), is_kept(runs.c.job_id))
    query = query.order_by(runs.c.registered_s.desc(), runs.c.job_id, runs.c.epoch.desc())
    return [HostRun(*row) for row in conn.execute(query.limit(limit))]


_LOSS = window_losses.c
_BLAME = (func.count(_LOSS.job_id.distinct()), func.max(_LOSS.slowdown), func.max(_LOSS.updated_s),
           func.sum(_LOSS.gpu_s))  # fmt: skip
_FIRST_S = func.min(_LOSS.updated_s)


@dataclass(frozen=True, slots=True)
class BlamedHost:
    """A host and how many jobs blamed it; `slowdown` is the largest, None if unknown.

    `first_s` and `last_s` are when (Unix time) the first and the last window in which it was slow
    were saved, None without one.
    """

    host: str
    num_jobs: int = 0
    slowdown: float | None = None
    last_s: float | None = None
    gpu_s: float = 0.0
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostUse:
    """Jobs that a host was part of; `num_workers` are those on it now, None if not counted."""

    num_jobs: int = 0
    last_data_s: float | None = None
    num_workers: int | None = 0


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


def _blamed_hosts(project: str, since_s: float, min_jobs: int) -> Select[Any]:
    """Hosts that at least `min_jobs` jobs of a project blamed since a time, most jobs first."""
    jobs, slowdown, last_s, gpu_s = _BLAME
    return (
        select(_LOSS.name, jobs, slowdown, last_s, gpu_s, _FIRST_S)
        .where(_is_blamed(project, since_s))
        .group_by(_LOSS.name)
        .having(jobs >= min_jobs)
        .order_by(jobs.desc(), gpu_s.desc(), _LOSS.name)
    )


class _Cursor(NamedTuple):
    """Blamed hosts that were listed, and the last other one."""

    num_blamed: Int64
    after: str


def listed_hosts(
    conn: Connection,
    project: str,
    *,
    since_s: float,
    min_jobs: int,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[BlamedHost], str | None]:
    """A page of a project's hosts since a time: blamed ones first, then all others by name.

    With `min_jobs` over 0 only those that so many jobs blamed.
    """
    num_before, after = _Cursor(0, "") if cursor is None else from_cursor(cursor, _Cursor)
    wanted = limit + 1
    listed: list[BlamedHost] = []
    if not after:  # by how many were listed: there are few, and they change slowly
        query = _blamed_hosts(project, since_s, max(1, min_jobs)).offset(max(0, num_before))
        listed = [BlamedHost(*row) for row in conn.execute(query.limit(wanted))]
    if not min_jobs and len(listed) < wanted:
        left = wanted - len(listed)
        others = healthy_hosts(conn, project, since_s=since_s, after=after, limit=left)
        listed += [BlamedHost(name) for name in others]
    rows, more = split_page(listed, limit)
    if not more:
        return rows, None
    num_listed = num_before + sum(host.num_jobs > 0 for host in rows)
    return rows, to_cursor(num_listed, "" if rows[-1].num_jobs else rows[-1].host)


def _is_blamed(project: str, since_s: float) -> ColumnElement[bool]:
    is_recent = and_(_LOSS.kind == "host", _LOSS.updated_s >= since_s)
    return and_(is_recent, owns(project, _LOSS.job_id), is_kept(_LOSS.job_id))


def _is_used(project: str, since_s: float) -> ColumnElement[bool]:
    last_s = func.coalesce(runs.c.last_data_s, runs.c.registered_s)
    is_listed = and_(owns(project, run_hosts.c.job_id), is_kept(run_hosts.c.job_id))
    return and_(last_s >= since_s, is_listed)


def healthy_hosts(
    conn: Connection, project: str, *, since_s: float, after: str, limit: int
) -> list[str]:
    """Hosts of a project's runs since a time that no job blamed, by name, after this one."""
    blamed = select(_LOSS.name).where(_is_blamed(project, since_s))
    host = run_hosts.c.host
    query = (
        select(host)
        .select_from(run_hosts.join(runs, _SAME_RUN))
        .where(host > after, _is_used(project, since_s), host.not_in(blamed))
        .group_by(host)
        .order_by(host)
        .limit(limit)
    )
    return list(conn.execute(query).scalars())


def count_hosts(conn: Connection, project: str, *, since_s: float) -> tuple[int, int]:
    """Hosts of a project's runs since a time, and how many of all hosts a job blamed."""
    used = select(func.count(run_hosts.c.host.distinct()))
    used = used.select_from(run_hosts.join(runs, _SAME_RUN)).where(_is_used(project, since_s))
    blamed = select(func.count(_LOSS.name.distinct())).where(_is_blamed(project, since_s))
    return int(conn.execute(used).scalar_one()), int(conn.execute(blamed).scalar_one())


def uses(
    conn: Connection, project: str, names: Sequence[str], *, since_s: float, most_workers: int
) -> dict[str, HostUse]:
    """Jobs and workers of these hosts; workers are those of runs that have not ended.

    A host with a run of more workers than `most_workers`, added up over all runs that were read
    before, has None for them.
    """
    host = run_hosts.c.host
    query = (
        select(host, runs.c.job_id, runs.c.epoch, runs.c.last_data_s, runs.c.ended_s,
               runs.c.superseded_s, runs.c.dp_size * runs.c.pp_size)
        .select_from(run_hosts.join(runs, _SAME_RUN))
        .where(host.in_(list(names)), _is_used(project, since_s))
        .order_by(runs.c.registered_s.desc())
    )  # fmt: skip
    left = most_workers

    @cache
    def workers_by_host(job_id: str, epoch: int, num_workers: int) -> Counter[str] | None:
        nonlocal left
        left -= num_workers
        return Counter(load(conn, job_id, epoch).values()) if left >= 0 else None

    jobs: dict[str, set[str]] = {}
    by_host: dict[str, HostUse] = {}
    for name, job_id, epoch, last_s, ended_s, superseded_s, num_workers in conn.execute(query):
        before = by_host.get(name, HostUse())
        jobs.setdefault(name, set()).add(job_id)
        total = before.num_workers
        if ended_s is None and superseded_s is None:
            counted = workers_by_host(job_id, epoch, num_workers)
            total = None if counted is None or total is None else total + counted[name]
        times = [time_s for time_s in (before.last_data_s, last_s) if time_s is not None]
        by_host[name] = HostUse(len(jobs[name]), max(times, default=None), total)
    return by_host


def blaming_runs(conn: Connection, project: str, host: str, *, since_s: float) -> list[BlamingRun]:
    """GPU time that each run of a project lost to a host since a time, the newest first."""
    _, slowdown, last_s, gpu_s = _BLAME
    query = (
        select(_LOSS.job_id, _LOSS.epoch, func.count(), func.min(_LOSS.first_step),
               func.max(_LOSS.first_step), slowdown, last_s, gpu_s)
        .where(_is_blamed(project, since_s), _LOSS.name == host)
        .group_by(_LOSS.job_id, _LOSS.epoch)
        .order_by(last_s.desc(), _LOSS.job_id)
    )  # fmt: skip
    return [BlamingRun(*row) for row in conn.execute(query)]
