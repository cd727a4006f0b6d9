"""The event queue in Redis or Valkey: on one server, behind sentinels, or in a cluster."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio
import structlog
from redis.exceptions import ResponseError
from typing_extensions import override

from app.ingest import durability, redis_scripts
from app.ingest.portion import BUDGET_BYTES, Portion
from app.ingest.queue import GROUP, Entry, Lag, QueueReader, QueueWriter, shard_of, stream_key
from app.ingest.redis_append import RedisAppender
from app.ingest.redis_async_nodes import open_async_nodes
from app.ingest.redis_claims import Claimed, claim
from app.ingest.redis_connection import MAX_CONNECTIONS, translated
from app.ingest.redis_nodes import open_nodes
from app.ingest.server_watch import ServerWatch

log = structlog.get_logger()

MAX_KEY_CHARS = 128
MOST_ASKED = 1000  # ids at once
MAX_BLOCK_S = 1.0  # well below the socket's timeout
# In a cluster no command reads two shards. To wait at one of them for so long, and then to look
# at all, finds an entry of any within this time, at 10 commands a second and shard.
TURN_S = 0.1
DONE_COUNT = 1000  # Lua unpacks no more than some thousands

ResultT = TypeVar("ResultT")


class RedisWriter(QueueWriter):
    """Puts batches into the streams, one XADD a batch; those of a moment share an fsync.

    With `wait_replicas` above 0, an append returns only once so many replicas have the batch.
    """

    def __init__(
        self,
        url: str,
        num_shards: int,
        *,
        allow_lossy: bool = False,
        wait_replicas: int = 0,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._nodes = open_async_nodes(url, max_connections=max_connections)
        self._num_shards = num_shards
        self._allow_lossy = allow_lossy
        self._wait_replicas = wait_replicas
        self._appenders: dict[redis.asyncio.Redis, RedisAppender] = {}

    @override
    async def append(self, job_id: str, body: bytes) -> None:
        key = stream_key(shard_of(job_id, self._num_shards))

        async def add(client: redis.asyncio.Redis) -> None:
            await self._appender(client).append(key, job_id, body)

        with translated():
            await self._nodes.run(key, add)

    def _appender(self, client: redis.asyncio.Redis) -> RedisAppender:
        if client not in self._appenders:
            self._appenders[client] = RedisAppender(client, wait_replicas=self._wait_replicas)
        return self._appenders[client]

    @override
    async def weaknesses(self) -> tuple[str, ...]:
        with translated():
            found = [await durability.ask_async(node) for node in await self._nodes.primaries()]
        return tuple(dict.fromkeys(sentence for node in found for sentence in node))

    @override
    async def check(self) -> None:
        durability.refuse(await self.weaknesses(), allow_lossy=self._allow_lossy)

    @override
    async def lag(self) -> Lag:
        with translated():
            waiting = [await self._waiting(stream_key(n)) for n in range(self._num_shards)]
            primaries = await self._nodes.primaries()
            seconds, microseconds = await primaries[0].time()
            memory: list[Any] = [await node.info("memory") for node in primaries]
        now_s = seconds + 1e-6 * microseconds
        limits = [int(node["maxmemory"]) for node in memory]
        return Lag(
            entries=tuple(count for count, _ in waiting),
            oldest_s=tuple(
                max(0.0, now_s - _taken_s(oldest)) if oldest else None for _, oldest in waiting
            ),
            memory_bytes=sum(int(node["used_memory"]) for node in memory),
            memory_limit_bytes=sum(limits) if all(limits) else None,
        )

    async def _waiting(self, key: str) -> tuple[int, bytes | None]:
        async def ask(client: redis.asyncio.Redis) -> Any:
            return await client.eval_ro(redis_scripts.WAITING, 1, key)

        count, oldest = await self._nodes.run(key, ask)
        return int(count), oldest

    @override
    async def close(self) -> None:
        self._appenders.clear()
        await self._nodes.close()


class RedisReader(QueueReader):
    """Takes batches out of the streams as a member of their consumer group."""

    def __init__(self, url: str, *, budget_bytes: int = BUDGET_BYTES) -> None:
        self._nodes = open_nodes(url)
        self._portion = Portion(budget_bytes)
        self._watch = ServerWatch(time.monotonic)
        self._turn = 0
        self.lost_entries = 0

    @override
    def read(
        self, shards: Sequence[int], consumer: str, *, count: int, block_s: float
    ) -> list[Entry]:
        groups = self._groups(shards)
        end_s = time.monotonic() + min(block_s, MAX_BLOCK_S)
        if len(groups) == 1:
            return self._read(shards, consumer, count, min(block_s, MAX_BLOCK_S))
        while True:
            for _ in groups:
                if entries := self._read(self._next(groups), consumer, count, 0.0):
                    return entries
            left_s = end_s - time.monotonic()
            if left_s <= 0 or (entries := self._await_one(shards, consumer, count, left_s)):
                return entries

    def _groups(self, shards: Sequence[int]) -> list[Sequence[int]]:
        """Shards that one command may read, and whose entries the budget is for."""
        size = self._portion.num_shards if self._nodes.reads_together else 1
        return [shards[first : first + size] for first in range(0, len(shards), size)]

    def _next(self, groups: Sequence[Sequence[int]]) -> Sequence[int]:
        self._turn += 1
        return groups[self._turn % len(groups)]

    def _await_one(
        self, shards: Sequence[int], consumer: str, count: int, left_s: float
    ) -> list[Entry]:
        if self._nodes.reads_together:
            return self._read(shards, consumer, count, left_s)
        one = self._next([[shard] for shard in shards])
        return self._read(one, consumer, count, min(left_s, TURN_S))

    def _read(self, shards: Sequence[int], consumer: str, most: int, block_s: float) -> list[Entry]:
        shard_by_key = {stream_key(shard).encode(): shard for shard in shards}
        count = self._portion.count(len(shards), most)
        block_ms = max(1, int(block_s * 1000)) if block_s > 0 else None
        answer: Any = self._with_groups(
            shards,
            lambda client: client.xreadgroup(
                GROUP, consumer, dict.fromkeys(shard_by_key, ">"), count=count, block=block_ms
            ),
        )
        entries = [
            _entry(shard_by_key[key], entry_id, fields)
            for key, taken in answer or []
            for entry_id, fields in taken
        ]
        self._portion.saw([len(entry.body) for entry in entries])
        return entries

    @override
    def take_over(self, shard: int, consumer: str, *, min_idle_s: float) -> list[Entry]:
        key, idle_ms = stream_key(shard), int(min_idle_s * 1000)
        claimed: Claimed = self._with_groups(
            [shard], lambda client: claim(client, key, consumer, idle_ms)
        )
        self._run(key, _script(redis_scripts.FORGET, key, GROUP, consumer, idle_ms))
        self._look_at_servers()
        if claimed.lost_ids:
            self.lost_entries += len(claimed.lost_ids)
            log.error("entries deleted before they were done", shard=shard, ids=claimed.lost_ids)
        return [
            _entry(shard, entry_id, fields, deliveries)
            for entry_id, fields, deliveries in claimed.entries
        ]

    def _look_at_servers(self) -> None:
        with translated():
            self._watch.look(self._nodes.primaries)

    @override
    def done(self, shard: int, entry_ids: Sequence[str]) -> None:
        key = stream_key(shard)
        for first in range(0, len(entry_ids), DONE_COUNT):
            ids = entry_ids[first : first + DONE_COUNT]
            self._run(key, _script(redis_scripts.DONE, key, GROUP, *ids))

    @override
    def backlog(self, shard: int) -> int:
        key = stream_key(shard)
        return int(self._run(key, lambda client: client.xlen(key)))

    @override
    def oldest(self, shard: int, *, besides: Collection[str] = ()) -> str | None:
        key = stream_key(shard)
        num_asked = min(len(besides) + 1, MOST_ASKED)
        ids = self._run(key, _script(redis_scripts.OLDEST, key, num_asked))
        return next((name for each in ids if (name := each.decode()) not in besides), None)

    @override
    def newest(self, shard: int) -> str:
        key = stream_key(shard)
        newest = self._run(key, _script(redis_scripts.NEWEST, key))
        return str(newest.decode())

    @override
    def weaknesses(self) -> tuple[str, ...]:
        with translated():
            found = [durability.ask(node) for node in self._nodes.primaries()]
        return tuple(dict.fromkeys(sentence for node in found for sentence in node))

    @override
    def close(self) -> None:
        self._nodes.close()

    def _run(self, key: str, command: Callable[[redis.Redis], Any]) -> Any:
        with translated():
            return self._nodes.run(key, command)

    def _with_groups(self, shards: Sequence[int], command: Callable[[redis.Redis], Any]) -> Any:
        """The command's answer; a group that is not there (new or wiped server) is made first."""
        key = stream_key(shards[0])
        with translated():
            try:
                answer = self._nodes.run(key, command)
                self._watch.saw_groups(shards)
                return answer
            except ResponseError as error:
                # UNBLOCKED: the stream was deleted while the command waited on it.
                if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                    raise
            for shard in shards:
                self._make_group(shard)
            return self._nodes.run(key, command)

    def _make_group(self, shard: int) -> None:
        key = stream_key(shard)
        try:
            # From 0: what was appended before is read, too.
            self._nodes.run(key, lambda client: _make_group(client, key))
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        else:
            self._watch.made_group(shard)


def _make_group(client: redis.Redis, key: str) -> None:
    client.xgroup_create(key, GROUP, id="0", mkstream=True)


def _script(script: str, key: str, *arguments: Any) -> Callable[[redis.Redis], Any]:
    return lambda client: client.eval(script, 1, key, *arguments)


def _entry(shard: int, entry_id: bytes, fields: dict[bytes, bytes], deliveries: int = 1) -> Entry:
    # Whatever somebody else put into the stream comes out as an entry, to become a dead letter.
    job_id = fields.get(b"job", b"").decode(errors="replace").replace("\0", "\ufffd")
    body = fields.get(b"body", b"")
    name = job_id[:MAX_KEY_CHARS]
    return Entry(entry_id.decode(), shard, name, body, _taken_s(entry_id), deliveries)


def _taken_s(entry_id: bytes) -> float:
    # An id begins with the server's clock in milliseconds.
    return int(entry_id.partition(b"-")[0]) / 1000
