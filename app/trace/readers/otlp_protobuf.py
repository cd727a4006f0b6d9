"""OTLP/HTTP traces in protobuf, read without a schema compiler: the fields that we need.

Bounded whatever comes: nothing is read by recursion, every length lies within the message around
it, and a message has at most so many fields.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from app.errors import BadRequest, TooLarge
from app.trace.readers.otlp_span import (
    MAX_SENDERS,
    MAX_SPANS,
    MAX_TEXT,
    SPAN_KEYS,
    NameWanted,
    Sent,
    Value,
    span_of,
)

MAX_FIELDS = 1_000_000  # some 40 a span

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class _Field(NamedTuple):
    """A field's number and type; its value, or where its bytes lie."""

    number: int
    kind: int
    value: int
    first: int
    end: int


class _Reader:
    """One message's bytes, and how many more fields may be read of them."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._left = MAX_FIELDS

    def fields(self, first: int, end: int) -> Iterator[_Field]:
        """The fields of the message that lies there."""
        at, body = first, self.body
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise TooLarge(f"more than {MAX_FIELDS:,} protobuf fields: send fewer spans")
            tag, at = self._varint(at, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise self._broken(at, "a field has the number 0")
            if kind == _VARINT:
                value, at = self._varint(at, end)
                yield _Field(number, kind, value, at, at)
                continue
            size, at = self._varint(at, end) if kind == _BYTES else (_FIXED_BYTES.get(kind, -1), at)
            if size < 0:
                raise self._broken(at, f"field {number} is of wire type {kind}")
            if size > end - at:
                raise self._broken(at, f"field {number} is longer than the message around it")
            value = 0 if kind == _BYTES else int.from_bytes(body[at : at + size], "little")
            yield _Field(number, kind, value, at, at + size)
            at += size

    def text(self, found: _Field) -> str:
        """The field's text; one that is too long for a name of ours comes out cut short."""
        raw = self.body[found.first : min(found.end, found.first + 4 * MAX_TEXT)]
        try:
            return raw.decode(errors="strict" if found.end - found.first == len(raw) else "ignore")
        except UnicodeDecodeError as error:
            raise self._broken(found.first, f"field {found.number} is no UTF-8") from error

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        for position in range(at, min(at + 10, end)):
            byte = self.body[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), position + 1
            shift += 7
        raise self._broken(at, "a number does not end")

    def _broken(self, at: int, why: str) -> BadRequest:
        return BadRequest(f"the body is no OTLP trace in protobuf: byte {at}: {why}")


def read(body: bytes | bytearray, wanted: NameWanted) -> list[Sent]:
    """What an ExportTraceServiceRequest says of each of its resources.

    Raises:
        BadRequest: it is none.
        TooLarge: it has more spans or fields than are taken at once.
    """
    reader = _Reader(bytes(body))
    found: list[Sent] = []
    left = MAX_SPANS
    for field in reader.fields(0, len(body)):
        if (field.number, field.kind) == (1, _BYTES):
            if len(found) == MAX_SENDERS:
                raise TooLarge(f"more than {MAX_SENDERS:,} resources in one message: split it")
            sent = _resource_spans(reader, field, wanted, left)
            left -= sent.num_spans
            found.append(sent)
    return found


def _resource_spans(reader: _Reader, around: _Field, wanted: NameWanted, left: int) -> Sent:
    sent = Sent()
    for field in reader.fields(around.first, around.end):
        if (field.number, field.kind) == (1, _BYTES):
            _attributes(reader, field, 1, sent.attributes)
        elif (field.number, field.kind) == (2, _BYTES):
            _scope_spans(reader, field, wanted, sent, left)
    return sent


def _scope_spans(
    reader: _Reader, around: _Field, wanted: NameWanted, sent: Sent, left: int
) -> None:
    for field in reader.fields(around.first, around.end):
        if (field.number, field.kind) == (2, _BYTES):
            sent.num_spans += 1
            if sent.num_spans > left:
                raise TooLarge(f"more than {MAX_SPANS:,} spans in one message: split it")
            _span(reader, field, wanted, sent)


def _span(reader: _Reader, around: _Field, wanted: NameWanted, sent: Sent) -> None:
    name, span_id, start_ns, end_ns = "", "", 0, 0
    told: dict[str, Value] = {}
    for field in reader.fields(around.first, around.end):
        match field.number, field.kind:
            case 2, 2:
                span_id = reader.body[field.first : min(field.end, field.first + 32)].hex()
            case 5, 2:
                name = reader.text(field)
                if not wanted(name):
                    return
            case 7, 1:
                start_ns = field.value
            case 8, 1:
                end_ns = field.value
            case 9, 2:
                _attribute(reader, field, told, keys=SPAN_KEYS)
    if not wanted(name):
        return
    try:
        sent.spans.append(span_of(name, span_id, start_ns, end_ns, told))
    except ValueError as error:
        sent.refuse(f"span {name!r}: {error}")


def _attributes(reader: _Reader, around: _Field, number: int, told: dict[str, Value]) -> None:
    for field in reader.fields(around.first, around.end):
        if (field.number, field.kind) == (number, _BYTES):
            _attribute(reader, field, told)


def _attribute(
    reader: _Reader,
    around: _Field,
    told: dict[str, Value],
    keys: frozenset[str] | None = None,
) -> None:
    key, value = "", None
    for field in reader.fields(around.first, around.end):
        if (field.number, field.kind) == (1, _BYTES):
            key = reader.text(field)
            if keys is not None and key not in keys:
                return
        elif (field.number, field.kind) == (2, _BYTES):
            value = _value(reader, field)
    if value is not None and len(key) <= MAX_TEXT and (keys is None or key in keys):
        told[key] = value


def _value(reader: _Reader, around: _Field) -> Value | None:
    """The scalar of an AnyValue; None of what is none: lists, maps and bytes are nothing to us."""
    found: Value | None = None
    for field in reader.fields(around.first, around.end):
        match field.number, field.kind:
            case 1, 2:
                text = reader.text(field)
                found = text if len(text) <= MAX_TEXT else None
            case 2, 0:
                found = field.value != 0
            case 3, 0:
                found = field.value - 2**64 if field.value >= 2**63 else field.value
            case 4, 1:
                found = float(struct.unpack("<d", field.value.to_bytes(8, "little"))[0])
    return found


def answer(rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse; empty where all is well."""
    if not rejected and not message:
        return b""
    text = message.encode()
    partial = (b"\x08" + as_varint(rejected) if rejected else b"") + (
        b"\x12" + as_varint(len(text)) + text if text else b""
    )
    return b"\x0a" + as_varint(len(partial)) + partial


def as_varint(value: int) -> bytes:
    """A number of 64 bits as protobuf writes it."""
    value &= 2**64 - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
