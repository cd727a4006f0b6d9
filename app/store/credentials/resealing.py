"""Sealing again what older keys have sealed.

In transactions of a few rows each, so that a service may be running. Of rows that cannot be opened
nothing changes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, not_, select

from app.store import service_state
from app.store.alerting import receivers
from app.store.alerting.tables import endpoints
from app.store.credentials.sealing import keys_of, sealing_key
from app.store.database import Store
from app.store.tables import service_keys

_ROWS_AT_ONCE = 50
# What seals a row anew, by its key; False if it cannot be opened.
_RESEAL_ROW = {endpoints: receivers.reseal, service_keys: service_state.reseal_key}


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


def count(conn: Connection) -> SealedCounts:
    """How the stored secrets are sealed now."""
    sealed = list(conn.execute(select(endpoints.c.sealed)).scalars())
    for key in conn.execute(select(service_keys.c.key)).scalars():
        sealed.append(key.decode(errors="replace"))  # a backup may have brought any bytes
    locked = sum(keys_of(conn).why_locked(text) is not None for text in sealed)
    return SealedCounts(Counter(map(sealing_key, sealed)), locked)


def reseal(store: Store) -> Resealed:
    """Seal every row with the newest key that is not sealed with it; raises SecretsLocked."""
    done = num_rows = 0
    for table, reseal_row in _RESEAL_ROW.items():
        batch: Sequence[str] = [""]
        while batch:
            with store.write() as conn:
                batch = _batch(conn, table, after=batch[-1])
                done += sum(reseal_row(conn, key) for key in batch)
            num_rows += len(batch)
    return Resealed(done, num_rows - done)


def _batch(conn: Connection, table: Table, after: str) -> Sequence[str]:
    """The keys of the next rows that are not sealed with the newest key, locked."""
    prefix = f"v1.{keys_of(conn).required_id()}."
    (key,) = table.primary_key.columns
    if table is endpoints:
        is_old = not_(endpoints.c.sealed.startswith(prefix))
    else:
        begin = func.substr(service_keys.c.key, 1, len(prefix))
        is_old = begin != prefix.encode()
    query = select(key).where(key > after, is_old).order_by(key).limit(_ROWS_AT_ONCE)
    return conn.execute(query.with_for_update()).scalars().all()
