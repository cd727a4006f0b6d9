"""Contract of every event queue: in memory, one server, a cluster and behind sentinels."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pytest
import redis

from app.errors import QueueFull, QueueUnavailable, StartUpFailed
from app.ingest.queue import Announcer, Listener, QueueReader, QueueWriter, stream_key
from app.ingest.redis.events import RedisAnnouncer, RedisListener
from app.ingest.redis.queue import RedisAppender, RedisReader, RedisWriter
from app.trace.job import shard_of
from tests.ingest.memory_queue import MemoryQueue

NUM_SHARDS = 4
BUDGET_BYTES = 64 << 20


@dataclass
class QueueEnds:
    writer: QueueWriter
    reader: QueueReader
    announcer: Announcer
    listener: Listener


SEVERAL_SERVERS = ["cluster", "sentinel", "sentinel that waits"]


@pytest.fixture(
    params=[
        *("memory", "single"),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in SEVERAL_SERVERS),
    ]
)
def ends(request, monkeypatch):
    if request.param == "memory":
        queue = MemoryQueue(NUM_SHARDS, budget_bytes=BUDGET_BYTES)
        yield QueueEnds(queue.writer, queue.reader, queue.announcer, queue.listener())
        return
    url = empty_queue_url(request)
    wait_replicas = int(request.param == "sentinel that waits")
    # The replica deadline is not under test, and the replica's disk may be slow.
    patient_appender = partial(RedisAppender, wait_ms=1500)
    monkeypatch.setattr("app.ingest.redis.queue.RedisAppender", patient_appender)
    writer = RedisWriter(url, NUM_SHARDS, wait_replicas=wait_replicas)
    reader, announcer = RedisReader(url, budget_bytes=BUDGET_BYTES), RedisAnnouncer(url)
    yield QueueEnds(writer, reader, announcer, RedisListener(url))
    reader.close()
    announcer.close()


def empty_queue_url(request):
    """URL of an emptied queue of this kind."""
    if request.param == "single":
        url = request.getfixturevalue("valkey_url")
        with redis.Redis.from_url(url) as client:
            client.flushall()
        return url
    group = request.getfixturevalue(f"valkey_{request.param.partition(' ')[0]}")
    group.wipe()
    return group.url


def append(ends, *entries):
    """Appends entries in an event loop of its own."""

    async def run():
        for job_id, body in entries:
            await ends.writer.append(job_id, body)
        await ends.writer.close()

    asyncio.run(run())


def read(ends, shards=range(NUM_SHARDS), consumer="a", count=100):
    return ends.reader.read(list(shards), consumer, count=count, block_s=0.0)


def read_all(ends, shards=range(NUM_SHARDS), consumer="a"):
    """All new entries; one read may return only some."""
    entries = []
    while more := read(ends, shards, consumer):
        entries += more
    return entries


def test_entries_are_read_unchanged_and_in_order(ends):
    append(ends, ("job-1", b"one"), ("job-1", b"\x00\xff"))
    entries = read_all(ends)
    assert [(entry.job_id, entry.body) for entry in entries] == [
        ("job-1", b"one"),
        ("job-1", b"\x00\xff"),
    ]
    assert {entry.shard for entry in entries} == {shard_of("job-1", NUM_SHARDS)}
    assert entries[0].received_s <= entries[1].received_s


def test_all_batches_of_a_job_are_in_one_shard(ends):
    append(ends, *((f"job-{number}", b"x") for number in range(20)))
    for shard in range(NUM_SHARDS):
        assert {shard_of(e.job_id, NUM_SHARDS) for e in read_all(ends, [shard])} <= {shard}


def test_entry_is_delivered_to_one_consumer(ends):
    append(ends, ("job", b"x"))
    assert len(read_all(ends, consumer="a")) == 1
    assert read_all(ends, consumer="b") == []


def test_read_returns_at_most_the_requested_count(ends):
    append(ends, *[("job", b"x")] * 5)
    assert len(read(ends, count=2)) == 2
    assert len(read_all(ends)) == 3


def test_pending_entries_can_be_taken_over(ends):
    shard = shard_of("job", NUM_SHARDS)
    append(ends, ("job", b"1"), ("job", b"2"))
    first, second = read_all(ends, consumer="dead")
    ends.reader.done(shard, [first.entry_id])
    assert ends.reader.take_over(shard, "successor", min_idle_s=3600) == []
    [taken] = ends.reader.take_over(shard, "successor", min_idle_s=0)
    assert taken == replace(second, deliveries=2)


def test_entries_count_their_deliveries(ends):
    shard = shard_of("job", NUM_SHARDS)
    append(ends, *[("job", b"old")] * 3)
    assert [entry.deliveries for entry in read_all(ends, consumer="a")] == [1, 1, 1]
    for deliveries in (2, 3):
        taken = ends.reader.take_over(shard, "successor", min_idle_s=0)
        assert [entry.deliveries for entry in taken] == [deliveries] * 3
    append(ends, ("job", b"new"))
    read_all(ends, consumer="successor")
    taken = ends.reader.take_over(shard, "successor", min_idle_s=0)
    assert [(entry.body, entry.deliveries) for entry in taken] == [
        *[(b"old", 4)] * 3,
        (b"new", 2),
    ]
    assert ends.reader.lost_entries == 0


def test_large_entries_are_read_within_the_byte_budget(ends):
    body = b"x" * (5 << 20)
    append(ends, *[("job", body)] * 15)
    num_read = 0
    while entries := read(ends, count=512):
        assert sum(len(entry.body) for entry in entries) <= BUDGET_BYTES
        num_read += len(entries)
        ends.reader.done(entries[0].shard, [entry.entry_id for entry in entries])
    assert num_read == 15


def test_small_entries_are_read_in_large_batches(ends):
    append(ends, *[("job", b"x" * 2000)] * 1600)
    sizes = []
    while entries := read(ends, count=512):
        sizes.append(len(entries))
    assert sum(sizes) == 1600
    assert max(sizes) == 512


def test_an_entry_of_any_shard_ends_the_wait(ends):
    """A read waits for all shards, not only the first."""
    for number in range(12):
        waiting = ThreadPoolExecutor(1)
        found = waiting.submit(
            lambda: ends.reader.read(range(NUM_SHARDS), "a", count=9, block_s=1.0)
        )
        append(ends, (f"job-{number}", b"x"))
        entries = found.result(10) or read(ends)
        assert [entry.job_id for entry in entries] == [f"job-{number}"]
        waiting.shutdown()


def test_many_entries_are_taken_over_at_once(ends):
    append(ends, *[("job", b"x")] * 200)
    read_all(ends, consumer="dead")
    shard = shard_of("job", NUM_SHARDS)
    assert len(ends.reader.take_over(shard, "successor", min_idle_s=0)) == 200


def test_the_backlog_counts_unfinished_entries(ends):
    shard = shard_of("job", NUM_SHARDS)
    assert ends.reader.backlog(shard) == 0
    append(ends, *[("job", b"x")] * 3)
    entries = read(ends, count=2)
    assert ends.reader.backlog(shard) == 3
    ends.reader.done(shard, [entry.entry_id for entry in entries])
    assert ends.reader.backlog(shard) == 1
    ends.reader.done(shard, [])
    assert ends.reader.backlog(shard) == 1


def test_oldest_unfinished_and_newest_entry(ends):
    shard = shard_of("job", NUM_SHARDS)
    assert ends.reader.oldest(shard) is None
    append(ends, ("job", b"1"), ("job", b"2"))
    first, second = read_all(ends)
    assert (ends.reader.oldest(shard), ends.reader.newest(shard)) == (
        first.entry_id,
        second.entry_id,
    )
    ends.reader.done(shard, [first.entry_id, second.entry_id])
    assert ends.reader.oldest(shard) is None
    assert ends.reader.newest(shard) == second.entry_id


def test_marking_an_entry_done_twice_is_no_error(ends):
    append(ends, ("job", b"x"))
    [entry] = read(ends)
    ends.reader.done(entry.shard, [entry.entry_id])
    ends.reader.done(entry.shard, [entry.entry_id])
    assert ends.reader.backlog(entry.shard) == 0


def test_a_sound_queue_passes_its_check(ends):
    async def run():
        await ends.writer.check()
        assert await ends.writer.weaknesses() == ()
        await ends.writer.close()

    asyncio.run(run())
    assert ends.reader.weaknesses() == ()


def test_lag_is_counted_by_shard(ends):
    append(ends, *[("job", b"x")] * 2)

    async def run():
        lag = await ends.writer.lag()
        await ends.writer.close()
        return lag

    lag = asyncio.run(run())
    shard = shard_of("job", NUM_SHARDS)
    assert lag.entries == tuple(2 * (number == shard) for number in range(NUM_SHARDS))
    assert [age is not None for age in lag.oldest_s] == [n == shard for n in range(NUM_SHARDS)]


def test_listeners_get_announcements(ends):
    async def run():
        messages = ends.listener.messages()
        first = asyncio.ensure_future(anext(messages))
        while not first.done():  # announcements before the subscription are lost
            await asyncio.to_thread(ends.announcer.announce, {"kind": "window", "job_id": "j"})
            await asyncio.wait([first], timeout=0.05)
        await ends.listener.close()
        rest = [message async for message in messages]
        return [first.result(), *rest]

    assert {tuple(message.items()) for message in asyncio.run(run())} == {
        (("kind", "window"), ("job_id", "j"))
    }


def test_a_wiped_server_is_used_as_a_new_one(valkey_url):
    reader = RedisReader(valkey_url)
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        assert reader.read([0], "a", count=1, block_s=0.0) == []
        client.flushall()
        assert reader.take_over(0, "a", min_idle_s=0) == []
        client.flushall()
        client.xadd(stream_key(0), {"job": "j", "body": b"x"})
        assert [entry.body for entry in reader.read([0], "a", count=1, block_s=0.0)] == [b"x"]
    reader.close()


def test_idle_consumers_are_removed_from_the_group(valkey_url):
    reader = RedisReader(valkey_url)
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        for name in ("idle", "busy"):
            client.xadd(stream_key(0), {"job": "j", "body": b"x"})
            [entry] = reader.read([0], name, count=1, block_s=0.0)
            if name == "idle":
                reader.done(0, [entry.entry_id])
        reader.take_over(0, "successor", min_idle_s=3600)
        assert consumers(client) == {b"idle", b"busy", b"successor"}  # not idle long enough
        reader.take_over(0, "successor", min_idle_s=0)
        assert consumers(client) == {b"successor"}
    reader.close()


def consumers(client):
    return {entry["name"] for entry in client.xinfo_consumers(stream_key(0), "consumers")}


def test_a_full_server_refuses_and_can_still_be_emptied(valkey_url):
    writer, reader = RedisWriter(valkey_url, 1), RedisReader(valkey_url)
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        before = client.config_get("maxmemory")["maxmemory"]

        async def run():
            assert reader.read([0], "a", count=9, block_s=0.0) == []
            await writer.append("job", b"x")
            client.config_set("maxmemory", 1)
            with pytest.raises(QueueFull):
                await writer.append("job", b"x")
            [entry] = reader.read([0], "a", count=9, block_s=0.0)
            reader.done(0, [entry.entry_id])
            client.config_set("maxmemory", before)
            await writer.append("job", b"x")
            await writer.close()

        try:
            asyncio.run(run())
        finally:
            client.config_set("maxmemory", before)
    assert reader.backlog(0) == 1
    reader.close()


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("appendfsync", "everysec", "appendfsync always"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy noeviction"),
        ("appendonly", "no", "appendonly yes"),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite no"),
        ("maxmemory", "0", "maxmemory 1gb"),
    ],
)
def test_a_server_that_would_lose_batches_is_refused(valkey_url, setting, value, line):
    async def run(*, allow_lossy):
        writer = RedisWriter(valkey_url, 1, allow_lossy=allow_lossy)
        try:
            await writer.check()
        finally:
            await writer.close()

    with redis.Redis.from_url(valkey_url) as client:
        before = client.config_get(setting)[setting]
        client.config_set(setting, value)
        try:
            with pytest.raises(StartUpFailed, match=line):
                asyncio.run(run(allow_lossy=False))
            asyncio.run(run(allow_lossy=True))
        finally:
            client.config_set(setting, before)
        # A server that rewrites its append-only file does not stop until it is done.
        while client.info("persistence")["aof_rewrite_in_progress"]:
            pass


def test_unreachable_server_raises_queue_unavailable():
    async def run():
        writer = RedisWriter("redis://127.0.0.1:1", 1)
        with pytest.raises(QueueUnavailable):
            await writer.append("job", b"x")
        with pytest.raises(QueueUnavailable):
            await writer.check()
        await writer.close()

    asyncio.run(run())
    reader = RedisReader("redis://127.0.0.1:1")
    with pytest.raises(QueueUnavailable):
        reader.read([0], "a", count=1, block_s=0.0)
    announcer = RedisAnnouncer("redis://127.0.0.1:1")
    announcer.announce({"kind": "job"})
    announcer.close()
    reader.close()
