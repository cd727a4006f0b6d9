"""A disk of its own that is filled and freed: a tmpfs, which only root may mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BALLAST = "ballast"  # what another program would have written


class SmallDisk:
    """A mounted tmpfs; `fill` leaves so many bytes free, `free` gives the rest back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, leave_bytes: int = 0) -> None:
        """Write until no more than `leave_bytes` are free."""
        with (self.path / BALLAST).open("ab", buffering=0) as ballast:
            while (left_bytes := self.free_bytes() - leave_bytes) > 0:
                try:
                    ballast.write(b"\1" * min(left_bytes, 1 << 20))
                except OSError:  # somebody else took the last block
                    return

    def free(self) -> None:
        """Remove what `fill` wrote."""
        (self.path / BALLAST).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What is free now."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def resize(self, room_bytes: int) -> None:
        """Make it as large as what is on it, and so much more."""
        found = os.statvfs(self.path)
        used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
        size = used_bytes + room_bytes
        _run("mount", "-o", f"remount,size={size}", str(self.path))


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk of this size at a new directory, unmounted at the end of the block.

    Raises:
        OSError: this process may not mount.
    """
    path.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=755", "paceline-test", str(path))
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: a process that ends may still be on it.
        _run("umount", "-l", str(path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
