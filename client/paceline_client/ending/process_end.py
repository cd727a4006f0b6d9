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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..sending.time_limit import within
from . import exit_watcher

MAX_TYPE, MAX_MESSAGE = 200, exit_watcher.MAX_MESSAGE
LAST_S = 0.5  # for a report of this process itself, where none can run beside it
LOCKED_WITHIN_S = 2.0  # a handler of a signal may interrupt the thread that has the lock

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


class WatcherSockets:
    """Our ends of the sockets to a watcher, which is started by this.

    Raises:
        OSError: the process may have no more children, or files.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            self.lines, lines = (stack.enter_context(each) for each in _socket_pair())
            # A second one for SIGTERM, of which the end that is read stays open here as well. A
            # write to it would else raise SIGPIPE once the watcher has gone, and end a training
            # whose script has made that deadly before its own handler of SIGTERM runs.
            self.signals, self._read = (stack.enter_context(each) for each in _socket_pair())
            if hasattr(socket, "SO_PASSCRED"):  # so that it knows a forked child from this one
                self._read.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            for each in (self.lines, self.signals):
                each.setblocking(False)
            pid = _spawn(lines.fileno(), self._read.fileno())
            stack.pop_all()
        lines.close()  # so that we notice when the watcher ends
        try:  # its interpreter may take long to start
            threading.Thread(target=_reap, args=(pid,), name="paceline-reap", daemon=True).start()
        except RuntimeError:
            _reap(pid)

    def close(self) -> None:
        """Close the sockets; the watcher ends if it has nothing to report."""
        for each in (self.lines, self.signals, self._read):
            each.close()


class Reporter:
    """The watcher of this process, started with the first recorder that registers.

    Training never waits for one to start: that is done by senders' threads without the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # of senders' threads only
        self._watcher: WatcherSockets | None = None
        self._has_tried = False
        self._watched: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, Ended] = {}  # before they could register
        self._num_told = 0  # reports that the watcher has not confirmed
        self._handler_before: Any = None  # of SIGTERM, where ours is in front of it

    def watch(self, key: int, watched: dict[str, Any]) -> None:
        """Report the end of this recorder from now on; called on its sender's thread."""
        while True:
            with self._starting:
                self._start()
            with self._lock:
                if not self._has_tried:  # another recorder's end has just let the watcher go
                    continue
                self._watched[key] = watched
                self._send({"id": key, "watch": watched})
                ended = self._ended.pop(key, None)
                break
        if ended is not None:
            self.tell(key, ended)

    def tell(
        self,
        key: int,
        ended: Ended,
        *,
        at_exit: bool = False,
        timeout_s: float = LOCKED_WITHIN_S,
    ) -> None:
        """The recorder has ended so; does not wait. `at_exit`: the exit status is yet to come.

        Without a watcher, or while the reporter is in use, it may take the timeout.
        """
        until_s = time.monotonic() + timeout_s
        with self._locked(until_s) as is_locked:
            if not is_locked:
                return
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
        left_s = min(LAST_S, until_s - time.monotonic())
        if not is_sent and "end" in message and left_s > 0:
            within(left_s, lambda: exit_watcher.deliver(watched, ended.fields, left_s))

    def wait_told(self, timeout_s: float) -> None:
        """Wait until the watcher has sent all reports; with the process, it may end too."""
        until_s = time.monotonic() + timeout_s
        while True:
            with self._locked(until_s) as is_locked:
                watcher = self._watcher
                if not is_locked or watcher is None or not self._is_unconfirmed(watcher):
                    break
            left_s = until_s - time.monotonic()
            try:
                if left_s <= 0 or not select.select([watcher.lines], [], [], left_s)[0]:
                    break
            except (OSError, ValueError):  # another thread has let it go
                break
        with self._locked(until_s) as is_locked:
            if is_locked:
                self._ended.clear()
                if not self._watched:
                    self._let_go()

    def forget_in_child(self) -> None:
        """In a forked child: the watcher is the parent's."""
        self._lock, self._starting = threading.Lock(), threading.Lock()  # a thread may hold them
        self._watched.clear()
        self._ended.clear()
        self._let_go()

    def _is_unconfirmed(self, watcher: WatcherSockets) -> bool:
        """Whether reports are left that the watcher, which still runs, has not confirmed."""
        try:
            while self._num_told > 0 and (confirmed := len(watcher.lines.recv(64))):
                self._num_told -= confirmed
        except BlockingIOError:
            return True
        except OSError:
            pass
        self._num_told = 0
        return False

    @contextlib.contextmanager
    def _locked(self, until_s: float) -> Iterator[bool]:
        """Take the lock until then; whether it could be had."""
        is_locked = self._lock.acquire(timeout=max(0.0, until_s - time.monotonic()))
        try:
            yield is_locked
        finally:
            if is_locked:
                self._lock.release()

    def _start(self) -> None:
        if self._has_tried:
            return
        watcher = None
        if _can_start():
            with contextlib.suppress(Exception):  # no more children, or files
                watcher = WatcherSockets()
        with self._lock:
            self._watcher, self._has_tried = watcher, True
            if watcher is not None:
                with contextlib.suppress(Exception):  # as with another `faulthandler`
                    self._notice_sigterm(watcher.signals.fileno())

    def _send(self, message: dict[str, Any]) -> bool:
        """Write one line, if the watcher is there and reads."""
        if self._watcher is None:
            return False
        line = json.dumps(message).encode() + b"\n"
        try:  # a script may have made SIGPIPE deadly
            return self._watcher.lines.send(line, getattr(socket, "MSG_NOSIGNAL", 0)) == len(line)
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


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, neither of them at the place of a standard stream."""
    ours, theirs = socket.socketpair()
    return _above_streams(ours), _above_streams(theirs)


def _above_streams(given: socket.socket) -> socket.socket:
    if given.fileno() > 2:
        return given
    with given:
        return socket.socket(fileno=_above(2, given.fileno()))


def _above(highest: int, descriptor: int) -> int:
    """A copy of the descriptor with a number above the given one."""
    import fcntl  # not on Windows, where nothing is started

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, highest + 1)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)  # it leaves the watcher an orphan at once


def _opened_self() -> int | None:
    """A descriptor of this process for the watcher; None on older kernels."""
    try:
        opened: int = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return None
    try:
        return _above(exit_watcher.PROCESS, opened)
    except OSError:
        return None
    finally:
        os.close(opened)


def _spawn(lines: int, signals: int) -> int:
    process = _opened_self()
    try:
        return _spawned(lines, signals, process)
    finally:
        if process is not None:
            os.close(process)


def _spawned(lines: int, signals: int, process: int | None) -> int:
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, lines, exit_watcher.LINES),
        (os.POSIX_SPAWN_DUP2, signals, exit_watcher.SIGNALS),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    script = str(Path(exit_watcher.__file__).resolve())
    command = [sys.executable, "-I", "-S", "-B", script, str(os.getpid())]
    if process is not None:
        actions.append((os.POSIX_SPAWN_DUP2, process, exit_watcher.PROCESS))
        command.append("pidfd")
    # Not subprocess: a process that another thread forks meanwhile would make it hang.
    spawn: Any = os.posix_spawn
    # Blocked from its first instruction on: a handler, or ignoring them, would come too late.
    given: dict[str, Any] = {"file_actions": actions, "setsigmask": signal.valid_signals()}
    try:
        return int(spawn(command[0], command, os.environ, **given, setsid=True))
    except NotImplementedError:
        return int(spawn(command[0], command, os.environ, **given))


def _is_caught(number: int) -> bool:
    """Whether the kernel knows a handler of the signal; False where that cannot be read."""
    try:
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
        return bool(int(masks[0], 16) >> (number - 1) & 1)
    except (OSError, IndexError, ValueError):
        return False


reporter = Reporter()
