"""A real queue and API in a temporary directory, to send requests to."""

import http.client
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from app.cli.supervisor import ChildProcess, paceline_command
from app.errors import StartUpFailed
from app.ingest.embedded import EmbeddedQueue
from app.ingest.redis.queue import RedisReader
from app.store.migrations import migrate
from tests.harness.stack import SECRET_KEY

START_S = 60.0
STOP_WITHIN_S = 8.0
JOB = "bench"
_SHARDS = 4
# One job with many requests: no rate limits, and a deadline long enough for a slow machine to send
# the batches of all workers.
_NO_LIMITS = {
    "PACELINE_STEP_DEADLINE_S": "600",
    "PACELINE_LIMIT_REQUESTS_PER_S": "1e9",
    "PACELINE_LIMIT_BYTES_PER_S": "1e15",
    "PACELINE_SHARDS": str(_SHARDS),
    "PACELINE_LOG_FORMAT": "json",
    "PACELINE_SECRET_KEY": SECRET_KEY,
}


@dataclass(frozen=True, slots=True)
class StackUnderTest:
    """Addresses, token and processes of a running stack."""

    port: int
    token: str
    api_pid: int | None
    queue_url: str
    consumer_pid: int | None = None
    store_url: str = ""

    def backlog(self) -> int:
        """Batches in the queue."""
        reader = RedisReader(self.queue_url)
        try:
            return sum(reader.backlog(shard) for shard in range(_SHARDS))
        finally:
            reader.close()


@contextmanager
def running_stack(
    *,
    workers: int,
    queue_bytes: int,
    stages: int = 1,
    consumes: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[StackUnderTest]:
    """The API with one job of so many workers, and a consumer if asked; it all goes at the end.

    `settings` are further environment variables of both.

    Raises:
        StartUpFailed: it does not answer in time.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="paceline-bench-")))
        queue = EmbeddedQueue(directory, max_memory_bytes=queue_bytes)
        stack.callback(queue.stop)
        url, port, token = queue.start(), _free_port(), f"pl_{secrets.token_urlsafe(32)}"
        store = f"sqlite:///{directory / 'paceline.db'}"
        migrate(store)
        where = {"REDIS_URL": url, "DATABASE_URL": store, "TOKEN": token, "PORT": str(port)}
        own = {f"PACELINE_{name}": value for name, value in where.items()}
        environment = {**_NO_LIMITS, **settings, **own}
        api = ChildProcess("api", paceline_command("api"), environment)
        api.start()
        stack.callback(api.stop, within_s=STOP_WITHIN_S)
        _wait_until_answering(api, port)
        register_job(port, token, JOB, workers, stages)
        consumer = ChildProcess("consumer", paceline_command("consumer"), environment)
        if consumes:
            consumer.start()
            stack.callback(consumer.stop, within_s=STOP_WITHIN_S)
        yield StackUnderTest(port, token, api.pid, url, consumer.pid, store)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_answering(api: ChildProcess, port: int) -> None:
    end_s = time.monotonic() + START_S
    while api.ended() is None and time.monotonic() < end_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise StartUpFailed("the API to measure did not start: its log above says why")


def register_job(port: int, token: str, name: str, workers: int, stages: int) -> None:
    """Register a job of so many workers.

    Raises:
        StartUpFailed: it is refused.
    """
    sizes = {"dp_size": workers // stages, "pp_size": stages}
    job = {"parallelism": sizes, "run_key": "bench"}
    _ask(port, "PUT", f"/api/v1/jobs/{name}", json.dumps(job).encode(), _headers(token))


def _headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


def _ask(port: int, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise StartUpFailed(f"the API to measure answers {answer.status}: {text[:300]!r}")
    finally:
        connection.close()
