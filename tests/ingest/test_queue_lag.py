"""Consumer lag: the same from the in-memory queue and from Valkey."""

import asyncio

import pytest
import redis

from app.errors import QueueUnavailable
from app.ingest.queue import GROUP, shard_of
from app.ingest.redis.admission import Admission, MemoryGauge, ServerMemory
from app.ingest.redis.queue import RedisReader, RedisWriter
from tests.ingest.memory_queue import MemoryQueue

NUM_SHARDS = 3
SHARD = shard_of("job", NUM_SHARDS)


def memory_ends(_request):
    queue = MemoryQueue(NUM_SHARDS)
    return queue.writer, queue.reader


def valkey_ends(request):
    url = request.getfixturevalue("valkey_url")
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return RedisWriter(url, NUM_SHARDS), RedisReader(url)


@pytest.fixture(params=[memory_ends, valkey_ends])
def ends(request):
    return request.param(request)


async def lag_after(writer, bodies=()):
    for body in bodies:
        await writer.append("job", body)
    lag = await writer.lag()
    await writer.close()
    return lag


def test_empty_queue_has_no_lag(ends):
    lag = asyncio.run(lag_after(ends[0]))
    assert lag.entries == (0,) * NUM_SHARDS
    assert lag.oldest_s == (None,) * NUM_SHARDS


def test_entries_count_until_they_are_done(ends):
    writer, reader = ends
    lag = asyncio.run(lag_after(writer, [b"1", b"2", b"3"]))
    assert lag.entries[SHARD] == sum(lag.entries) == 3
    entries = reader.read([SHARD], GROUP, count=2, block_s=0.0)
    assert asyncio.run(lag_after(writer)).entries[SHARD] == 3
    reader.done(SHARD, [entry.entry_id for entry in entries])
    assert asyncio.run(lag_after(writer)).entries[SHARD] == 1


def test_lag_has_the_age_of_the_oldest_entry():
    queue = MemoryQueue(NUM_SHARDS, clock_s=iter([100.0, 107.0, 110.0]).__next__)
    lag = asyncio.run(lag_after(queue.writer, [b"old", b"new"]))
    assert lag.oldest_s[SHARD] == 10.0


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


def test_an_unavailable_queue_raises():
    queue = MemoryQueue(NUM_SHARDS)
    queue.is_up = False
    with pytest.raises(QueueUnavailable):
        asyncio.run(queue.writer.lag())


def test_lag_lists_full_shards():
    queue = MemoryQueue(NUM_SHARDS, max_entries=1)
    assert asyncio.run(lag_after(queue.writer)).full == ()
    assert asyncio.run(lag_after(queue.writer, [b"x"])).full == (0, 1, 2)


@pytest.mark.parametrize(("used_bytes", "is_full"), [(79, False), (80, True)])
def test_a_server_is_full_when_it_admits_nothing(used_bytes, is_full):
    async def measure():
        return ServerMemory(used_bytes, 100)

    async def gauge_of(_shard):
        return MemoryGauge(measure, lambda: 0.0)

    assert asyncio.run(Admission(gauge_of).is_full(0)) is is_full
