"""Writer and reader of the event queue: on one server, behind sentinels, or in a cluster.

Appends of the same moment share a write and an answer, and Redis its fsync: asking redis-py for
each append by itself costs as much time as all else that a batch takes. Lua scripts touch the
stream of one shard; MULTI would be refused when memory is full, scripts are not.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import redis
import redis.asyncio
import structlog
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

from app.errors import QueueUnavailable
from app.ingest.queue import (
    BUDGET_BYTES,
    GROUP,
    Entry,
    Lag,
    QueueReader,
    QueueWriter,
    ReadBudget,
    stream_key,
)
from app.ingest.redis import server_checks
from app.ingest.redis.nodes import (
    MAX_CONNECTIONS,
    TIMEOUT_S,
    open_async_nodes,
    open_nodes,
    translated,
)
from app.ingest.redis.server_checks import ServerWatch
from app.trace.job import shard_of

# KEYS: stream. ARGV: group, entry ids.
DONE_SCRIPT = """
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
"""

# KEYS: stream. ARGV: group, our own name, least idle time in milliseconds. A consumer's name goes
# only when nothing is pending under it: with the name its entries would be forgotten. Looking
# and deleting in one go, since a consumer that takes an entry in between would lose it.
FORGET_CONSUMERS_SCRIPT = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local fields = {}
  for i = 1, #consumer, 2 do fields[consumer[i]] = consumer[i + 1] end
  if fields.name ~= ARGV[2] and fields.pending == 0 and fields.idle >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fields.name)
  end
end
"""

# KEYS: stream. How many entries, and the id of the oldest. An id alone, since
# its entry may have 8 MiB.
WAITING_SCRIPT = """
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
return {redis.call('XLEN', KEYS[1]), oldest and oldest[1] or false}
"""

# KEYS: stream. ARGV: how many. Ids of the oldest entries.
OLDEST_SCRIPT = """
local ids = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1])) do
  ids[#ids + 1] = entry[1]
end
return ids
"""

# KEYS: stream. The newest id, also of an entry that was deleted.
NEWEST_SCRIPT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return '0-0' end
local fields = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] == 'last-generated-id' then return fields[i + 1] end
end
"""


CLAIM_COUNT = 64
PENDING_PAGE = 1000

_FIRST_ID = "0-0"


@dataclass(slots=True)
class ClaimedEntries:
    """Entries as (id, fields, deliveries), and the ids of those that are pending and deleted."""

    entries: list[tuple[bytes, dict[bytes, bytes], int]] = field(default_factory=list)
    lost_ids: list[bytes] = field(default_factory=list)


def claim_idle_entries(
    client: redis.Redis, key: str, consumer: str, idle_ms: int
) -> ClaimedEntries:
    """Make every entry of one stream that is idle for so long the consumer's.

    What a consumer may leave is bounded by what one read gives, so all of it fits in memory.
    """
    claimed = ClaimedEntries()
    cursor: Any = _FIRST_ID
    while True:
        answer: Any = client.xautoclaim(key, GROUP, consumer, idle_ms, cursor, count=CLAIM_COUNT)
        cursor, entries, lost_ids = answer
        claimed.lost_ids += lost_ids
        deliveries = _deliveries(client, key, consumer, [entry_id for entry_id, _ in entries])
        claimed.entries += [(name, fields, deliveries[name]) for name, fields in entries]
        if cursor == _FIRST_ID.encode():
            return claimed


def _deliveries(
    client: redis.Redis, key: str, consumer: str, entry_ids: list[bytes]
) -> dict[bytes, int]:
    """How often each of the consumer's entries was delivered; the ids are in order."""
    deliveries: dict[bytes, int] = {}
    first, last = (entry_ids[0].decode(), entry_ids[-1].decode()) if entry_ids else ("", "")
    while first:
        page: Any = client.xpending_range(
            key, GROUP, first, last, PENDING_PAGE, consumername=consumer
        )
        deliveries |= {row["message_id"]: row["times_delivered"] for row in page}
        first = f"({page[-1]['message_id'].decode()}" if len(page) == PENDING_PAGE else ""
    return deliveries


