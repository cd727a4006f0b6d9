"""Lines of text files or of a request's body, in bounded memory, whatever is in them."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from app.errors import InvalidTrace
from app.trace.readers.source import Source, without_mark

# A report of a hundred thousand ranks and three sections has some 10 MB.
MAX_LINE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16


class Line(NamedTuple):
    """One line without its end; of one that is too long, the beginning."""

    number: int
    text: bytes
    is_whole: bool


class Text(Protocol):
    """What has lines, from number 1 on."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    @property
    def can_be_read_again(self) -> bool:
        """Whether `lines` gives them each time that it is called, and not once."""

    def lines(self, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
        """Its lines."""


@dataclass(frozen=True, slots=True)
class FileText:
    """A file, packed by gzip or not; or a pipe, which is read once."""

    path: Path

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    @property
    def can_be_read_again(self) -> bool:
        """Whether it is a file, and no pipe or terminal."""
        return not (self.path.is_fifo() or self.path.is_char_device())

    def lines(self, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
        """Its lines.

        Raises:
            InvalidTrace: the file cannot be read, or its gzip is damaged or cut off.
        """
        with closing(Source(self.path)) as source:
            yield from lines_of(iter(source.read, b""), most_bytes)


@dataclass(frozen=True, slots=True)
class BodyText:
    """Text that somebody has sent."""

    name: str
    body: bytes

    @property
    def can_be_read_again(self) -> bool:
        """It is in memory."""
        return True

    def lines(self, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
        """Its lines."""
        body = without_mark(self.body)
        begins = range(0, len(body), _PIECE_BYTES)
        return lines_of((body[begin : begin + _PIECE_BYTES] for begin in begins), most_bytes)


def broken(text: Text, line: Line, reason: str) -> InvalidTrace:
    """The refusal of a line."""
    return InvalidTrace(f"{text.name}: line {line.number}: {reason}")


def lines_of(pieces: Iterable[bytes], most_bytes: int) -> Iterator[Line]:
    """The lines of a text that comes piece by piece."""
    number, begun = 0, _Begun(most_bytes)
    for piece in pieces:
        first, *others = piece.split(b"\n")
        begun.add(first)
        if not others:
            continue
        last = others.pop()
        for text, size_bytes in (begun.taken(), *((each, len(each)) for each in others)):
            number += 1
            yield _line(number, text, size_bytes, most_bytes)
        begun.add(last)
    text, size_bytes = begun.taken()
    if size_bytes:
        yield _line(number + 1, text, size_bytes, most_bytes)


def _line(number: int, text: bytes, size_bytes: int, most_bytes: int) -> Line:
    return Line(number, text[: most_bytes + 1].rstrip(b"\r"), size_bytes <= most_bytes)


class _Begun:
    """A line whose end has not come yet; of one that is too long, the beginning is kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def add(self, part: bytes) -> None:
        """It goes on."""
        if self._size_bytes <= self._most_bytes:
            self._parts.append(part)
        self._size_bytes += len(part)

    def taken(self) -> tuple[bytes, int]:
        """What is kept of it, and how long it is; the next one begins."""
        found = b"".join(self._parts), self._size_bytes
        self._parts, self._size_bytes = [], 0
        return found
