"""The event queue while the network between its servers is cut, and its clients reach all of them.

The worst kind of split: the old primary goes on answering whoever pushes, while the others have
made a new one.
"""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from app.errors import QueueUnavailable
from app.ingest.redis.queue import RedisReader, RedisWriter
from tests import redis_servers
from tests.harness.split_network import NoNetwork, split_network
from tests.ingest.redis.test_queue_faults import NUM_JOBS, NUM_SHARDS, Producer, all_bodies

pytestmark = pytest.mark.nightly


@pytest.fixture
def network():
    try:
        with split_network(3) as network:
            yield network
    except NoNetwork as error:
        pytest.skip(f"needs networks of its own: {error}")


async def pushed_through_a_split(group, network, *, is_over):
    """Acknowledged batches: before the split, while it lasts, and after it."""
    writer = RedisWriter(group.url, NUM_SHARDS, wait_replicas=1)
    producer = Producer(writer)
    try:
        await producer.push_until(lambda: len(producer.acked) >= 50)
        network.cut([0], [1, 2])
        await producer.push_until(lambda: is_over(producer))
        before = len(producer.acked)
        network.heal()
        # Healed: every shard's server has its replica again.
        seen: set[int] = set()
        async with asyncio.timeout(60):
            while len(seen) < NUM_JOBS:
                if await producer.push():
                    seen.add(int(producer.acked[-1]) % NUM_JOBS)
        await producer.push_until(lambda: len(producer.acked) >= before + 100)
    finally:
        await writer.close()
    return producer


def test_split_sentinels_lose_no_acknowledged_batch(tmp_path, network):
    with redis_servers.split_sentinel(tmp_path, network) as group:
        old = group.servers[0]

        def is_over(producer):
            # The new primary has no replica, so nothing can be acknowledged until it is healed.
            new = _primary_by(group.sentinels[1])
            return producer.refused and new != old.host

        producer = asyncio.run(pushed_through_a_split(group, network, is_over=is_over))
        assert _primary_by(group.sentinels[1]) == network.address(1)
        assert set(producer.acked) <= set(all_bodies(group.url))


def test_split_sentinels_do_not_keep_pushes_and_consumers_at_the_old_primary(tmp_path, network):
    """The first sentinel is cut off together with the old primary, and goes on naming it."""
    with redis_servers.split_sentinel(tmp_path, network) as group:
        reader = RedisReader(group.url)

        async def run():
            writer = RedisWriter(group.url, NUM_SHARDS)
            producer = Producer(writer)
            try:
                await producer.push_until(lambda: len(producer.acked) >= 20)
                assert {each.body for each in taken(reader)} == set(producer.acked)
                network.cut([0], [1, 2])
                redis_servers.until(lambda: _primary_by(group.sentinels[1]) == network.address(1))
                assert _primary_by(group.sentinels[0]) == network.address(0)
                begin = len(producer.acked)
                with group.servers[1].client() as at_new:
                    await producer.push_until(
                        lambda: {*producer.acked[begin:]} & {*_bodies(at_new)}
                    )
            finally:
                await writer.close()
            return producer.acked[-1]

        last = asyncio.run(run())
        found: list[Any] = []
        redis_servers.until(lambda: last in _collect(found, reader), within_s=20)
        reader.close()


def test_split_cluster_loses_no_acknowledged_batch(tmp_path, network):
    with redis_servers.split_cluster(tmp_path, network) as group:

        def is_over(producer):
            return producer.refused and _is_promoted(group)

        producer = asyncio.run(pushed_through_a_split(group, network, is_over=is_over))
        assert set(producer.acked) <= set(all_bodies(group.url))


def taken(reader):
    """New entries of all shards."""
    return reader.read(range(NUM_SHARDS), "a", count=512, block_s=0.0)


def _collect(found, reader):
    """All bodies up to now; a consumer asks again when the queue is away."""
    with suppress(QueueUnavailable):
        found += [entry.body for entry in taken(reader)]
    return found


def _bodies(client):
    return [
        value
        for key in client.scan_iter("*", _type="stream")
        for _, fields in client.xrange(key)
        for value in fields.values()
    ]


def _primary_by(sentinel):
    with sentinel.client() as client:
        return client.sentinel_get_master_addr_by_name("paceline")[0].decode()


def _is_promoted(group):
    """Whether a replica has become primary beside the old one, which is cut off."""
    return sum(_role(server) == b"master" for server in group.servers) > 3


def _role(server):
    with server.client() as client:
        return client.role()[0]
