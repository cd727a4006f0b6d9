"""A whole Paceline on loopback, with a proxy for faults on every connection.

load ──proxy── api ──proxy── queue ──proxy── consumer ──proxy── database
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from app.errors import Unavailable
from app.ingest.queue import stream_key
from app.store import runs
from app.store.database import Store
from app.trace.job import job_of
from tests.harness.backends import PostgresServer, QueueServer, find_programs
from tests.harness.crash_points import command
from tests.harness.http_client import HttpClient, answer_to
from tests.harness.oracle import OracleProcess
from tests.harness.processes import ControlledProcess, NotInTime, free_port, wait_until
from tests.harness.proxy import Proxy

StoreKind = Literal["sqlite", "postgresql"]
TOKEN = "pl_" + "t" * 43
SECRET_KEY = "A" * 42 + "I="
NUM_SHARDS = 4
SETTINGS = {
    "shards": str(NUM_SHARDS),
    "lease_s": "2",
    "window_steps": "4",
    "step_deadline_s": "600",
}
READY_WITHIN_S = 180.0
REVIVE_EVERY_S = 0.5


def default_store() -> StoreKind:
    """PostgreSQL where its server is installed, SQLite elsewhere."""
    return "postgresql" if find_programs() else "sqlite"


def unfinished_jobs(store_url: str) -> set[str] | None:
    """Ended jobs with steps outside closed windows; None while the store is unavailable."""
    store = Store(store_url)
    try:
        with store.read() as conn:
            return {job_of(run.job_id) for run in runs.ended_not_closed(conn)}
    except Unavailable:
        return None
    finally:
        store.close()


class Stack:
    """Queue, database, n APIs and n consumers, each a process; and the oracle, without faults.

    Use it from the main thread: the processes end with the thread that started them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        store: StoreKind,
        num_apis: int = 1,
        num_consumers: int = 1,
        settings: Mapping[str, str] | None = None,
        queue_settings: Mapping[str, str] | None = None,
        data_on: Path | None = None,  # the directory of queue and PostgreSQL; else `directory`
        environment: Mapping[str, str] | None = None,  # further variables of APIs and consumers
    ) -> None:
        self._directory = directory
        self._more_environment = dict(environment or {})
        self._revive_at_s = 0.0
        self._settings = SETTINGS | dict(settings or {})
        self._exit = ExitStack()
        self.store_kind = store
        self.queue = QueueServer(data_on or directory, queue_settings)
        self.database = _database(store, self._exit, data_on)
        self.to_queue = self._proxy(self.queue.port)
        self.from_queue = self._proxy(self.queue.port)
        self.to_database = self._proxy(self.database.port) if self.database else None
        self.api_ports = [free_port() for _ in range(num_apis)]
        self.to_apis = [self._proxy(port) for port in self.api_ports]
        self._patched: set[str] = set()
        self.processes: dict[str, ControlledProcess] = {"queue": self.queue}
        if self.database:
            self.processes["database"] = self.database
        self.apis = [f"api-{number}" for number in range(num_apis)]
        self.consumers = [f"consumer-{number}" for number in range(num_consumers)]

    @property
    def ports(self) -> list[int]:
        """Ports of the APIs' proxies, for producers."""
        return [proxy.port for proxy in self.to_apis]

    def __enter__(self) -> "Stack":
        with ExitStack() as undo:
            undo.callback(self._exit.close)
            self.oracle = self._exit.enter_context(OracleProcess(self._directory))
            self._exit.callback(self._kill_all)
            self.queue.start_and_wait()
            if self.database:
                self.database.start_and_wait()
            self._migrate()
            for name in (*self.apis, *self.consumers):
                self.start(name)
            try:
                self.wait_until_ready()
            except NotInTime as error:
                raise NotInTime(f"{error}\n{self.log_tails()}") from None
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def start(self, name: str, *patches: str) -> None:
        """Start a process, with these patches in it."""
        if name in ("queue", "database"):
            self.processes[name].start()
            return
        (self._patched.add if patches else self._patched.discard)(name)
        arguments = ["api"] if name in self.apis else ["consumer"]  # all of one name, the host's
        log = self._directory / f"{name}.log"
        server = ControlledProcess(
            command(patches, *arguments), log, environment=self._environment(name)
        )
        self.processes[name] = server
        server.start()

    def kill(self, *names: str) -> None:
        """kill -9 of all, then wait for each."""
        for name in names:
            self.processes[name].signal(signal.SIGKILL)
        for name in names:
            self.processes[name].kill()

    def restart(self, name: str, *patches: str) -> None:
        """kill -9, then start again with these patches."""
        self.kill(name)
        self.start(name, *patches)

    def heal(self) -> None:
        """Start and thaw every process, clear the faults of every proxy."""
        for proxy in self.proxies:
            proxy.heal()
        for name, server in self.processes.items():
            server.thaw()
            if not server.is_running():
                self.start(name)

    def restart_patched(self) -> None:
        """Heal everything, and restart patched processes without patches."""
        self.heal()
        for name in list(self._patched):
            self.restart(name)

    def wait_until_ready(self, within_s: float = READY_WITHIN_S) -> float:
        """Seconds until every API says that it is ready and every process is alive.

        Raises:
            NotInTime: with what is not, and why.
        """
        try:
            return wait_until(self.is_ready, "every process is ready", within_s)
        except NotInTime as error:
            raise NotInTime(f"{error} ({'; '.join(self._unready()) or 'now it is'})") from None

    def wait_for_backends(self) -> None:
        """Returns when queue and database answer, without their proxies.

        Raises:
            NotInTime: one does not.
        """
        wait_until(self.queue.answers, "the queue answers", READY_WITHIN_S)
        if self.database:
            self.database.start_and_wait()

    def is_ready(self) -> bool:
        """Whether every process runs and every API is ready; restarts an ended PostgreSQL."""
        if self.database and not self.database.is_running():
            self.database.start()
        return all(server.is_running() for server in self.processes.values()) and all(
            self.readiness(port) == 200 for port in self.api_ports
        )

    def _unready(self) -> Iterator[str]:
        for name, server in self.processes.items():
            if not server.is_running():
                yield f"{name} does not run: {server.log_text()[-500:]!r}"
        for name, port in zip(self.apis, self.api_ports, strict=True):
            yield f"{name} says {answer_to(port, TOKEN, '/readyz')}"

    def wait_until_answering(self, api: str) -> float:
        """Seconds until this API is ready, whatever the state of other processes."""
        port = self.api_ports[self.apis.index(api)]
        return wait_until(lambda: self.readiness(port) == 200, f"{api} is ready", READY_WITHIN_S)

    def log_tails(self) -> str:
        """The end of each process's log."""
        ends = (f"{name}: {each.log_text()[-1500:]}" for name, each in self.processes.items())
        return "\n".join(ends)

    def readiness(self, port: int) -> int | None:
        """Status of /readyz: whether the API can accept batches."""
        return self._status(port, "/readyz")

    def health(self, port: int) -> int | None:
        """Status of /healthz: whether the API's process runs."""
        return self._status(port, "/healthz")

    def _status(self, port: int, path: str) -> int | None:
        answer = answer_to(port, TOKEN, path)
        return answer.status if answer else None

    def unfinished(self) -> set[str] | None:
        """Ended jobs with steps outside closed windows; None while the store is unavailable."""
        return unfinished_jobs(self.store_url)

    def revive(self) -> None:
        """Start what has ended, as a supervisor does: each of its parts once in half a second."""
        if time.monotonic() < self._revive_at_s:
            return
        self._revive_at_s = time.monotonic() + REVIVE_EVERY_S
        for name, server in list(self.processes.items()):
            if not server.is_running():
                self.start(name)

    def queue_is_empty(self) -> bool:
        """Whether the consumers have acknowledged every entry."""
        lengths = (self.queue.send("XLEN", stream_key(shard)) for shard in range(NUM_SHARDS))
        return all(length == ":0" for length in lengths)

    def get(self, path: str) -> Any:
        """The JSON that the first API answers."""
        client = HttpClient(self.api_ports[0], TOKEN)
        try:
            return client.ask("GET", path)
        finally:
            client.close()

    @property
    def store_url(self) -> str:
        """URL of the database, without its proxy."""
        if self.database:
            return self.database.url()
        return f"sqlite:///{self._directory / 'paceline.db'}"

    @property
    def proxies(self) -> list[Proxy]:
        """All proxies."""
        database_proxies = [self.to_database] if self.to_database else []
        return [self.to_queue, self.from_queue, *database_proxies, *self.to_apis]

    def _proxy(self, port: int) -> Proxy:
        proxy = Proxy(port)
        self._exit.callback(proxy.close)
        return proxy

    def _kill_all(self) -> None:
        for server in self.processes.values():
            server.kill()

    def _migrate(self) -> None:
        log = self._directory / "migrate.log"
        server = ControlledProcess(
            command((), "migrate"), log, environment=self._environment("migrate")
        )
        server.start()
        wait_until(lambda: server.ended() is not None, "the tables are made", READY_WITHIN_S)
        if server.ended():
            raise AssertionError(server.log_text())

    def _environment(self, name: str) -> dict[str, str]:
        is_api = name in self.apis
        queue = self.to_queue if is_api else self.from_queue
        url = self.store_url
        if self.database and self.to_database and name in self.consumers:
            url = self.database.url(self.to_database.port)
        values = self._settings | {
            "redis_url": f"redis://127.0.0.1:{queue.port}",
            "database_url": url,
            "data_dir": str(self._directory),
            "token": TOKEN,
            "secret_key": SECRET_KEY,
        }
        if is_api:
            values["port"] = str(self.api_ports[self.apis.index(name)])
        ours = {f"PACELINE_{key.upper()}": value for key, value in values.items()}
        return {**os.environ, **ours, **self._more_environment}


def _database(store: StoreKind, stack: ExitStack, data_on: Path | None) -> PostgresServer | None:
    if store == "sqlite":
        return None
    programs = find_programs()
    if programs is None:
        raise AssertionError("no PostgreSQL server is installed here: use SQLite")
    if data_on is None:
        server = PostgresServer(programs)
    else:  # where there is little room, a log of 16 MB segments would have none
        wal = {"max_wal_size": "4MB", "min_wal_size": "2MB"}
        server = PostgresServer(programs, data_on, settings=wal, wal_segment_mb=1)
    stack.callback(server.remove)
    return server
