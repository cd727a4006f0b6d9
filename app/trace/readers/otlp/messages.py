"""Parses OTLP/HTTP trace requests in JSON and protobuf; unknown fields are skipped.

Protobuf is decoded by hand, with limits against hostile input: there is no recursion, every length
is checked against that of the enclosing message, and the number of fields is limited. For JSON, the
number of objects is limited.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from app.errors import BadRequest, TooLarge
from app.trace.readers.otlp.spans import (
    MAX_RESOURCES,
    MAX_SPANS,
    MAX_TEXT,
    SPAN_KEYS,
    AttributeValue,
    NameWanted,
    SentSpans,
    span_of,
)
from app.work_budget import checkpoint

# Decoded objects are much larger than their JSON: a body of many `{}` would fill the memory.
MAX_OBJECTS = 1_000_000  # some 40 a span
_MAX_DIGITS = 20


class _AnyValue(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None


class _KeyValue(msgspec.Struct):
    key: str = ""
    value: _AnyValue | None = None


class _Resource(msgspec.Struct):
    attributes: list[_KeyValue] | None = None


class _Span(msgspec.Struct, rename="camel"):
    name: str = ""
    span_id: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_KeyValue] | None = None


class _ScopeSpans(msgspec.Struct):
    spans: list[_Span] | None = None


class ResourceSpans(msgspec.Struct, rename="camel"):
    """The spans of one resource (process)."""

    resource: _Resource | None = None
    scope_spans: list[_ScopeSpans] | None = None


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[ResourceSpans] | None = None


_DECODER = msgspec.json.Decoder(_Request)


def read_json(body: bytes | bytearray, wanted: NameWanted) -> list[SentSpans]:
    """The spans of an ExportTraceServiceRequest in JSON, resource by resource.

    Raises:
        BadRequest: it cannot be parsed.
        TooLarge: it has too many spans or objects.
    """
    if body.count(b"{") > MAX_OBJECTS:
        raise TooLarge(f"more than {MAX_OBJECTS:,} JSON objects: send fewer spans")
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no OTLP trace in JSON: {error}") from error
    resources = request.resource_spans or ()
    if len(resources) > MAX_RESOURCES:
        raise TooLarge(f"more than {MAX_RESOURCES:,} resources in one message: split it")
    spans_by_resource: list[SentSpans] = []
    left = MAX_SPANS
    for resource in resources:
        spans_by_resource.append(sent_of(resource, wanted, left))
        left -= spans_by_resource[-1].num_spans
    return spans_by_resource


def sent_of(resource: ResourceSpans, wanted: NameWanted, most: int = MAX_SPANS) -> SentSpans:
    """The spans of one resource; raises TooLarge if it has too many spans."""
    spans = [span for scope in resource.scope_spans or () for span in scope.spans or ()]
    if len(spans) > most:
        raise TooLarge(f"more than {MAX_SPANS:,} spans in one message: split it")
    process = resource.resource.attributes if resource.resource else None
    sent = SentSpans(_json_attributes(process), num_spans=len(spans))
    for span in spans:
        if not wanted(span.name):
            continue
        try:
            start_ns = _json_time_ns(span.start_time_unix_nano)
            end_ns = _json_time_ns(span.end_time_unix_nano)
            attributes = _json_attributes(span.attributes, SPAN_KEYS)
            sent.spans.append(span_of(span.name, span.span_id[:64], start_ns, end_ns, attributes))
        except ValueError as error:
            sent.refuse(f"span {span.name!r}: {error}")
    return sent


def _json_attributes(
    attributes: list[_KeyValue] | None, keys: frozenset[str] | None = None
) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue] = {}
    for item in attributes or ():
        if item.value is None or len(item.key) > MAX_TEXT:
            continue
        if (keys is None or item.key in keys) and (value := _json_value(item.value)) is not None:
            values[item.key] = value
    return values


def _json_value(sent: _AnyValue) -> AttributeValue | None:
    if sent.string_value is not None:
        return sent.string_value if len(sent.string_value) <= MAX_TEXT else None
    for value in (sent.bool_value, sent.int_value, sent.double_value):
        if value is not None:
            return value
    return None


def _json_time_ns(value: int | str) -> int:
    """A time in nanoseconds: OTLP writes 64-bit integers as text; numbers are accepted as well."""
    if isinstance(value, int):
        return value
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
        raise ValueError(f"{value[:40]!r} is no time in nanoseconds")
    return int(value)


def json_answer(rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse; empty on full success."""
    partial = {"rejectedSpans": rejected, "errorMessage": message}
    return msgspec.json.encode({"partialSuccess": partial} if rejected or message else {})


