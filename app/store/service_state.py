"""The service as a whole: its state, and the keys and addresses that its processes share.

A key is created once, by the first process that needs it, and stored encrypted.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from app.errors import SecretsLocked
from app.store import as_of, dead_letters, runs
from app.store.alerting import service_watches
from app.store.alerting.service_watches import ConsumerLine, Watch, WatchName
from app.store.alerting.tables import outbox
from app.store.as_of import Processed
from app.store.credentials.sealing import keys_of
from app.store.database import insert_new, insert_or_replace
from app.store.runs import IngestCounts, NotificationCounts
from app.store.shards import count_live, moves
from app.store.tables import service_addresses, service_keys, shards


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Sums over all projects.

    `unheld_shards` are those whose lease was released, never taken, or lapsed longer than a lease
    ago; `restless_shards` are taken again and again (`shards.moves`), all of them `shard_moves`
    times so far. `outbox_oldest_s` is the age in seconds of the oldest due message, None if
    there is none. `consumers` are those of the last hour; `watches` say which outages people were
    notified of.
    `at_s` is when this was read, `processed` up to when what workers send is processed.
    """

    counts: IngestCounts
    totals: dict[str, int]
    dead_letters: int
    outbox_due: int
    outbox_oldest_s: float | None
    notifications: NotificationCounts
    live_consumers: int
    unheld_shards: tuple[int, ...]
    restless_shards: Sequence[int]
    shard_moves: int
    consumers: Sequence[ConsumerLine]
    watches: Mapping[WatchName, Watch]
    at_s: float
    processed: Processed


def read(conn: Connection, *, num_shards: int, lease_s: float, now_s: float) -> ServiceState:
    """The state of the service at this Unix time."""
    due = select(func.count(), func.min(outbox.c.created_s)).where(outbox.c.state == "due")
    num_due, oldest_s = conn.execute(due).one()
    shard_moves, restless = moves(conn, now_s=now_s)
    return ServiceState(
        counts=runs.service_counts(conn),
        totals=runs.service_totals(conn),
        dead_letters=dead_letters.count(conn)["dead"],
        outbox_due=int(num_due),
        outbox_oldest_s=None if oldest_s is None else max(0.0, now_s - oldest_s),
        notifications=runs.notification_counts(conn),
        live_consumers=count_live(conn, now_s=now_s),
        unheld_shards=_unheld_shards(conn, num_shards, now_s - lease_s),
        restless_shards=restless,
        shard_moves=shard_moves,
        consumers=service_watches.consumer_lines(conn, now_s=now_s),
        watches=service_watches.read(conn),
        at_s=now_s,
        processed=as_of.read(conn, num_shards=num_shards, now_s=now_s),
    )


def _unheld_shards(conn: Connection, num_shards: int, lapsed_by_s: float) -> tuple[int, ...]:
    held = select(shards.c.shard).where(
        shards.c.owner.is_not(None), shards.c.lease_until_s >= lapsed_by_s
    )
    known = set(conn.execute(held).scalars())
    return tuple(shard for shard in range(num_shards) if shard not in known)


_KEY_BYTES = 32


def find_key(conn: Connection, name: str) -> bytes | None:
    """The key with this name, None if there is none; raises SecretsLocked if it cannot be read."""
    stored = conn.scalar(select(service_keys.c.key).filter_by(name=name))
    if stored is None:
        return None
    return keys_of(conn).open(stored.decode(errors="replace"), _place(name))


def find_or_make_key(conn: Connection, name: str) -> bytes:
    """The key with this name, created if missing; concurrent callers get the same key.

    Raises:
        SecretsLocked: it cannot be decrypted, or encrypted.
    """
    known = find_key(conn, name)
    if known is not None:
        return known
    new = keys_of(conn).seal(secrets.token_bytes(_KEY_BYTES), _place(name))
    insert_new(conn, service_keys, [{"name": name, "key": new.encode()}])
    key = find_key(conn, name)
    if key is None:
        raise AssertionError("the key was just made")
    return key


def reseal_key(conn: Connection, name: str) -> bool:
    """Seal the key with the newest secret key; False if it cannot be decrypted."""
    try:
        key = find_key(conn, name)
    except SecretsLocked:
        return False
    if key is None:
        return False
    new = keys_of(conn).seal(key, _place(name)).encode()
    conn.execute(update(service_keys).filter_by(name=name).values(key=new))
    return True


def _place(name: str) -> str:
    return f"service_keys/{name}"


_PAGES = "pages"


def save_pages_url(conn: Connection, url: str) -> None:
    """Save the address of the pages; of several API processes the last one's counts."""
    insert_or_replace(conn, service_addresses, [{"name": _PAGES, "url": url}])


def find_pages_url(conn: Connection) -> str | None:
    """The address of the pages; None before an API process has started."""
    return conn.scalar(select(service_addresses.c.url).filter_by(name=_PAGES))
