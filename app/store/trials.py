"""Entries that were handed out again and again: how many processes have tried each alone?

Written down before the attempt, since the attempt may take the process with it. A process that
lives on, whatever came in between, counts once.
"""

from sqlalchemy import Connection, delete, func, select

from app.store.tables import totals
from app.store.upsert import add_new


def begin(conn: Connection, shard: int, entry_id: str, process: str) -> int:
    """Number of processes that have tried it and did not say how it ended; this one is in it."""
    prefix = _prefix(shard, entry_id)
    add_new(conn, totals, [{"name": prefix + process, "value": 1}])
    mine = totals.c.name.startswith(prefix, autoescape=True)
    return int(conn.execute(select(func.count()).where(mine)).scalar_one())


def end(conn: Connection, shard: int, entry_id: str) -> None:
    """The entry was taken, or given up."""
    mine = totals.c.name.startswith(_prefix(shard, entry_id), autoescape=True)
    conn.execute(delete(totals).where(mine))


def _prefix(shard: int, entry_id: str) -> str:
    return f"tried:{shard}:{entry_id}:"
