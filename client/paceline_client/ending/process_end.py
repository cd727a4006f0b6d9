"""Tells the server how this process ends, by a small process beside it (`exit_watcher.py`).

Nothing of the training's is replaced: exceptions are read where Python leaves them, and SIGTERM is
seen by `faulthandler`, which then has the signal do what it did before, at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from . import exit_watcher

MAX_TYPE, MAX_MESSAGE = 200, exit_watcher.MAX_MESSAGE
LAST_S = 0.5  # for a report of this process itself, where none can run beside it

_last_before = getattr(sys, "last_value", None)  # of a failure before this module was imported


class Ended(NamedTuple):
    """How a recorder ends, as fields of the report."""

    fields: dict[str, Any]

    @property
    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        return bool(self.fields["outcome"] == "finished")


FINISHED = Ended({"outcome": "finished"})


def how_it_ends() -> Ended:
    """By the exception that is being handled, or that has ended the main thread."""
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):  # of a prompt's earlier line otherwise
        last = getattr(sys, "last_value", None)
        error = last if last is not _last_before else None
    return FINISHED if error is None else of_exception(error)


def of_exception(error: BaseException) -> Ended:
    """How a process ends by an exception."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return FINISHED
        code = error.code if isinstance(error.code, int) else 1
        failed: dict[str, Any] = {"outcome": "failed", "exit_code": code & 0xFF}
        if isinstance(error.code, str):
            failed["message"] = error.code[:MAX_MESSAGE]
        return Ended(failed)
    if isinstance(error, KeyboardInterrupt):
        return Ended({"outcome": "terminated", "signal": int(signal.SIGINT)})
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:
        message = ""
    ended = {"outcome": "failed", "error_type": name[:MAX_TYPE], "message": message[:MAX_MESSAGE]}
    return Ended(ended)


class Reporter:
    """The watcher of this process, started with the first recorder that registers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watcher: socket.socket | None = None
        self._has_tried = False
        self._watched: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, Ended] = {}  # before they could register
        self._num_told = 0  # reports that the watcher has not confirmed
        self._handler_before: Any = None  # of SIGTERM, where ours is in front of it

    def watch(self, key: int, watched: dict[str, Any]) -> None:
        """Report the end of this recorder from now on; called on its sender's thread."""
        with self._lock:
            self._start()
            self._watched[key] = watched
            self._send({"id": key, "watch": watched})
            ended = self._ended.pop(key, None)
        if ended is not None:
            self.tell(key, ended)

    def tell(self, key: int, ended: Ended, *, at_exit: bool = False) -> None:
        """The recorder has ended so; does not wait. `at_exit`: the exit status is yet to come."""
        with self._lock:
            watched = self._watched.get(key)
            if watched is None:
                self._ended[key] = ended
                return
            del self._watched[key]
            if ended.is_clean and not watched["ends_job"]:
                message: dict[str, Any] = {"id": key, "forget": True}
            else:
                message = {"id": key, "end": ended.fields, "at_exit": at_exit}
            is_sent = self._send(message)
            self._num_told += is_sent
        if not is_sent and "end" in message:
            exit_watcher.deliver(watched, ended.fields, LAST_S)

    def wait_told(self, timeout_s: float) -> None:
        """Wait until the watcher has sent all reports; with the process, it may end too."""
        until_s = time.monotonic() + timeout_s
        with self._lock:
            watcher = self._watcher
            while watcher is not None and self._num_told > 0:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([watcher], [], [], left_s)[0]:
                    break
                try:
                    confirmed = len(watcher.recv(64))
                except OSError:
                    confirmed = 0
                self._num_told = self._num_told - confirmed if confirmed else 0
            self._ended.clear()
            if not self._watched:
                self._let_go()

    def forget_in_child(self) -> None:
        """In a forked child: the watcher is the parent's."""
        self._lock = threading.Lock()  # another thread may have held it
        self._watched.clear()
        self._ended.clear()
        self._let_go()

    def _start(self) -> None:
        if self._watcher is not None or self._has_tried or not _can_start():
            return
        self._has_tried = True
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                if hasattr(socket, "SO_PASSCRED"):  # so that it knows a forked child from this one
                    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                pid = _spawn(theirs.fileno())
        except Exception:  # the process may have no more children, or files
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)  # it leaves the watcher an orphan at once
        ours.setblocking(False)
        self._watcher = ours
        self._notice_sigterm(ours.fileno())

    def _send(self, message: dict[str, Any]) -> bool:
        """Write one line, if the watcher is there and reads."""
        if self._watcher is None:
            return False
        line = json.dumps(message).encode() + b"\n"
        try:  # a script may have made SIGPIPE deadly
            return self._watcher.send(line, getattr(socket, "MSG_NOSIGNAL", 0)) == len(line)
        except OSError:
            return False

    def _notice_sigterm(self, descriptor: int) -> None:
        """Have SIGTERM write to the watcher, and then do what it does now."""
        before = signal.getsignal(signal.SIGTERM)
        if before is None or (before == signal.SIG_DFL and _is_caught(signal.SIGTERM)):
            return  # a handler of C code: it stays alone
        faulthandler.register(signal.SIGTERM, file=descriptor, all_threads=False, chain=True)
        self._handler_before = before

    def _let_go(self) -> None:
        before, self._handler_before = self._handler_before, None
        # If the training has set a handler since, ours is gone, and theirs must stay.
        if before is not None and signal.getsignal(signal.SIGTERM) == before:
            faulthandler.unregister(signal.SIGTERM)
        if self._watcher is not None:
            self._watcher.close()
        self._watcher = None
        self._has_tried, self._num_told = False, 0


def _can_start() -> bool:
    """Whether this is a plain Python whose program can run a script."""
    name = Path(sys.executable or "").name
    is_python = name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)
    return is_python and hasattr(os, "posix_spawn") and hasattr(os, "fork")


def _spawn(theirs: int) -> int:
    actions = [
        (os.POSIX_SPAWN_DUP2, theirs, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    script = str(Path(exit_watcher.__file__).resolve())
    command = [sys.executable, "-I", "-S", "-B", script, str(os.getpid())]
    # Not subprocess: a process that another thread forks meanwhile would make it hang.
    spawn: Any = os.posix_spawn
    try:
        return int(spawn(command[0], command, os.environ, file_actions=actions, setsid=True))
    except NotImplementedError:
        return int(spawn(command[0], command, os.environ, file_actions=actions))


def _is_caught(number: int) -> bool:
    """Whether the kernel knows a handler of the signal; False where that cannot be read."""
    try:
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
        return bool(int(masks[0], 16) >> (number - 1) & 1)
    except (OSError, IndexError, ValueError):
        return False


reporter = Reporter()
