"""Processes under the harness's control: killed, frozen, thawed, terminated, started again.

Waiting for other processes polls, always with a time limit.
"""

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from app.ingest.embedded import dies_with_parent
from tests.harness.warm_start import WarmProcess, can_start_warm

POLL_S = 0.02
STOP_WITHIN_S = 30.0


class NotInTime(AssertionError):
    """A condition did not hold within its time limit."""


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> float:
    """Seconds until the condition held.

    Raises:
        NotInTime: it does not hold after `within_s`.
    """
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > within_s:
            raise NotInTime(f"not within {within_s:.0f} s: {what}")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ControlledProcess:
    """A process that does not outlive the thread that starts it: use it from the main thread.

    What it prints goes to the end of `log`.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.command = list(command)
        self._log = log
        self._environment = environment
        self._user = user
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None

    @property
    def pid(self) -> int:
        """Number of the running process."""
        if self._process is None:
            raise ValueError(f"{self.command[0]} was not started")
        return self._process.pid

    def start(self) -> None:
        """Start it; it may need a while before it answers."""
        with self._log.open("ab") as log:
            environment = os.environ if self._environment is None else self._environment
            if self._user is None and can_start_warm(self.command, environment):
                self._process = WarmProcess(self.command, environment, log)
                return
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=None if self._environment is None else dict(self._environment),
                user=self._user,
                cwd=self._log.parent if self._user else None,
                # A write beyond a file limit fails, as on a full disk, and does not kill.
                restore_signals=False,
                preexec_fn=dies_with_parent(),
            )

    def ended(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll() if self._process is not None else None

    def is_running(self) -> bool:
        """Whether the process is there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, as the kernel does it when memory runs out."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP; returns when the process is stopped."""
        self.signal(signal.SIGSTOP)
        while self.is_running() and not self.is_frozen():
            time.sleep(POLL_S)

    def is_frozen(self) -> bool:
        """Whether the process is stopped."""
        return _state(self.pid) == "T"

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def limit_files(self, size_bytes: int) -> None:
        """Limit the size of its files from now on: a full disk for this process only."""
        _, hard_limit = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size_bytes, hard_limit))

    def terminate(self, within_s: float = STOP_WITHIN_S) -> int:
        """Exit status after SIGTERM.

        Raises:
            NotInTime: it still runs; it is killed then.
        """
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NotInTime(f"{self.command} went on for {within_s} s after SIGTERM") from None

    def log_text(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")


def children(pid: int) -> list[tuple[int, str]]:
    """Number and command line of each child of a process."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [(int(child), _command_line(int(child))) for child in listed]


def is_alive(pid: int) -> bool:
    """Whether a process runs that may not be ours to wait for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return _state(pid) not in ("Z", "X", "")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
