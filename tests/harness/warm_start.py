"""Python processes that begin with Paceline's modules imported: forked from one that has them.

An API imports modules for three seconds of CPU and a consumer for two, and fault tests start some
hundred of them. Each is a process of its own all the same, with its own number, signals, files and
environment; what is different is that `import` finds the modules there.
"""

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from app.ingest.embedded import dies_with_parent

_PRELOADED = (
    "app.cli",
    "app.main",
    "app.consumer.main",
    "app.store.migrations",
    "app.cli.supervisor",
)
# What the loader and the interpreter read before any module is imported.
_COLD = ("LD_", "PYTHON", "NUMBA_", "MALLOC_", "FAKETIME")
_MAX_MESSAGE = 1 << 20


def can_start_warm(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the command is `python -m MODULE ...`, in an environment like ours."""
    theirs, ours = (
        {name: value for name, value in each.items() if name.startswith(_COLD)}
        for each in (environment, os.environ)
    )
    return (
        sys.platform == "linux" and list(command[:2]) == [sys.executable, "-m"] and theirs == ours
    )


class WarmProcess:
    """What `subprocess.Popen` is of the processes that it starts."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]):
        request = {"module": command[2], "arguments": command[3:], "environment": dict(environment)}
        self.pid: int = _forker.ask({"start": request}, log.fileno())
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(self.pid)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # it may not have been started
            os.close(self._pidfd)

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = _forker.ask({"status": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            select.select([self._pidfd], [], [], left_s)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class _Forker:
    """The process that has the modules, started when the first is needed; ends with ours."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None

    def ask(self, request: Mapping[str, Any], *files: int) -> Any:
        if self._channel is None:
            self._channel = self._start()
        socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        answer = self._channel.recv(_MAX_MESSAGE)
        if not answer:
            raise RuntimeError("the process that others are forked from has ended")
        return json.loads(answer)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_MESSAGE)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                restore_signals=False,
                preexec_fn=dies_with_parent(),
            )
        atexit.register(self._stop, ours, process)
        return ours

    @staticmethod
    def _stop(channel: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        channel.close()
        process.wait()


_forker = _Forker()


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answer requests; returns in each child what it has to run, and None at the end."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, _MAX_MESSAGE, 1)
        if not message:
            return None
        request = json.loads(message)
        if "status" in request:
            pid, status = os.waitpid(request["status"], os.WNOHANG)
            found = os.waitstatus_to_exitcode(status) if pid else None
            channel.send(json.dumps(found).encode())
            continue
        dies_with_us = dies_with_parent()
        pid = os.fork()
        if not pid:
            if dies_with_us is not None:
                dies_with_us()
            channel.close()
            for number in (1, 2):
                os.dup2(files[0], number)
            os.close(files[0])
            started: dict[str, Any] = request["start"]
            return started
        os.close(files[0])
        channel.send(json.dumps(pid).encode())


def main() -> None:
    """Import, then fork a child for each request; a child runs its module as `python -m` does."""
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # pages that no child's collector touches stay shared
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is None:
        return
    os.environ.clear()
    os.environ.update(wanted["environment"])
    random.seed()
    sys.argv = [wanted["module"], *wanted["arguments"]]
    runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
