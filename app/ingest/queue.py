"""The event queue: where accepted batches wait, on disk, until their consumer has stored them.

Keys, in Redis or Valkey:
    paceline:{ops:<shard>}   stream, one entry a batch: `job` and `body`
    consumers                the group on each such stream
    paceline:events          pub/sub: what has changed, for pages that are open

An entry leaves by `done`, never by trimming: a length limit would lose batches silently.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_ENTRY_BYTES = 8 << 20  # the largest request that is taken
BUDGET_BYTES = 192 << 20


class ReadBudget:
    """Keeps an answer within `budget_bytes`, by the largest entries seen lately.

    The assumed entry size starts at the maximum and at most halves with each answer, so after 12
    answers 2 KB entries are read hundreds at a time. If a queue of small entries turns into one of
    large ones, a single answer may exceed the budget.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._entry_bytes = LARGEST_ENTRY_BYTES

    @property
    def num_shards(self) -> int:
        """How many shards may be read at once, an entry of each."""
        return max(1, self._budget_bytes // self._entry_bytes)

    def count(self, num_shards: int, most: int) -> int:
        """Entries to ask each of so many shards for, at least one and at most `most`."""
        return max(1, min(most, self._budget_bytes // (self._entry_bytes * num_shards)))

    def learn(self, sizes_bytes: list[int]) -> None:
        """Learn from an answer."""
        if sizes_bytes:
            self._entry_bytes = max(1, *sizes_bytes, self._entry_bytes // 2)


GROUP = "consumers"
EVENTS_CHANNEL = "paceline:events"

EventMessage = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch in the queue; `received_s` is the queue server's Unix time.

    `deliveries` says how often it was handed to a consumer, this time included.
    """

    entry_id: str
    shard: int
    job_id: str
    body: bytes
    received_s: float
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class Lag:
    """Backlog by shard: entries, and seconds since the oldest was accepted.

    The shards in `full` accept no batch. Memory is the queue server's, in bytes, and `log_bytes`
    what its logs take on disk; None if unknown or without a limit.
    """

    entries: tuple[int, ...]
    oldest_s: tuple[float | None, ...]
    full: tuple[int, ...] = ()
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    log_bytes: int | None = None


def entry_order(entry_id: str) -> tuple[int, int]:
    """Sort key of an entry within its shard: milliseconds and a number within them."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence)


def stream_key(shard: int) -> str:
    """Key of a shard's stream; the braces keep all keys of a shard on one cluster node."""
    return f"paceline:{{ops:{shard}}}"


class QueueWriter(ABC):
    """Writing end of the queue."""

    @abstractmethod
    async def append(self, job_id: str, body: bytes) -> None:
        """Returns once the batch is on disk.

        Raises:
            QueueUnavailable: no answer; the batch may or may not be in the queue.
            QueueFull: the queue has no room until the consumers have caught up.
        """

    @abstractmethod
    async def weaknesses(self) -> tuple[str, ...]:
        """Why the queue might lose batches, a sentence each with the line to change; best: none.

        Raises:
            QueueUnavailable: no answer.
        """

    @abstractmethod
    async def check(self) -> None:
        """Check that the queue answers and is durable.

        Raises:
            QueueUnavailable: no answer.
            StartUpFailed: it would lose batches; the message says which line to change.
        """

    @abstractmethod
    async def lag(self) -> Lag:
        """How far the consumers are behind; raises QueueUnavailable."""

    @abstractmethod
    async def close(self) -> None:
        """Free the connections."""


class QueueReader(ABC):
    """The end where a consumer takes batches out. All methods may raise QueueUnavailable."""

    lost_entries: int
    """Claimed entries that were deleted elsewhere, so far; has to stay 0."""

    @abstractmethod
    def read(
        self, shards: Sequence[int], consumer: str, *, count: int, block_s: float
    ) -> list[Entry]:
        """New entries, at most `count` a shard and some 192 MiB in all.

        Waits up to `block_s` (at most 1 s) for one.
        """

    @abstractmethod
    def take_over(self, shard: int, consumer: str, *, min_idle_s: float) -> list[Entry]:
        """Entries that any consumer took at least so long ago and has not done.

        They are this consumer's now. Names of consumers that hold nothing are forgotten.
        """

    @abstractmethod
    def done(self, shard: int, entry_ids: Sequence[str]) -> None:
        """Forget entries whose batches are stored; works when the queue is full, too."""

    @abstractmethod
    def backlog(self, shard: int) -> int:
        """Number of entries that are not done."""

    @abstractmethod
    def oldest(self, shard: int, *, besides: Collection[str] = ()) -> str | None:
        """Id of the oldest entry that is not done and none of `besides`, None where all are."""

    @abstractmethod
    def newest(self, shard: int) -> str:
        """Id of the newest entry that was ever added, done or not; "0-0" before the first."""

    @abstractmethod
    def weaknesses(self) -> tuple[str, ...]:
        """Why the queue might lose batches, a sentence each with the line to change; best: none."""

    @abstractmethod
    def close(self) -> None:
        """Free the connections."""


class Announcer(ABC):
    """Announces changes to listeners."""

    @abstractmethod
    def announce(self, message: EventMessage) -> None:
        """Best effort: never raises; there may be no listener."""


class Listener(ABC):
    """Hears what announcers say."""

    @abstractmethod
    def messages(self) -> AsyncIterator[EventMessage | None]:
        """Messages from now on; None when some may have been missed: look everything up again."""

    @abstractmethod
    async def close(self) -> None:
        """End `messages`, within a second."""
