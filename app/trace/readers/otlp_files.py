"""What processes sent, in OTLP files: requests in JSON or in protobuf, one after the other.

That is what the OpenTelemetry collector's file exporter writes; a file that is one request's body
is read, too. Never more than one resource's spans (JSON) or one request (protobuf) are in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.errors import BadRequest, InvalidTrace, TooLarge
from app.trace.readers import otlp_json, otlp_protobuf
from app.trace.readers.json_stream import JsonStream
from app.trace.readers.otlp_span import NameWanted, Sent
from app.trace.readers.source import Source

MAX_MESSAGE_BYTES = 32 << 20
_LENGTH_BYTES = 4  # big-endian, before each message of the collector's protobuf files
_ONE_REQUEST = b"\x0a"  # begins with field 1; as a length it would be 160 MB and more
_BLANK = b" \t\r\n"
_ELEMENTS = msgspec.json.Decoder(list[otlp_json.ResourceSpans])
_WANTED = "want OTLP traces: requests in JSON, or protobuf messages with their lengths before them"


class Found(NamedTuple):
    """What one resource sent, and where it stands."""

    where: str
    sent: Sent


def found_in(path: Path, wanted: NameWanted) -> Iterator[Found]:
    """All that a file says, gzip'ed or not.

    Raises:
        InvalidTrace: it cannot be read, or is none; the message says where and why.
    """
    source = Source(path)
    try:
        bytes_ = _Bytes(source)
        first, visible = bytes_.begins_with()
        if not visible:
            raise InvalidTrace(f"{path.name}: is empty: {_WANTED}")
        if visible == b"{":
            yield from _of_json(bytes_, wanted)
        elif first == _ONE_REQUEST:
            yield from _message(path.name, bytes_.take(MAX_MESSAGE_BYTES + 1), wanted)
        else:
            yield from _of_protobuf(path.name, bytes_, wanted)
    finally:
        source.close()


def _of_json(file: "_Bytes", wanted: NameWanted) -> Iterator[Found]:
    """One request a line, as nearly always; else documents of any size and form."""
    number, line = 1, file.line(MAX_MESSAGE_BYTES)
    first = _request(line, wanted)
    if first is None:
        file.put_back(line)
        yield from _of_documents(JsonStream(file, noun="resource"), wanted)
        return
    while line:
        where = f"{file.name}: line {number:,}"
        found = first if number == 1 else _request_at(where, line, wanted)
        yield from (Found(where, sent) for sent in found)
        number, line = number + 1, file.line(MAX_MESSAGE_BYTES)


def _request(line: bytes, wanted: NameWanted) -> list[Sent] | None:
    try:
        return otlp_json.read(line, wanted)
    except (BadRequest, TooLarge):
        return None


def _request_at(where: str, line: bytes, wanted: NameWanted) -> list[Sent]:
    if len(line) > MAX_MESSAGE_BYTES:
        raise InvalidTrace(f"{where}: is longer than 32 MiB: write shorter requests")
    try:
        return otlp_json.read(line, wanted) if line.strip(_BLANK) else []
    except (BadRequest, TooLarge) as error:
        raise InvalidTrace(f"{where}: {error}") from error


def _of_documents(stream: JsonStream, wanted: NameWanted) -> Iterator[Found]:
    while stream.peek():
        for key in stream.members():
            if key != "resourceSpans" or stream.peek() != b"[":
                stream.skip()
                continue
            for element in stream.elements(_ELEMENTS):
                yield Found(stream.place(), _checked(stream.place(), element, wanted))


def _checked(where: str, element: otlp_json.ResourceSpans, wanted: NameWanted) -> Sent:
    try:
        return otlp_json.sent_of(element, wanted)
    except TooLarge as error:
        raise InvalidTrace(f"{where}: {error}") from error


def _of_protobuf(name: str, file: "_Bytes", wanted: NameWanted) -> Iterator[Found]:
    number = 1
    while length := file.take(_LENGTH_BYTES):
        where, size = f"{name}: message {number:,}", int.from_bytes(length, "big")
        if len(length) < _LENGTH_BYTES or size > MAX_MESSAGE_BYTES:
            raise InvalidTrace(f"{where}: {_WANTED}, each of at most 32 MiB")
        body = file.take(size)
        if len(body) < size:
            raise InvalidTrace(f"{where}: ends after {len(body)} of {size} bytes: copy it again")
        yield from _message(where, body, wanted)
        number += 1


def _message(where: str, body: bytes, wanted: NameWanted) -> Iterator[Found]:
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidTrace(f"{where}: {_WANTED}, each of at most 32 MiB")
    try:
        yield from [Found(where, sent) for sent in otlp_protobuf.read(body, wanted)]
    except (BadRequest, TooLarge) as error:
        raise InvalidTrace(f"{where}: {error}") from error


class _Bytes(Source):
    """A source that can be looked into before it is read."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self._source = source
        self._ahead = b""

    def read(self) -> bytes:
        """The next piece; nothing at the end."""
        if not self._ahead:
            return self._source.read()
        piece, self._ahead = self._ahead, b""
        return piece

    def begins_with(self) -> tuple[bytes, bytes]:
        """The first byte, and the first that is not blank; nothing where there is none."""
        self._ahead = self._source.read()
        first = self._ahead[:1]
        while not (seen := self._ahead.lstrip(_BLANK)):
            self._ahead = self._source.read()
            if not self._ahead:
                return first, b""
        return first, seen[:1]

    def take(self, size: int) -> bytes:
        """So many bytes, or all that are left."""
        pieces, missing = [], size
        while missing and (piece := self.read()):
            pieces.append(piece[:missing])
            self._ahead = piece[missing:]
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def line(self, most: int) -> bytes:
        """All up to the next end of a line; of a longer one `most` bytes and one."""
        pieces, left = [], most + 1
        while left and (piece := self.read()):
            end = piece.find(b"\n", 0, left) + 1
            size = end or min(left, len(piece))
            pieces.append(piece[:size])
            self._ahead = piece[size:]
            left = 0 if end else left - size
        return b"".join(pieces)

    def put_back(self, piece: bytes) -> None:
        """Read this again."""
        self._ahead = piece + self._ahead
