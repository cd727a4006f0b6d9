"""`ingest`: how many operations a second are durable in the queue?

Batches go over keep-alive connections, as fast as they are taken or at a rate; each answer is
checked.
"""

import asyncio
import json
import os
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import Annotated, Any

import numpy as np
import typer
import uvloop
from typing_extensions import override

from benchmarks.measuring import BenchmarkFailed, Timings, array_to_copy
from benchmarks.service import stack
from benchmarks.service.stack import JOB, StackUnderTest
from tests.harness.batches import body_of

_SEQ = b"\xa9batch_seq\xcf"
_RANKS = (b"\xa4rank\xce", b"\xa7dp_rank\xce")
DEFAULT_ROWS = (10_000, 200)
QUEUE_BYTES = 8 << 30  # no consumer
WARM_UP_S = 1.0
_COPIES = 5
_FSYNCS = 30


@dataclass(slots=True)
class Acknowledgements:
    """Latencies of the answers so far, in seconds, and the first error."""

    num_rows: int
    latency_s: list[float] = field(default_factory=list)
    wrong: str | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def expected(self) -> bytes:
        """The body of each answer."""
        return b'{"accepted":%d,"rejected":0,"errors":[]}' % self.num_rows

    def fail(self, reason: str) -> None:
        """Record a wrong answer and end the measurement."""
        self.wrong = self.wrong or reason
        self.finished.set()

    async def wait_for_all(self) -> None:
        """Returns once `finished` is set, by the last answer.

        Raises:
            BenchmarkFailed: one was wrong.
        """
        await self.finished.wait()
        self.finished.clear()
        if self.wrong is not None:
            raise BenchmarkFailed(f"an answer is not 202: {self.wrong}")


class SendingWorker(asyncio.Protocol):
    """One connection, on which one worker sends; `on_answer` is called when it is free."""

    def __init__(self, request: bytearray, answers: Acknowledgements) -> None:
        self._request = request
        self._answers = answers
        self._expected = answers.expected
        self._seq_at = request.index(_SEQ) + len(_SEQ)
        self._seq = 0
        self._since_s = 0.0
        self._answer = b""
        self._transport: Any = None
        self.on_answer: Callable[[SendingWorker], None] = lambda _worker: None

    def send(self, since_s: float) -> None:
        """Send the next batch, whose time is counted from then on."""
        self._since_s = since_s
        struct.pack_into(">Q", self._request, self._seq_at, self._seq)
        self._seq += 1
        self._transport.write(self._request)

    def close(self) -> None:
        """Close the connection."""
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


def request_of(target: StackUnderTest, body: bytes, rank: int) -> bytearray:
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
    target: StackUnderTest, body: bytes, num_connections: int, answers: Acknowledgements
) -> list[SendingWorker]:
    """This many workers, each on its own connection."""
    loop = asyncio.get_running_loop()
    workers = [
        SendingWorker(request_of(target, body, rank), answers) for rank in range(num_connections)
    ]
    for worker in workers:
        await loop.create_connection(lambda each=worker: each, "127.0.0.1", target.port)  # type: ignore[misc]
    return workers


async def flat_out(
    workers: list[SendingWorker], answers: Acknowledgements, seconds: float
) -> float:
    """Every worker sends as soon as it has its answer; returns seconds until the last one."""
    began_s = time.perf_counter()
    end_s = began_s + seconds

    done: list[SendingWorker] = []

    def again(worker: SendingWorker) -> None:
        if (now_s := time.perf_counter()) < end_s:
            worker.send(now_s)
            return
        done.append(worker)
        if len(done) == len(workers):
            answers.finished.set()

    for worker in workers:
        worker.on_answer = again
        worker.send(time.perf_counter())
    await answers.wait_for_all()
    return time.perf_counter() - began_s


async def paced(
    workers: list[SendingWorker],
    answers: Acknowledgements,
    seconds: float,
    *,
    requests_per_s: float,
) -> float:
    """Send at this rate regardless of answers: waiting for a connection counts as latency."""
    idle, due = deque(workers), deque[float]()
    began_s, num_left = time.perf_counter(), int(seconds * requests_per_s)

    def dispatch() -> None:
        while idle and due:
            idle.popleft().send(due.popleft())

    def answered(worker: SendingWorker) -> None:
        nonlocal num_left
        num_left -= 1
        idle.append(worker)
        dispatch()
        if not num_left:
            answers.finished.set()

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
    await answers.wait_for_all()
    return time.perf_counter() - began_s


