"""The oracle: a process without faults that records every acknowledged batch.

A producer goes on only after the oracle has recorded the acknowledgement. While faults are
injected, it also polls windows: a revision never decreases, and every change increases it.
"""

import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import msgspec

from app.store.database import Store
from tests.harness.http_client import HttpClient, Unreachable
from tests.harness.judge import Obligations, judge
from tests.harness.processes import ControlledProcess, wait_until

POLL_S = 0.5
_NEWEST = 100
_KEY = b"paceline-faults"  # of a socket that only this user reaches


@dataclass
class RevisionWatch:
    """Every window revision that the API has returned, and violations among them."""

    violations: list[str] = field(default_factory=list)
    seen: int = 0
    _last: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add_page(self, job: str, items: list[dict[str, Any]]) -> None:
        """Compare a page of a job's windows with what was returned before."""
        ids = [item["window_id"] for item in items]
        if len(set(ids)) < len(ids):
            self.violations.append(f"a window of {job} is listed twice: {ids}")
        for item in items:
            self.seen += 1
            self._compare(job, item)

    def _compare(self, job: str, item: dict[str, Any]) -> None:
        key = (job, item["window_id"])
        last = self._last.setdefault(key, item)
        if last == item:
            return
        if item["revision"] <= last["revision"]:
            self.violations.append(f"window {key}: after {last} came {item}")
        self._last[key] = item


def watch_revisions(
    watch: RevisionWatch, ports: list[int], token: str, jobs: set[str]
) -> threading.Event:
    """Poll the jobs' newest windows until the event is set."""
    stop = threading.Event()

    def run() -> None:
        clients = [HttpClient(port, token, timeout_s=3.0) for port in ports]
        turn = 0
        while not stop.wait(POLL_S):
            turn += 1
            for job in sorted(jobs):
                _read_windows(watch, clients[turn % len(clients)], job)

    threading.Thread(target=run, name="watch", daemon=True).start()
    return stop


def _read_windows(watch: RevisionWatch, client: HttpClient, job: str) -> None:
    try:
        page = client.ask("GET", f"/jobs/{job}/windows?limit={_NEWEST}")
    except Unreachable:
        return
    watch.add_page(job, page["items"])


class OracleProcess:
    """Starts the oracle's process, and kills it at the end of the block."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "oracle.sock"
        command = [sys.executable, "-m", "tests.harness.oracle", str(self._socket)]
        self._server = ControlledProcess(command, directory / "oracle.log")

    def __enter__(self) -> "OracleProcess":
        self._server.start()
        wait_until(self._listens, "the oracle listens")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()

    def client(self) -> "OracleClient":
        """A connection for one thread."""
        return OracleClient(self._socket)

    def _listens(self) -> bool:
        if not self._server.is_running():
            raise AssertionError(self._server.log_text())
        return self._socket.exists()


class OracleClient:
    """Connection to the oracle, for producers and for the harness."""

    def __init__(self, socket: Path) -> None:
        self._connection = Client(str(socket), "AF_UNIX", authkey=_KEY)

    def owe(self, job: str, body: bytes) -> None:
        """Record that this body was answered 2xx; returns once that is recorded."""
        self._ask("owe", job, body)

    def refused(self, request: str) -> None:
        """Record an answer that breaks the API's contract."""
        self._ask("refused", request)

    def watch(self, ports: list[int], token: str, job: str) -> None:
        """Poll the job's windows through these APIs from now on."""
        self._ask("watch", ports, token, job)

    def verdict(self, store_url: str, jobs: list[str]) -> dict[str, Any]:
        """Compare the store with all acknowledged batches of jobs that have ended."""
        verdict: dict[str, Any] = self._ask("verdict", store_url, jobs)
        return verdict

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ask(self, request: str, *arguments: Any) -> Any:
        self._connection.send_bytes(msgspec.msgpack.encode([request, *arguments]))
        return msgspec.msgpack.decode(self._connection.recv_bytes())


@dataclass
class Oracle:
    """The oracle itself; one thread per connection, one request at a time."""

    owed: Obligations = field(default_factory=Obligations)
    watch: RevisionWatch = field(default_factory=RevisionWatch)
    contract_violations: list[str] = field(default_factory=list)
    _watched: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, socket: str) -> None:
        """Accept connections until killed."""
        with Listener(socket, "AF_UNIX", backlog=64, authkey=_KEY) as listener:
            while True:
                connection = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        # Closed on every error: a client must not wait for an answer for ever.
        with connection, suppress(EOFError):
            while True:
                request, *arguments = msgspec.msgpack.decode(connection.recv_bytes())
                with self._lock:
                    answer = getattr(self, f"_on_{request}")(*arguments)
                connection.send_bytes(msgspec.msgpack.encode(answer))

    def _on_owe(self, job: str, body: bytes) -> None:
        self.owed.owe(job, body)

    def _on_refused(self, request: str) -> None:
        self.contract_violations.append(request)

    def _on_watch(self, ports: list[int], token: str, job: str) -> None:
        if not self._watched:
            watch_revisions(self.watch, ports, token, self._watched)
        self._watched.add(job)

    def _on_counts(self) -> dict[str, int]:
        owed = self.owed
        return {
            "batches": owed.batches,
            "rows": owed.rows,
            "resent": owed.resent,
            "conflicts": owed.conflicts,
            "revisions_seen": self.watch.seen,
        }

    def _on_verdict(self, store_url: str, jobs: list[str]) -> dict[str, Any]:
        store = Store(store_url)
        try:
            judgement = asdict(judge(store, self.owed, jobs))
        finally:
            store.close()
        self._watched.difference_update(jobs)
        # Each violation is reported once, in the verdict of its own jobs.
        judgement["violations"] += [*self.watch.violations, *self.contract_violations]
        self.watch.violations.clear()
        self.contract_violations.clear()
        return self._on_counts() | judgement


if __name__ == "__main__":
    Oracle().serve(sys.argv[1])
