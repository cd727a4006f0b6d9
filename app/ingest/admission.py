"""Is there room for another batch? Asked before it is appended, so that the queue never overflows.

A server that is full refuses appends; this refuses them before that, and says when to come back.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.errors import QueueFull
from app.trace.names import project_of

REFUSE_AT = 0.8  # of the server's memory
ADMIT_AGAIN_AT = 0.7
CROWDED_AT = REFUSE_AT / 2  # from here on no project may take more than its part
GREEDY_SHARE = 2 / 3  # two that send the same stay well below it
LOOK_EVERY_S = 0.1
PERIOD_S = 5.0  # what projects sent is compared over one or two of these
# What a batch of so many bytes takes in the server: memory comes in sizes up to a fifth larger.
OVERHEAD_RATIO = 1.25
OVERHEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one server of the queue: in use, and the most that it may use."""

    used_bytes: int
    limit_bytes: int


class Gauge:
    """Room in one server, known to a tenth of a second.

    What was sent since it was measured counts as used, so that a burst cannot pass in between.
    At 80 % it closes, and it opens again below 70 %.
    """

    def __init__(
        self, measure: Callable[[], Awaitable[Memory]], monotonic: Callable[[], float]
    ) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._memory = Memory(0, 1)
        self._look_at_s = float("-inf")
        self._looking = asyncio.Lock()
        self._in_flight_bytes = 0
        self._sent_bytes = 0
        self._is_closed = False

    async def refresh(self) -> None:
        """Measure, unless that was done a moment ago. May raise QueueUnavailable."""
        if self._monotonic() < self._look_at_s:
            return
        async with self._looking:
            if self._monotonic() < self._look_at_s:
                return
            in_flight_bytes = self._in_flight_bytes
            sent_before_bytes = self._sent_bytes
            self._memory = await self._measure()
            # What was under way while the server measured may be in its figure or not.
            self._sent_bytes += in_flight_bytes - sent_before_bytes
            self._look_at_s = self._monotonic() + LOOK_EVERY_S
            limit_share = ADMIT_AGAIN_AT if self._is_closed else REFUSE_AT
            self._is_closed = self._memory.used_bytes >= limit_share * self._memory.limit_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether so many bytes more would stay below the limit."""
        used_bytes = self._memory.used_bytes + self._sent_bytes + size_bytes
        return not self._is_closed and used_bytes < REFUSE_AT * self._memory.limit_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether half of what may be used is."""
        used_bytes = self._memory.used_bytes + self._sent_bytes
        return used_bytes >= CROWDED_AT * self._memory.limit_bytes

    def begin(self, size_bytes: int) -> None:
        """So many bytes are on their way."""
        self._in_flight_bytes += size_bytes
        self._sent_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        """They have arrived, or failed to."""
        self._in_flight_bytes -= size_bytes


class Shares:
    """Which project offers most, over the last seconds; what was refused counts, too.

    Counting what was offered and not what was taken keeps a project that is held back from being
    let in again, for as long as it goes on like that, at the cost of those that send little.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._period_ends_s = float("-inf")
        self._now: dict[str, int] = defaultdict(int)
        self._before: dict[str, int] = {}

    def offered(self, project: str, size_bytes: int) -> None:
        """A project wants to put so many bytes into the queue."""
        now_s = self._monotonic()
        if now_s >= self._period_ends_s:
            idle = now_s >= self._period_ends_s + PERIOD_S
            self._before = {} if idle else dict(self._now)
            self._now = defaultdict(int)
            self._period_ends_s = now_s + PERIOD_S
        self._now[project] += size_bytes

    def share_of(self, project: str) -> float:
        """The project's part of what all offered."""
        total = sum(self._now.values()) + sum(self._before.values())
        own = self._now.get(project, 0) + self._before.get(project, 0)
        return own / total if total else 0.0

    def is_greedy(self, project: str) -> bool:
        """Whether others send, too, and this one offers more than two thirds of all bytes."""
        return GREEDY_SHARE < self.share_of(project) < 1.0


class Admission:
    """Lets batches in by their bytes: while there is room, and for each project its part."""

    def __init__(
        self,
        gauge_of: Callable[[int], Awaitable[Gauge]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauge_of = gauge_of
        self._shares = Shares(monotonic)

    async def is_full(self, shard: int) -> bool:
        """Whether not even the smallest batch would be let in. May raise QueueUnavailable."""
        gauge = await self._gauge_of(shard)
        await gauge.refresh()
        return not gauge.has_room(0)

    @asynccontextmanager
    async def admitted(self, job_id: str, shard: int, size_bytes: int) -> AsyncIterator[None]:
        """Append the batch inside of this.

        Raises:
            QueueFull: there is no room, or none for this project.
            QueueUnavailable: no answer.
        """
        project, cost_bytes = project_of(job_id), int(size_bytes * OVERHEAD_RATIO) + OVERHEAD_BYTES
        self._shares.offered(project, cost_bytes)
        gauge = await self._gauge_of(shard)
        await gauge.refresh()
        if not gauge.has_room(cost_bytes):
            raise QueueFull("the event queue is full until the consumers have caught up")
        if gauge.is_crowded and self._shares.is_greedy(project):
            raise QueueFull(
                f"project {project} fills its half of the event queue, the rest is for others"
            )
        gauge.begin(cost_bytes)
        try:
            yield
        finally:
            gauge.end(cost_bytes)
