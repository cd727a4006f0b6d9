"""What the ribbon over a whole job is made of: windows, step times, skipped steps and runs."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, tuple_

from app.errors import JobNotFound
from app.store.tables import jobs, runs, steps, windows
from app.store.windows import SUMMARY, WindowSummary, summary_of

Place = tuple[int, int]  # epoch, step


@dataclass(frozen=True, slots=True)
class Times:
    """Sums over the measured steps of a window, seconds."""

    simulated_s: float
    ideal_s: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that was not analysed, and why."""

    epoch: int
    step: int
    reason: str


def newest(conn: Connection, job_id: str, *, limit: int) -> tuple[list[WindowSummary], int]:
    """The newest windows of all runs, ascending, and how many older ones there are.

    Raises:
        JobNotFound: the job never registered.
    """
    query = select(*SUMMARY).where(windows.c.job_id == job_id)
    query = query.order_by(windows.c.epoch.desc(), windows.c.first_step.desc()).limit(limit)
    found = [summary_of(row._mapping) for row in conn.execute(query)]
    found.reverse()
    if not found and not _is_known(conn, job_id):
        raise JobNotFound(job_id)
    counted = select(func.count()).select_from(windows).where(windows.c.job_id == job_id)
    return found, int(conn.execute(counted).scalar_one()) - len(found)


def newest_measured(conn: Connection, job_id: str, epoch: int) -> WindowSummary | None:
    """The newest window of a run that has figures."""
    query = select(*SUMMARY).where(windows.c.job_id == job_id, windows.c.epoch == epoch)
    query = query.where(windows.c.slowdown.is_not(None)).order_by(windows.c.first_step.desc())
    row = conn.execute(query.limit(1)).one_or_none()
    return None if row is None else summary_of(row._mapping)


def times(conn: Connection, job_id: str, *, since: Place) -> dict[str, Times]:
    """Sums of step times by window id, from a step on."""
    query = (
        select(steps.c.window_id, func.sum(steps.c.simulated_s), func.sum(steps.c.ideal_s))
        .where(steps.c.job_id == job_id, tuple_(steps.c.epoch, steps.c.step) >= since)
        .where(steps.c.simulated_s.is_not(None), steps.c.ideal_s.is_not(None))
        .group_by(steps.c.window_id)
    )
    return {window_id: Times(*sums) for window_id, *sums in conn.execute(query)}


def skipped(
    conn: Connection, job_id: str, *, since: Place, limit: int, besides: Iterable[str] = ()
) -> list[Skipped]:
    """The newest skipped steps from a step on, ascending; none whose reason begins like these."""
    query = (
        select(steps.c.epoch, steps.c.step, steps.c.skipped_reason)
        .where(steps.c.job_id == job_id, tuple_(steps.c.epoch, steps.c.step) >= since)
        .where(steps.c.skipped_reason.is_not(None))
        .where(*(~steps.c.skipped_reason.startswith(each, autoescape=True) for each in besides))
        .order_by(steps.c.epoch.desc(), steps.c.step.desc())
        .limit(limit)
    )
    return [Skipped(*row) for row in reversed(conn.execute(query).all())]


def beginnings(conn: Connection, job_id: str, *, since: int) -> dict[int, float]:
    """When (Unix time) each run from an epoch on registered."""
    query = select(runs.c.epoch, runs.c.registered_s)
    query = query.where(runs.c.job_id == job_id, runs.c.epoch >= since).order_by(runs.c.epoch)
    return {row.epoch: row.registered_s for row in conn.execute(query)}


def _is_known(conn: Connection, job_id: str) -> bool:
    query = select(jobs.c.job_id).where(jobs.c.job_id == job_id)
    return conn.execute(query).one_or_none() is not None
