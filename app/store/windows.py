"""Windows: what was found out about successive steps of one run, replaced by newer revisions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    ScalarSelect,
    Select,
    func,
    select,
    tuple_,
    type_coerce,
)

from app.engine.result_by_step import whole
from app.errors import JobNotFound, WindowNotFound
from app.store.columns import PackedBytes
from app.store.paging import Int64, from_cursor, split, to_cursor
from app.store.tables import jobs, windows
from app.store.upsert import insert
from app.trace.window import WindowState

Verdict = Literal["ok", "low"]

_KEY = (windows.c.job_id, windows.c.epoch, windows.c.first_step)
_WINDOW_ID = re.compile(r"([1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
SUMMARY = (
    windows.c.epoch,
    windows.c.first_step,
    windows.c.last_step,
    windows.c.revision,
    windows.c.state,
    windows.c.num_steps,
    windows.c.slowdown,
    windows.c.verdict,
    windows.c.updated_s,
)


class _Ranks(msgspec.Struct):
    rank: list[int]


class _StepsAndRanks(msgspec.Struct):
    """Of a stored result only the steps, and the ranks that arrivals are about."""

    steps: list[int]
    arrivals: _Ranks | None = None


_RANKS = msgspec.json.Decoder(_StepsAndRanks)


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """A window without its arrays; the figures are None where no step could be analysed."""

    window_id: str
    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: WindowState
    num_steps: int
    slowdown: float | None
    verdict: Verdict | None
    updated_s: float


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One revision of a window, to be saved.

    `result` is the JSON of what-if-model.md, section 7, without what it says of each step, which is
    in `per_step` (app/engine/result_by_step.py); `trace` are the raw operations, kept of closed
    windows only.
    """

    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: WindowState
    num_steps: int
    num_ops: int
    slowdown: float | None
    verdict: Verdict | None
    result: dict[str, Any]
    per_step: dict[str, Any] | None
    trace: bytes | None
    updated_s: float


def save(conn: Connection, job_id: str, record: WindowRecord) -> bool:
    """Save a revision over older ones; False when this one or a newer is there already."""
    values = {"job_id": job_id} | {name: getattr(record, name) for name in record.__slots__}
    statement = insert(conn, windows).values(values)
    new = statement.excluded
    key = {column.name for column in _KEY}
    statement = statement.on_conflict_do_update(
        index_elements=_KEY,
        set_={name: new[name] for name in values if name not in key},
        where=new.revision > windows.c.revision,
    )
    saved = conn.execute(statement.returning(windows.c.revision))
    return saved.one_or_none() is not None


def get(conn: Connection, job_id: str, window_id: str, *, per_step: bool = False) -> dict[str, Any]:
    """The result JSON of a window, by its id or as "latest" of the current run.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
    """
    columns = (windows.c.result, windows.c.per_step) if per_step else (windows.c.result,)
    row = _find(conn, job_id, window_id, *columns)
    return whole(row["result"], row["per_step"]) if per_step else dict(row["result"])


def summary(conn: Connection, job_id: str, window_id: str) -> WindowSummary:
    """The summary of a window; raises as `get` does."""
    return summary_of(_find(conn, job_id, window_id, *SUMMARY))


def figures_by_step(
    conn: Connection, job_id: str, epoch: int, name: str, first_steps: Sequence[int]
) -> list[tuple[list[int], list[Any]]]:
    """Steps and one figure of `per_step` for each of them, of windows that begin at these steps.

    The other figures are passed over: of large jobs they are most of what is stored.
    """
    numbers = type_coerce(windows.c.result, PackedBytes)
    figures = type_coerce(windows.c.per_step, PackedBytes)
    query = (
        select(numbers.label("numbers"), figures.label("figures"))
        .where(windows.c.job_id == job_id, windows.c.epoch == epoch)
        .where(windows.c.first_step.in_(first_steps), windows.c.per_step.is_not(None))
        .where(windows.c.slowdown.is_not(None))
        .order_by(windows.c.first_step)
    )
    rows = conn.execute(query).all()
    return [(_one_key(row.numbers, "steps"), _one_key(row.figures, name)) for row in rows]


def waited_for_by_step(
    conn: Connection, job_id: str, epoch: int, first_steps: Sequence[int]
) -> list[tuple[list[int], list[int], list[list[float]]]]:
    """Steps, ranks and [step][rank] seconds that others waited, of windows that begin at these."""
    numbers = type_coerce(windows.c.result, PackedBytes)
    figures = type_coerce(windows.c.per_step, PackedBytes)
    query = (
        select(numbers.label("numbers"), figures.label("figures"))
        .where(windows.c.job_id == job_id, windows.c.epoch == epoch)
        .where(windows.c.first_step.in_(first_steps), windows.c.per_step.is_not(None))
        .order_by(windows.c.first_step)
    )
    found = []
    for row in conn.execute(query):
        known = _RANKS.decode(row.numbers)
        if known.arrivals is not None:
            waited_for_s = _one_key(row.figures, "waited_for_s")
            found.append((known.steps, known.arrivals.rank, waited_for_s))
    return found


