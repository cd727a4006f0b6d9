"""What is kept for how long, and the removal of what is older.

Rows go in small batches, each in a transaction of its own. SQLite uses freed pages again, and
PostgreSQL freed space; neither gets smaller by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from app.errors import LeaseLost, NotFound
from app.store.engine import Store, now_s
from app.store.old_rows import KINDS
from app.store.old_rows_kind import Kind
from app.store.tables import projects

_DAY_S = 86_400.0
# SQLite lets nobody else write meanwhile: it frees some 100 MB a second.
_ROWS_AT_ONCE = 100
_BYTES_AT_ONCE = 32 << 20
# Any number will do, as long as every Paceline uses the same, and no other lock has it.
ADVISORY_LOCK = 7_263_554_619


@dataclass(frozen=True, slots=True)
class Keep:
    """Days for which the operations of closed windows, and all results, are kept."""

    raw_days: float
    results_days: float


@dataclass(frozen=True, slots=True)
class Policy:
    """What a project keeps; `has_own` says which of the two are its own, not the service's."""

    project: str
    keep: Keep
    has_own: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows of one kind that a project has no longer, or would not have."""

    project: str
    kind: str
    number: int


def policies(conn: Connection, usual: Keep) -> list[Policy]:
    """What each project keeps, where `usual` is the service's own word."""
    rows = conn.execute(select(projects).order_by(projects.c.project))
    return [_policy(row, usual) for row in rows]


def own(conn: Connection, project: str) -> dict[str, float | None]:
    """What `set_own` was told last; None where a project goes by the service's word."""
    names = (projects.c.keep_raw_days, projects.c.keep_results_days)
    row = conn.execute(select(*names).where(projects.c.project == project)).one_or_none()
    raw_days, results_days = (None, None) if row is None else row
    return {"raw_days": raw_days, "results_days": results_days}


def set_own(
    conn: Connection, project: str, *, raw_days: float | None, results_days: float | None
) -> None:
    """Keep a project's rows for as long as this from now on; None: as long as the service says.

    Raises:
        NotFound: there is no such project.
    """
    of_project = update(projects).where(projects.c.project == project)
    values = {"keep_raw_days": raw_days, "keep_results_days": results_days}
    if not conn.execute(of_project.values(**values)).rowcount:
        raise NotFound(f"no project {project!r}: it is made with its first token")


def sweep(store: Store, usual: Keep) -> Iterator[Removed]:
    """Remove what is old, one batch at each step; between two of them no transaction is open.

    Raises:
        LeaseLost: another process is at it.
        StoreUnavailable: the database does not answer; what was removed stays so.
    """
    for project, kind, before_s in _tasks(store, usual):
        while number := _remove_some(store, project, kind, before_s):
            yield Removed(project, kind.name, number)


def count(store: Store, usual: Keep) -> Iterator[Removed]:
    """What `sweep` would remove first; with operations and results gone, whole runs may follow."""
    for project, kind, before_s in _tasks(store, usual):
        old = kind.old(project, before_s).subquery()
        with store.read() as conn:
            number = conn.execute(select(func.count()).select_from(old)).scalar_one()
        if number:
            yield Removed(project, kind.name, number)


def _tasks(store: Store, usual: Keep) -> Iterator[tuple[str, Kind, float]]:
    with store.read() as conn:
        today_s = now_s(conn)
        found = policies(conn, usual)
    for policy in found:
        for kind in KINDS:
            days = policy.keep.results_days
            if kind.is_raw:  # before their windows, which then are small
                days = min(days, policy.keep.raw_days)
            yield policy.project, kind, today_s - days * _DAY_S


def _remove_some(store: Store, project: str, kind: Kind, before_s: float) -> int:
    with store.write() as conn:
        _check_alone(conn)
        # Locked, so that nobody changes a row between the question and the removal.
        old = kind.old(project, before_s).limit(_ROWS_AT_ONCE)
        rows = _some(conn.execute(old.with_for_update(skip_locked=True)).all())
        if rows:
            kind.remove(conn, rows)
    return len(rows)


def _some(rows: Sequence[Row[Any]]) -> list[Row[Any]]:
    """The first rows, at least one, up to a sum of bytes."""
    sizes = accumulate(row._mapping.get("size_bytes", 0) for row in rows)
    return [row for at, (row, sum_) in enumerate(zip(rows, sizes, strict=True))
            if at == 0 or sum_ <= _BYTES_AT_ONCE]  # fmt: skip


def _check_alone(conn: Connection) -> None:
    # On SQLite the write transaction keeps all others out.
    if conn.dialect.name == "postgresql":
        taken = select(func.pg_try_advisory_xact_lock(ADVISORY_LOCK))
        if not conn.execute(taken).scalar_one():
            raise LeaseLost("another process is removing what is old")


def _policy(row: Row[Any], usual: Keep) -> Policy:
    has_own = (row.keep_raw_days is not None, row.keep_results_days is not None)
    raw_days = row.keep_raw_days if has_own[0] else usual.raw_days
    results_days = row.keep_results_days if has_own[1] else usual.results_days
    return Policy(row.project, Keep(raw_days, results_days), has_own)
