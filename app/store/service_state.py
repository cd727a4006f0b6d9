"""How is the whole service doing? One reading of what its processes have written down."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from app.store import counts, dead_letters, notifying, totals
from app.store.alert_tables import outbox
from app.store.counts import Counts
from app.store.notifying import Notifying
from app.store.shards import count_live
from app.store.tables import shards


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Sums over all projects; nothing here names one.

    `unheld_shards` are those whose lease was released, never taken, or lapsed longer than a lease
    ago. `outbox_oldest_s` is the age in seconds of the oldest message that is still to be sent,
    None where there is none.
    """

    counts: Counts
    totals: dict[str, int]
    dead_letters: int
    outbox_due: int
    outbox_oldest_s: float | None
    notifying: Notifying
    live_consumers: int
    unheld_shards: tuple[int, ...]


def read(conn: Connection, *, num_shards: int, lease_s: float, now_s: float) -> ServiceState:
    """The state of the service at this Unix time."""
    due = select(func.count(), func.min(outbox.c.created_s)).where(outbox.c.state == "due")
    num_due, oldest_s = conn.execute(due).one()
    return ServiceState(
        counts=counts.total(conn),
        totals=totals.all(conn),
        dead_letters=dead_letters.count(conn)["dead"],
        outbox_due=int(num_due),
        outbox_oldest_s=None if oldest_s is None else max(0.0, now_s - oldest_s),
        notifying=notifying.read(conn),
        live_consumers=count_live(conn, now_s=now_s),
        unheld_shards=_unheld(conn, num_shards, now_s - lease_s),
    )


def _unheld(conn: Connection, num_shards: int, lapsed_by_s: float) -> tuple[int, ...]:
    held = select(shards.c.shard).where(
        shards.c.owner.is_not(None), shards.c.lease_until_s >= lapsed_by_s
    )
    known = set(conn.execute(held).scalars())
    return tuple(shard for shard in range(num_shards) if shard not in known)
