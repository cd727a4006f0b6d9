"""How full the queue's servers are."""

import time
from collections.abc import Callable

from redis.asyncio import Redis

from app.ingest.admission import Gauge, Memory
from app.ingest.queue import stream_key
from app.ingest.redis_async_nodes import open_async_nodes
from app.ingest.redis_connection import translated

MAX_CONNECTIONS = 2  # one look at a time and server


class RedisGauges:
    """A gauge for each server that holds a shard; own connections, which no append waits for."""

    def __init__(self, url: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._nodes = open_async_nodes(url, max_connections=MAX_CONNECTIONS)
        self._monotonic = monotonic
        self._gauges: dict[str, Gauge] = {}

    async def of(self, shard: int) -> Gauge:
        """The gauge of the server that holds the shard. May raise QueueUnavailable."""
        key = stream_key(shard)
        with translated():
            home = await self._nodes.home(key)
        if home not in self._gauges:
            self._gauges[home] = Gauge(lambda: self._measure(key), self._monotonic)
        return self._gauges[home]

    async def _measure(self, key: str) -> Memory:
        with translated():
            return await self._nodes.run(key, _memory)

    async def close(self) -> None:
        """Free the connections."""
        await self._nodes.close()


async def _memory(client: Redis) -> Memory:
    found = await client.info("memory")
    # Without a limit, which only --allow-lossy lets pass, the machine's memory has to do.
    limit_bytes = int(found["maxmemory"]) or int(found["total_system_memory"]) // 2
    return Memory(int(found["used_memory"]), limit_bytes)
