"""Lines of text files or of a request's body, in bounded memory, whatever is in them."""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

from app.errors import InvalidTrace

# A report of a hundred thousand ranks and three sections has some 10 MB.
MAX_LINE_BYTES = 32 << 20
_GZIP = b"\x1f\x8b"
_READ_BYTES = 1 << 20


class Line(NamedTuple):
    """One line without its end; of one that is too long, the beginning."""

    number: int
    text: bytes
    is_whole: bool


class Text(Protocol):
    """What has lines, which can be read more than once."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    def lines(self, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
        """Its lines, from number 1 on."""


@dataclass(frozen=True, slots=True)
class FileText:
    """A file, packed by gzip or not."""

    path: Path

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    def lines(self, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
        """Its lines, from number 1 on.

        Raises:
            InvalidTrace: the file cannot be read, or its gzip is damaged or cut off.
        """
        number = 0
        try:
            with self.path.open("rb") as file:
                for line in _lines(_unpacked(file), most_bytes):
                    number = line.number
                    yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            place = f"{self.name}: after line {number}"
            raise InvalidTrace(
                f"{place}: the gzip file is damaged or cut off: copy it again"
            ) from (error)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidTrace(f"{self.path}: cannot be read ({reason}): name a file") from error


@dataclass(frozen=True, slots=True)
class BodyText:
    """Text that somebody has sent."""

    name: str
    body: bytes

    def lines(self, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
        """Its lines, from number 1 on."""
        return _lines(io.BytesIO(self.body), most_bytes)


def broken(text: Text, line: Line, reason: str) -> InvalidTrace:
    """The refusal of a line."""
    return InvalidTrace(f"{text.name}: line {line.number}: {reason}")


def _unpacked(file: BinaryIO) -> BinaryIO:
    is_packed = file.read(2) == _GZIP
    file.seek(0)
    if not is_packed:
        return file
    return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=file), _READ_BYTES))


def _lines(file: BinaryIO, most_bytes: int) -> Iterator[Line]:
    number = 0
    while first := file.readline(most_bytes + 1):
        number += 1
        is_whole = len(first) <= most_bytes or first.endswith(b"\n")
        yield Line(number, first.rstrip(b"\r\n"), is_whole)
        rest = first
        while not is_whole and rest and not rest.endswith(b"\n"):
            rest = file.readline(_READ_BYTES)
