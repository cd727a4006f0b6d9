"""Which rows are old, and how are they removed?

What a consumer may still need is never old: open windows, runs that are not closed, messages that
are still to be sent, dead letters that nobody has settled.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    not_,
    or_,
    select,
    tuple_,
    update,
)

from app.store import counts
from app.store.old_alert_rows import KINDS as OF_ALERTS
from app.store.old_rows_kind import Kind
from app.store.projects import owns
from app.store.score_tables import score_reports
from app.store.tables import (
    cursors,
    dead_letters,
    drops,
    histories,
    hosts,
    run_hosts,
    runs,
    spool,
    steps,
    window_briefs,
    window_losses,
    windows,
)

_WINDOW = (windows.c.job_id, windows.c.epoch, windows.c.first_step)
_OF_RUN = ("job_id", "epoch")


def _old_windows(project: str, before_s: float) -> Select[Any]:
    closed = and_(windows.c.state != "open", windows.c.updated_s < before_s)
    size_bytes = func.coalesce(func.length(windows.c.trace), 0).label("size_bytes")
    query = select(*_WINDOW, windows.c.last_step, size_bytes).where(closed)
    return query.where(owns(project, windows.c.job_id)).order_by(windows.c.updated_s)


def _old_operations(project: str, before_s: float) -> Select[Any]:
    return _old_windows(project, before_s).where(windows.c.trace.is_not(None))


def _remove_operations(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    of_these = tuple_(*_WINDOW).in_([tuple(row)[:3] for row in rows])
    conn.execute(update(windows).where(of_these).values(trace=None))


def _remove_windows(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    names = (*_OF_RUN, "first_step", "last_step")
    keys = [{f"of_{name}": row._mapping[name] for name in names} for row in rows]
    same_run = [steps.c[name] == bindparam(f"of_{name}") for name in _OF_RUN]
    its_steps = steps.c.step.between(bindparam("of_first_step"), bindparam("of_last_step"))
    conn.execute(delete(steps).where(*same_run, its_steps), keys)
    of_window = [tuple(row)[:3] for row in rows]
    for table in (window_briefs, window_losses, windows):
        key = tuple_(*(table.c[column.name] for column in _WINDOW))
        conn.execute(delete(table).where(key.in_(of_window)))


def _old_runs(project: str, before_s: float) -> Select[Any]:
    moments = (runs.c.ended_s, runs.c.superseded_s, runs.c.last_data_s)
    old = (or_(moment.is_(None), moment < before_s) for moment in moments)
    query = select(runs.c.job_id, runs.c.epoch).where(runs.c.is_closed, *old)
    for kept in (windows, spool):
        same_run = (kept.c[name] == runs.c[name] for name in _OF_RUN)
        query = query.where(not_(select(kept.c.job_id).where(*same_run).exists()))
    return query.where(owns(project, runs.c.job_id)).order_by(runs.c.job_id, runs.c.epoch)


def _remove_runs(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    # The job itself stays, so that no later run of it gets an epoch that there was before.
    for row in rows:
        counts.remove(conn, row.job_id, row.epoch)
        for table in (steps, hosts, run_hosts, drops, histories, cursors, runs):
            same_run = (table.c[name] == row._mapping[name] for name in _OF_RUN)
            conn.execute(delete(table).where(*same_run))


def _old_letters(project: str, before_s: float) -> Select[Any]:
    settled = and_(dead_letters.c.state != "dead", dead_letters.c.settled_s < before_s)
    size_bytes = func.length(dead_letters.c.body).label("size_bytes")
    query = select(dead_letters.c.letter_id, size_bytes).where(settled)
    return query.where(owns(project, dead_letters.c.job_id)).order_by(dead_letters.c.letter_id)


def _remove_letters(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    ids = [row.letter_id for row in rows]
    conn.execute(delete(dead_letters).where(dead_letters.c.letter_id.in_(ids)))


def _old_scores(project: str, before_s: float) -> Select[Any]:
    size_bytes = func.length(score_reports.c.scores).label("size_bytes")
    query = select(score_reports.c.report_id, size_bytes)
    query = query.where(score_reports.c.received_s < before_s)
    return query.where(owns(project, score_reports.c.job_id)).order_by(score_reports.c.received_s)


def _remove_scores(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    ids = [row.report_id for row in rows]
    conn.execute(delete(score_reports).where(score_reports.c.report_id.in_(ids)))


# In this order, since a run can go when its windows have.
KINDS = (
    Kind("operations of windows", _old_operations, _remove_operations, is_raw=True),
    Kind("windows", _old_windows, _remove_windows),
    Kind("runs", _old_runs, _remove_runs),
    Kind("scores", _old_scores, _remove_scores),
    *OF_ALERTS,
    Kind("dead letters", _old_letters, _remove_letters),
)
