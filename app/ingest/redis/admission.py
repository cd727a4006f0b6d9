"""Admission of batches to the event queue, by the memory of the server that would hold them.

A server at its memory limit refuses every append. Batches are refused earlier, at 80 % of that
limit, with the time after which to try again, and no project may fill the queue for the others.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from redis.asyncio import Redis
from typing_extensions import override

from app.errors import QueueFull, QueueUnavailable, StartUpFailed
from app.ingest.queue import Lag, QueueWriter, stream_key
from app.ingest.redis.nodes import open_async_nodes, translated
from app.ingest.redis.queue import RedisWriter
from app.trace.job import project_of, shard_of

REFUSE_AT = 0.8  # share of the server's memory limit at which batches are refused
ADMIT_AGAIN_AT = 0.7  # share of the limit below which they are admitted again
CROWDED_AT = REFUSE_AT / 2  # share of the limit from which on a greedy project is refused
GREEDY_SHARE = 2 / 3  # of the bytes of all projects; two that send the same stay well below it
MEASURE_EVERY_S = 0.1
PERIOD_S = 5.0  # projects are compared by their bytes in the current and the previous period
# Memory that a batch takes in the server: allocators round sizes up by at most a fifth.
OVERHEAD_RATIO = 1.25
OVERHEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory of one server of the queue: in use, and the most that it may use."""

    used_bytes: int
    limit_bytes: int


class MemoryGauge:
    """Memory of one server: measured at most every 0.1 s, plus the bytes sent since then.

    Counting these bytes keeps a burst between two measurements within the limit. The gauge closes
    at 80 % of the limit and opens again below 70 %.
    """

    def __init__(
        self, measure: Callable[[], Awaitable[ServerMemory]], monotonic: Callable[[], float]
    ) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._memory = ServerMemory(0, 1)
        self._measure_at_s = float("-inf")
        self._measuring = asyncio.Lock()
        self._in_flight_bytes = 0
        self._sent_bytes = 0
        self._is_closed = False

    async def refresh(self) -> None:
        """Measure, if the last measurement is old. May raise QueueUnavailable."""
        if self._monotonic() < self._measure_at_s:
            return
        async with self._measuring:
            if self._monotonic() < self._measure_at_s:
                return
            in_flight_bytes = self._in_flight_bytes
            sent_before_bytes = self._sent_bytes
            self._memory = await self._measure()
            # The measurement may or may not include appends that were in flight during it.
            self._sent_bytes += in_flight_bytes - sent_before_bytes
            self._measure_at_s = self._monotonic() + MEASURE_EVERY_S
            limit_share = ADMIT_AGAIN_AT if self._is_closed else REFUSE_AT
            self._is_closed = self._memory.used_bytes >= limit_share * self._memory.limit_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether the gauge is open and `size_bytes` more stay below 80 % of the limit."""
        return not self._is_closed and not self._reaches(REFUSE_AT, size_bytes)

    @property
    def is_crowded(self) -> bool:
        """Whether at least half of the memory that batches may fill is in use."""
        return self._reaches(CROWDED_AT)

    def _reaches(self, limit_share: float, more_bytes: int = 0) -> bool:
        used_bytes = self._memory.used_bytes + self._sent_bytes + more_bytes
        return used_bytes >= limit_share * self._memory.limit_bytes

    @contextmanager
    def in_flight(self, size_bytes: int) -> Iterator[None]:
        """Count the bytes as used; until the block ends, also beside the next measurement."""
        self._in_flight_bytes += size_bytes
        self._sent_bytes += size_bytes
        try:
            yield
        finally:
            self._in_flight_bytes -= size_bytes


class ProjectShares:
    """Share of each project in the bytes that all projects offered within the last 5 to 10 s.

    Refused batches count, too: a project that is held back and keeps sending stays held back, and
    takes no room from projects that send little.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._period_ends_s = float("-inf")
        self._current: dict[str, int] = defaultdict(int)
        self._previous: dict[str, int] = {}

    def add(self, project: str, size_bytes: int) -> None:
        """Count the bytes of a batch that the project has sent."""
        now_s = self._monotonic()
        if now_s >= self._period_ends_s:
            is_idle = now_s >= self._period_ends_s + PERIOD_S
            self._previous = {} if is_idle else dict(self._current)
            self._current = defaultdict(int)
            self._period_ends_s = now_s + PERIOD_S
        self._current[project] += size_bytes

    def is_greedy(self, project: str) -> bool:
        """Whether the project sent more than two thirds of all bytes, and others sent the rest."""
        total_bytes = sum(self._current.values()) + sum(self._previous.values())
        own_bytes = self._current.get(project, 0) + self._previous.get(project, 0)
        return GREEDY_SHARE * total_bytes < own_bytes < total_bytes


