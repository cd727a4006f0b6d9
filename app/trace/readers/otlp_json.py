"""OTLP/HTTP traces in JSON: the fields that we need, unknown ones left out as OTLP asks."""

from typing import Any

import msgspec

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

# An object in memory is many times as large as its text: `{}` of a body full of them.
MAX_OBJECTS = 1_000_000  # some 40 a span
_MAX_DIGITS = 20


class _Any(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None


class _KeyValue(msgspec.Struct):
    key: str = ""
    value: _Any | None = None


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
    """What one process sent."""

    resource: _Resource | None = None
    scope_spans: list[_ScopeSpans] | None = None


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[ResourceSpans] | None = None


_DECODER = msgspec.json.Decoder(_Request)


def read(body: bytes | bytearray, wanted: NameWanted) -> list[Sent]:
    """What an ExportTraceServiceRequest says of each of its resources.

    Raises:
        BadRequest: it is none.
        TooLarge: it has more spans or objects than are taken at once.
    """
    if body.count(b"{") > MAX_OBJECTS:
        raise TooLarge(f"more than {MAX_OBJECTS:,} JSON objects: send fewer spans")
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no OTLP trace in JSON: {error}") from error
    found, left = [], MAX_SPANS
    senders = request.resource_spans or ()
    if len(senders) > MAX_SENDERS:
        raise TooLarge(f"more than {MAX_SENDERS:,} resources in one message: split it")
    for each in senders:
        found.append(sent_of(each, wanted, left))
        left -= found[-1].num_spans
    return found


def sent_of(found: ResourceSpans, wanted: NameWanted, most: int = MAX_SPANS) -> Sent:
    """What one resource says.

    Raises:
        TooLarge: it has more spans than that.
    """
    spans = [span for scope in found.scope_spans or () for span in scope.spans or ()]
    if len(spans) > most:
        raise TooLarge(f"more than {MAX_SPANS:,} spans in one message: split it")
    attributes = found.resource.attributes if found.resource else None
    sent = Sent(_told(attributes), num_spans=len(spans))
    for span in spans:
        if not wanted(span.name):
            continue
        try:
            start_ns, end_ns = _ns(span.start_time_unix_nano), _ns(span.end_time_unix_nano)
            told = _told(span.attributes, SPAN_KEYS)
            sent.spans.append(span_of(span.name, span.span_id[:64], start_ns, end_ns, told))
        except ValueError as error:
            sent.refuse(f"span {span.name!r}: {error}")
    return sent


def _told(
    attributes: list[_KeyValue] | None, keys: frozenset[str] | None = None
) -> dict[str, Value]:
    told: dict[str, Value] = {}
    for each in attributes or ():
        if each.value is None or len(each.key) > MAX_TEXT:
            continue
        if (keys is None or each.key in keys) and (value := _value(each.value)) is not None:
            told[each.key] = value
    return told


def _value(sent: _Any) -> Value | None:
    if sent.string_value is not None:
        return sent.string_value if len(sent.string_value) <= MAX_TEXT else None
    for value in (sent.bool_value, sent.int_value, sent.double_value):
        if value is not None:
            return value
    return None


def _ns(value: int | str) -> int:
    """A time; OTLP writes 64 bits as text, and takes numbers, too."""
    if isinstance(value, int):
        return value
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
        raise ValueError(f"{value[:40]!r} is no time in nanoseconds")
    return int(value)


def answer(rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse; empty where all is well."""
    partial: dict[str, Any] = {"rejectedSpans": rejected, "errorMessage": message}
    return msgspec.json.encode({"partialSuccess": partial} if rejected or message else {})
