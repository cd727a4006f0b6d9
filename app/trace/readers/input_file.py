"""Bytes and lines of input files and request bodies, read in bounded memory.

Files may be packed by gzip. Every refusal names the file, and the line where there is one.
"""

import errno
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

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


# A report of a hundred thousand ranks and three sections has some 10 MB.
MAX_LINE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16


class TextLine(NamedTuple):
    """One line without its line end; a line that is too long is cut."""

    number: int
    text: bytes
    is_whole: bool


class TextLines(Protocol):
    """A source of numbered lines, from 1 on."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def can_be_read_again(self) -> bool:
        """Whether `lines` can be called more than once."""

    def lines(self, max_bytes: int = MAX_LINE_BYTES) -> Iterator[TextLine]:
        """Its lines."""


@dataclass(frozen=True, slots=True)
class FileText:
    """A file, gzipped or not; or a pipe, which can be read once only."""

    path: Path

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    @property
    def can_be_read_again(self) -> bool:
        """True for a regular file, false for a pipe or terminal."""
        return not (self.path.is_fifo() or self.path.is_char_device())

    def lines(self, max_bytes: int = MAX_LINE_BYTES) -> Iterator[TextLine]:
        """Its lines.

        Raises:
            InvalidTrace: the file cannot be read, or its gzip is damaged or cut off.
        """
        with closing(InputFile(self.path)) as source:
            yield from lines_of(iter(source.read, b""), max_bytes)


@dataclass(frozen=True, slots=True)
class BodyText:
    """The text of a request's body."""

    name: str
    body: bytes

    @property
    def can_be_read_again(self) -> bool:
        """It is in memory."""
        return True

    def lines(self, max_bytes: int = MAX_LINE_BYTES) -> Iterator[TextLine]:
        """Its lines."""
        body = without_byte_order_mark(self.body)
        begins = range(0, len(body), _PIECE_BYTES)
        return lines_of((body[begin : begin + _PIECE_BYTES] for begin in begins), max_bytes)


def line_error(text: TextLines, line: TextLine, reason: str) -> InvalidTrace:
    """An error that names the file and line."""
    return InvalidTrace(f"{text.name}: line {line.number}: {reason}")


def lines_of(pieces: Iterable[bytes], max_bytes: int) -> Iterator[TextLine]:
    """The lines of a text that arrives in pieces."""
    number, begun = 0, _PartialLine(max_bytes)
    for piece in pieces:
        first, *others = piece.split(b"\n")
        begun.add(first)
        if not others:
            continue
        last = others.pop()
        for text, size_bytes in (begun.taken(), *((each, len(each)) for each in others)):
            number += 1
            yield _line(number, text, size_bytes, max_bytes)
        begun.add(last)
    text, size_bytes = begun.taken()
    if size_bytes:
        yield _line(number + 1, text, size_bytes, max_bytes)


def _line(number: int, text: bytes, size_bytes: int, max_bytes: int) -> TextLine:
    return TextLine(number, text[: max_bytes + 1].rstrip(b"\r"), size_bytes <= max_bytes)


class _PartialLine:
    """A line that is not complete yet; bytes beyond the limit are dropped."""

    def __init__(self, max_bytes: int) -> None:
        self._most_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def add(self, part: bytes) -> None:
        """Append bytes of the line."""
        if self._size_bytes <= self._most_bytes:
            self._parts.append(part)
        self._size_bytes += len(part)

    def taken(self) -> tuple[bytes, int]:
        """Return the kept bytes and the full length, and begin the next line."""
        found = b"".join(self._parts), self._size_bytes
        self._parts, self._size_bytes = [], 0
        return found
