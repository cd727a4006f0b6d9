"""Bytes of input files, packed by gzip or not, read in bounded memory; refusals name the file."""

import errno
import gzip
import io
import os
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from app.errors import InvalidTrace

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 20


class InputFile:
    """A file that is read once, from its beginning to its end.

    Raises (each method):
        InvalidTrace: the file cannot be read, or its gzip is damaged or cut off.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._raw: io.BufferedReader | None = None
        self._file: BinaryIO | None = None

    def read(self) -> bytes:
        """The next piece of about a megabyte; empty at the end."""
        try:
            if self._file is None:
                self._raw = self._path.open("rb")
                self._file = _unpacked(self._raw)
                return without_byte_order_mark(self._file.read(_READ_BYTES))
            # Whole pieces, as some streams give less than there is.
            return self._file.read(_READ_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidTrace(
                f"{self.name}: the gzip file is damaged or cut off: copy it again"
            ) from error
        except OSError as error:
            raise InvalidTrace(
                f"{self._path}: cannot be read: {_reason(self._path, error)}"
            ) from error
        except ValueError as error:  # a name with a NUL
            raise InvalidTrace(f"{self._path}: is no file name: name a file") from error

    def close(self) -> None:
        """Close the file."""
        for file in (self._file, self._raw):  # what unpacks does not close what is packed
            if file is not None:
                file.close()


def without_byte_order_mark(text: bytes) -> bytes:
    """The first bytes of a text without its byte order mark."""
    return text.removeprefix(_BYTE_ORDER_MARK)


def _unpacked(file: io.BufferedReader) -> BinaryIO:
    if file.peek(2)[:2] != _GZIP:  # a pipe cannot be wound back
        return file
    return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=file), _READ_BYTES))


def _reason(path: Path, error: OSError) -> str:
    if error.errno == errno.EISDIR or path.is_dir():
        return "it is a folder: name a file"
    if error.errno:
        return f"{os.strerror(error.errno)}: name a file that you may read"
    return "it is damaged: copy or record it again"
