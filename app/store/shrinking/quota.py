"""Quotas: how much the windows of a project take, and which go when that is more than it may.

The operations of its oldest closed windows go first, since timelines and what-if questions alone
need them; then its oldest closed windows. Open windows stay, whatever the quota.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, literal, select

from app.store.projects import owns
from app.store.tables import windows

_KEY = (windows.c.job_id, windows.c.epoch, windows.c.first_step)


@dataclass(frozen=True, slots=True)
class Excess:
    """Closed windows of a project, oldest first, that have to go for `excess_bytes` less.

    With `is_raw` their operations alone go.
    """

    project: str
    excess_bytes: int
    is_raw: bool


def stored_bytes(conn: Connection, project: str) -> int:
    """Bytes of all windows of a project in the database: operations and results."""
    total = func.coalesce(func.sum(_size_of(is_raw=True) + _size_of(is_raw=False)), 0)
    query = select(total).where(owns(project, windows.c.job_id))
    return int(conn.execute(query).scalar_one())


def excesses(conn: Connection, project: str, max_bytes: float) -> Iterator[Excess]:
    """What has to go until the windows of the project take at most so much; operations first."""
    excess_bytes = stored_bytes(conn, project) - int(max_bytes)
    if excess_bytes <= 0:
        return
    raw = _closed(project, is_raw=True).subquery()
    sum_of_sizes = select(func.coalesce(func.sum(raw.c.size_bytes), 0))
    raw_bytes = int(conn.execute(sum_of_sizes).scalar_one())
    if raw_bytes:
        yield Excess(project, min(excess_bytes, raw_bytes), is_raw=True)
    if excess_bytes > raw_bytes:
        yield Excess(project, excess_bytes - raw_bytes, is_raw=False)


def oldest(excess: Excess) -> Select[Any]:
    """Keys, last step and `size_bytes` of the windows, those first that go first."""
    return _closed(excess.project, is_raw=excess.is_raw).order_by(windows.c.updated_s)


def first_of(rows: Sequence[Row[Any]], excess_bytes: int) -> Sequence[Row[Any]]:
    """The first rows that together have so many bytes; all, where they have fewer."""
    sums = accumulate(row.size_bytes for row in rows)
    enough = next((at for at, sum_ in enumerate(sums, 1) if sum_ >= excess_bytes), len(rows))
    return rows[:enough]


def _closed(project: str, *, is_raw: bool) -> Select[Any]:
    size_bytes = _size_of(is_raw=is_raw).label("size_bytes")
    query = select(*_KEY, windows.c.last_step, size_bytes)
    query = query.where(owns(project, windows.c.job_id), windows.c.state != "open")
    return query.where(windows.c.trace.is_not(None)) if is_raw else query


def _size_of(*, is_raw: bool) -> ColumnElement[int]:
    columns = (windows.c.trace,) if is_raw else (windows.c.result, windows.c.per_step)
    sizes = (func.coalesce(func.length(each), 0) for each in columns)
    return sum(sizes, literal(0))