class Admission:
    """Admits batches while the server of their shard has room and their project keeps to its share.

    `gauge_of` gives the gauge of the server that holds a shard.
    """

    def __init__(
        self,
        gauge_of: Callable[[int], Awaitable[MemoryGauge]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauge_of = gauge_of
        self._shares = ProjectShares(monotonic)

    async def is_full(self, shard: int) -> bool:
        """Whether the shard admits no batch of any size. May raise QueueUnavailable."""
        gauge = await self._gauge_of(shard)
        await gauge.refresh()
        return not gauge.has_room(0)

    @asynccontextmanager
    async def admitted(self, job_id: str, shard: int, size_bytes: int) -> AsyncIterator[None]:
        """Admit one batch of the job, which the block appends.

        Raises:
            QueueFull: the server has no room, or none for this project.
            QueueUnavailable: the server does not answer.
        """
        project, cost_bytes = project_of(job_id), int(size_bytes * OVERHEAD_RATIO) + OVERHEAD_BYTES
        self._shares.add(project, cost_bytes)
        gauge = await self._gauge_of(shard)
        await gauge.refresh()
        if not gauge.has_room(cost_bytes):
            raise QueueFull("the event queue is full until the consumers have caught up")
        if gauge.is_crowded and self._shares.is_greedy(project):
            raise QueueFull(
                f"project {project} fills its half of the event queue, the rest is for others"
            )
        with gauge.in_flight(cost_bytes):
            yield


MAX_GAUGE_CONNECTIONS = 2  # a gauge has one measurement at a time


class MemoryGauges:
    """The gauges of all servers of the queue, on connections that no append uses."""

    def __init__(self, url: str) -> None:
        self._nodes = open_async_nodes(url, max_connections=MAX_GAUGE_CONNECTIONS)
        self._gauges: dict[str, MemoryGauge] = {}

    async def of(self, shard: int) -> MemoryGauge:
        """The gauge of the server that holds the shard. May raise QueueUnavailable."""
        key = stream_key(shard)
        with translated():
            home = await self._nodes.home(key)
        if home not in self._gauges:
            self._gauges[home] = MemoryGauge(lambda: self._measure(key), time.monotonic)
        return self._gauges[home]

    async def _measure(self, key: str) -> ServerMemory:
        with translated():
            return await self._nodes.run(key, _server_memory)

    async def close(self) -> None:
        """Free the connections."""
        await self._nodes.close()


async def _server_memory(client: Redis) -> ServerMemory:
    memory = await client.info("memory")
    # A server without a limit, which only --allow-lossy permits: half of the machine's memory.
    limit_bytes = int(memory["maxmemory"]) or int(memory["total_system_memory"]) // 2
    return ServerMemory(int(memory["used_memory"]), limit_bytes)


# A server may be replaced or configured anew while the API runs.
CHECK_EVERY_S = 10.0


class GuardedWriter(QueueWriter):
    """The writer of the queue at a URL: checks the server's durability, and admits batches.

    `refuse_batches` is called before each append, and raises where no disk space is left for the
    results.

    Raises:
        StartUpFailed: the URL cannot be used.
    """

    def __init__(
        self,
        url: str,
        num_shards: int,
        *,
        allow_lossy: bool = False,
        wait_replicas: int = 0,
        refuse_batches: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = RedisWriter(
            url, num_shards, allow_lossy=allow_lossy, wait_replicas=wait_replicas
        )
        self._gauges = MemoryGauges(url)
        self._admission = Admission(self._gauges.of)
        self._num_shards = num_shards
        self._refuse_batches = refuse_batches
        self._check_at_s = float("-inf")
        self._checking = asyncio.Lock()

    @override
    async def append(self, job_id: str, body: bytes) -> None:
        self._refuse_batches()
        await self._check_if_due()
        shard = shard_of(job_id, self._num_shards)
        async with self._admission.admitted(job_id, shard, len(body)):
            await self._writer.append(job_id, body)

    async def _check_if_due(self) -> None:
        if time.monotonic() < self._check_at_s:
            return
        async with self._checking:
            if time.monotonic() < self._check_at_s:
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
        self._check_at_s = float("-inf")
        await self._writer.check()
        self._check_at_s = time.monotonic() + CHECK_EVERY_S

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
