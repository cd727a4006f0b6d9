"""Entries that other consumers took and left: whose they are now, and how often they were given."""

from dataclasses import dataclass, field
from typing import Any

import redis

from app.ingest.queue import GROUP

CLAIM_COUNT = 64
PAGE = 1000

_FIRST = "0-0"


@dataclass(slots=True)
class Claimed:
    """Entries as (id, fields, deliveries), and the ids of those that are pending and deleted."""

    entries: list[tuple[bytes, dict[bytes, bytes], int]] = field(default_factory=list)
    lost_ids: list[bytes] = field(default_factory=list)


def claim(client: redis.Redis, key: str, consumer: str, idle_ms: int) -> Claimed:
    """Make every entry of one stream that is idle for so long the consumer's.

    What a consumer may leave is bounded by what one read gives, so all of it fits in memory.
    """
    claimed = Claimed()
    cursor: Any = _FIRST
    while True:
        answer: Any = client.xautoclaim(key, GROUP, consumer, idle_ms, cursor, count=CLAIM_COUNT)
        cursor, entries, lost_ids = answer
        claimed.lost_ids += lost_ids
        deliveries = _deliveries(client, key, consumer, [entry_id for entry_id, _ in entries])
        claimed.entries += [(name, fields, deliveries[name]) for name, fields in entries]
        if cursor == _FIRST.encode():
            return claimed


def _deliveries(
    client: redis.Redis, key: str, consumer: str, entry_ids: list[bytes]
) -> dict[bytes, int]:
    """How often each of the consumer's entries was delivered; the ids are in order."""
    found: dict[bytes, int] = {}
    first, last = (entry_ids[0].decode(), entry_ids[-1].decode()) if entry_ids else ("", "")
    while first:
        page: Any = client.xpending_range(key, GROUP, first, last, PAGE, consumername=consumer)
        found |= {row["message_id"]: row["times_delivered"] for row in page}
        first = f"({page[-1]['message_id'].decode()}" if len(page) == PAGE else ""
    return found
