"""What is kept on disk for a while, and what is said when there is no room."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import InvalidRequest


class Scratch:
    """A file without a name, gone with this process however it ends.

    Raises (each method that writes):
        InvalidRequest: the disk is full, or the folder cannot be written to.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        with _on_disk(folder):
            # Unbuffered: what did not fit would be tried once more on closing.
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115

    def append(self, content: bytes) -> None:
        """Write at its end."""
        left = memoryview(content)
        with _on_disk(self._folder):
            self._file.seek(0, os.SEEK_END)
            while left:
                left = left[self._file.write(left) :]

    def read(self, size: int, at: int) -> bytes:
        """So many bytes from a place on, fewer at the end."""
        return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        """Give the disk's space back."""
        self._file.close()


@contextmanager
def _on_disk(folder: Path | None) -> Iterator[None]:
    """What goes wrong on the disk within, as one line that names the folder.

    Raises:
        InvalidRequest: the disk is full, or the folder cannot be written to.
    """
    try:
        yield
    except OSError as error:
        where = folder or Path(tempfile.gettempdir())
        raise InvalidRequest(
            f"{where}: cannot keep what is read there ({error.strerror}): make room, or set "
            "TMPDIR to a folder with more"
        ) from error
