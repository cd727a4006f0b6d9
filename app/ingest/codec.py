"""Wire format to columns and back: whatever bytes come, the answer is a batch or a 4xx.

Operation types are names on the wire and in the queue, and codes of the job's `OpTypes` inside.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from app.errors import InvalidRequest, TooLarge, UnsupportedMedia
from app.ingest.batch import OpBatch, OpColumns
from app.ingest.columns import NameOf, from_buffers, from_lists, name_in, to_buffers
from app.ingest.rows import UNKNOWN_OPTYPE, RowError, check
from app.ingest.wire import WIRE_VERSION, Header, parse_binary, parse_epoch, parse_json
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, OpTypes

__all__ = ["Decoded", "OpBatch", "OpColumns", "RowError", "decode", "encode", "epoch_of", "read"]

BINARY_TYPE = "application/vnd.paceline.ops+msgpack"
JSON_TYPE = "application/json"
MAX_BODY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch with the rows that are taken, and why the others are not (the first 20)."""

    batch: OpBatch
    rejected: int
    errors: list[RowError]


def decode(
    body: bytes, content_type: str, parallelism: Parallelism, op_types: OpTypes = BUILT_IN
) -> Decoded:
    """The batch in a request's body, of a job with these sizes and operation types.

    Raises:
        BadRequest: the bytes are no msgpack or JSON.
        UnsupportedMedia: another content type or wire version.
        InvalidRequest: the batch as a whole, or every row of it, breaks a rule.
        TooLarge: more bytes or rows than are taken at once.
    """
    if len(body) > MAX_BODY_BYTES:
        raise TooLarge(f"a batch has at most {MAX_BODY_BYTES} bytes: split it")
    batch, name_of = _parse(body, content_type, op_types)
    _check_batch(batch, parallelism)
    checked = check(batch.columns, parallelism, op_types, name_of)
    rejected = int(checked.taken.size - checked.taken.sum())
    if not rejected:
        return Decoded(batch, 0, [])
    if rejected == checked.taken.size:
        first = checked.errors[0]
        raise InvalidRequest(f"no row can be taken; row {first.index}: {first.message}")
    taken = replace(batch, columns=batch.columns.select(checked.taken), wire=None)
    return Decoded(taken, rejected, checked.errors)


def encode(batch: OpBatch, op_types: OpTypes = BUILT_IN) -> bytes:
    """The batch as the event queue holds it: the body as it came if it was binary and whole."""
    if batch.wire is not None:
        return batch.wire
    names, columns = to_buffers(batch.columns, op_types)
    message = {
        "version": WIRE_VERSION,
        "epoch": batch.epoch,
        "rank": batch.rank,
        "dp_rank": batch.dp_rank,
        "stage": batch.stage,
        "host": batch.host,
        "batch_seq": batch.batch_seq,
        "steps_done": batch.steps_done,
        "optypes": names,
        "columns": columns,
    }
    return msgspec.msgpack.encode(message)


def epoch_of(body: bytes) -> int:
    """The run that a batch from the event queue is of: its operation types are needed to `read`."""
    return parse_epoch(body)


def read(body: bytes, op_types: OpTypes = BUILT_IN) -> OpBatch:
    """A batch from the event queue, whose rows were checked before they went in.

    Raises:
        InvalidRequest: a row is of a type that the job has not; a newer version took it.
    """
    wire = parse_binary(body)
    columns = from_buffers(wire.columns, wire.optypes, op_types)
    if (unknown := columns.optype == UNKNOWN_OPTYPE).any():
        name = name_in(wire)(int(unknown.argmax()))
        raise InvalidRequest(f"the operation type {name!r} is not known to this version")
    return _batch(wire, columns, body)


def _parse(body: bytes, content_type: str, op_types: OpTypes) -> tuple[OpBatch, NameOf]:
    """The batch, and the type's name of each row as it came."""
    match content_type.partition(";")[0].strip().lower():
        case media if media == BINARY_TYPE:
            binary = parse_binary(body)
            columns = from_buffers(binary.columns, binary.optypes, op_types)
            return _batch(binary, columns, body), name_in(binary)
        case media if media == JSON_TYPE:
            wire = parse_json(body)
            columns = from_lists(wire.columns, op_types)
            return _batch(wire, columns, None), wire.columns.optype.__getitem__
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
