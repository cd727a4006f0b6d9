"""Which node of a cluster holds a key, as far as we were told."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ClusterDownError

from app.ingest.redis_url import Address


class SlotMap:
    """Slots of a cluster and the addresses of their primaries.

    A cluster tells its slots when asked, and corrects a wrong address by MOVED.
    """

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = list(seeds)
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._primaries: list[Address] = []
        self._moved: dict[int, Address] = {}

    @property
    def is_known(self) -> bool:
        """Whether the cluster has told its slots since the last doubt."""
        return bool(self._starts)

    def to_ask(self) -> list[Address]:
        """Nodes that may know the slots, in the order to ask them in."""
        return list(dict.fromkeys([*self._primaries, *self._seeds]))

    def primaries(self) -> list[Address]:
        """Every primary, once."""
        return sorted({*self._primaries, *self._moved.values()})

    def learn(self, answer: Any, asked: Address) -> None:
        """Take the answer of `CLUSTER SLOTS`; a node that knows no address is the one asked."""
        rows = sorted((int(row[0]), int(row[1]), row[2]) for row in answer)
        self._starts = [first for first, _, _ in rows]
        self._ends = [last for _, last, _ in rows]
        self._primaries = [(_text(node[0]) or asked[0], int(node[1])) for _, _, node in rows]
        self._moved = {}

    def moved(self, slot: int, address: Address) -> None:
        """A node said that the slot is elsewhere."""
        self._moved[slot] = address

    def doubt(self) -> None:
        """A node does not answer, or is no primary any more: ask for the slots before the next."""
        self._starts = []

    def primary_of(self, key: str) -> Address:
        """Address of the node that holds the key.

        Raises:
            ClusterDownError: no node does.
        """
        slot = key_slot(key.encode())
        if slot in self._moved:
            return self._moved[slot]
        row = bisect_right(self._starts, slot) - 1
        if row < 0 or slot > self._ends[row]:
            raise ClusterDownError("no node of the cluster holds the slot of this shard")
        return self._primaries[row]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else (value or "")
