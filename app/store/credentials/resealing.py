"""Sealing again what older keys have sealed, and what older releases stored in plain.

In transactions of a few rows each, so that a service may be running. Of rows that cannot be opened
nothing changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, not_, or_, select

from app.store import service_state
from app.store.alerting import receivers
from app.store.alerting.tables import endpoints
from app.store.credentials.sealing import is_sealed, keys_of, sealing_key
from app.store.database import Store
from app.store.tables import service_keys

_ROWS_AT_ONCE = 50
_TABLES = (endpoints, service_keys)


@dataclass(frozen=True, slots=True)
class SealedCounts:
    """Numbers of rows with secrets: `by_key` ids of keys, `plain` ones, and `locked` ones."""

    by_key: dict[str, int]
    plain: int
    locked: int


@dataclass(frozen=True, slots=True)
class Resealed:
    """Rows that are sealed with the newest key now, and those that could not be opened."""

    done: int = 0
    locked: int = 0
    was_plain: bool = False  # some of those that are sealed now

    def __add__(self, other: "Resealed") -> "Resealed":
        was_plain = self.was_plain or other.was_plain
        return Resealed(self.done + other.done, self.locked + other.locked, was_plain)


def count(conn: Connection) -> SealedCounts:
    """How the stored secrets are sealed now."""
    by_key: dict[str, int] = {}
    plain = locked = 0
    for sealed in _all_sealed(conn):
        if sealed is None:
            plain += 1
            continue
        name = sealing_key(sealed)
        by_key[name] = by_key.get(name, 0) + 1
        locked += keys_of(conn).why_locked(sealed) is not None
    return SealedCounts(by_key, plain, locked)


def reseal(store: Store) -> Resealed:
    """Seal every row with the newest key that is not sealed with it.

    Raises:
        SecretsLocked: there is no key.
    """
    total = Resealed()
    for table in _TABLES:
        after: str | None = ""
        while after is not None:
            with store.write() as conn, erasing(conn):
                after, result = _reseal_batch(conn, table, after)
            total += result
    if total.was_plain:
        store.forget_log()
    return total


def reseal_within(conn: Connection) -> Resealed:
    """The same in one transaction, which has begun; whoever began it empties the log."""
    total = Resealed()
    for table in _TABLES:
        after: str | None = ""
        while after is not None:
            after, result = _reseal_batch(conn, table, after)
            total += result
    return total


@contextmanager
def erasing(conn: Connection) -> Iterator[None]:
    """Have SQLite overwrite what this block replaces; it would stay in the file otherwise."""
    is_sqlite = conn.dialect.name == "sqlite"
    if is_sqlite:
        conn.exec_driver_sql("PRAGMA secure_delete = ON")
    try:
        yield
    finally:
        if is_sqlite:
            conn.exec_driver_sql("PRAGMA secure_delete = OFF")


def _reseal_batch(conn: Connection, table: Table, after: str) -> tuple[str | None, Resealed]:
    """Seal the next few rows; the last one's key, None if there was none."""
    batch = list(_batch(conn, table, after))
    results = [_reseal_row(conn, table, key) for key in batch]
    locked = results.count(None)
    counts = Resealed(len(results) - locked, locked, was_plain="plain" in results)
    return (batch[-1] if batch else None), counts


def _all_sealed(conn: Connection) -> Iterator[str | None]:
    yield from conn.execute(select(endpoints.c.sealed)).scalars()
    for key in conn.execute(select(service_keys.c.key)).scalars():
        yield key.decode() if is_sealed(key) else None


def _batch(conn: Connection, table: Table, after: str) -> Iterator[str]:
    """The keys of the next rows that are not sealed with the newest key, locked."""
    prefix = f"v1.{keys_of(conn).required_id()}."
    (key,) = table.primary_key.columns
    if table is endpoints:
        is_old = or_(endpoints.c.sealed.is_(None), not_(endpoints.c.sealed.startswith(prefix)))
    else:
        begin = func.substr(service_keys.c.key, 1, len(prefix))
        is_old = begin != prefix.encode()
    query = select(key).where(key > after, is_old).order_by(key).limit(_ROWS_AT_ONCE)
    yield from conn.execute(query.with_for_update()).scalars()


def _reseal_row(conn: Connection, table: Table, key: str) -> str | None:
    """Seal one row; what it was, "plain" or "sealed", or None if it cannot be opened."""
    if table is service_keys:
        return service_state.reseal_key(conn, key)
    return receivers.reseal(conn, key)