Send = Callable[[list[SendingWorker], Acknowledgements, float], Awaitable[float]]


def ingest(
    batch_rows: Annotated[
        list[int] | None, typer.Option(min=1, max=100_000, help="Operations in a batch.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each phase.")] = 5.0,
    connections: Annotated[int, typer.Option(min=1, max=200, help="Workers that send.")] = 16,
    paced_rows_per_s: Annotated[
        float | None, typer.Option(min=1, help="Rate of the second phase; half of the first's.")
    ] = None,
) -> None:
    """Send batches to an API and queue of its own: flat out, then at half the rate reached.

    Every answer is checked, and so is that the queue has all that was acknowledged.

    Example: python -m benchmarks ingest --batch-rows 200
    """
    for rows in batch_rows or DEFAULT_ROWS:
        typer.echo(json.dumps(_measured(rows, seconds, connections, paced_rows_per_s)))


def _measured(
    rows: int, seconds: float, connections: int, paced_rows_per_s: float | None
) -> dict[str, Any]:
    took_s, flat_s = _phase(rows, seconds, connections, flat_out)
    requests_per_s = len(flat_s) / took_s
    paced_requests_per_s = paced_rows_per_s / rows if paced_rows_per_s else 0.5 * requests_per_s
    _, paced_s = _phase(
        rows, seconds, connections, partial(paced, requests_per_s=paced_requests_per_s)
    )
    memory_copy_s = copy_s()
    return {
        "batch_rows": rows,
        "rows_per_s": rows * requests_per_s,
        "requests_per_s": requests_per_s,
        "ack_p50_ms": _percentile_ms(flat_s, 50),
        "ack_p99_ms": _percentile_ms(flat_s, 99),
        "paced_rows_per_s": rows * paced_requests_per_s,
        "paced_ack_p50_ms": _percentile_ms(paced_s, 50),
        "paced_ack_p99_ms": _percentile_ms(paced_s, 99),
        "copy_100mb_s": memory_copy_s,
        "fsync_ms": _fsync_ms(rows),
        "rows_per_copy": rows * requests_per_s * memory_copy_s,
        "connections": connections,
    }


def _phase(rows: int, seconds: float, connections: int, send: Send) -> tuple[float, list[float]]:
    """Seconds that the sending took, and the seconds until each answer."""

    async def sent() -> tuple[float, list[float]]:
        answers = Acknowledgements(rows)
        workers = await connect(target, body_of(rows), connections, answers)
        await flat_out(workers, answers, WARM_UP_S)
        num_warm_up = len(answers.latency_s)
        took_s = await send(workers, answers, seconds)
        for worker in workers:
            worker.close()
        num_queued = target.backlog()
        if num_queued != len(answers.latency_s):
            raise BenchmarkFailed(
                f"{len(answers.latency_s)} batches were acknowledged, the queue has {num_queued}"
            )
        return took_s, answers.latency_s[num_warm_up:]

    with stack.running_stack(workers=connections, queue_bytes=QUEUE_BYTES) as target:
        return uvloop.run(sent())


def _percentile_ms(seconds: list[float], percent: float) -> float:
    return 1e3 * float(np.percentile(seconds, percent))


def copy_s() -> float:
    """Seconds that a copy of 100 MB takes now."""
    timings, source = Timings(), array_to_copy()
    for _ in range(_COPIES):
        timings.time("copy_100mb_s", source.copy)
    return timings.medians()["copy_100mb_s"]


def _fsync_ms(rows: int) -> float:
    """Milliseconds to write and fsync one batch, without a queue."""
    timings, body = Timings(), body_of(rows)
    with TemporaryFile(buffering=0) as file:

        def write() -> None:
            file.write(body)
            os.fsync(file.fileno())

        for _ in range(_FSYNCS):
            timings.time("fsync_s", write)
    return 1e3 * timings.medians()["fsync_s"]