# Groups on their way at once. Redis answers all that it has read from all connections after one
# fsync, and of each connection it reads some 16 kB at a time.
APPEND_LANES = 8
# Of one group; a batch that waits behind megabytes would not have its answer in time.
APPEND_GROUP_BYTES = 4 << 20
APPEND_GROUP_COUNT = 16


@dataclass(slots=True)
class _PendingAppend:
    command: Sequence[bytes]
    size_bytes: int
    answer: asyncio.Future[None]


class RedisAppender:
    """Puts batches into the streams of one server over its client's connections.

    `append` may raise every error of Redis; with `wait_replicas` above 0 it returns only once so
    many replicas have the batch.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        wait_replicas: int = 0,
        wait_ms: int = 300,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        words = (b"WAIT", b"%d" % wait_replicas, b"%d" % wait_ms)
        self._wait = [b"*3\r\n", *map(_bulk, words)] if wait_replicas else []
        self._waiting: deque[_PendingAppend] = deque()
        self._lanes: set[asyncio.Task[None]] = set()

    async def append(self, key: str, job_id: str, body: bytes) -> None:
        """Returns once the batch is on disk.

        Raises:
            ResponseError: the server refuses this batch.
            RedisError, OSError: no answer; the batch may or may not be in the stream.
            QueueUnavailable: too few replicas have it.
        """
        answer = asyncio.get_running_loop().create_future()
        head = _packed_head(key.encode(), job_id.encode(), len(body))
        self._waiting.append(_PendingAppend((head, body, b"\r\n"), len(body), answer))
        if len(self._lanes) < APPEND_LANES:
            # A task begins with the next turn of the loop: what comes in this one goes with it.
            lane = asyncio.create_task(self._run_lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        await answer

    async def _run_lane(self) -> None:
        while group := self._next_group():
            try:
                await self._on_one_connection(group)
            except Exception as error:
                self._fail(group, error)

    async def _on_one_connection(self, group: list[_PendingAppend]) -> None:
        """Sends this group and all that wait meanwhile; `group` is always the one on its way."""
        pool: Any = self._client.connection_pool
        async with asyncio.timeout(self._timeout_s):
            connection = await pool.get_connection()
        try:
            while group:
                await self._exchange(connection, group)
                if connection.should_reconnect():  # there is another primary
                    return
                group[:] = self._next_group()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, QueueUnavailable):
                # A primary that was cut off: connecting anew reaches its successor.
                await pool.disconnect(inuse_connections=False)
            raise
        finally:
            await pool.release(connection)

    def _next_group(self) -> list[_PendingAppend]:
        group: list[_PendingAppend] = []
        size_bytes = 0
        while self._waiting and len(group) < APPEND_GROUP_COUNT and size_bytes < APPEND_GROUP_BYTES:
            group.append(self._waiting.popleft())
            size_bytes += group[-1].size_bytes
        return group

    async def _exchange(self, connection: Any, group: list[_PendingAppend]) -> None:
        parts = [part for append in group for part in append.command]
        async with asyncio.timeout(self._timeout_s):
            await connection.send_packed_command([*parts, *self._wait])
            outcomes = [await _append_refusal(connection) for _ in group]
            # A server that is no longer a primary refuses the wait, too. Its refusals of batches,
            # such as MOVED with the slot's new address, are answered first.
            for append, refusal in zip(group, outcomes, strict=True):
                if refusal is not None:
                    _answer(append, refusal)
            if self._wait:
                await self._await_replicas(connection)
        for append in group:
            _answer(append, None)

    async def _await_replicas(self, connection: Any) -> None:
        try:
            num_replicas = int(await connection.read_response())
        except ResponseError as error:
            raise QueueUnavailable(f"the server does not confirm replicas: {error}") from error
        if num_replicas < self._wait_replicas:
            raise QueueUnavailable(f"fewer than {self._wait_replicas} replicas have the batch")

    def _fail(self, group: list[_PendingAppend], cause: Exception) -> None:
        if isinstance(cause, TimeoutError | RedisTimeoutError):
            # Those behind it have waited as long, and would only wait for the same.
            group = [*group, *self._waiting]
            self._waiting.clear()
            cause = RedisTimeoutError(f"no answer within {self._timeout_s:g} s")
        for append in group:
            _answer(append, cause)


async def _append_refusal(connection: Any) -> ResponseError | None:
    try:
        await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
    return None


def _answer(append: _PendingAppend, error: Exception | None) -> None:
    if append.answer.done():  # the caller has gone
        return
    if error is None:
        append.answer.set_result(None)
    else:
        # A copy per append, or their tracebacks would grow into one another.
        append.answer.set_exception(copy(error))


def _packed_head(key: bytes, job_id: bytes, size_bytes: int) -> bytes:
    """An XADD up to the batch itself, which is written from where it lies."""
    fields = b"".join(_bulk(part) for part in (b"XADD", key, b"*", b"job", job_id, b"body"))
    return b"*7\r\n%b$%d\r\n" % (fields, size_bytes)


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


log = structlog.get_logger()

MAX_KEY_CHARS = 128
MAX_ASKED_IDS = 1000  # ids at once
MAX_BLOCK_S = 1.0  # well below the socket's timeout
# In a cluster no command reads two shards. To wait at one of them for so long, and then to look
# at all, finds an entry of any within this time, at 10 commands a second and shard.
CLUSTER_TURN_S = 0.1
MAX_DONE_IDS = 1000  # Lua unpacks no more than some thousands

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
        with translated():
            await self._nodes.run(
                key, lambda client: self._appender(client).append(key, job_id, body)
            )

    def _appender(self, client: redis.asyncio.Redis) -> RedisAppender:
        if client not in self._appenders:
            self._appenders[client] = RedisAppender(client, wait_replicas=self._wait_replicas)
        return self._appenders[client]

    @override
    async def weaknesses(self) -> tuple[str, ...]:
        with translated():
            by_node = [
                await server_checks.find_weaknesses_async(node)
                for node in await self._nodes.primaries()
            ]
        return tuple(dict.fromkeys(sentence for sentences in by_node for sentence in sentences))

    @override
    async def check(self) -> None:
        server_checks.refuse_weaknesses(await self.weaknesses(), allow_lossy=self._allow_lossy)

    @override
    async def lag(self) -> Lag:
        with translated():
            waiting = [await self._waiting(stream_key(n)) for n in range(self._num_shards)]
            primaries = await self._nodes.primaries()
            seconds, microseconds = await primaries[0].time()
            memory: list[Any] = [await node.info("memory") for node in primaries]
            logs: list[Any] = [await node.info("persistence") for node in primaries]
        now_s = seconds + 1e-6 * microseconds
        limits = [int(node["maxmemory"]) for node in memory]
        sizes = [node.get("aof_current_size") for node in logs]
        return Lag(
            entries=tuple(count for count, _ in waiting),
            oldest_s=tuple(
                max(0.0, now_s - _received_s(oldest)) if oldest else None for _, oldest in waiting
            ),
            memory_bytes=sum(int(node["used_memory"]) for node in memory),
            memory_limit_bytes=sum(limits) if all(limits) else None,
            log_bytes=None if None in sizes else sum(map(int, sizes)),
        )

    async def _waiting(self, key: str) -> tuple[int, bytes | None]:
        count, oldest = await self._nodes.run(
            key, lambda client: client.eval_ro(WAITING_SCRIPT, 1, key)
        )
        return int(count), oldest

    @override
    async def close(self) -> None:
        self._appenders.clear()
        await self._nodes.close()


class RedisReader(QueueReader):
    """Takes batches out of the streams as a member of their consumer group."""

    def __init__(self, url: str, *, budget_bytes: int = BUDGET_BYTES) -> None:
        self._nodes = open_nodes(url)
        self._budget = ReadBudget(budget_bytes)
        self._watch = ServerWatch(time.monotonic)
        self._turns = itertools.count(1)
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
            if left_s <= 0:
                return []
            awaited = shards
            if not self._nodes.reads_together:
                awaited, left_s = [self._next(shards)], min(left_s, CLUSTER_TURN_S)
            if entries := self._read(awaited, consumer, count, left_s):
                return entries

    def _next(self, items: Sequence[ResultT]) -> ResultT:
        return items[next(self._turns) % len(items)]

    def _groups(self, shards: Sequence[int]) -> list[Sequence[int]]:
        """Shards by command: one command reads as many as the budget has an entry for."""
        size = self._budget.num_shards if self._nodes.reads_together else 1
        return [shards[first : first + size] for first in range(0, len(shards), size)]

    def _read(self, shards: Sequence[int], consumer: str, most: int, block_s: float) -> list[Entry]:
        shard_by_key = {stream_key(shard).encode(): shard for shard in shards}
        count = self._budget.count(len(shards), most)
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
        self._budget.learn([len(entry.body) for entry in entries])
        return entries

    @override
    def take_over(self, shard: int, consumer: str, *, min_idle_s: float) -> list[Entry]:
        key, idle_ms = stream_key(shard), int(min_idle_s * 1000)
        claimed: ClaimedEntries = self._with_groups(
            [shard], lambda client: claim_idle_entries(client, key, consumer, idle_ms)
        )
        self._run(key, _script(FORGET_CONSUMERS_SCRIPT, key, GROUP, consumer, idle_ms))
        with translated():
            self._watch.compare(self._nodes.primaries)
        if claimed.lost_ids:
            self.lost_entries += len(claimed.lost_ids)
            log.error("entries deleted before they were done", shard=shard, ids=claimed.lost_ids)
        return [
            _entry(shard, entry_id, fields, deliveries)
            for entry_id, fields, deliveries in claimed.entries
        ]

    @override
    def done(self, shard: int, entry_ids: Sequence[str]) -> None:
        key = stream_key(shard)
        for first in range(0, len(entry_ids), MAX_DONE_IDS):
            ids = entry_ids[first : first + MAX_DONE_IDS]
            self._run(key, _script(DONE_SCRIPT, key, GROUP, *ids))

    @override
    def backlog(self, shard: int) -> int:
        key = stream_key(shard)
        return int(self._run(key, lambda client: client.xlen(key)))

    @override
    def oldest(self, shard: int, *, besides: Collection[str] = ()) -> str | None:
        key = stream_key(shard)
        num_asked = min(len(besides) + 1, MAX_ASKED_IDS)
        ids = self._run(key, _script(OLDEST_SCRIPT, key, num_asked))
        return next((text for name in ids if (text := name.decode()) not in besides), None)

    @override
    def newest(self, shard: int) -> str:
        key = stream_key(shard)
        newest = self._run(key, _script(NEWEST_SCRIPT, key))
        return str(newest.decode())

    @override
    def weaknesses(self) -> tuple[str, ...]:
        with translated():
            by_node = [server_checks.find_weaknesses(node) for node in self._nodes.primaries()]
        return tuple(dict.fromkeys(sentence for sentences in by_node for sentence in sentences))

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
                self._watch.note_groups(shards)
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
            self._nodes.run(
                key, lambda client: client.xgroup_create(key, GROUP, id="0", mkstream=True)
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        else:
            self._watch.created_group(shard)


def _script(script: str, key: str, *arguments: Any) -> Callable[[redis.Redis], Any]:
    return lambda client: client.eval(script, 1, key, *arguments)


def _entry(shard: int, entry_id: bytes, fields: dict[bytes, bytes], deliveries: int = 1) -> Entry:
    # Data of another program in the stream becomes an entry, too, and then a dead letter.
    job_id = fields.get(b"job", b"").decode(errors="replace").replace("\0", "\ufffd")
    body = fields.get(b"body", b"")
    name = job_id[:MAX_KEY_CHARS]
    return Entry(entry_id.decode(), shard, name, body, _received_s(entry_id), deliveries)


def _received_s(entry_id: bytes) -> float:
    # An id begins with the server's clock in milliseconds.
    return int(entry_id.partition(b"-")[0]) / 1000
