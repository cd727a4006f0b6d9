"""The queue's end for the API: a batch is refused where the queue would lose it or has no room.

A server that is full refuses appends; this refuses them before that, at 80 % of the memory, and
says when to come back.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from redis.asyncio import Redis
from typing_extensions import override

from app.errors import QueueFull, QueueUnavailable, StartUpFailed
from app.ingest.queue import Lag, QueueWriter, stream_key
from app.ingest.redis.nodes import open_async_nodes, translated
from app.ingest.redis.queue import RedisWriter
from app.trace.job import project_of, shard_of

REFUSE_AT = 0.8  # of the server's memory
ADMIT_AGAIN_AT = 0.7
CROWDED_AT = REFUSE_AT / 2  # from here on no project may take more than its part
GREEDY_SHARE = 2 / 3  # two that send the same stay well below it
MEASURE_EVERY_S = 0.1
PERIOD_S = 5.0  # what projects sent is compared over one or two of these
# What a batch of so many bytes takes in the server: memory comes in sizes up to a fifth larger.
OVERHEAD_RATIO = 1.25
OVERHEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory of one server of the queue: in use, and the most that it may use."""

    used_bytes: int
    limit_bytes: int


class MemoryGauge:
    """Free memory of one server, measured at most every 0.1 s.

    Bytes sent since the last measurement count as used, so that a burst cannot pass in between.
    At 80 % it closes, and it opens again below 70 %.
    """

    def __init__(
        self, measure: Callable[[], Awaitable[ServerMemory]], monotonic: Callable[[], float]
    ) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._memory = ServerMemory(0, 1)
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
            self._look_at_s = self._monotonic() + MEASURE_EVERY_S
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


class ProjectShares:
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
        """The project's share of the bytes that all projects offered."""
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
        gauge_of: Callable[[int], Awaitable[MemoryGauge]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauge_of = gauge_of
        self._shares = ProjectShares(monotonic)

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


MAX_GAUGE_CONNECTIONS = 2  # one look at a time and server


class MemoryGauges:
    """A gauge for each server that holds a shard; own connections, which no append waits for."""

    def __init__(self, url: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._nodes = open_async_nodes(url, max_connections=MAX_GAUGE_CONNECTIONS)
        self._monotonic = monotonic
        self._gauges: dict[str, MemoryGauge] = {}

    async def of(self, shard: int) -> MemoryGauge:
        """The gauge of the server that holds the shard. May raise QueueUnavailable."""
        key = stream_key(shard)
        with translated():
            home = await self._nodes.home(key)
        if home not in self._gauges:
            self._gauges[home] = MemoryGauge(lambda: self._measure(key), self._monotonic)
        return self._gauges[home]

    async def _measure(self, key: str) -> ServerMemory:
        with translated():
            return await self._nodes.run(key, _server_memory)

    async def close(self) -> None:
        """Free the connections."""
        await self._nodes.close()


async def _server_memory(client: Redis) -> ServerMemory:
    found = await client.info("memory")
    # Without a limit, which only --allow-lossy lets pass, the machine's memory has to do.
    limit_bytes = int(found["maxmemory"]) or int(found["total_system_memory"]) // 2
    return ServerMemory(int(found["used_memory"]), limit_bytes)


# A server may be replaced or set up anew at any time; an append looks at its settings so often.
CHECK_EVERY_S = 10.0


def open_writer(
    url: str,
    num_shards: int,
    *,
    allow_lossy: bool = False,
    wait_replicas: int = 0,
    refuse_batches: Callable[[], None] = lambda: None,
) -> QueueWriter:
    """The guarded end of the queue that a URL names; nothing is connected yet.

    `refuse_batches` is called before each append, and raises where there is no room for its result.

    Raises:
        StartUpFailed: the URL cannot be used.
    """
    writer = RedisWriter(url, num_shards, allow_lossy=allow_lossy, wait_replicas=wait_replicas)
    return GuardedWriter(writer, MemoryGauges(url), num_shards, refuse_batches=refuse_batches)


class GuardedWriter(QueueWriter):
    """Appends to another writer once that one has passed its check, and while there is room."""

    def __init__(
        self,
        writer: QueueWriter,
        gauges: MemoryGauges,
        num_shards: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        refuse_batches: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._refuse_batches = refuse_batches
        self._gauges = gauges
        self._admission = Admission(gauges.of, monotonic)
        self._num_shards = num_shards
        self._monotonic = monotonic
        self._sound_until_s = float("-inf")
        self._checking = asyncio.Lock()

    @override
    async def append(self, job_id: str, body: bytes) -> None:
        self._refuse_batches()
        await self._see_that_it_is_sound()
        shard = shard_of(job_id, self._num_shards)
        async with self._admission.admitted(job_id, shard, len(body)):
            await self._writer.append(job_id, body)

    async def _see_that_it_is_sound(self) -> None:
        if self._monotonic() < self._sound_until_s:
            return
        async with self._checking:
            if self._monotonic() < self._sound_until_s:
                return
            try:
                await self.check()
            except StartUpFailed as error:
                raise QueueUnavailable(str(error)) from error

    @override
    async def weaknesses(self) -> tuple[str, ...]:
        return await self._writer.weaknesses()

    @override
    async def check(self) -> None:
        self._sound_until_s = float("-inf")
        await self._writer.check()
        self._sound_until_s = self._monotonic() + CHECK_EVERY_S

    @override
    async def lag(self) -> Lag:
        lag = await self._writer.lag()
        shards = range(self._num_shards)
        full = [shard for shard in shards if await self._admission.is_full(shard)]
        return replace(lag, full=tuple(full))

    @override
    async def close(self) -> None:
        await self._writer.close()
        await self._gauges.close()
