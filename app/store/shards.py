"""Leases of shards with fence numbers, and the state that a new owner needs after a crash.

A lease alone does not stop a consumer that was frozen past its end. So every commit checks the
fence number, which grows with every new holder. A turn stores one row with the batches whose
windows are still open (the spool), the assembler's state, and the history of earlier windows. The
assembler's state says up to which turn batches are included, so that a batch counts once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, update

from app.errors import LeaseLost
from app.store.database import insert, insert_new, insert_or_replace, of_run, value_of_run
from app.store.tables import consumers, cursors, histories, shards, spool

MAX_LEASES = 4
_FORGET_AFTER_S = 3600.0
# A shard that changes hands more often in a minute goes to and fro. Where eight consumers start one
# after another, one of four shards changes hands twice.
MAX_MOVES, MOVES_WITHIN_S = 2, 60.0


def acquire(
    conn: Connection, shard: int, owner: str, *, now_s: float, lease_s: float
) -> int | None:
    """The fence number of a new lease; None while another consumer holds the shard.

    `owner` is the token of one process: two with one would take the shard from each other.
    """
    # For how long batches wait for a first owner is not known: it counts from here.
    new = {"shard": shard, "owner": None, "fence": 0, "lease_until_s": 0.0, "as_of_s": now_s}
    insert_new(conn, shards, [new])
    free = or_(
        shards.c.owner.is_(None),
        shards.c.owner == owner,
        shards.c.lease_until_s < now_s,
        # No lease is that long: it was set by a clock that was ahead and has been set back.
        shards.c.lease_until_s > now_s + MAX_LEASES * lease_s,
    )
    taken = conn.execute(
        update(shards)
        .where(shards.c.shard == shard, free)
        .values(owner=owner, fence=shards.c.fence + 1, lease_until_s=now_s + lease_s)
        .returning(shards.c.fence, shards.c.taken_s)
    ).one_or_none()
    if taken is None:
        return None
    # One more than it may move: the first time is no move.
    times_s = [*(taken.taken_s or ())[-(MAX_MOVES + 1) :], now_s]
    conn.execute(update(shards).where(shards.c.shard == shard).values(taken_s=times_s))
    return int(taken.fence)


def moves(conn: Connection, *, now_s: float) -> tuple[int, list[int]]:
    """How often shards were taken in all, and those that go to and fro now."""
    rows = conn.execute(select(shards.c.shard, shards.c.fence, shards.c.taken_s)).all()
    restless = [
        row.shard
        for row in rows
        if sum(taken_s > now_s - MOVES_WITHIN_S for taken_s in row.taken_s or ()) > MAX_MOVES + 1
    ]
    return sum(row.fence for row in rows), sorted(restless)


def renew(
    conn: Connection, shard: int, owner: str, fence: int, *, now_s: float, lease_s: float
) -> None:
    """Renew the lease for `lease_s` from now on; raises LeaseLost."""
    held = update(shards).filter_by(shard=shard, owner=owner, fence=fence)
    if conn.execute(held.values(lease_until_s=now_s + lease_s)).rowcount == 0:
        raise LeaseLost(f"shard {shard} has another owner")


def check(conn: Connection, shard: int, owner: str, fence: int) -> None:
    """Lock the lease until the transaction ends; raises LeaseLost if another consumer has it."""
    held = select(shards.c.shard).filter_by(shard=shard, owner=owner, fence=fence)
    if conn.execute(held.with_for_update()).one_or_none() is None:
        raise LeaseLost(f"shard {shard} has another owner")


def note_committed(conn: Connection, shard: int, entry_ids: Sequence[str]) -> None:
    """Save the queue entries that this transaction takes."""
    conn.execute(update(shards).filter_by(shard=shard).values(committed=list(entry_ids)))


def committed(conn: Connection, shard: int) -> set[str]:
    """Entries of the last commit: the queue delivers them again if they were not acknowledged."""
    return set(conn.scalar(select(shards.c.committed).filter_by(shard=shard)) or ())


def release(conn: Connection, shard: int, fence: int) -> None:
    """Release the shard, if it is still held under this fence number."""
    held = update(shards).filter_by(shard=shard, fence=fence)
    conn.execute(held.values(owner=None, lease_until_s=0.0))


def heartbeat(
    conn: Connection,
    owner: str,
    *,
    now_s: float,
    lease_s: float,
    knows: Sequence[str] = (),
    has_turned: bool = False,
) -> None:
    """Note that this consumer is alive, for `lease_s`.

    It `knows` these extensions of the wire format, and `has_turned`: finished a turn with shards
    since it said so last.
    """
    values: dict[str, Any] = {"lease_until_s": now_s + lease_s, "knows": list(knows)}
    if has_turned:
        values["last_turn_s"] = now_s
    statement = insert(conn, consumers).values(owner=owner, **values)
    conn.execute(statement.on_conflict_do_update(index_elements=[consumers.c.owner], set_=values))
    conn.execute(delete(consumers).where(consumers.c.lease_until_s < now_s - _FORGET_AFTER_S))


def count_live(conn: Connection, *, now_s: float) -> int:
    """Number of live consumers."""
    query = select(func.count()).where(consumers.c.lease_until_s >= now_s)
    return int(conn.execute(query).scalar_one())


def extensions_known_to_all(
    conn: Connection, extensions: Sequence[str], *, now_s: float
) -> list[str]:
    """The extensions that every live consumer knows.

    A consumer of an older version may still run. None can start: the tables are too new for it.
    """
    query = select(consumers.c.knows).where(consumers.c.lease_until_s >= now_s)
    known_by_consumer = [names or () for names in conn.scalars(query)]
    return [name for name in extensions if all(name in names for names in known_by_consumer)]


def forget_consumer(conn: Connection, owner: str) -> None:
    """Remove a consumer that stops."""
    conn.execute(delete(consumers).where(consumers.c.owner == owner))


@dataclass(frozen=True, slots=True)
class SpoolRow:
    """Batches of one run in one turn, needed until the window of `last_step` is closed."""

    job_id: str
    epoch: int
    turn: int
    last_step: int
    blob: bytes


def add_spooled(conn: Connection, rows: Sequence[SpoolRow]) -> None:
    """Save batches."""
    if rows:
        conn.execute(spool.insert(), [asdict(row) for row in rows])


def spooled_batches(conn: Connection, job_id: str, epoch: int) -> list[tuple[int, bytes]]:
    """Turn and batches of each spooled row of a run, in the order of turns."""
    query = select(spool.c.turn, spool.c.blob).where(*of_run(spool, job_id, epoch))
    return [(row.turn, row.blob) for row in conn.execute(query.order_by(spool.c.turn))]


def spooled_runs(conn: Connection) -> list[tuple[str, int]]:
    """Job id and epoch of every run with spooled batches."""
    run = (spool.c.job_id, spool.c.epoch)
    rows = conn.execute(select(*run).distinct().order_by(*run))
    return [(row.job_id, row.epoch) for row in rows]


def forget_spooled(conn: Connection, job_id: str, epoch: int, *, through_step: int) -> None:
    """Delete the rows without a step after this one, whose window is closed."""
    old = spool.c.last_step <= through_step
    conn.execute(delete(spool).where(*of_run(spool, job_id, epoch), old))


def save_assembler(conn: Connection, job_id: str, epoch: int, blob: bytes) -> None:
    """Save the state of the run's assembler."""
    insert_or_replace(conn, cursors, [{"job_id": job_id, "epoch": epoch, "blob": blob}])


def load_assembler(conn: Connection, job_id: str, epoch: int) -> bytes | None:
    """The saved state of the run's assembler; None if there is none."""
    blob: bytes | None = value_of_run(conn, cursors.c.blob, job_id, epoch)
    return blob


def save_history(
    conn: Connection, job_id: str, epoch: int, *, through_step: int, blob: bytes
) -> None:
    """Save a run's history; `through_step` is its last step."""
    row = {"job_id": job_id, "epoch": epoch, "through_step": through_step, "blob": blob}
    insert_or_replace(conn, histories, [row])


def load_history(conn: Connection, job_id: str, epoch: int) -> bytes | None:
    """The saved history of a run; None if there is none."""
    blob: bytes | None = value_of_run(conn, histories.c.blob, job_id, epoch)
    return blob