def newest_with_figures() -> ScalarSelect[int]:
    """First step of the newest window with figures, of each job's current run in a query."""
    figures = windows.alias("figures")
    return (
        select(func.max(figures.c.first_step))
        .where(figures.c.job_id == jobs.c.job_id, figures.c.epoch == jobs.c.epoch)
        .where(figures.c.slowdown.is_not(None))
        .correlate(jobs)
        .scalar_subquery()
    )


def trace(conn: Connection, job_id: str, window_id: str) -> bytes | None:
    """The raw operations of a closed window, None of an open one; raises as `get` does."""
    kept: bytes | None = _find(conn, job_id, window_id, windows.c.trace)["trace"]
    return kept


def page(
    conn: Connection, job_id: str, *, cursor: str | None = None, limit: int = 100
) -> tuple[list[WindowSummary], str | None]:
    """Summaries of all runs, the newest first, and the cursor of the next page."""
    key = tuple_(windows.c.epoch, windows.c.first_step)
    query = _newest_first(job_id, *SUMMARY).limit(limit + 1)
    if cursor is not None:
        query = query.where(key < from_cursor(cursor, tuple[Int64, Int64]))
    rows, more = split([summary_of(row._mapping) for row in conn.execute(query)], limit)
    if not rows:
        check_job(conn, job_id)
    return rows, to_cursor(rows[-1].epoch, rows[-1].first_step) if more else None


def open_window(conn: Connection, job_id: str, epoch: int) -> WindowSummary | None:
    """The window of a run that still takes steps, if it has one."""
    query = _newest_first(job_id, *SUMMARY).where(windows.c.epoch == epoch)
    row = conn.execute(query.where(windows.c.state == "open").limit(1)).one_or_none()
    return None if row is None else summary_of(row._mapping)


def summary_of(row: RowMapping | dict[str, Any]) -> WindowSummary:
    """The summary in a row of the columns `SUMMARY`."""
    values = {column.name: row[column.name] for column in SUMMARY}
    return WindowSummary(window_id=f"{row['epoch']}-{row['first_step']}", **values)


def _one_key(document: bytes, name: str) -> list[Any]:
    """The list at one key of a JSON object; what is beside it is passed over, unread."""
    return list(getattr(_only(name).decode(document), name) or ())


@cache
def _only(name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Only", [(name, list[Any] | None, None)]))


def _newest_first(job_id: str, *columns: ColumnElement[Any]) -> Select[Any]:
    query = select(*columns).where(windows.c.job_id == job_id)
    return query.order_by(windows.c.epoch.desc(), windows.c.first_step.desc())


def _find(
    conn: Connection, job_id: str, window_id: str, *columns: ColumnElement[Any]
) -> RowMapping:
    query = _newest_first(job_id, *columns).limit(1)
    if window_id == "latest":
        row = _latest(conn, job_id, query)
    else:
        epoch, first_step = place_of(job_id, window_id)
        query = query.where(windows.c.epoch == epoch, windows.c.first_step == first_step)
        row = conn.execute(query).one_or_none()
    if row is None:
        check_job(conn, job_id)
        raise WindowNotFound(job_id, window_id)
    found: RowMapping = row._mapping
    return found


def place_of(job_id: str, window_id: str) -> tuple[int, int]:
    """Epoch and first step of a window's id.

    Raises:
        WindowNotFound: it is no such id.
    """
    named = _WINDOW_ID.fullmatch(window_id)
    if named is None:
        raise WindowNotFound(job_id, window_id)
    return int(named[1]), int(named[2])


def _latest(conn: Connection, job_id: str, newest_first: Select[Any]) -> Any:
    # A window whose first step is not complete yet has nothing to show: the one before has.
    current = select(jobs.c.epoch).where(jobs.c.job_id == job_id).scalar_subquery()
    query = newest_first.where(windows.c.epoch == current)
    with_figures = query.where(windows.c.slowdown.is_not(None))
    return conn.execute(with_figures).one_or_none() or conn.execute(query).one_or_none()


def check_job(conn: Connection, job_id: str) -> None:
    """See that the job exists.

    Raises:
        JobNotFound: it never registered.
    """
    if conn.execute(select(jobs.c.epoch).where(jobs.c.job_id == job_id)).one_or_none() is None:
        raise JobNotFound(job_id)
