"""Wire format to columns and back: whatever bytes come, the answer is a batch or a 4xx."""

from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from app.errors import InvalidRequest, TooLarge, UnsupportedMedia
from app.ingest.batch import OpBatch, OpColumns
from app.ingest.columns import from_buffers, from_lists, to_buffers
from app.ingest.rows import RowError, check
from app.ingest.wire import WIRE_VERSION, Header, parse_binary, parse_json
from app.trace.job import Parallelism
from app.trace.ops import OP_NAMES

__all__ = ["Decoded", "OpBatch", "OpColumns", "RowError", "decode", "encode", "read"]

BINARY_TYPE = "application/vnd.paceline.ops+msgpack"
JSON_TYPE = "application/json"
MAX_BODY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch with the rows that are taken, and why the others are not (the first 20)."""

    batch: OpBatch
    rejected: int
    errors: list[RowError]


def decode(body: bytes, content_type: str, parallelism: Parallelism) -> Decoded:
    """The batch in a request's body.

    Raises:
        BadRequest: the bytes are no msgpack or JSON.
        UnsupportedMedia: another content type or wire version.
        InvalidRequest: the batch as a whole, or every row of it, breaks a rule.
        TooLarge: more bytes or rows than are taken at once.
    """
    if len(body) > MAX_BODY_BYTES:
        raise TooLarge(f"a batch has at most {MAX_BODY_BYTES} bytes: split it")
    batch = _parse(body, content_type)
    _check_batch(batch, parallelism)
    checked = check(batch.columns, parallelism)
    rejected = int(checked.taken.size - checked.taken.sum())
    if not rejected:
        return Decoded(batch, 0, [])
    if rejected == checked.taken.size:
        first = checked.errors[0]
        raise InvalidRequest(f"no row can be taken; row {first.index}: {first.message}")
    taken = replace(batch, columns=batch.columns.select(checked.taken), wire=None)
    return Decoded(taken, rejected, checked.errors)


def encode(batch: OpBatch) -> bytes:
    """The batch as the event queue holds it: the body as it came if it was binary and whole."""
    if batch.wire is not None:
        return batch.wire
    message = {
        "version": WIRE_VERSION,
        "epoch": batch.epoch,
        "rank": batch.rank,
        "dp_rank": batch.dp_rank,
        "stage": batch.stage,
        "host": batch.host,
        "batch_seq": batch.batch_seq,
        "steps_done": batch.steps_done,
        "optypes": OP_NAMES,
        "columns": to_buffers(batch.columns),
    }
    return msgspec.msgpack.encode(message)


def read(body: bytes) -> OpBatch:
    """A batch from the event queue, whose rows were checked before they went in."""
    wire = parse_binary(body)
    return _batch(wire, from_buffers(wire.columns, wire.optypes), body)


def _parse(body: bytes, content_type: str) -> OpBatch:
    match content_type.partition(";")[0].strip().lower():
        case media if media == BINARY_TYPE:
            return read(body)
        case media if media == JSON_TYPE:
            wire = parse_json(body)
            return _batch(wire, from_lists(wire.columns), None)
    raise UnsupportedMedia(f"send {BINARY_TYPE} or {JSON_TYPE}, not {content_type[:100]!r}")


def _batch(header: Header, columns: OpColumns, wire: bytes | None) -> OpBatch:
    return OpBatch(
        epoch=header.epoch,
        rank=header.rank,
        dp_rank=header.dp_rank,
        stage=header.stage,
        host=header.host,
        batch_seq=header.batch_seq,
        steps_done=tuple(header.steps_done),
        columns=columns,
        wire=wire,
    )


def _check_batch(batch: OpBatch, parallelism: Parallelism) -> None:
    if batch.dp_rank >= parallelism.dp_size:
        raise InvalidRequest(f"dp_rank {batch.dp_rank} of a job with dp_size {parallelism.dp_size}")
    if batch.stage >= parallelism.pp_size:
        raise InvalidRequest(f"stage {batch.stage} of a job with pp_size {parallelism.pp_size}")
    steps = [step for step, _ in batch.steps_done]
    if any(step >= later for step, later in pairwise(steps)):
        raise InvalidRequest("steps_done must be ascending, each step once")
