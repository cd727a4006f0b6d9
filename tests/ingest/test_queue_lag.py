"""Consumer lag: the same from the in-memory queue and from Valkey."""

import asyncio

import pytest
import redis

from app.ingest.redis.admission import Admission, MemoryGauge, ServerMemory
from app.ingest.redis.queue import RedisWriter
from app.trace.job import shard_of

NUM_SHARDS = 3
SHARD = shard_of("job", NUM_SHARDS)


async def lag_after(writer, bodies=()):
    for body in bodies:
        await writer.append("job", body)
    lag = await writer.lag()
    await writer.close()
    return lag


def test_lag_uses_the_servers_clock(valkey_url):
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        seconds, _ = client.time()
        ago_ms = (seconds - 100) * 1000
        key = f"paceline:{{ops:{SHARD}}}"
        client.xadd(key, {"job": "job", "body": b"x"}, id=f"{ago_ms}-0")
    lag = asyncio.run(lag_after(RedisWriter(valkey_url, NUM_SHARDS), [b"new"]))
    assert lag.entries[SHARD] == 2
    assert lag.oldest_s[SHARD] == pytest.approx(100, abs=30)
    assert lag.memory_bytes > 0


@pytest.mark.parametrize(("used_bytes", "is_full"), [(79, False), (80, True)])
def test_a_server_is_full_when_it_admits_nothing(used_bytes, is_full):
    async def measure():
        return ServerMemory(used_bytes, 100)

    async def gauge_of(_shard):
        return MemoryGauge(measure, lambda: 0.0)

    assert asyncio.run(Admission(gauge_of).is_full(0)) is is_full
