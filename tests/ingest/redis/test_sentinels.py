"""Whose word counts when sentinels, or nodes of a cluster, disagree."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as LostConnection
from redis.sentinel import MasterNotFoundError

from app.ingest.redis.nodes import SlotMap, newest_primary
from app.ingest.redis.queue import RedisWriter
from tests import redis_servers
from tests.ingest.redis.test_queue_faults import NUM_SHARDS, Producer, all_bodies

OLD, NEW = ("old", 7000), ("new", 7000)


def said(address, epoch, *, is_down=False):
    return {"job": {"ip": address[0], "port": address[1], "config-epoch": epoch, "down": is_down}}


def is_usable(state, service):
    return not state["down"]


def test_the_newest_configuration_counts_whoever_is_asked_first():
    assert newest_primary("job", [said(OLD, 1), said(NEW, 2), said(NEW, 2)], is_usable) == NEW
    assert newest_primary("job", [LostConnection("no"), said(OLD, 1)], is_usable) == OLD
    assert newest_primary("job", [said(NEW, 2, is_down=True), said(NEW, 2)], is_usable) == NEW


def test_the_primary_of_before_is_no_stand_in_for_a_new_one_that_is_down():
    with pytest.raises(MasterNotFoundError):
        newest_primary("job", [said(OLD, 1), said(NEW, 2, is_down=True)], is_usable)
    with pytest.raises(MasterNotFoundError, match="no route"):
        newest_primary("job", [LostConnection("no route"), {}], is_usable)


def test_doubted_nodes_are_asked_last_and_the_last_doubted_of_them_last():
    slots = SlotMap([("a", 1), ("b", 1), ("c", 1)])
    slots.doubt(("a", 1))
    assert slots.to_ask() == [("b", 1), ("c", 1), ("a", 1)]
    slots.doubt(("b", 1))
    assert slots.to_ask() == [("c", 1), ("a", 1), ("b", 1)]
    slots.doubt(("c", 1))
    assert slots.to_ask() == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_pushes_go_on_when_a_primary_is_lost_together_with_a_sentinel(tmp_path, how):
    with redis_servers.sentinel(tmp_path) as group:

        async def run():
            writer = RedisWriter(group.url, NUM_SHARDS)
            producer = Producer(writer)
            await producer.push_until(lambda: len(producer.acked) >= 20)
            old = group.primary()
            getattr(group.sentinels[2], how)()
            getattr(old, how)()
            await producer.push_until(lambda: producer.refused and group.primary() != old)
            before = len(producer.acked)
            await producer.push_until(lambda: len(producer.acked) >= before + 20)
            await writer.close()

        asyncio.run(run())
        assert all_bodies(group.url)
