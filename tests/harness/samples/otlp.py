"""Small OTLP traces as Megatron-LM's ranks would send them, for tests, fuzzing and the docs."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.trace.readers.otlp.messages import as_varint

Attributes = Mapping[str, str | int]

BEGAN_NS = 1_790_000_000 * 10**9
_MS = 10**6


@dataclass(frozen=True, slots=True)
class MadeSpan:
    """One span, times in nanoseconds."""

    name: str
    number: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, int]


def resource(rank: int, *, dp: int = 2, pp: int = 1, **more: str | int) -> dict[str, str | int]:
    """The resource attributes of a rank's process."""
    return {
        "service.name": "megatron-lm",
        "service.instance.id": f"run-7-rank{rank}",
        "nemo.run.id": "run-7",
        "host.name": f"node-{rank // 8}",
        "dl.data_parallel.size": dp,
        "dl.pipeline_parallel.size": pp,
        "dl.tensor_parallel.size": 1,
        **more,
    }


def spans(
    rank: int, steps: range, *, microbatches: int = 2, chunks: int = 1, apart_ms: int = 200
) -> list[MadeSpan]:
    """A rank's spans in order of export, which is by end.

    Steps begin so far apart; one takes 8 ms and more for each micro-batch.
    """
    found = [
        _of_chunks(span, microbatches) if chunks > 1 else span
        for step in steps
        for span in _of_step(rank, step, microbatches * chunks, step * apart_ms * _MS)
    ]
    return sorted(found, key=lambda span: span.end_ns)


def _of_chunks(span: MadeSpan, microbatches: int) -> MadeSpan:
    """Interleaved passes: more passes than micro-batches, without ids."""
    counted = {"megatron.num_microbatches": microbatches}
    attributes = {
        key: counted.get(key, value)
        for key, value in span.attributes.items()
        if key != "megatron.microbatch_id"
    }
    return MadeSpan(span.name, span.number, span.start_ns, span.end_ns, attributes)


def _of_step(rank: int, step: int, passes: int, later_ns: int) -> Iterator[MadeSpan]:
    number = step * 1000 + 1 + rank * 1_000_000
    began_ns = BEGAN_NS + later_ns
    at_ns = began_ns + _MS
    for name, length in (("forward", 3), ("backward", 5)):
        for order in range(passes):
            # As in Megatron: only forward passes have a micro-batch id.
            told = {"megatron.microbatch_id": order} if name == "forward" else {}
            end_ns = at_ns + (length + rank) * _MS
            number += 1
            yield MadeSpan(f"megatron.microbatch.{name}", number, at_ns, end_ns, told)
            at_ns = end_ns
    counted = {"megatron.num_microbatches": passes}
    yield MadeSpan("megatron.forward_backward", number + 1, began_ns + _MS, at_ns, counted)
    for after, name in enumerate(("megatron.grad_sync.finish", "megatron.optimizer_step")):
        yield MadeSpan(name, number + 2 + after, at_ns, at_ns + 2 * _MS, {})
        at_ns += 2 * _MS
    yield MadeSpan("megatron.train_step", number + 4, began_ns, at_ns, {"megatron.iteration": step})


def as_json(sent: Attributes, made: list[MadeSpan]) -> bytes:
    """A request in JSON."""
    shown = [
        {
            "traceId": f"{1:032x}",
            "spanId": f"{span.number:016x}",
            "name": span.name,
            "kind": 1,
            "startTimeUnixNano": str(span.start_ns),
            "endTimeUnixNano": str(span.end_ns),
            "attributes": _json_attributes(span.attributes),
        }
        for span in made
    ]
    of_resource = {"resource": {"attributes": _json_attributes(sent)}}
    request = {"resourceSpans": [of_resource | {"scopeSpans": [{"spans": shown}]}]}
    return json.dumps(request).encode()


def _json_attributes(attributes: Attributes) -> list[dict[str, str | dict[str, str]]]:
    return [
        {
            "key": key,
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for key, value in attributes.items()
    ]


def as_protobuf(sent: Attributes, made: list[MadeSpan]) -> bytes:
    """The same request in protobuf."""
    scope_spans = b"".join(_field(2, _span(span)) for span in made)
    of_resource = _field(1, _attributes(1, sent)) + _field(2, scope_spans)
    return _field(1, of_resource)


def _span(span: MadeSpan) -> bytes:
    return (
        _field(1, (1).to_bytes(16, "big"))
        + _field(2, span.number.to_bytes(8, "big"))
        + _field(5, span.name.encode())
        + b"\x30\x01"  # kind: internal
        + b"\x39"
        + struct.pack("<Q", span.start_ns)
        + b"\x41"
        + struct.pack("<Q", span.end_ns)
        + _attributes(9, span.attributes)
    )


def _attributes(number: int, attributes: Attributes) -> bytes:
    found = b""
    for key, value in attributes.items():
        if isinstance(value, str):
            any_value = _field(1, value.encode())
        else:
            any_value = b"\x18" + as_varint(value)
        found += _field(number, _field(1, key.encode()) + _field(2, any_value))
    return found


def _field(number: int, content: bytes) -> bytes:
    return as_varint(number << 3 | 2) + as_varint(len(content)) + content


def sample() -> Mapping[str, bytes]:
    """Two data-parallel ranks, two steps: one in JSON lines, one in protobuf messages."""
    lines = [as_json(resource(0), spans(0, range(step, step + 1))) for step in (5, 6)]
    messages = [as_protobuf(resource(1), spans(1, range(step, step + 1))) for step in (5, 6)]
    framed = [len(body).to_bytes(4, "big") + body for body in messages]
    return {"rank0.json": b"\n".join(lines) + b"\n", "rank1.pb": b"".join(framed)}
