"""Send batches over keep-alive connections until each is taken, and watch for their results."""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override

from app.cli.bench.ingest_stack import JOB, Target
from app.errors import DeliveryFailed

_TRY_AGAIN_S = 0.05
_LOOK_EVERY_S = 0.02


class Connection(asyncio.Protocol):
    """One keep-alive connection, on which requests go out one after the other."""

    def __init__(self, target: Target) -> None:
        self._token = target.token.encode()
        self._answer = b""
        self._answered: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: Any = None

    @classmethod
    async def open(cls, target: Target) -> "Connection":
        """A connection to the API."""
        connection = cls(target)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, "127.0.0.1", target.port)
        return connection

    async def push(self, body: bytes) -> None:
        """Returns once the batch is acknowledged, however often it takes.

        Raises:
            DeliveryFailed: it was refused.
        """
        head = (
            b"POST /api/v1/jobs/%b/ops HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
            b"content-type: application/vnd.paceline.ops+msgpack\r\ncontent-length: %d\r\n\r\n"
            % (JOB.encode(), self._token, len(body))
        )
        while (answer := await self._ask(head + body))[0] != 202:
            if answer[0] != 503:
                raise DeliveryFailed(f"{answer[0]}: {answer[1][:300]!r}", retryable=False)
            await asyncio.sleep(_TRY_AGAIN_S)

    async def get(self, path: str) -> Any:
        """What the API answers."""
        head = b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n\r\n"
        status, body = await self._ask(head % (path.encode(), self._token))
        if status != 200:
            raise DeliveryFailed(f"{status}: {body[:300]!r}", retryable=False)
        return json.loads(body)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        if self._transport.is_closing():
            raise DeliveryFailed("the API hung up before", retryable=True)
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answered

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, body = self._answer.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length:")
        if not length or len(body) < int(length.split(b"\r\n", 1)[0]):
            return
        self._answer = b""
        if self._answered is not None and not self._answered.done():
            self._answered.set_result((int(head[9:12]), body))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(DeliveryFailed("the API hung up", retryable=True))


async def push_all(connections: list[Connection], bodies: Iterable[bytes]) -> None:
    """Push every batch; each connection takes the next one as soon as it is free."""
    waiting = iter(bodies)
    await asyncio.gather(*(_push_each(connection, waiting) for connection in connections))


async def _push_each(connection: Connection, waiting: Iterator[bytes]) -> None:
    for body in waiting:
        await connection.push(body)


async def result_of(connection: Connection, step: int, within_s: float) -> float:
    """Returns the moment at which the API had a result of the step.

    Raises:
        DeliveryFailed: it has none in time, or cannot have one.
    """
    end_s = time.perf_counter() + within_s
    while time.perf_counter() < end_s:
        found = await connection.get(f"/api/v1/jobs/{JOB}/steps?first={step}&last={step}")
        if found["items"]:
            if found["items"][0]["slowdown"] is None:
                raise DeliveryFailed(f"step {step} was skipped: {found}", retryable=False)
            return time.perf_counter()
        await asyncio.sleep(_LOOK_EVERY_S)
    raise DeliveryFailed(f"no result of step {step} within {within_s:g} s", retryable=False)
