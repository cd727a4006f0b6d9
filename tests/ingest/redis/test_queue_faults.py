"""The event queue when its servers fail, fail over, are wiped or are full."""

import asyncio

import pytest
import redis

from app.errors import QueueUnavailable, StartUpFailed
from app.ingest.queue import stream_key
from app.ingest.redis.queue import RedisReader, RedisWriter
from app.trace.job import shard_of
from tests import redis_servers

NUM_SHARDS = 4
NUM_JOBS = 7


def all_bodies(url, num_shards=NUM_SHARDS, consumer="a"):
    """Bodies of all entries in the queue, pending or new."""
    reader = RedisReader(url)
    try:
        bodies = [
            e.body for s in range(num_shards) for e in reader.take_over(s, consumer, min_idle_s=0)
        ]
        while entries := reader.read(range(num_shards), consumer, count=512, block_s=0.0):
            bodies += [entry.body for entry in entries]
        return bodies
    finally:
        reader.close()


class Producer:
    """Appends numbered batches; records acknowledged ones and counts refusals."""

    def __init__(self, writer):
        self._writer = writer
        self.number = 0
        self.acked = []
        self.refused = 0

    async def push(self):
        """Whether the next batch was acknowledged."""
        self.number += 1
        body = str(self.number).encode()
        try:
            await self._writer.append(f"job-{self.number % NUM_JOBS}", body)
        except QueueUnavailable:
            self.refused += 1
            await asyncio.sleep(0.01)
            return False
        self.acked.append(body)
        return True

    async def push_until(self, condition):
        async with asyncio.timeout(30):
            while not condition():
                await self.push()


@pytest.fixture
def sentinel(tmp_path):
    with redis_servers.sentinel(tmp_path) as group:
        yield group


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_failover_loses_no_batch_acknowledged_by_a_replica(sentinel, how):
    async def run():
        writer = RedisWriter(sentinel.url, NUM_SHARDS, wait_replicas=1)
        producer = Producer(writer)
        await producer.push_until(lambda: len(producer.acked) >= 50)
        primary = sentinel.primary()
        getattr(primary, how)()
        # One of two servers is left, so no replica can acknowledge the batch.
        await producer.push_until(lambda: producer.refused and sentinel.primary() != primary)
        assert not await producer.push()
        before = len(producer.acked)
        if how == "kill":
            primary.start()
        else:
            primary.thaw()
        await producer.push_until(lambda: len(producer.acked) >= before + 50)
        await writer.close()
        return producer.acked

    acked = asyncio.run(run())
    assert len(acked) >= 100
    assert set(acked) <= set(all_bodies(sentinel.url))


def test_a_batch_on_fewer_replicas_than_wanted_is_refused(sentinel):
    async def append():
        writer = RedisWriter(sentinel.url, NUM_SHARDS, wait_replicas=2)
        try:
            await writer.append("job", b"x")
        finally:
            await writer.close()

    with pytest.raises(QueueUnavailable, match="fewer than 2 replicas"):
        asyncio.run(append())


def test_a_consumer_follows_a_failover(sentinel):
    async def append():
        writer = RedisWriter(sentinel.url, NUM_SHARDS, wait_replicas=1)
        await writer.append("job", b"x")
        await writer.close()

    asyncio.run(append())
    reader = RedisReader(sentinel.url)
    sentinel.primary().kill()
    found = []

    def is_found():
        try:
            found.extend(reader.read(range(NUM_SHARDS), "a", count=9, block_s=0.1))
        except QueueUnavailable:
            return False
        return bool(found)

    redis_servers.until(is_found)
    assert [entry.body for entry in found] == [b"x"]
    reader.close()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    with redis_servers.cluster(tmp_path_factory.mktemp("cluster")) as group:
        yield group


@pytest.fixture
def cluster(shared_cluster):
    """Whole and empty; slots may have moved."""
    shared_cluster.wipe()
    return shared_cluster


def test_slot_moved_to_another_node_is_followed(cluster):
    async def run():
        writer = RedisWriter(cluster.url, NUM_SHARDS)
        await writer.append("job", b"before")
        move_slot(cluster, stream_key(shard_of("job", NUM_SHARDS)))
        await writer.append("job", b"after")
        await writer.close()

    reader = RedisReader(cluster.url)
    assert reader.read(range(NUM_SHARDS), "a", count=9, block_s=0.0) == []
    asyncio.run(run())
    assert sorted(all_bodies(cluster.url)) == [b"after", b"before"]
    entries = []
    while more := reader.take_over(shard_of("job", NUM_SHARDS), "b", min_idle_s=0):
        entries = more
        reader.done(more[0].shard, [entry.entry_id for entry in more])
    assert [entry.body for entry in entries] == [b"before", b"after"]
    reader.close()


def move_slot(cluster, key):
    """Moves a key's slot, with the key, to another node."""
    clients = [server.client() for server in cluster.servers]
    slot = clients[0].execute_command("CLUSTER KEYSLOT", key)
    names = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    [source] = [n for n, client in enumerate(clients) if _holds(client, key)]
    target = (source + 1) % len(clients)
    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[source])
    clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
    port = cluster.servers[target].port
    clients[source].execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)
    for client in (clients[target], clients[source]):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[target])
    for client in clients:
        client.close()


