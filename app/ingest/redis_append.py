"""Appends that come at the same moment share a write and an answer, and Redis its fsync.

Asking redis-py for each append by itself costs as much time as all else that a batch takes.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.errors import QueueUnavailable
from app.ingest.redis_connection import TIMEOUT_S

# Groups on their way at once. Redis answers all that it has read from all connections after one
# fsync, and of each connection it reads some 16 kB at a time.
LANES = 8
# Of one group; a batch that waits behind megabytes would not have its answer in time.
GROUP_BYTES = 4 << 20
GROUP_COUNT = 16


@dataclass(slots=True)
class _Append:
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
        self._wait: list[bytes] = []
        if wait_replicas:
            self._wait = [_packed(b"WAIT", b"%d" % wait_replicas, b"%d" % wait_ms)]
        self._waiting: deque[_Append] = deque()
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
        self._waiting.append(_Append((head, body, b"\r\n"), len(body), answer))
        if len(self._lanes) < LANES:
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

    async def _on_one_connection(self, group: list[_Append]) -> None:
        """Sends this group and all that wait meanwhile; `group` is always the one on its way."""
        pool: Any = self._client.connection_pool
        async with asyncio.timeout(self._timeout_s):
            connection = await pool.get_connection()
        try:
            while group:
                await self._exchange(connection, group)
                group[:] = self._next_group()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, QueueUnavailable):
                # A primary that was cut off: whoever took over is found by connecting anew.
                await pool.disconnect(inuse_connections=False)
            raise
        finally:
            await pool.release(connection)

    def _next_group(self) -> list[_Append]:
        group: list[_Append] = []
        size_bytes = 0
        while self._waiting and len(group) < GROUP_COUNT and size_bytes < GROUP_BYTES:
            group.append(self._waiting.popleft())
            size_bytes += group[-1].size_bytes
        return group

    async def _exchange(self, connection: Any, group: list[_Append]) -> None:
        parts = [part for append in group for part in append.command]
        async with asyncio.timeout(self._timeout_s):
            await connection.send_packed_command([*parts, *self._wait])
            refused = [await _refusal(connection) for _ in group]
            has_replicas = not self._wait or (
                int(await connection.read_response()) >= self._wait_replicas
            )
        if not has_replicas:
            raise QueueUnavailable(f"fewer than {self._wait_replicas} replicas have the batch")
        for append, error in zip(group, refused, strict=True):
            _settle(append, error)

    def _fail(self, group: list[_Append], cause: Exception) -> None:
        if isinstance(cause, TimeoutError | RedisTimeoutError):
            # Those behind it have waited as long, and would only wait for the same.
            group = [*group, *self._waiting]
            self._waiting.clear()
            cause = RedisTimeoutError(f"no answer within {self._timeout_s:g} s")
        for append in group:
            _settle(append, cause)


async def _refusal(connection: Any) -> ResponseError | None:
    try:
        await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
    return None


def _settle(append: _Append, error: Exception | None) -> None:
    if append.answer.done():  # whoever waited has gone
        return
    if error is None:
        append.answer.set_result(None)
    else:
        # One of its own for each, or their tracebacks would grow into one another.
        append.answer.set_exception(copy(error))


def _packed_head(key: bytes, job_id: bytes, size_bytes: int) -> bytes:
    """An XADD up to the batch itself, which is written from where it lies."""
    fields = b"".join(_bulk(part) for part in (b"XADD", key, b"*", b"job", job_id, b"body"))
    return b"*7\r\n%b$%d\r\n" % (fields, size_bytes)


def _packed(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(map(_bulk, words)))


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
