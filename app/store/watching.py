"""Which runs are watched, from the first word of them until their last window is closed."""

from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Update, exists, func, or_, select, update

from app.store.registering import ACTIVE_FOR_S
from app.store.score_tables import score_reports
from app.store.tables import runs


class Heard(NamedTuple):
    """When (Unix time) a run registered, and something of it came last; None: nothing ever did."""

    registered_s: float
    last_data_s: float | None


class EndedRun(NamedTuple):
    """A run whose last window is still to be closed; superseded, or ended of itself."""

    job_id: str
    epoch: int
    is_superseded: bool


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


def reopen(conn: Connection, job_id: str, epoch: int) -> None:
    """Something came for the run after its last window was closed: it is to be closed again."""
    run = update_of(job_id, epoch)
    conn.execute(run.where(runs.c.is_closed).values(is_closed=False))


def mark_closed(conn: Connection, job_id: str, epoch: int) -> None:
    """The run's last window has been closed."""
    conn.execute(update_of(job_id, epoch).values(is_closed=True))


def _going(conn: Connection, *conditions: ColumnElement[bool]) -> list[tuple[str, int]]:
    """Job id and epoch of the runs that are not over and meet these."""
    going = (runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None), ~runs.c.is_closed)
    query = select(runs.c.job_id, runs.c.epoch).where(*going, *conditions)
    rows = conn.execute(query.order_by(*query.selected_columns))
    return [(row.job_id, row.epoch) for row in rows]


def update_of(job_id: str, epoch: int) -> Update:
    """Updates one run's row."""
    return update(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
