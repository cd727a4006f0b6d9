"""Arrival times of the entries of one shard, by its consumer's look at the queue every second.

Entries have times in their ids, but by another machine's clock, which may jump: here it is only
their order that counts.
"""

from bisect import bisect_left
from typing import NamedTuple

from app.ingest.queue import entry_order


class _Look(NamedTuple):
    newest: tuple[int, int]
    at_s: float


class QueueLooks:
    """The looks at one shard's queue that still matter; times are monotonic.

    All entries that came up to `taken_s` are taken. Until `has_caught_up`, entries of an earlier
    consumer may wait, for a time that is not known.
    """

    def __init__(self, now_s: float) -> None:
        self.taken_s = now_s
        self.has_caught_up = False
        self.is_empty = False  # just now
        self._looks: list[_Look] = []

    def look(self, *, oldest: str | None, newest: str, now_s: float) -> None:
        """The queue's oldest entry that is not taken, None where all are, and its newest ever."""
        newest_order = entry_order(newest)
        self.is_empty = oldest is None
        if oldest is None:
            self._looks.clear()
            self._take(now_s)
        else:
            num_taken = self._num_before(oldest)
            if num_taken:
                self._take(self._looks[num_taken - 1].at_s)
                del self._looks[:num_taken]
        if self._looks and newest_order < self._looks[-1].newest:
            self._looks.clear()  # the server was wiped: its ids begin again
        if not self._looks or newest_order > self._looks[-1].newest:
            self._looks.append(_Look(newest_order, now_s))

    def came_s(self, entry_id: str, now_s: float) -> float:
        """When this entry had come at the latest."""
        at = self._num_before(entry_id)
        return self._looks[at].at_s if at < len(self._looks) else now_s

    def _num_before(self, entry_id: str) -> int:
        """Looks that saw nothing as new as this entry."""
        return bisect_left(self._looks, entry_order(entry_id), key=lambda look: look.newest)

    def _take(self, at_s: float) -> None:
        self.taken_s = max(self.taken_s, at_s)
        self.has_caught_up = True
