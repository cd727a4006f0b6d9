"""`page-under-load`: how soon do pages and alert actions answer while a job pushes flat out?

The pushes come from a process of their own, so that they do not delay the requests that are timed.
"""

import asyncio
import http.client
import json
import multiprocessing
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from multiprocessing.connection import Connection
from threading import local
from typing import Annotated, Any

import numpy as np
import typer
import uvloop

from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.ingest import copy_s
from benchmarks.service.pushing import BatchConnection, StepFeed, WorkerBatches, stages_of
from benchmarks.service.stack import JOB, StackUnderTest, running_stack

STEPS_BEFORE = 10  # one window is closed, and the alert of the slow worker fires
QUEUE_BYTES = 8 << 30  # so that it never refuses a batch: what is measured is the API
BAR_MS = 300.0
TIMEOUT_S = 30.0
TESTS = 5  # a project may send ten in ten minutes
ALERT_WITHIN_S = 60.0
LOAD_STARTS_WITHIN_S = 120.0
# A browser keeps at most six connections to one server.
CONNECTIONS = 6
_BASE = f"/api/v1/jobs/{JOB}"
_WINDOW = f"{_BASE}/windows/latest"
# What the fleet's, a job's and the alerts' pages ask.
PAGE_REQUESTS = {
    "fleet": ("GET", "/api/v1/fleet"),
    "hosts": ("GET", "/api/v1/hosts?limit=10"),
    "job": ("GET", _BASE),
    "headline": ("GET", f"{_BASE}/headline"),
    "ribbon": ("GET", f"{_BASE}/ribbon"),
    "window": ("GET", f"{_WINDOW}?arrays=false"),
    "steps chart": ("GET", f"{_BASE}/charts/steps?window=latest"),
    "workers chart": ("GET", f"{_WINDOW}/charts/workers"),
    "stages chart": ("GET", f"{_WINDOW}/charts/stages"),
    "op types chart": ("GET", f"{_WINDOW}/charts/optypes"),
    "alerts": ("GET", "/api/v1/alerts"),
    "deliveries": ("GET", "/api/v1/deliveries"),
}
# Nothing listens there: what is timed is the answer to the page, not the message.
_RECEIVER = {"name": "bench", "url": "http://127.0.0.1:9/hook"}
_SETTINGS = {
    # One closed window is enough for an alert, and it fires to the end.
    "PACELINE_ALERT_SLOWDOWN": "1.02",
    "PACELINE_ALERT_CLEAR_SLOWDOWN": "1.01",
    "PACELINE_ALERT_WINDOWS": "1",
    "PACELINE_ALERT_FOR_S": "0",
    "PACELINE_ALERT_KEEP_FIRING_S": "3600",
    "PACELINE_WEBHOOK_ALLOW": "127.0.0.1/32",
    "PACELINE_WEBHOOK_ALLOW_HTTP": "true",
    "PACELINE_WEBHOOK_PORTS": "9",
}
RECEIVERS = "/api/v1/receivers"


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request of a page: its status, 0 without an answer, and seconds until all of it came."""

    name: str
    status: int
    took_s: float


@dataclass(slots=True)
class PushCounts:
    """Batches by status, and the seconds until each acknowledgement."""

    statuses: Counter[int] = field(default_factory=Counter)
    ack_s: list[float] = field(default_factory=list)


def page_under_load(
    workers: Annotated[
        int, typer.Option(min=4, help="Workers of the job, a connection each.")
    ] = 1024,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each phase.")] = 20.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests of pages a second.")] = 8.0,
    microbatches: Annotated[int, typer.Option(min=1, help="Of each step of the job.")] = 8,
) -> None:
    """Ask what pages ask, and act on an alert, of an idle server and of one that is pushed to.

    Every worker has its own connection and sends its next step as soon as the last one is
    acknowledged; one that is refused waits as long as Retry-After says. Starts a stack of its own.

    Example: python -m benchmarks page-under-load --workers 1024
    """
    stages = stages_of(workers)
    with running_stack(
        workers=workers,
        stages=stages,
        queue_bytes=QUEUE_BYTES,
        consumes=True,
        settings=_SETTINGS,
    ) as target:
        feed = StepFeed.of(target, workers, microbatches)
        asyncio.run(feed.push(STEPS_BEFORE))
        probe = Probe.of(target)
        idle = page_figures(probe.ask(seconds, rate))
        with pushing(target, feed) as counts:
            busy = page_figures(probe.ask(seconds, rate))
    found = {"workers": workers, "seconds": seconds, "rate_per_s": rate}
    measured = {"idle": idle, "under_load": busy, "pushes": dict(counts)}
    typer.echo(json.dumps(found | measured | {"copy_100mb_s": copy_s()}))


@dataclass
class Probe:
    """Asks what pages ask, at a rate, and counts what is late from the moment it was due."""

    target: StackUnderTest
    fingerprint: str
    receiver_id: str
    _of_thread: local = field(default_factory=local)

    @classmethod
    def of(cls, target: StackUnderTest) -> "Probe":
        """Over a stack whose job has an alert: waits for that, and makes a receiver.

        Raises:
            BenchmarkFailed: no alert fires in time, or a request is refused.
        """
        probe = cls(target, "", "")
        probe.receiver_id = probe.answer("POST", RECEIVERS, _RECEIVER)["receiver_id"]
        end_s = time.monotonic() + ALERT_WITHIN_S
        while time.monotonic() < end_s:
            found = probe.answer("GET", "/api/v1/alerts?phase=firing")["items"]
            if found:
                probe.fingerprint = found[0]["fingerprint"]
                return probe
            time.sleep(0.2)
        raise BenchmarkFailed(f"no alert fires within {ALERT_WITHIN_S:g} s")

    def ask(self, seconds: float, rate: float) -> list[TimedRequest]:
        """Every request of `requests` in turn, at this rate, whether or not it is answered."""
        num_requests = int(seconds * rate)
        asked = self._with_tests(islice(cycle(self.requests()), num_requests), num_requests)
        began_s = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            due_s = (began_s + number / rate for number in range(num_requests))
            return list(threads.map(self._timed, asked, due_s))

    def requests(self) -> list[tuple[str, str, str]]:
        """Name, method and path of what pages ask, and of an acknowledgement and its removal."""
        acknowledge = f"/api/v1/alerts/{self.fingerprint}/acknowledge"
        reads = [(name, *asked) for name, asked in PAGE_REQUESTS.items()]
        middle = len(reads) // 2
        return [
            *reads[:middle],
            ("acknowledge", "POST", acknowledge),
            *reads[middle:],
            ("unacknowledge", "DELETE", acknowledge),
        ]

    def _with_tests(
        self, asked: Iterator[tuple[str, str, str]], num_requests: int
    ) -> Iterator[tuple[str, str, str]]:
        """Of the requests a few are replaced by messages to the receiver, spread over them."""
        test = ("send a test", "POST", f"{RECEIVERS}/{self.receiver_id}/test")
        every = max(2, num_requests // TESTS)
        for number, each in enumerate(asked):
            yield test if number % every == every // 2 else each

    def _timed(self, asked: tuple[str, str, str], due_s: float) -> TimedRequest:
        name, method, path = asked
        if (wait_s := due_s - time.perf_counter()) > 0:
            time.sleep(wait_s)
        try:
            status, _ = self._answered(method, path, None)
        except (OSError, http.client.HTTPException):
            self._of_thread.connection.close()
            status = 0
        return TimedRequest(name, status, time.perf_counter() - due_s)

    def answer(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer.

        Raises:
            BenchmarkFailed: it is refused.
        """
        status, answered = self._answered(method, path, body)
        if status >= 300:
            raise BenchmarkFailed(f"{method} {path}: {status} {answered[:300]!r}")
        return json.loads(answered)

    def _answered(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        connection = getattr(self._of_thread, "connection", None)
        if connection is None:
            port = self.target.port
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            self._of_thread.connection = connection
        headers = {"authorization": f"Bearer {self.target.token}"}
        if body is not None:
            headers["content-type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()


def page_figures(requests: Sequence[TimedRequest]) -> dict[str, Any]:
    """Percentiles in milliseconds, over all and by request, and how many had no good answer."""
    by_name: dict[str, list[TimedRequest]] = defaultdict(list)
    for each in requests:
        by_name[each.name].append(each)
    failed = Counter(str(each.status) for each in requests if not 200 <= each.status < 300)
    figures = {name: _percentiles(each) for name, each in by_name.items()}
    return {
        "requests": len(requests),
        **_percentiles(requests),
        "failed": dict(failed),
        "over_bar": sum(each.took_s >= BAR_MS / 1e3 for each in requests),
        "by_request": figures,
    }


def _percentiles(requests: Sequence[TimedRequest]) -> dict[str, float]:
    ms = [1e3 * each.took_s for each in requests]
    p50, p99 = np.percentile(ms, [50, 99]).tolist()
    return {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "max_ms": round(max(ms), 1)}


@contextmanager
def pushing(target: StackUnderTest, feed: StepFeed) -> Iterator[dict[str, Any]]:
    """All workers push while the block runs; afterwards the yielded dictionary has the figures.

    Raises:
        BenchmarkFailed: the load does not begin.
    """
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    load = processes.Process(target=_push_until_told, args=(there, target, feed), daemon=True)
    figures: dict[str, Any] = {}
    load.start()
    there.close()
    try:
        if not here.poll(LOAD_STARTS_WITHIN_S):
            raise BenchmarkFailed("the pushes do not begin")
        here.recv()
        yield figures
        here.send("stop")
        figures.update(here.recv())
    finally:
        here.close()
        load.join(TIMEOUT_S)
        load.terminate()


def _push_until_told(orders: Connection, target: StackUnderTest, feed: StepFeed) -> None:
    orders.send(None)
    orders.send(uvloop.run(_pushed(orders, target, feed)))


async def _pushed(orders: Connection, target: StackUnderTest, feed: StepFeed) -> dict[str, Any]:
    counts, stop = PushCounts(), asyncio.Event()
    asyncio.get_running_loop().add_reader(orders.fileno(), stop.set)
    began_s = time.perf_counter()
    sending = [
        asyncio.create_task(_send_on(target, worker, feed.num_steps, counts))
        for worker in feed.workers
    ]
    await stop.wait()
    took_s = time.perf_counter() - began_s
    asyncio.get_running_loop().remove_reader(orders.fileno())
    orders.recv()
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    batches = counts.statuses[202]
    rows = feed.workers[0].batch.columns.num_ops
    ack_ms = 1e3 * np.percentile(counts.ack_s or [0.0], [50, 99])
    return {
        "acknowledged_per_s": round(batches / took_s, 1),
        "rows_per_s": round(rows * batches / took_s),
        "ack_p50_ms": round(float(ack_ms[0]), 1),
        "ack_p99_ms": round(float(ack_ms[1]), 1),
        "refused": {str(key): num for key, num in counts.statuses.items() if key != 202},
    }


async def _send_on(
    target: StackUnderTest, worker: WorkerBatches, number: int, counts: PushCounts
) -> None:
    """One worker's batches in order, each until it is acknowledged."""
    connection = await BatchConnection.open(target)
    while True:
        body = worker.body(number)
        began_s = time.perf_counter()
        while True:
            answer = await connection.offer(body)
            counts.statuses[answer.status] += 1
            if answer.status == 202:
                break
            # As clients do, spread out, so that they do not all come back at once.
            await asyncio.sleep(answer.retry_after_s * random.uniform(1.0, 1.5))  # noqa: S311
        counts.ack_s.append(time.perf_counter() - began_s)
        number += 1
