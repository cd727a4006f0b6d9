"""The event queue as a server of our own on a TCP port, durable unless told otherwise."""

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from app.cli.bench.faults.server import Server
from app.cli.bench.faults.waiting import free_port, wait_until
from app.ingest.embedded_server import command, find_server

MAX_MEMORY_BYTES = 1 << 30
ANSWERS_WITHIN_S = 60.0


class QueueServer(Server):
    """Valkey or Redis; `changed` settings go before those of an embedded queue."""

    def __init__(self, directory: Path, changed: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self._data = directory / "queue"
        self._data.mkdir(parents=True, exist_ok=True)
        arguments = command(find_server(), self._data, self._data / "socket", MAX_MEMORY_BYTES)
        settings = {"port": str(self.port), "bind": "127.0.0.1", "unixsocket": ""}
        for name, value in (settings | dict(changed or {})).items():
            arguments += [f"--{name}", value]
        super().__init__(arguments, directory / "queue.log")

    def start_and_wait(self) -> float:
        """Start it; seconds until it answered, with all that was on its disk."""
        self.start()
        return wait_until(self.answers, "the queue answers", ANSWERS_WITHIN_S)

    def answers(self) -> bool:
        """Whether it has read its files and takes commands."""
        try:
            return self.send("PING") == "+PONG"
        except OSError:
            return False

    def wipe(self) -> None:
        """Kill it and take away its disk; start it again yourself."""
        self.kill()
        shutil.rmtree(self._data)
        self._data.mkdir()

    def cut_tail(self, size_bytes: int) -> None:
        """Take away the end of its newest file, as if it had never reached the disk."""
        newest = max(self._data.rglob("*.incr.aof"), key=lambda path: path.stat().st_mtime_ns)
        os.truncate(newest, max(0, newest.stat().st_size - size_bytes))

    def file_bytes(self) -> int:
        """Size of its largest file."""
        return max(path.stat().st_size for path in self._data.rglob("*") if path.is_file())

    def send(self, *words: str) -> str:
        """First line of the answer to a command, such as "+OK" or ":3"."""
        parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word)}", word))]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            line.sendall("".join(f"{part}\r\n" for part in parts).encode())
            return line.makefile("rb").readline().decode().strip()
