"""A simulated job's batches, worker by worker, and how they are pushed to a stack of its own.

Each batch is sent until it is acknowledged; then the job's results are polled.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.ingest.batch import OpBatch
from app.ingest.wire.codec import encode
from app.synth.faults.fault import Fault
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import Ints, OpColumns, Trace
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.stack import JOB, StackUnderTest, running_stack

NS_PER_S = 10**9
BEGAN_NS = 1_790_000_000 * NS_PER_S
WORKERS_PER_HOST = 8
_RETRY_S = 0.05
_POLL_S = 0.02
CONNECTIONS = 32
QUEUE_BYTES = 4 << 30
RESULT_WITHIN_S = 300.0
# Beyond this a page's job has 16 stages, as the published ones have.
_STAGES = 16
_SLOWDOWN = 1.5


@dataclass(frozen=True, slots=True)
class WorkerBatches:
    """One worker's operations in the first `steps_per_batch` steps of the job, as a batch."""

    batch: OpBatch
    num_steps: int
    step_ns: int

    def body(self, number: int) -> bytes:
        """Its batch of this number, from 0."""
        first = number * self.num_steps
        columns, done = self.batch.columns, self.batch.steps_done
        moved = replace(
            columns, step=columns.step + first, start_ns=columns.start_ns + first * self.step_ns
        )
        declared = tuple((step + first, num_ops) for step, num_ops in done)
        return encode(replace(self.batch, batch_seq=number, columns=moved, steps_done=declared))


def batches_of_workers(
    dp: int, pp: int, microbatches: int, steps_per_batch: int, faults: tuple[Fault, ...] = ()
) -> list[WorkerBatches]:
    """All workers of a job of dp x pp workers, by dp rank and stage; healthy without faults."""
    simulated = SimulatedJob(Parallelism(dp, pp), microbatches, faults=faults)
    trace = simulated.make(range(steps_per_batch))
    step_ns = round(float((trace.start_s + trace.duration_s).max()) * NS_PER_S)
    worker = trace.dp_rank.astype(np.int64) * pp + trace.stage
    rows = np.lexsort((trace.start_s, trace.step, worker))
    bounds = np.searchsorted(worker[rows], np.arange(dp * pp + 1)).tolist()
    return [
        WorkerBatches(_batch(trace, rows[first:end], number, pp, step_ns), steps_per_batch, step_ns)
        for number, (first, end) in enumerate(pairwise(bounds))
    ]


def in_turn(workers: list[WorkerBatches], numbers: Iterable[int]) -> Iterator[bytes]:
    """Batches of these numbers: of every worker the first, then of every worker the second."""
    for number in numbers:
        for worker in workers:
            yield worker.body(number)


