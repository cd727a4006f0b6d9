"""Hosts that jobs have found slower than their peers: who, how often, how slow, what it cost."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from app.store.paging import Int64, from_cursor, split, to_cursor
from app.store.projects import owns
from app.store.tables import window_losses

_OF = window_losses.c
_BLAMED = (func.count(_OF.job_id.distinct()), func.max(_OF.slowdown), func.max(_OF.updated_s),
           func.sum(_OF.gpu_s))  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlamedHost:
    """A host and how many jobs blamed it; `slowdown` is the worst, None where none is known."""

    host: str
    num_jobs: int
    slowdown: float | None
    last_s: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class BlamedIn:
    """What one run lost to a host, in `num_windows` windows from the first to the last."""

    job_id: str
    epoch: int
    num_windows: int
    first_step: int
    last_first_step: int
    slowdown: float | None
    last_s: float
    gpu_s: float


def hosts(
    conn: Connection,
    project: str,
    *,
    since_s: float,
    min_jobs: int,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[BlamedHost], str | None]:
    """Hosts that so many jobs of a project blamed since a moment, those of most jobs first.

    The cursor says how many hosts came before: the list is short and changes slowly.
    """
    first = 0 if cursor is None else max(0, from_cursor(cursor, tuple[Int64])[0])
    jobs, slowdown, last_s, gpu_s = _BLAMED
    query = (
        select(_OF.name, jobs, slowdown, last_s, gpu_s)
        .where(_OF.kind == "host", _OF.updated_s >= since_s, owns(project, _OF.job_id))
        .group_by(_OF.name)
        .having(jobs >= min_jobs)
        .order_by(jobs.desc(), gpu_s.desc(), _OF.name)
        .offset(first)
        .limit(limit + 1)
    )
    rows, more = split([BlamedHost(*row) for row in conn.execute(query)], limit)
    return rows, to_cursor(first + limit) if more else None


def runs_of(conn: Connection, project: str, host: str, *, since_s: float) -> list[BlamedIn]:
    """What each run of a project lost to a host since a moment, the newest first."""
    _, slowdown, last_s, gpu_s = _BLAMED
    query = (
        select(_OF.job_id, _OF.epoch, func.count(), func.min(_OF.first_step),
               func.max(_OF.first_step), slowdown, last_s, gpu_s)
        .where(_OF.kind == "host", _OF.name == host, _OF.updated_s >= since_s)
        .where(owns(project, _OF.job_id))
        .group_by(_OF.job_id, _OF.epoch)
        .order_by(last_s.desc(), _OF.job_id)
    )  # fmt: skip
    return [BlamedIn(*row) for row in conn.execute(query)]
