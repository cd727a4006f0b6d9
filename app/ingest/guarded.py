"""The queue's end for the API: nothing goes in that it would lose, or has no room for."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from typing_extensions import override

from app.errors import QueueUnavailable, StartUpFailed
from app.ingest.admission import Admission
from app.ingest.queue import Lag, QueueWriter, shard_of
from app.ingest.redis_memory import RedisGauges
from app.ingest.redis_queue import RedisWriter

# A server may be replaced or set up anew at any time; an append looks at its settings so often.
CHECK_EVERY_S = 10.0


def open_writer(
    url: str, num_shards: int, *, allow_lossy: bool = False, wait_replicas: int = 0
) -> QueueWriter:
    """The guarded end of the queue that a URL names; nothing is connected yet.

    Raises:
        StartUpFailed: the URL cannot be used.
    """
    writer = RedisWriter(url, num_shards, allow_lossy=allow_lossy, wait_replicas=wait_replicas)
    return GuardedWriter(writer, RedisGauges(url), num_shards)


class GuardedWriter(QueueWriter):
    """Appends to another writer once that one has passed its check, and while there is room."""

    def __init__(
        self,
        writer: QueueWriter,
        gauges: RedisGauges,
        num_shards: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._gauges = gauges
        self._admission = Admission(gauges.of, monotonic)
        self._num_shards = num_shards
        self._monotonic = monotonic
        self._sound_until_s = float("-inf")
        self._checking = asyncio.Lock()

    @override
    async def append(self, job_id: str, body: bytes) -> None:
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
