"""OTLP files: successive trace requests in JSON or protobuf.

That is what the OpenTelemetry collector's file exporter writes; a file that is one request's body
is read, too. Never more than one resource's spans (JSON) or one request (protobuf) are in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.errors import BadRequest, InvalidTrace, TooLarge
from app.trace.readers.input_file import InputFile
from app.trace.readers.json_stream import JsonStream
from app.trace.readers.otlp import messages
from app.trace.readers.otlp.spans import NameWanted, SentSpans

MAX_MESSAGE_BYTES = 32 << 20
_LENGTH_BYTES = 4  # big-endian, before each message of the collector's protobuf files
_REQUEST_TAG = b"\x0a"  # begins with field 1; as a length it would be 160 MB and more
_BLANK = b" \t\r\n"
_ELEMENTS = msgspec.json.Decoder(list[messages.ResourceSpans])
_WANTED_FORMAT = (
    "want OTLP traces: requests in JSON, or protobuf messages with their lengths before them"
)


class FoundSpans(NamedTuple):
    """Spans of one resource, and their position in the file."""

    where: str
    sent: SentSpans


def spans_in_file(path: Path, wanted: NameWanted) -> Iterator[FoundSpans]:
    """Spans of a file, gzipped or not, resource by resource.

    Raises:
        InvalidTrace: it cannot be read or parsed; the message says where and why.
    """
    source = InputFile(path)
    try:
        bytes_ = _PeekableFile(source)
        first, visible = bytes_.begins_with()
        if not visible:
            raise InvalidTrace(f"{path.name}: is empty: {_WANTED_FORMAT}")
        if visible == b"{":
            yield from _of_json(bytes_, wanted)
        elif first == _REQUEST_TAG:
            yield from _message(path.name, bytes_.take(MAX_MESSAGE_BYTES + 1), wanted)
        else:
            yield from _of_protobuf(path.name, bytes_, wanted)
    finally:
        source.close()


def _of_json(file: "_PeekableFile", wanted: NameWanted) -> Iterator[FoundSpans]:
    """One request a line, else JSON documents of any size."""
    number, line = 1, file.line(MAX_MESSAGE_BYTES)
    first = _request(line, wanted)
    if first is None:
        file.put_back(line)
        yield from _of_documents(JsonStream(file, noun="resource"), wanted)
        return
    while line:
        where = f"{file.name}: line {number:,}"
        found = first if number == 1 else _request_at(where, line, wanted)
        yield from (FoundSpans(where, sent) for sent in found)
        number, line = number + 1, file.line(MAX_MESSAGE_BYTES)


def _request(line: bytes, wanted: NameWanted) -> list[SentSpans] | None:
    try:
        return messages.read_json(line, wanted)
    except (BadRequest, TooLarge):
        return None


def _request_at(where: str, line: bytes, wanted: NameWanted) -> list[SentSpans]:
    if len(line) > MAX_MESSAGE_BYTES:
        raise InvalidTrace(f"{where}: is longer than 32 MiB: write shorter requests")
    try:
        return messages.read_json(line, wanted) if line.strip(_BLANK) else []
    except (BadRequest, TooLarge) as error:
        raise InvalidTrace(f"{where}: {error}") from error


def _of_documents(stream: JsonStream, wanted: NameWanted) -> Iterator[FoundSpans]:
    while stream.peek():
        for key in stream.members():
            if key != "resourceSpans" or stream.peek() != b"[":
                stream.skip()
                continue
            for element in stream.elements(_ELEMENTS):
                yield FoundSpans(stream.place(), _checked(stream.place(), element, wanted))


def _checked(where: str, element: messages.ResourceSpans, wanted: NameWanted) -> SentSpans:
    try:
        return messages.sent_of(element, wanted)
    except TooLarge as error:
        raise InvalidTrace(f"{where}: {error}") from error


def _of_protobuf(name: str, file: "_PeekableFile", wanted: NameWanted) -> Iterator[FoundSpans]:
    number = 1
    while length := file.take(_LENGTH_BYTES):
        where, size = f"{name}: message {number:,}", int.from_bytes(length, "big")
        if len(length) < _LENGTH_BYTES or size > MAX_MESSAGE_BYTES:
            raise InvalidTrace(f"{where}: {_WANTED_FORMAT}, each of at most 32 MiB")
        body = file.take(size)
        if len(body) < size:
            raise InvalidTrace(f"{where}: ends after {len(body)} of {size} bytes: copy it again")
        yield from _message(where, body, wanted)
        number += 1


def _message(where: str, body: bytes, wanted: NameWanted) -> Iterator[FoundSpans]:
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidTrace(f"{where}: {_WANTED_FORMAT}, each of at most 32 MiB")
    try:
        yield from [FoundSpans(where, sent) for sent in messages.read_protobuf(body, wanted)]
    except (BadRequest, TooLarge) as error:
        raise InvalidTrace(f"{where}: {error}") from error


class _PeekableFile(InputFile):
    """A byte source with look-ahead."""

    def __init__(self, source: InputFile) -> None:
        self.name = source.name
        self._source = source
        self._ahead = b""

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        if not self._ahead:
            return self._source.read()
        piece, self._ahead = self._ahead, b""
        return piece

    def begins_with(self) -> tuple[bytes, bytes]:
        """The first byte, and the first that is not blank; empty at the end."""
        self._ahead = self._source.read()
        first = self._ahead[:1]
        while not (seen := self._ahead.lstrip(_BLANK)):
            self._ahead = self._source.read()
            if not self._ahead:
                return first, b""
        return first, seen[:1]

    def take(self, size: int) -> bytes:
        """Up to this many bytes."""
        pieces, missing = [], size
        while missing and (piece := self.read()):
            pieces.append(piece[:missing])
            self._ahead = piece[missing:]
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def line(self, most: int) -> bytes:
        """The bytes to the next line end; at most `most` + 1 of them."""
        pieces, left = [], most + 1
        while left and (piece := self.read()):
            end = piece.find(b"\n", 0, left) + 1
            size = end or min(left, len(piece))
            pieces.append(piece[:size])
            self._ahead = piece[size:]
            left = 0 if end else left - size
        return b"".join(pieces)

    def put_back(self, piece: bytes) -> None:
        """Put bytes back, to be read next."""
        self._ahead = piece + self._ahead