def _holds(client, key):
    try:
        return bool(client.exists(key))
    except redis.ResponseError:
        return False


@pytest.mark.nightly
def test_a_lost_node_affects_its_shards_only(cluster):
    async def run():
        writer = RedisWriter(cluster.url, 64)
        jobs = [f"job-{number}" for number in range(30)]
        for job in jobs:
            await writer.append(job, b"x")
        cluster.servers[0].kill()
        refused = set()
        for job in jobs:
            try:
                await writer.append(job, b"y")
            except QueueUnavailable:
                refused.add(job)
        assert refused
        cluster.servers[0].start()
        async with asyncio.timeout(30):
            while refused:
                try:
                    await writer.append(next(iter(refused)), b"z")
                    refused.pop()
                except QueueUnavailable:
                    await asyncio.sleep(0.02)
        await writer.close()

    asyncio.run(run())
    redis_servers.wait_until_whole(cluster)  # the other nodes may still consider it failed
    bodies = all_bodies(cluster.url, 64)
    assert bodies.count(b"x") == 30


def test_no_command_touches_the_keys_of_two_shards(cluster, request):
    """Checked in each node's slow log after every queue operation has run once."""
    clients = [server.client() for server in cluster.servers]
    for client in clients:
        client.config_set("slowlog-max-len", 10_000)
        client.config_set("slowlog-log-slower-than", 0)

    async def run():
        writer = RedisWriter(cluster.url, NUM_SHARDS, wait_replicas=0)
        for number in range(20):
            await writer.append(f"job-{number}", b"x")
        await writer.lag()
        await writer.close()

    asyncio.run(run())
    reader = RedisReader(cluster.url)
    while entries := reader.read(range(NUM_SHARDS), "a", count=9, block_s=0.2):
        for entry in entries:
            reader.done(entry.shard, [entry.entry_id])
    for shard in range(NUM_SHARDS):
        reader.take_over(shard, "b", min_idle_s=0)
        reader.oldest(shard), reader.newest(shard), reader.backlog(shard)
    reader.close()
    asked = [entry["command"] for client in clients for entry in client.slowlog_get(10_000)]
    ours = [command for command in asked if b"paceline:{ops:" in command]
    assert len(ours) > 40
    assert [command for command in ours if command.count(b"paceline:{ops:") != 1] == []
    assert (
        sum(
            client.info("errorstats").get("errorstat_CROSSSLOT", {}).get("count", 0)
            for client in clients
        )
        == 0
    )
    for client in clients:
        client.close()


def test_entries_deleted_elsewhere_count_as_lost(valkey_url):
    reader = RedisReader(valkey_url)
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        client.xadd(stream_key(0), {"job": "j", "body": b"x"})
        [entry] = reader.read([0], "a", count=9, block_s=0.0)
        client.xdel(stream_key(0), entry.entry_id)
    assert reader.take_over(0, "b", min_idle_s=0) == []
    assert reader.lost_entries == 1
    reader.close()


def test_foreign_stream_entries_are_read(valkey_url):
    """The consumer rejects entries that are no batches; the reader must not stop at them."""
    foreign = [{"foo": "bar"}, {"job": b"\xff\0" + 200 * b"j"}, {"body": b"x"}]
    reader = RedisReader(valkey_url)
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        for fields in foreign:
            client.xadd(stream_key(0), fields)
    entries = reader.read([0], "a", count=9, block_s=0.0) + reader.read(
        [0], "a", count=9, block_s=0.0
    )
    assert [entry.body for entry in entries] == [b"", b"", b"x"]
    assert [len(entry.job_id) for entry in entries] == [0, 128, 0]
    assert "\0" not in entries[1].job_id
    assert len(reader.take_over(0, "b", min_idle_s=0)) == 3
    reader.close()


def _wait_for_the_next_millisecond(client: redis.Redis, entry_id: str) -> None:
    """A wiped server forgets the ids of this millisecond and may assign them again."""
    given_ms = int(entry_id.split("-")[0])
    while (now := client.time())[0] * 1000 + now[1] // 1000 <= given_ms:
        pass


def test_entry_ids_keep_increasing_after_a_wipe(valkey_url):
    """Ids come from the server's clock, so ids after a wipe are above earlier ones."""
    reader = RedisReader(valkey_url)
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        client.xadd(stream_key(0), {"job": "j", "body": b"x"})
        before = reader.newest(0)
        client.flushall()
        assert (reader.newest(0), reader.oldest(0)) == ("0-0", None)
        _wait_for_the_next_millisecond(client, before)
        client.xadd(stream_key(0), {"job": "j", "body": b"y"})
        after = reader.newest(0)
    assert reader.oldest(0) == after
    assert [int(part) for part in before.split("-")] < [int(part) for part in after.split("-")]
    reader.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3cret@host:port",
        "redis+cluster://:s3cret@",
        "redis+sentinel://:s3cret@host:1",
        "redis+nothing://:s3cret@host",
        "http://:s3cret@host",
        "redis+sentinel://:s3cret@host:1/name/x",
        "redis+cluster://u:s3cret@host:66x",
    ],
)
def test_invalid_url_is_refused_without_printing_its_password(url):
    with pytest.raises(StartUpFailed, match=r"redis\+cluster") as refused:
        RedisReader(url)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
