"""Entries that were handed out again and again: how often has each been tried alone?

Written down before the attempt, since the attempt may take the process with it.
"""

from sqlalchemy import Connection, delete, select

from app.store import totals
from app.store.tables import totals as table


def begin(conn: Connection, shard: int, entry_id: str) -> int:
    """Number of this attempt, from 1."""
    name = _name(shard, entry_id)
    totals.add(conn, name, 1)
    return int(conn.execute(select(table.c.value).where(table.c.name == name)).scalar_one())


def end(conn: Connection, shard: int, entry_id: str) -> None:
    """The entry was taken, or given up."""
    conn.execute(delete(table).where(table.c.name == _name(shard, entry_id)))


def _name(shard: int, entry_id: str) -> str:
    return f"tried:{shard}:{entry_id}"
