"""In-memory event queue for tests: same contract, nothing on disk."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from itertools import count as counter
from threading import Condition

from typing_extensions import override

from app.errors import QueueFull, QueueUnavailable
from app.ingest.queue import (
    BUDGET_BYTES,
    Announcer,
    Entry,
    EventMessage,
    Lag,
    Listener,
    QueueReader,
    QueueWriter,
)
from app.trace.job import shard_of


@dataclass(slots=True)
class _Shard:
    new: list[Entry] = field(default_factory=list)
    pending: dict[str, tuple[Entry, float]] = field(default_factory=dict)  # id: entry, delivered at
    newest_id: str = "0-0"


class MemoryQueue:
    """All four ends of one queue: `writer`, `reader`, `announcer` and `listener()`.

    Change `is_up`, `max_entries` and `weaknesses` to test callers on a queue that is down, full
    or lossy.
    """

    def __init__(
        self,
        num_shards: int,
        *,
        clock_s: Callable[[], float] = time.time,
        max_entries: int | None = None,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.num_shards = num_shards
        self.clock_s = clock_s
        self.max_entries = max_entries
        self.budget_bytes = budget_bytes
        self.weaknesses: tuple[str, ...] = ()
        self.is_up = True
        self.shards = [_Shard() for _ in range(num_shards)]
        self.changed = Condition()
        self.ids = counter(1)
        self.listeners: list[MemoryListener] = []
        self.writer = MemoryWriter(self)
        self.reader = MemoryReader(self)
        self.announcer = MemoryAnnouncer(self)

    def listener(self) -> "MemoryListener":
        """A new listener; it gets announcements made after it subscribed."""
        return MemoryListener(self)

    def check_up(self) -> None:
        """Raises QueueUnavailable while the queue is down."""
        if not self.is_up:
            raise QueueUnavailable("the event queue does not answer")


class MemoryWriter(QueueWriter):
    """Appends batches to a MemoryQueue."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    @override
    async def append(self, job_id: str, body: bytes) -> None:
        queue = self._queue
        queue.check_up()
        shard = shard_of(job_id, queue.num_shards)
        with queue.changed:
            num_entries = sum(len(shard.new) + len(shard.pending) for shard in queue.shards)
            if queue.max_entries is not None and num_entries >= queue.max_entries:
                raise QueueFull("the event queue is full")
            entry = Entry(f"{next(queue.ids)}-0", shard, job_id, body, queue.clock_s())
            queue.shards[shard].new.append(entry)
            queue.shards[shard].newest_id = entry.entry_id
            queue.changed.notify_all()

    @override
    async def weaknesses(self) -> tuple[str, ...]:
        self._queue.check_up()
        return self._queue.weaknesses

    @override
    async def check(self) -> None:
        self._queue.check_up()

    @override
    async def lag(self) -> Lag:
        queue = self._queue
        queue.check_up()
        with queue.changed:
            waiting = [
                [*(entry for entry, _ in shard.pending.values()), *shard.new]
                for shard in queue.shards
            ]
        now_s = queue.clock_s()
        oldest_s = [
            now_s - min(entry.received_s for entry in entries) if entries else None
            for entries in waiting
        ]
        num_entries = tuple(len(entries) for entries in waiting)
        is_full = queue.max_entries is not None and sum(num_entries) >= queue.max_entries
        full = tuple(range(queue.num_shards)) if is_full else ()
        return Lag(num_entries, tuple(oldest_s), full)

    @override
    async def close(self) -> None:
        pass


class MemoryReader(QueueReader):
    """Reads batches from a MemoryQueue."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self.lost_entries = 0

    @override
    def read(
        self, shards: Sequence[int], consumer: str, *, count: int, block_s: float
    ) -> list[Entry]:
        queue = self._queue
        queue.check_up()
        with queue.changed:
            queue.changed.wait_for(
                lambda: any(queue.shards[shard].new for shard in shards), timeout=min(block_s, 1.0)
            )
            left_bytes = queue.budget_bytes
            entries: list[Entry] = []
            for shard in shards:
                entries += self._take(queue.shards[shard], count, left_bytes)
                left_bytes = queue.budget_bytes - sum(len(entry.body) for entry in entries)
            return entries

    def _take(self, shard: _Shard, count: int, left_bytes: int) -> list[Entry]:
        sums = accumulate(len(entry.body) for entry in shard.new)
        count = min(count, max(1, sum(end <= left_bytes for end in sums)))
        taken, shard.new = shard.new[:count], shard.new[count:]
        now_s = self._queue.clock_s()
        shard.pending.update({entry.entry_id: (entry, now_s) for entry in taken})
        return taken

    @override
    def take_over(self, shard: int, consumer: str, *, min_idle_s: float) -> list[Entry]:
        self._queue.check_up()
        now_s = self._queue.clock_s()
        with self._queue.changed:
            pending = self._queue.shards[shard].pending
            idle = [
                replace(entry, deliveries=entry.deliveries + 1)
                for entry, taken_s in pending.values()
                if now_s - taken_s >= min_idle_s
            ]
            pending.update({entry.entry_id: (entry, now_s) for entry in idle})
            return idle

    @override
    def done(self, shard: int, entry_ids: Sequence[str]) -> None:
        self._queue.check_up()
        with self._queue.changed:
            for entry_id in entry_ids:
                self._queue.shards[shard].pending.pop(entry_id, None)

    @override
    def backlog(self, shard: int) -> int:
        self._queue.check_up()
        with self._queue.changed:
            return len(self._queue.shards[shard].new) + len(self._queue.shards[shard].pending)

    @override
    def oldest(self, shard: int, *, besides: Collection[str] = ()) -> str | None:
        self._queue.check_up()
        with self._queue.changed:
            state = self._queue.shards[shard]
            held = [entry for entry, _ in state.pending.values()] + state.new
            ids = sorted((entry.entry_id for entry in held), key=lambda name: int(name[:-2]))
            return next((name for name in ids if name not in besides), None)

    @override
    def newest(self, shard: int) -> str:
        self._queue.check_up()
        with self._queue.changed:
            return self._queue.shards[shard].newest_id

    @override
    def weaknesses(self) -> tuple[str, ...]:
        self._queue.check_up()
        return self._queue.weaknesses

    @override
    def close(self) -> None:
        pass


class MemoryAnnouncer(Announcer):
    """Announces to the listeners of a MemoryQueue."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    @override
    def announce(self, message: EventMessage) -> None:
        for listener in list(self._queue.listeners):
            listener.deliver(message)


class _Close:
    """Tells a listener to stop."""


class MemoryListener(Listener):
    """Gets the announcements of a MemoryQueue; `lose_connection` simulates missed ones."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: asyncio.Queue[EventMessage | _Close | None] = asyncio.Queue()

    def deliver(self, message: EventMessage | _Close | None) -> None:
        """Deliver a message from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    def lose_connection(self) -> None:
        """Act as if the connection was lost and made again."""
        self.deliver(None)

    @override
    async def messages(self) -> AsyncIterator[EventMessage | None]:
        self._loop = asyncio.get_running_loop()
        self._queue.listeners.append(self)
        try:
            while not isinstance(message := await self._inbox.get(), _Close):
                yield message
        finally:
            self._queue.listeners.remove(self)

    @override
    async def close(self) -> None:
        self.deliver(_Close())
