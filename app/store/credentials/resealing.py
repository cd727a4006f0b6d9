"""Sealing again what older keys have sealed.

In transactions of a few rows each, so that a service may be running. Of rows that cannot be opened
nothing changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, not_, select

from app.store import service_state
from app.store.alerting import receivers
from app.store.alerting.tables import endpoints
from app.store.credentials.sealing import keys_of, sealing_key
from app.store.database import Store
from app.store.tables import service_keys

_ROWS_AT_ONCE = 50
_TABLES = (endpoints, service_keys)


@dataclass(frozen=True, slots=True)
class SealedCounts:
    """Numbers of rows with secrets: `by_key` ids of keys, and `locked` ones."""

    by_key: dict[str, int]
    locked: int


@dataclass(frozen=True, slots=True)
class Resealed:
    """Rows that are sealed with the newest key now, and those that could not be opened."""

    done: int = 0
    locked: int = 0

    def __add__(self, other: "Resealed") -> "Resealed":
        return Resealed(self.done + other.done, self.locked + other.locked)


def count(conn: Connection) -> SealedCounts:
    """How the stored secrets are sealed now."""
    by_key: dict[str, int] = {}
    locked = 0
    for sealed in _all_sealed(conn):
        name = sealing_key(sealed)
        by_key[name] = by_key.get(name, 0) + 1
        locked += keys_of(conn).why_locked(sealed) is not None
    return SealedCounts(by_key, locked)


def reseal(store: Store) -> Resealed:
    """Seal every row with the newest key that is not sealed with it.

    Raises:
        SecretsLocked: there is no key.
    """
    total = Resealed()
    for table in _TABLES:
        after: str | None = ""
        while after is not None:
            with store.write() as conn:
                after, result = _reseal_batch(conn, table, after)
            total += result
    return total


def _reseal_batch(conn: Connection, table: Table, after: str) -> tuple[str | None, Resealed]:
    """Seal the next few rows; the last one's key, None if there was none."""
    batch = list(_batch(conn, table, after))
    done = sum(_reseal_row(conn, table, key) for key in batch)
    return (batch[-1] if batch else None), Resealed(done, len(batch) - done)


def _all_sealed(conn: Connection) -> Iterator[str]:
    yield from conn.execute(select(endpoints.c.sealed)).scalars()
    for key in conn.execute(select(service_keys.c.key)).scalars():
        yield key.decode(errors="replace")  # a backup may have brought any bytes


def _batch(conn: Connection, table: Table, after: str) -> Iterator[str]:
    """The keys of the next rows that are not sealed with the newest key, locked."""
    prefix = f"v1.{keys_of(conn).required_id()}."
    (key,) = table.primary_key.columns
    if table is endpoints:
        is_old = not_(endpoints.c.sealed.startswith(prefix))
    else:
        begin = func.substr(service_keys.c.key, 1, len(prefix))
        is_old = begin != prefix.encode()
    query = select(key).where(key > after, is_old).order_by(key).limit(_ROWS_AT_ONCE)
    yield from conn.execute(query.with_for_update()).scalars()


def _reseal_row(conn: Connection, table: Table, key: str) -> bool:
    """Seal one row; False if it cannot be opened."""
    if table is service_keys:
        return service_state.reseal_key(conn, key)
    return receivers.reseal(conn, key)