def _batch(trace: Trace, rows: Ints, worker: int, pp: int, step_ns: int) -> OpBatch:
    ops = trace.select(rows)
    since_ns = np.rint(ops.start_s * NS_PER_S).astype(np.int64) + ops.step * step_ns
    columns = OpColumns(
        step=ops.step,
        start_ns=BEGAN_NS + since_ns,
        duration_ns=np.rint(ops.duration_s * NS_PER_S).astype(np.int64),
        seq_id=ops.seq_id,
        mc=ops.mc,
        mb_id=ops.mb_id,
        optype=ops.optype,
    )
    steps, num_ops = np.unique(ops.step, return_counts=True)
    done = tuple(zip(steps.tolist(), num_ops.tolist(), strict=True))
    host = f"node-{worker // WORKERS_PER_HOST}"
    rank = int(ops.rank[0])
    return OpBatch(1, rank, worker // pp, worker % pp, host, 0, done, columns)


class Answer(NamedTuple):
    """An answer's status and body, and the seconds of Retry-After, 0 without one."""

    status: int
    retry_after_s: float
    body: bytes


class BatchConnection(asyncio.Protocol):
    """One keep-alive connection, on which requests go out one after the other."""

    def __init__(self, target: StackUnderTest, job: str = JOB) -> None:
        self._job = job.encode()
        self._port = target.port
        self._token = target.token.encode()
        self._answer = b""
        self._answered: asyncio.Future[Answer] | None = None
        self._transport: Any = None

    @classmethod
    async def open(cls, target: StackUnderTest, job: str = JOB) -> "BatchConnection":
        """A connection to the API, for batches of one job."""
        connection = cls(target, job)
        await connection._connect()
        return connection

    async def push(self, body: bytes) -> None:
        """Returns once the batch is acknowledged, however often it takes.

        Raises:
            BenchmarkFailed: it was refused.
        """
        while (answer := await self.offer(body)).status != 202:
            if answer.status != 503:
                raise BenchmarkFailed(f"{answer.status}: {answer.body[:300]!r}")
            await asyncio.sleep(_RETRY_S)

    async def offer(self, body: bytes) -> Answer:
        """Send the batch once."""
        head = (
            b"POST /api/v1/jobs/%b/ops HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
            b"content-type: application/vnd.paceline.ops+msgpack\r\ncontent-length: %d\r\n\r\n"
            % (self._job, self._token, len(body))
        )
        return await self._ask(head + body)

    async def get(self, path: str) -> Any:
        """What the API answers."""
        status, _, body = await self.ask_for(path)
        if status != 200:
            raise BenchmarkFailed(f"{status}: {body[:300]!r}")
        return json.loads(body)

    async def ask_for(self, path: str) -> Answer:
        """The answer to a GET, whatever it is."""
        head = b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n\r\n"
        return await self._ask(head % (path.encode(), self._token))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    async def _connect(self) -> None:
        self._answer = b""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    async def _ask(self, request: bytes) -> Answer:
        if self._transport.is_closing():  # the API closes idle connections
            await self._connect()
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
        length = _number_in(head, b"content-length:")
        if length is None or len(body) < length:
            return
        self._answer = b""
        if self._answered is not None and not self._answered.done():
            retry_after_s = _number_in(head, b"retry-after:") or 0
            self._answered.set_result(Answer(int(head[9:12]), retry_after_s, body))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(BenchmarkFailed("the API hung up"))


def _number_in(head: bytes, name: bytes) -> int | None:
    _, _, found = head.lower().partition(name)
    return int(found.split(b"\r\n", 1)[0]) if found else None


async def push_all(connections: list[BatchConnection], bodies: Iterable[bytes]) -> None:
    """Push every batch; each connection takes the next one as soon as it is free."""
    waiting = iter(bodies)
    await asyncio.gather(*(_push_each(connection, waiting) for connection in connections))


async def _push_each(connection: BatchConnection, waiting: Iterator[bytes]) -> None:
    for body in waiting:
        await connection.push(body)


async def wait_for_result(connection: BatchConnection, step: int, within_s: float) -> float:
    """Returns the moment at which the API had a result of the step.

    Raises:
        BenchmarkFailed: it has none in time, or cannot have one.
    """
    end_s = time.perf_counter() + within_s
    while time.perf_counter() < end_s:
        found = await connection.get(f"/api/v1/jobs/{JOB}/steps?first={step}&last={step}")
        if found["items"]:
            if found["items"][0]["slowdown"] is None:
                raise BenchmarkFailed(f"step {step} was skipped: {found}")
            return time.perf_counter()
        await asyncio.sleep(_POLL_S)
    raise BenchmarkFailed(f"no result of step {step} within {within_s:g} s")


@contextmanager
def page_stack(num_workers: int) -> Iterator[StackUnderTest]:
    """API, consumer, queue and store with one registered job of so many workers."""
    stages = stages_of(num_workers)
    with running_stack(
        workers=num_workers, stages=stages, queue_bytes=QUEUE_BYTES, consumes=True
    ) as target:
        yield target


def stages_of(num_workers: int) -> int:
    """Pipeline stages of a job of so many workers.

    Raises:
        InvalidRequest: they cannot be put in so many stages.
    """
    stages = min(_STAGES, num_workers // 2)
    if num_workers < 4 or num_workers % stages:
        raise InvalidRequest(f"--workers {num_workers}: want 4 or more, and a multiple of 16")
    return stages


@dataclass
class StepFeed:
    """Sends one more step at a time, of every worker."""

    target: StackUnderTest
    workers: list[WorkerBatches]
    num_steps: int = field(default=0)

    @classmethod
    def of(cls, target: StackUnderTest, num_workers: int, microbatches: int) -> "StepFeed":
        """The job's workers, of which one is slow."""
        stages = stages_of(num_workers)
        slow = SlowWorker(1, stages // 2, _SLOWDOWN)
        return cls(
            target, batches_of_workers(num_workers // stages, stages, microbatches, 1, (slow,))
        )

    async def push(self, steps: int = 1) -> None:
        """Returns once so many more steps are analysed, one after the other."""
        for _ in range(steps):
            await self._push_one()

    async def _push_one(self) -> None:
        # The API closes idle connections, so each step opens its own.
        connections = [await BatchConnection.open(self.target) for _ in range(CONNECTIONS)]
        await push_all(connections, (worker.body(self.num_steps) for worker in self.workers))
        self.num_steps += 1
        await wait_for_result(connections[0], self.num_steps - 1, RESULT_WITHIN_S)
        for connection in connections:
            connection.close()
