"""Watches of the service's parts: since when each works, and whether its outage was notified.

Several API processes watch at the same time. A conditional update decides which of them notifies
people of an outage, of its end, and which does the next round of the canary.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, delete, func, or_, select, update

from app.store.as_of import NO_API_AFTER_S
from app.store.columns import clipped
from app.store.database import insert_new
from app.store.tables import consumers, service_watches, shards

# "api": since when there is an API process again, after there was none.
WatchName = Literal["consumers", "canary", "backlog", "api"]
_MAX_DETAIL = 500
# Nothing was watched for longer than this: an outage in between is not known, and does not count.
_GAP_S = 60.0


@dataclass(frozen=True, slots=True)
class Watch:
    """One watched part of the service; times are Unix seconds by the database's clock.

    It last worked at `ok_s`. An outage counts from there, but not from before `since_s`, when
    watching began. `notified_s` is when people were notified of the present outage. `detail` is
    what is wrong by the last check, `took_s` how long the last good round took.
    """

    name: WatchName
    ok_s: float | None
    since_s: float
    checked_s: float | None
    notified_s: float | None
    took_s: float | None
    rounds: int
    detail: str | None

    def down_s(self, now_s: float) -> float:
        """Seconds for which it is not known to have worked, while it was watched."""
        return max(0.0, now_s - max(self.since_s, self.ok_s or 0.0))

    def is_due(self, now_s: float, every_s: float) -> bool:
        """Whether the last round ended so long ago, or ahead of now, by a clock since set back."""
        return self.checked_s is None or not now_s - every_s < self.checked_s <= now_s


_NOTIFIED_S = service_watches.c.told_s
_COLUMNS = tuple(
    _NOTIFIED_S if name == "notified_s" else service_watches.c[name] for name in Watch.__slots__
)


def read(conn: Connection) -> dict[WatchName, Watch]:
    """All watches by name."""
    return {row.name: Watch(*row) for row in conn.execute(select(*_COLUMNS))}


def note_consumers(conn: Connection, *, now_s: float) -> Watch:
    """Note when consumers worked last; after a gap in watching every outage counts from now on."""
    _create(conn, "consumers", now_s)
    query = select(*_COLUMNS).filter_by(name="consumers").with_for_update()
    before = conn.execute(query).one()
    if before.checked_s is not None and now_s - before.checked_s > NO_API_AFTER_S:
        _create(conn, "api", now_s)
        conn.execute(update(service_watches).filter_by(name="api").values(since_s=now_s))
    if before.checked_s is not None and now_s - before.checked_s > _GAP_S:
        conn.execute(update(service_watches).values(since_s=now_s))
    last_turn_s = conn.scalar(select(func.max(consumers.c.last_turn_s)))
    # A time ahead of now was set by a clock that has been set back.
    times_s = [at_s for at_s in (before.ok_s, last_turn_s) if at_s is not None and at_s <= now_s]
    checked = update(service_watches).filter_by(name="consumers")
    conn.execute(checked.values(ok_s=max(times_s, default=None), checked_s=now_s))
    return read(conn)["consumers"]


def note_backlog(conn: Connection, *, is_behind: bool, now_s: float) -> Watch:
    """Note whether consumers are behind now."""
    _create(conn, "backlog", now_s)
    values = {"checked_s": now_s} if is_behind else {"checked_s": now_s, "ok_s": now_s}
    conn.execute(update(service_watches).filter_by(name="backlog").values(values))
    return read(conn)["backlog"]


def begin_outage(conn: Connection, name: WatchName, *, now_s: float, detail: str | None) -> bool:
    """Note that people are notified now; False if they were notified of this outage already."""
    begun = update(service_watches).filter_by(name=name, told_s=None).values(told_s=now_s)
    if detail is not None:
        begun = begun.values(detail=clipped(detail, _MAX_DETAIL))
    return bool(conn.execute(begun).rowcount)


def end_outage(conn: Connection, name: WatchName) -> bool:
    """Note that it works again; False if another process has noted that."""
    ended = update(service_watches).filter_by(name=name)
    ended = ended.where(_NOTIFIED_S.is_not(None)).values(told_s=None)
    return bool(conn.execute(ended).rowcount)


def restart_outage_clock(conn: Connection, name: WatchName, *, now_s: float) -> None:
    """Count an outage from now on, if no notification of it was sent."""
    unnotified = update(service_watches).filter_by(name=name, told_s=None)
    conn.execute(unnotified.values(since_s=now_s))


def forget(conn: Connection, name: WatchName) -> None:
    """Delete a watch that is no longer updated: it would look older and older."""
    conn.execute(delete(service_watches).where(service_watches.c.name == name))


def claim_round(conn: Connection, *, now_s: float, every_s: float, lease_s: float) -> int | None:
    """The number of the canary's next round, if it is due and no other process is at one."""
    _create(conn, "canary", now_s)
    canary = service_watches.c
    is_due = or_(canary.checked_s.is_(None), canary.checked_s <= now_s - every_s,
                 canary.checked_s > now_s)  # fmt: skip
    is_free = or_(canary.lease_until_s <= now_s, canary.lease_until_s > now_s + 2 * lease_s)
    claim = update(service_watches).where(canary.name == "canary", is_due, is_free)
    claim = claim.values(lease_until_s=now_s + lease_s, rounds=canary.rounds + 1)
    return conn.execute(claim.returning(canary.rounds)).scalar_one_or_none()


