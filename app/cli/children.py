"""Child processes that never outlive this one, however it ends."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import structlog

from app.ingest.embedded_server import SET_PARENT_DEATH_SIGNAL, dies_with_parent

log = structlog.get_logger()

_RESTART_DELAYS_S = (0.2, 1.0, 5.0)
_STABLE_AFTER_S = 30.0


def end_with_parent() -> None:
    """From now on this process is told to stop (SIGTERM) when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def paceline(*arguments: str) -> list[str]:
    """The command line of another Paceline process."""
    return [sys.executable, "-m", "app.cli", *arguments]


class Child:
    """One process, started again when it dies; call everything from the main thread.

    The kernel ties a child's life to the thread that started it.
    """

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._command = command
        self._environment = {**os.environ, **environment}
        self._failures = 0
        self._restart_at_s = 0.0
        self._started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while there is a process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process."""
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the parent only, which stops us in order
            preexec_fn=dies_with_parent(),
        )

    def ended(self) -> int | None:
        """The exit status if it runs no longer."""
        return self._process.poll() if self._process is not None else None

    def keep_alive(self) -> None:
        """Start it again if it died, waiting longer each time that it dies young."""
        status = self.ended()
        now_s = time.monotonic()
        if status is not None and self._process is not None:
            young = now_s - self._started_s < _STABLE_AFTER_S
            self._failures = self._failures + 1 if young else 1
            delay_s = _RESTART_DELAYS_S[min(self._failures, len(_RESTART_DELAYS_S)) - 1]
            log.warning("process ended", name=self.name, status=status, restart_in_s=delay_s)
            self._process, self._restart_at_s = None, now_s + delay_s
        if self._process is None and now_s >= self._restart_at_s:
            self.start()

    def stop(self, *, within_s: float) -> None:
        """End it: asked first, killed when it takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
