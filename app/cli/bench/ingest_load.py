"""Batches over keep-alive connections, as fast as they are taken or at a rate, each answer checked.

A client of our own, because a general one would take most of the two cores for itself.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from app.cli.bench.ingest_stack import JOB, Target
from app.errors import DeliveryFailed

_SEQ = b"\xa9batch_seq\xcf"
_RANKS = (b"\xa4rank\xce", b"\xa7dp_rank\xce")


@dataclass(slots=True)
class Answers:
    """Latencies of the answers so far, in seconds, and what has gone wrong."""

    num_rows: int
    latency_s: list[float] = field(default_factory=list)
    wrong: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def expected(self) -> bytes:
        """The body of each answer."""
        return b'{"accepted":%d,"rejected":0,"errors":[]}' % self.num_rows

    def fail(self, reason: str) -> None:
        """One answer is not as it should be, which ends everything."""
        self.wrong = self.wrong or reason
        self.over.set()

    async def all_in(self) -> None:
        """Returns once `over` was set, by the last answer.

        Raises:
            DeliveryFailed: one was wrong.
        """
        await self.over.wait()
        self.over.clear()
        if self.wrong is not None:
            raise DeliveryFailed(f"an answer is not 202: {self.wrong}", retryable=False)


class Worker(asyncio.Protocol):
    """One connection, on which one worker of the job sends; `on_answer` is told when it is free."""

    def __init__(self, request: bytearray, answers: Answers) -> None:
        self._request = request
        self._answers = answers
        self._expected = answers.expected
        self._seq_at = request.index(_SEQ) + len(_SEQ)
        self._seq = 0
        self._since_s = 0.0
        self._answer = b""
        self._transport: Any = None
        self.on_answer: Callable[[Worker], None] = lambda _worker: None

    def send(self, since_s: float) -> None:
        """Send the next batch, whose time is counted from then on."""
        self._since_s = since_s
        struct.pack_into(">Q", self._request, self._seq_at, self._seq)
        self._seq += 1
        self._transport.write(self._request)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._answer += data
        if b"\r\n\r\n" not in self._answer:
            return
        if not self._answer.startswith(b"HTTP/1.1 202 "):
            self._answers.fail(self._answer[:500].decode(errors="replace"))
        elif self._answer.endswith(self._expected):
            self._answer = b""
            self._answers.latency_s.append(time.perf_counter() - self._since_s)
            self.on_answer(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer or exc is not None:
            self._answers.fail(f"connection lost: {exc}")


def request_of(target: Target, body: bytes, rank: int) -> bytearray:
    """One worker's request, whose batch_seq is written in before each time that it is sent."""
    request = bytearray(
        b"POST /api/v1/jobs/%b/ops HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
        b"content-type: application/vnd.paceline.ops+msgpack\r\ncontent-length: %d\r\n\r\n"
        % (JOB.encode(), target.token.encode(), len(body))
    )
    request += body
    for name in _RANKS:
        struct.pack_into(">I", request, request.index(name) + len(name), rank)
    return request


async def connect(
    target: Target, body: bytes, num_connections: int, answers: Answers
) -> list[Worker]:
    """So many workers, each on a connection of its own."""
    loop = asyncio.get_running_loop()
    workers = [Worker(request_of(target, body, rank), answers) for rank in range(num_connections)]
    for worker in workers:
        await loop.create_connection(lambda each=worker: each, "127.0.0.1", target.port)  # type: ignore[misc]
    return workers


async def flat_out(workers: list[Worker], answers: Answers, seconds: float) -> float:
    """Every worker sends as soon as it has its answer; returns seconds until the last one."""
    began_s = time.perf_counter()
    end_s = began_s + seconds

    done: list[Worker] = []

    def again(worker: Worker) -> None:
        if (now_s := time.perf_counter()) < end_s:
            worker.send(now_s)
            return
        done.append(worker)
        if len(done) == len(workers):
            answers.over.set()

    for worker in workers:
        worker.on_answer = again
        worker.send(time.perf_counter())
    await answers.all_in()
    return time.perf_counter() - began_s


async def paced(
    workers: list[Worker], answers: Answers, seconds: float, *, requests_per_s: float
) -> float:
    """So many requests a second, whatever becomes of them: waiting for a connection counts."""
    idle, due = deque(workers), deque[float]()
    began_s, num_left = time.perf_counter(), int(seconds * requests_per_s)

    def dispatch() -> None:
        while idle and due:
            idle.popleft().send(due.popleft())

    def answered(worker: Worker) -> None:
        nonlocal num_left
        num_left -= 1
        idle.append(worker)
        dispatch()
        if not num_left:
            answers.over.set()

    for worker in workers:
        worker.on_answer = answered
    for number in range(num_left):
        at_s = began_s + number / requests_per_s
        if (wait_s := at_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        due.append(at_s)
        dispatch()
        if answers.wrong:
            break
    await answers.all_in()
    return time.perf_counter() - began_s