def finish_round(
    conn: Connection,
    number: int,
    *,
    now_s: float,
    took_s: float,
    missing: str | None,
    num_shards: int,
) -> None:
    """Note how a round of the canary ended: processed after `took_s`, or why it is `missing`.

    Rounds take turns over the shards by their numbers. After one that is missing, the next number
    is one of the same shard: a shard that works would hide that others do not.
    """
    done = update(service_watches).filter_by(name="canary", rounds=number)
    done = done.values(checked_s=now_s, lease_until_s=0.0)
    if missing is None:
        done = done.values(ok_s=now_s, took_s=took_s, detail=None)
    else:
        done = done.values(detail=clipped(missing, _MAX_DETAIL), rounds=number + num_shards - 1)
    conn.execute(done)


def _create(conn: Connection, name: WatchName, now_s: float) -> None:
    row = {"name": name, "since_s": now_s, "lease_until_s": 0.0, "rounds": 0}
    insert_new(conn, service_watches, [row])


class ConsumerLine(NamedTuple):
    """One consumer: whether its lease holds, its last turn with shards, and which it has."""

    name: str
    is_alive: bool
    last_turn_s: float | None
    shards: tuple[int, ...]


def consumer_lines(conn: Connection, *, now_s: float) -> list[ConsumerLine]:
    """The consumers of the last hour, by name.

    One that has ended is left out where another has its name; of several that live, each name has
    the beginning of its token.
    """
    owned: dict[str, list[int]] = {}
    held = select(shards.c.owner, shards.c.shard).where(
        shards.c.owner.is_not(None), shards.c.lease_until_s >= now_s
    )
    for owner, shard in conn.execute(held.order_by(shards.c.shard)):
        owned.setdefault(owner, []).append(shard)
    rows = conn.execute(select(consumers).order_by(consumers.c.lease_until_s.desc())).all()
    by_label: dict[str, list[Any]] = {}
    for row in rows:
        # Without the token of its process; all of it where it has none.
        label = row.owner.rpartition("/")[0] or row.owner
        by_label.setdefault(label, []).append(row)
    lines = []
    for label, namesakes in sorted(by_label.items()):
        alive = [row for row in namesakes if row.lease_until_s >= now_s]
        for row in sorted(alive, key=lambda row: str(row.owner)) or namesakes[:1]:
            token = row.owner.removeprefix(f"{label}/")
            name = label if len(alive) < 2 else f"{label} ({token[:_TOKEN_SHOWN]})"
            shown = tuple(owned.get(row.owner, ()))
            lines.append(ConsumerLine(name, bool(alive), row.last_turn_s, shown))
    return lines


_TOKEN_SHOWN = 6
