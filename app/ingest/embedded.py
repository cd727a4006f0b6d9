"""An event queue of our own: a Valkey or Redis server as a child, on a Unix socket."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis

from app.errors import StartUpFailed
from app.ingest.embedded_lock import QueueLock
from app.ingest.embedded_server import command, dies_with_parent, find_server, socket_path

START_S = 60.0  # a long append-only file is read before the first answer
STOP_S = 3.0  # then it is killed, which loses nothing either
POLL_S = 0.02
MAX_MEMORY_BYTES = 1 << 30


class EmbeddedQueue:
    """Keeps its batches in `data_dir/queue`; they survive any crash of it or of us.

    On Linux the server dies with the thread that called `start`: call it from the main thread.
    """

    def __init__(self, data_dir: Path, *, max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._dir = data_dir.absolute() / "queue"
        self._max_memory_bytes = max_memory_bytes
        self._lock = QueueLock(self._dir / "lock")
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the server, None before the start."""
        return self._server.pid if self._server else None

    def start(self) -> str:
        """URL of the server once it answers; a server that has died is started again.

        Raises:
            StartUpFailed: no server is installed, another process uses the directory, or the
                server gave up; the message says why.
        """
        binary = find_server()
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.take()
        socket = self._socket = self._socket or socket_path(self._dir)
        if not self.alive():
            socket.unlink(missing_ok=True)
            self._server = self._spawn(binary, socket)
            self._lock.note(self._server.pid)
        url = f"unix://{socket}"
        self._await_answer(url)
        return url

    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._server is not None and self._server.poll() is None

    def stop(self) -> None:
        """End the server; everything in it is on disk already."""
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        self._remove_socket()
        self._lock.release()

    def _spawn(self, binary: Path, socket: Path) -> subprocess.Popen[bytes]:
        arguments = command(binary, self._dir, socket, self._max_memory_bytes)
        with self._log.open("wb") as log:
            return subprocess.Popen(  # noqa: S603
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own session: Ctrl-C in a terminal is for us, who still have to drain.
                start_new_session=True,
                preexec_fn=dies_with_parent(),
                # The lock is free only when the server is gone, too, however we ended.
                pass_fds=(self._lock.fileno(),),
            )

    @property
    def _log(self) -> Path:
        return self._dir / "server.log"

    def _await_answer(self, url: str) -> None:
        client = redis.Redis.from_url(url, socket_timeout=1.0)
        try:
            if not _within(START_S, lambda: not self.alive() or _answers(client)):
                raise StartUpFailed(f"the embedded event queue is not ready after {START_S} s")
        finally:
            client.close()
        if not self.alive():
            last_lines = self._log.read_text(errors="replace")[-2000:]
            raise StartUpFailed(f"the embedded event queue gave up; see {self._log}:\n{last_lines}")

    def _remove_socket(self) -> None:
        if self._socket is None:
            return
        self._socket.unlink(missing_ok=True)
        if self._socket.parent != self._dir:
            os.rmdir(self._socket.parent)  # noqa: PTH106
        self._socket = None


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def _within(limit_s: float, is_so: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True
