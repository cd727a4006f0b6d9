"""The event queue in Redis or Valkey."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError
from typing_extensions import override

from app.ingest.durability import check_durable
from app.ingest.queue import GROUP, Entry, QueueReader, QueueWriter, shard_of, stream_key
from app.ingest.redis_connection import connect, connect_async, translated

MAX_BLOCK_S = 1.0  # well below the socket's timeout
CLAIM_COUNT = 64
DONE_COUNT = 1000  # Lua unpacks no more than some thousands

ResultT = TypeVar("ResultT")

# Scripts and not MULTI: a transaction is refused when memory is full, these are not.
_DONE = """
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
"""
# Looking and deleting in one go: a consumer that takes an entry in between would lose it.
_FORGET = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local fields = {}
  for i = 1, #consumer, 2 do fields[consumer[i]] = consumer[i + 1] end
  if fields.name ~= ARGV[2] and fields.pending == 0 and fields.idle >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fields.name)
  end
end
"""


class RedisWriter(QueueWriter):
    """Puts batches into the streams, one XADD a batch."""

    def __init__(self, url: str, num_shards: int, *, allow_lossy: bool = False) -> None:
        self._redis = connect_async(url)
        self._num_shards = num_shards
        self._allow_lossy = allow_lossy

    @override
    async def append(self, job_id: str, body: bytes) -> None:
        key = stream_key(shard_of(job_id, self._num_shards))
        with translated():
            await self._redis.xadd(key, {"job": job_id, "body": body})

    @override
    async def check(self) -> None:
        with translated():
            await check_durable(self._redis, allow_lossy=self._allow_lossy)

    @override
    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()


class RedisReader(QueueReader):
    """Takes batches out of the streams as a member of their consumer group."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)
        self._done = self._redis.register_script(_DONE)
        self._forget = self._redis.register_script(_FORGET)

    @override
    def read(
        self, shards: Sequence[int], consumer: str, *, count: int, block_s: float
    ) -> list[Entry]:
        shard_by_key = {stream_key(shard).encode(): shard for shard in shards}
        answer: Any = self._with_groups(
            shards,
            lambda: self._redis.xreadgroup(
                GROUP,
                consumer,
                dict.fromkeys(shard_by_key, ">"),
                count=count,
                block=max(1, int(min(block_s, MAX_BLOCK_S) * 1000)) if block_s > 0 else None,
            ),
        )
        return [
            _entry(shard_by_key[key], entry_id, fields)
            for key, entries in answer or []
            for entry_id, fields in entries
        ]

    @override
    def take_over(self, shard: int, consumer: str, *, min_idle_s: float) -> list[Entry]:
        idle_ms = int(min_idle_s * 1000)
        entries = self._with_groups([shard], lambda: self._claim(shard, consumer, idle_ms))
        with translated():
            self._forget(keys=[stream_key(shard)], args=[GROUP, consumer, idle_ms])
        return entries

    def _claim(self, shard: int, consumer: str, idle_ms: int) -> list[Entry]:
        claimed: list[Entry] = []
        cursor: Any = "0-0"
        while True:
            cursor, entries, _ = self._redis.xautoclaim(
                stream_key(shard), GROUP, consumer, idle_ms, cursor, count=CLAIM_COUNT
            )
            claimed += [_entry(shard, entry_id, fields) for entry_id, fields in entries]
            if cursor == b"0-0":
                return claimed

    @override
    def done(self, shard: int, entry_ids: Sequence[str]) -> None:
        with translated():
            for first in range(0, len(entry_ids), DONE_COUNT):
                ids = entry_ids[first : first + DONE_COUNT]
                self._done(keys=[stream_key(shard)], args=[GROUP, *ids])

    @override
    def backlog(self, shard: int) -> int:
        with translated():
            return int(self._redis.xlen(stream_key(shard)))

    @override
    def oldest(self, shard: int) -> str | None:
        with translated():
            entries: Any = self._redis.xrange(stream_key(shard), count=1)
        return entries[0][0].decode() if entries else None

    @override
    def newest(self, shard: int) -> str:
        with translated():
            try:
                newest: Any = self._redis.xinfo_stream(stream_key(shard))["last-generated-id"]
            except ResponseError as error:
                if "no such key" not in str(error):
                    raise
                return "0-0"
        return str(newest.decode())

    @override
    def close(self) -> None:
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def _with_groups(self, shards: Sequence[int], command: Callable[[], ResultT]) -> ResultT:
        """The command's answer; a group that is not there (new or wiped server) is made first."""
        with translated():
            try:
                return command()
            except ResponseError as error:
                # UNBLOCKED: the stream was deleted while the command waited on it.
                if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                    raise
            for shard in shards:
                self._make_group(shard)
            return command()

    def _make_group(self, shard: int) -> None:
        try:
            self._redis.xgroup_create(stream_key(shard), GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise


def _entry(shard: int, entry_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    # The id begins with the server's clock in milliseconds.
    received_s = int(entry_id.partition(b"-")[0]) / 1000
    job_id = fields[b"job"].decode()
    return Entry(entry_id.decode(), shard, job_id, fields[b"body"], received_s)