MAX_FIELDS = 1_000_000  # some 40 a span

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class _Field(NamedTuple):
    """A field's number and wire type, and its value or the bounds of its bytes."""

    number: int
    kind: int
    value: int
    first: int
    end: int


class _ProtobufReader:
    """A message's bytes, and the number of fields that may still be read."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._left = MAX_FIELDS

    def fields(self, first: int, end: int) -> Iterator[_Field]:
        """The fields of the message between two positions."""
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

    def text(self, field: _Field) -> str:
        """The field's text; a text that is longer than any that is used is cut."""
        raw = self.body[field.first : min(field.end, field.first + 4 * MAX_TEXT)]
        try:
            return raw.decode(errors="strict" if field.end - field.first == len(raw) else "ignore")
        except UnicodeDecodeError as error:
            raise self._broken(field.first, f"field {field.number} is no UTF-8") from error

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


def read_protobuf(body: bytes | bytearray, wanted: NameWanted) -> list[SentSpans]:
    """The spans of an ExportTraceServiceRequest in protobuf, resource by resource.

    Raises:
        BadRequest: it cannot be parsed.
        TooLarge: it has too many spans or fields.
    """
    reader = _ProtobufReader(bytes(body))
    spans_by_resource: list[SentSpans] = []
    left = MAX_SPANS
    for field in reader.fields(0, len(body)):
        if (field.number, field.kind) == (1, _BYTES):
            if len(spans_by_resource) == MAX_RESOURCES:
                raise TooLarge(f"more than {MAX_RESOURCES:,} resources in one message: split it")
            spans_by_resource.append(_resource_spans(reader, field, wanted, left))
            left -= spans_by_resource[-1].num_spans
    return spans_by_resource


def _resource_spans(
    reader: _ProtobufReader, around: _Field, wanted: NameWanted, left: int
) -> SentSpans:
    sent = SentSpans()
    for field in reader.fields(around.first, around.end):
        if (field.number, field.kind) == (1, _BYTES):
            for item in reader.fields(field.first, field.end):
                if (item.number, item.kind) == (1, _BYTES):
                    _attribute(reader, item, sent.attributes)
        elif (field.number, field.kind) == (2, _BYTES):  # of a scope
            for item in reader.fields(field.first, field.end):
                if (item.number, item.kind) == (2, _BYTES):
                    checkpoint()
                    sent.num_spans += 1
                    if sent.num_spans > left:
                        raise TooLarge(f"more than {MAX_SPANS:,} spans in one message: split it")
                    _span(reader, item, wanted, sent)
    return sent


def _span(reader: _ProtobufReader, around: _Field, wanted: NameWanted, sent: SentSpans) -> None:
    name, span_id, start_ns, end_ns = "", "", 0, 0
    attributes: dict[str, AttributeValue] = {}
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
                _attribute(reader, field, attributes, keys=SPAN_KEYS)
    if not wanted(name):
        return
    try:
        sent.spans.append(span_of(name, span_id, start_ns, end_ns, attributes))
    except ValueError as error:
        sent.refuse(f"span {name!r}: {error}")


def _attribute(
    reader: _ProtobufReader,
    around: _Field,
    values: dict[str, AttributeValue],
    keys: frozenset[str] | None = None,
) -> None:
    key, value = "", None
    for field in reader.fields(around.first, around.end):
        if (field.number, field.kind) == (1, _BYTES):
            key = reader.text(field)
            if keys is not None and key not in keys:
                return
        elif (field.number, field.kind) == (2, _BYTES):
            value = _protobuf_value(reader, field)
    if value is not None and len(key) <= MAX_TEXT and (keys is None or key in keys):
        values[key] = value


def _protobuf_value(reader: _ProtobufReader, around: _Field) -> AttributeValue | None:
    """The scalar of an AnyValue; None for lists, maps and bytes."""
    value: AttributeValue | None = None
    for field in reader.fields(around.first, around.end):
        match field.number, field.kind:
            case 1, 2:
                text = reader.text(field)
                value = text if len(text) <= MAX_TEXT else None
            case 2, 0:
                value = field.value != 0
            case 3, 0:
                value = field.value - 2**64 if field.value >= 2**63 else field.value
            case 4, 1:
                value = float(struct.unpack("<d", field.value.to_bytes(8, "little"))[0])
    return value


def protobuf_answer(rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse; empty on full success."""
    if not rejected and not message:
        return b""
    text = message.encode()
    partial = b"\x08" + as_varint(rejected) if rejected else b""
    if text:
        partial += b"\x12" + as_varint(len(text)) + text
    return b"\x0a" + as_varint(len(partial)) + partial


def as_varint(value: int) -> bytes:
    """A 64-bit integer as a protobuf varint."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
