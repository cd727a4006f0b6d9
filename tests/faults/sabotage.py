"""Guarantees broken on purpose, as patches of a process: the oracle must detect each."""

import asyncio
import os
from typing import Any

import redis.asyncio

from app.ingest.assembly.rank_tracker import RankCursor
from app.ingest.queue import stream_key
from app.ingest.redis.queue import RedisWriter
from app.store import shards
from app.store.alerting import outbox
from app.trace.job import shard_of

MAX_ENTRIES = 3
NUM_SHARDS = 4


def acknowledge_before_append():
    """Acknowledge at once, and append 0.3 s later."""
    append: Any = RedisWriter.append
    under_way = set()

    async def append_after_delay(*arguments):
        await asyncio.sleep(0.3)
        await append(*arguments)

    async def append_later(*arguments):
        task = asyncio.create_task(append_after_delay(*arguments))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    set_attribute(RedisWriter, "append", append_later)


def cap_streams():
    """Trim a stream, whether its entries were read or not."""
    append: Any = RedisWriter.append

    async def capped(self, job_id, body):
        await append(self, job_id, body)
        async with redis.asyncio.from_url(os.environ["PACELINE_REDIS_URL"]) as client:
            key = stream_key(shard_of(job_id, NUM_SHARDS))
            await client.xtrim(key, maxlen=MAX_ENTRIES, approximate=False)

    set_attribute(RedisWriter, "append", capped)


def skip_fences():
    """Commit without checking the shard's fence."""
    set_attribute(shards, "check", lambda *_: None)


def skip_batch_keys():
    """Treat every batch as a new one."""
    add: Any = RankCursor.add

    def new(*arguments):
        add(*arguments)
        return "new"

    set_attribute(RankCursor, "add", new)


def mark_before_post():
    """Mark messages delivered as soon as they are claimed."""
    claim: Any = outbox.claim

    def marked(conn, *, now_s, **given):
        found = claim(conn, now_s=now_s, **given)
        for delivery in found:
            outbox.mark_delivered(conn, delivery, now_s=now_s)
        return found

    set_attribute(outbox, "claim", marked)


def set_attribute(target, name, value):
    setattr(target, name, value)
