"""Batches between the buffer and the server, in order."""

from __future__ import annotations

from .wire import Batch


class Outbox:
    """Keeps one batch in memory: what more there is waits in the buffer, which is bounded."""

    def __init__(self) -> None:
        self.next_seq = 0  # number of the batch at the head
        self.damaged_ops = 0  # lost with a part of the disk's content
        self._held: Batch | None = None

    def open(self) -> None:
        """Find what an earlier process of this run has left; on the sender's thread."""

    @property
    def has_room(self) -> bool:
        """Whether another batch may be put in."""
        return self._held is None

    def put(self, batch: Batch) -> None:
        """Keep a batch."""
        self._held = batch

    def head(self) -> Batch | None:
        """The batch to be sent next."""
        return self._held

    def pop(self, *, used_seq: bool) -> None:
        """The head is off our hands; `used_seq` says whether the server may know its number."""
        self._held = None
        self.next_seq += used_seq

    def close(self, *, keep: bool) -> int:
        """End; the number of operations that are lost with it. To `keep` is to leave on disk."""
        lost = self._held.num_ops + self._held.num_group_rows if self._held is not None else 0
        self._held = None
        return lost
