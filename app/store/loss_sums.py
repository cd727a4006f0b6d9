"""The fleet over time: what windows lost, summed by the database."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import ColumnElement, Connection, and_, func, select

from app.store.projects import owns
from app.store.tables import jobs, runs, window_losses


@dataclass(frozen=True, slots=True)
class Sum:
    """What was lost of so much GPU time, in seconds."""

    gpu_s: float
    gpu_s_recorded: float


def since(conn: Connection, project: str, since_s: float) -> Sum:
    """All that a project's windows lost that were revised since a moment (Unix time)."""
    of = window_losses.c
    query = select(func.sum(of.gpu_s), func.sum(of.gpu_s_recorded))
    query = query.where(*_of_kind("total", project), of.updated_s >= since_s)
    lost, recorded = conn.execute(query).one()
    return Sum(lost or 0.0, recorded or 0.0)


def by_job(conn: Connection, project: str, since_s: float) -> list[tuple[str, int, Sum]]:
    """Name, GPUs and losses of each of a project's jobs since a moment (Unix time)."""
    of = window_losses.c
    sums = (
        select(of.job_id, func.sum(of.gpu_s).label("lost"), func.sum(of.gpu_s_recorded).label("of"))
        .where(*_of_kind("total", project), of.updated_s >= since_s)
        .group_by(of.job_id)
        .subquery()
    )
    current = and_(runs.c.job_id == jobs.c.job_id, runs.c.epoch == jobs.c.epoch)
    query = select(runs.c.name, runs.c.num_gpus, sums.c.lost, sums.c.of)
    query = query.select_from(sums.join(jobs, jobs.c.job_id == sums.c.job_id).join(runs, current))
    found = conn.execute(query.order_by(sums.c.job_id))
    return [(name, num_gpus, Sum(lost, of)) for name, num_gpus, lost, of in found]


def by_name(conn: Connection, project: str, kind: str, since_s: float) -> dict[str, float]:
    """GPU-seconds lost to each cause, operation type or host since a moment (Unix time)."""
    of = window_losses.c
    query = select(of.name, func.sum(of.gpu_s)).where(*_of_kind(kind, project))
    rows = conn.execute(query.where(of.updated_s >= since_s).group_by(of.name).order_by(of.name))
    return {row[0]: row[1] for row in rows}


def by_stretch(conn: Connection, project: str, edges_s: Sequence[float]) -> list[Sum]:
    """The losses between each two successive moments (Unix time), ascending."""
    of = window_losses.c
    query = select(func.sum(of.gpu_s), func.sum(of.gpu_s_recorded))
    query = query.where(*_of_kind("total", project))
    found = []
    for from_s, to_s in pairwise(edges_s):
        part = query.where(of.updated_s >= from_s, of.updated_s < to_s)
        lost, recorded = conn.execute(part).one()
        found.append(Sum(lost or 0.0, recorded or 0.0))
    return found


def _of_kind(kind: str, project: str) -> tuple[ColumnElement[bool], ...]:
    return (window_losses.c.kind == kind, owns(project, window_losses.c.job_id))
