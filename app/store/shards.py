"""Who works on which shard: leases with a fence number, and the consumers that are alive.

A lease alone does not stop a consumer that slept through its end. Every commit therefore checks
the fence number, which grows with every new holder.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, or_, select, update

from app.errors import LeaseLost
from app.store.tables import consumers, shards
from app.store.upsert import add_new, replace

MAX_LEASES = 4
_FORGET_AFTER_S = 3600.0


def acquire(
    conn: Connection, shard: int, owner: str, *, now_s: float, lease_s: float
) -> int | None:
    """The fence number of a new lease; None while another consumer holds the shard."""
    add_new(conn, shards, [{"shard": shard, "owner": None, "fence": 0, "lease_until_s": 0.0}])
    free = or_(
        shards.c.owner.is_(None),
        shards.c.owner == owner,
        shards.c.lease_until_s < now_s,
        # No lease is that long: the clock was ahead when it was given, and has been put right.
        shards.c.lease_until_s > now_s + MAX_LEASES * lease_s,
    )
    return conn.execute(
        update(shards)
        .where(shards.c.shard == shard, free)
        .values(owner=owner, fence=shards.c.fence + 1, lease_until_s=now_s + lease_s)
        .returning(shards.c.fence)
    ).scalar_one_or_none()


def renew(
    conn: Connection, shard: int, owner: str, fence: int, *, now_s: float, lease_s: float
) -> None:
    """Hold the shard for `lease_s` from now on.

    Raises:
        LeaseLost: another consumer has it.
    """
    held = (shards.c.shard == shard, shards.c.owner == owner, shards.c.fence == fence)
    renewed = conn.execute(update(shards).where(*held).values(lease_until_s=now_s + lease_s))
    if renewed.rowcount == 0:
        raise LeaseLost(f"shard {shard} has another owner")


def check(conn: Connection, shard: int, owner: str, fence: int) -> None:
    """Returns when the lease still holds, and keeps others off until the transaction ends.

    Raises:
        LeaseLost: another consumer has it; commit nothing.
    """
    held = (shards.c.shard == shard, shards.c.owner == owner, shards.c.fence == fence)
    query = select(shards.c.shard).where(*held)
    if conn.execute(query.with_for_update()).one_or_none() is None:
        raise LeaseLost(f"shard {shard} has another owner")


def note_committed(conn: Connection, shard: int, entry_ids: Sequence[str]) -> None:
    """These entries of the queue are taken with this transaction."""
    same = shards.c.shard == shard
    conn.execute(update(shards).where(same).values(committed=list(entry_ids)))


def committed(conn: Connection, shard: int) -> set[str]:
    """Entries of the last commit: the queue hands them out again if it was not told of it."""
    query = select(shards.c.committed).where(shards.c.shard == shard)
    return set(conn.execute(query).scalar_one_or_none() or ())


def release(conn: Connection, shard: int, fence: int) -> None:
    """Let go of the shard, if it is still held under this fence number."""
    held = (shards.c.shard == shard, shards.c.fence == fence)
    conn.execute(update(shards).where(*held).values(owner=None, lease_until_s=0.0))


def heartbeat(
    conn: Connection, owner: str, *, now_s: float, lease_s: float, knows: Sequence[str] = ()
) -> None:
    """This consumer is alive, and will be said to be so for `lease_s`.

    It `knows` how to read these extensions of what the queue holds.
    """
    row = {"owner": owner, "lease_until_s": now_s + lease_s, "knows": list(knows)}
    replace(conn, consumers, [row])
    conn.execute(delete(consumers).where(consumers.c.lease_until_s < now_s - _FORGET_AFTER_S))


def count_live(conn: Connection, *, now_s: float) -> int:
    """How many consumers are alive."""
    query = select(func.count()).where(consumers.c.lease_until_s >= now_s)
    return int(conn.execute(query).scalar_one())


def known_to_all(conn: Connection, extensions: Sequence[str], *, now_s: float) -> list[str]:
    """Those of these extensions that every consumer knows that is alive.

    One of an older version may be at work until it is stopped. None is started any more, since the
    tables are newer than it.
    """
    query = select(consumers.c.knows).where(consumers.c.lease_until_s >= now_s)
    known = [each or () for each in conn.execute(query).scalars()]
    return [name for name in extensions if all(name in each for each in known)]


def forget(conn: Connection, owner: str) -> None:
    """This consumer leaves."""
    conn.execute(delete(consumers).where(consumers.c.owner == owner))
