"""One embedded event queue a directory, also across crashes."""

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from app.errors import StartUpFailed

WAIT_S = 5.0  # for a server whose parent was killed a moment ago
POLL_S = 0.05


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
        """Lock the directory, ending a server whose parent is gone.

        Raises:
            StartUpFailed: a living process holds it.
        """
        if self._fd is not None:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end_s = time.monotonic() + WAIT_S
        while not _locked(fd):
            parent, server = _noted(fd)
            if (parent and _runs(parent)) or time.monotonic() > end_s:
                os.close(fd)
                raise StartUpFailed(
                    f"the event queue in {self._path.parent} is in use by process "
                    f"{parent or 'unknown'}: stop that one or choose another data directory"
                )
            _end(server)
            time.sleep(POLL_S)
        os.ftruncate(fd, 0)  # until we have noted ourselves, nobody may take us for the last one
        self._fd = fd

    def note(self, server: int) -> None:
        """Write down whose lock this is, for whoever finds it taken."""
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


def _noted(fd: int) -> tuple[int | None, int | None]:
    words = os.pread(fd, 64, 0).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else (None, None)


def _runs(pid: int) -> bool:
    """Whether the process lives; one that is dead and not yet waited for does not count."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # not ours to signal, or no /proc here
        return True
    return state not in "ZX"


def _end(server: int | None) -> None:
    """Ends a server whose parent is gone; on Linux the kernel does, and needs no number for it."""
    if server is not None and sys.platform != "linux":
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)
