"""The oracle: a process that is never harmed, and knows everything that was promised.

A producer goes on only when the oracle has written down what the service has acknowledged.
"""

import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import msgspec

from app.cli.bench.faults.judge import judge
from app.cli.bench.faults.obligations import Obligations
from app.cli.bench.faults.server import Server
from app.cli.bench.faults.waiting import wait_until
from app.cli.bench.faults.watch import Watch, watching
from app.store.engine import Store

_KEY = b"paceline-faults"  # of a socket that only this user reaches


class OracleProcess:
    """Starts the oracle, and ends it when all is judged."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "oracle.sock"
        command = [sys.executable, "-m", "app.cli.bench.faults.oracle", str(self._socket)]
        self._server = Server(command, directory / "oracle.log")

    def __enter__(self) -> "OracleProcess":
        self._server.start()
        wait_until(self._listens, "the oracle listens")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()

    def line(self) -> "OracleLine":
        """A connection for one thread."""
        return OracleLine(self._socket)

    def _listens(self) -> bool:
        if not self._server.is_running():
            raise AssertionError(self._server.log_text())
        return self._socket.exists()


class OracleLine:
    """What a producer tells the oracle, and what the harness asks it."""

    def __init__(self, socket: Path) -> None:
        self._connection = Client(str(socket), "AF_UNIX", authkey=_KEY)

    def owe(self, job: str, body: bytes) -> None:
        """This body was answered 2xx; returns once that is written down."""
        self._ask("owe", job, body)

    def refused(self, what: str) -> None:
        """An answer that is against the contract."""
        self._ask("refused", what)

    def watch(self, ports: list[int], token: str, job: str) -> None:
        """Look at the job's windows through these APIs from now on."""
        self._ask("watch", ports, token, job)

    def verdict(self, store_url: str, jobs: list[str]) -> dict[str, Any]:
        """What became of all that was promised to jobs that have ended."""
        verdict: dict[str, Any] = self._ask("verdict", store_url, jobs)
        return verdict

    def counts(self) -> dict[str, int]:
        """How much is owed."""
        counts: dict[str, int] = self._ask("counts")
        return counts

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ask(self, what: str, *arguments: Any) -> Any:
        self._connection.send_bytes(msgspec.msgpack.encode([what, *arguments]))
        return msgspec.msgpack.decode(self._connection.recv_bytes())


@dataclass
class Oracle:
    """The oracle itself; one thread a connection, one deed at a time."""

    owed: Obligations = field(default_factory=Obligations)
    watch: Watch = field(default_factory=Watch)
    against_contract: list[str] = field(default_factory=list)
    _watched: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, socket: str) -> None:
        """Take connections for ever."""
        with Listener(socket, "AF_UNIX", backlog=64, authkey=_KEY) as listener:
            while True:
                connection = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        # Closed whatever happens: whoever waits for an answer must not do so for ever.
        with connection, suppress(EOFError):
            while True:
                what, *arguments = msgspec.msgpack.decode(connection.recv_bytes())
                with self._lock:
                    answer = getattr(self, f"_on_{what}")(*arguments)
                connection.send_bytes(msgspec.msgpack.encode(answer))

    def _on_owe(self, job: str, body: bytes) -> None:
        self.owed.owe(job, body)

    def _on_refused(self, what: str) -> None:
        self.against_contract.append(what)

    def _on_watch(self, ports: list[int], token: str, job: str) -> None:
        if not self._watched:
            watching(self.watch, ports, token, self._watched)
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
        # Each is told once: the next job's verdict is not about this one's.
        judgement["violations"] += [*self.watch.violations, *self.against_contract]
        self.watch.violations.clear()
        self.against_contract.clear()
        return self._on_counts() | judgement


if __name__ == "__main__":
    Oracle().serve(sys.argv[1])
