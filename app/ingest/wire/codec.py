"""Wire format to columns and back: any bytes give a batch or a 4xx error.

Operation types are names on the wire and in the queue, and codes of the job's `OpTypes` inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from app.errors import InvalidRequest, TooLarge
from app.ingest.batch import (
    MAX_ERRORS,
    UNKNOWN_OPTYPE,
    GroupRows,
    OpBatch,
    OptypeNameOf,
    RowError,
    RowRules,
    are_all_valid,
    check_rows,
    column_length,
    columns_from_buffers,
    columns_to_buffers,
    jump_message,
    optype_names_in,
)
from app.ingest.wire import collectives as wire_collectives
from app.ingest.wire.body import (
    MAX_BODY_BYTES,
    WIRE_VERSION,
    BinaryBatch,
    Body,
    Header,
    PlacementIn,
    StepsDone,
    UnknownFormat,
    decompress,
    detect_encoding,
    parse_binary,
    parse_content_encoding,
    parse_json,
)
from app.ingest.wire.json_columns import columns_from_json, steps_done_of
from app.trace.job import Parallelism, Placement
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.window import OpColumns

BINARY_TYPE = "application/vnd.paceline.ops+msgpack"
JSON_TYPE = "application/json"
CONTENT_TYPES = (BINARY_TYPE, JSON_TYPE)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch with the rows that are taken, and why the others are not (the first 20)."""

    batch: OpBatch
    rejected: int
    errors: list[RowError]


class AllRowsRejected(InvalidRequest):
    """Every row of a batch breaks a rule; the message says which, for the first."""

    def __init__(self, message: str, *, num_rows: int) -> None:
        super().__init__(message)
        self.num_rows = num_rows


def decode(
    body: bytes,
    content_type: str,
    parallelism: Parallelism,
    op_types: OpTypes = BUILT_IN,
    *,
    content_encoding: str = "",
    last_step: int | None = None,
) -> Decoded:
    """The batch in a request's body, of a job with these sizes and operation types.

    `last_step` is the newest step known of the job's run.

    Raises:
        BadRequest: the bytes are no msgpack or JSON, or not compressed as is said.
        UnknownFormat: another content type, encoding or wire version.
        InvalidRequest: the batch as a whole, or every row of it, breaks a rule.
        TooLarge: more bytes or rows than are taken at once.
    """
    parse = _PARSERS.get(content_type.partition(";")[0].strip().lower())
    if parse is None:
        raise UnknownFormat(
            f"send {BINARY_TYPE} or {JSON_TYPE}, not {content_type[:100]!r}",
            known_content_types=CONTENT_TYPES,
        )
    if len(body) > MAX_BODY_BYTES:
        raise TooLarge(f"a batch has at most {MAX_BODY_BYTES} bytes: split it")
    plain = decompress(body, parse_content_encoding(content_encoding))
    batch, name_of = parse(plain, body, op_types)
    rules = RowRules(parallelism, op_types, last_step)
    _check_batch(batch, rules)
    return _valid_rows(batch, rules, name_of)


def _valid_rows(batch: OpBatch, rules: RowRules, name_of: OptypeNameOf) -> Decoded:
    errors: list[RowError] = []
    if batch.collectives is not None:
        rows, errors = wire_collectives.check_group_rows(
            batch.collectives, batch.rank, rules.last_step_taken
        )
        if errors:
            batch = replace(batch, collectives=rows, wire=None)
    if are_all_valid(batch.columns, rules):
        return Decoded(batch, len(errors), errors[:MAX_ERRORS])
    taken, op_errors = check_rows(batch.columns, rules, name_of)
    rejected = int(taken.size - taken.sum())
    if rejected == taken.size:
        first = op_errors[0]
        raise AllRowsRejected(
            f"no row can be taken; row {first.index}: {first.message}", num_rows=rejected
        )
    valid = replace(batch, columns=batch.columns.select(taken), wire=None)
    return Decoded(valid, rejected + len(errors), [*op_errors, *errors][:MAX_ERRORS])


_SAME_FIELDS = ("epoch", "rank", "dp_rank", "stage", "host", "batch_seq")


def encode(batch: OpBatch, op_types: OpTypes = BUILT_IN) -> bytes:
    """The queue entry of the batch: the original body if it was binary and all rows were taken."""
    if batch.wire is not None:
        return batch.wire
    names, columns = columns_to_buffers(batch.columns, op_types)
    placement, groups = batch.placement, batch.collectives
    extensions = {
        "dropped": batch.dropped,
        "step_kinds": batch.step_kinds or None,
        "placement": placement and PlacementIn(placement.rack, placement.switch),
        "at_step": batch.at_step,
        "collectives": None if groups is None else wire_collectives.groups_to_wire(groups),
    }
    entry = {
        "version": WIRE_VERSION,
        **{name: getattr(batch, name) for name in _SAME_FIELDS},
        "steps_done": batch.steps_done,
        "optypes": names,
        "columns": columns,
        # Without extensions that are not in use: an older consumer cannot read them.
        **{name: value for name, value in extensions.items() if value is not None},
    }
    return msgspec.msgpack.encode(entry)


def open_entry(body: bytes) -> bytes | bytearray:
    """A batch from the event queue without the compression it came with; `read_entry` takes both.

    Raises:
        BadRequest: the compression is broken.
        TooLarge: more comes out than was ever taken in.
    """
    return decompress(body, detect_encoding(body))


def parse_entry(plain: Body) -> BinaryBatch:
    """A batch from the event queue, opened, as far as it can be read without knowing its job."""
    return parse_binary(plain)


def num_ops_of_entry(wire: BinaryBatch) -> int:
    """Number of operations of a batch that cannot be decoded; raises InvalidRequest if unknown."""
    return column_length("step", wire.columns.step)


def entry_batch(wire: BinaryBatch, op_types: OpTypes = BUILT_IN) -> OpBatch:
    """The same with its columns; its rows were checked before they went in.

    Raises:
        InvalidRequest: a row is of a type that the job has not; a newer version took it.
    """
    columns = columns_from_buffers(wire.columns, wire.optypes, op_types)
    if (unknown := columns.optype == UNKNOWN_OPTYPE).any():
        name = optype_names_in(wire)(int(unknown.argmax()))
        raise InvalidRequest(f"the operation type {name!r} is not known to this version")
    return _batch(
        wire, wire.steps_done, columns, wire_collectives.groups_from_binary(wire.collectives), None
    )


def read_entry(body: bytes, op_types: OpTypes = BUILT_IN) -> OpBatch:
    """A batch from the event queue; raises as `open_entry`, `parse_entry` and `entry_batch` do."""
    return entry_batch(parse_entry(open_entry(body)), op_types)


def _from_binary(plain: Body, body: bytes, op_types: OpTypes) -> tuple[OpBatch, OptypeNameOf]:
    """The batch, and the type's name of each row as it came."""
    wire = parse_binary(plain)
    columns = columns_from_buffers(wire.columns, wire.optypes, op_types)
    groups = wire_collectives.groups_from_binary(wire.collectives)
    return _batch(wire, wire.steps_done, columns, groups, body), optype_names_in(wire)


def _from_json(plain: Body, _body: bytes, op_types: OpTypes) -> tuple[OpBatch, OptypeNameOf]:
    wire = parse_json(plain)
    columns, names = columns_from_json(wire, op_types)
    groups = wire_collectives.groups_from_json(wire.collectives)
    return _batch(wire, steps_done_of(wire), columns, groups, None), names.__getitem__


_PARSERS = {BINARY_TYPE: _from_binary, JSON_TYPE: _from_json}


def _batch(
    header: Header,
    steps_done: StepsDone,
    columns: OpColumns,
    collectives: GroupRows | None,
    wire: bytes | None,
) -> OpBatch:
    placement = header.placement
    return OpBatch(
        **{name: getattr(header, name) for name in _SAME_FIELDS},
        steps_done=tuple(steps_done),
        columns=columns,
        dropped=header.dropped,
        step_kinds=tuple(header.step_kinds),
        placement=None if placement is None else Placement(placement.rack, placement.switch),
        at_step=header.at_step,
        collectives=collectives,
        wire=wire,
    )


def _check_batch(batch: OpBatch, rules: RowRules) -> None:
    sizes = rules.parallelism
    if batch.dp_rank >= sizes.dp_size:
        raise InvalidRequest(f"dp_rank {batch.dp_rank} of a job with dp_size {sizes.dp_size}")
    if batch.stage >= sizes.pp_size:
        raise InvalidRequest(f"stage {batch.stage} of a job with pp_size {sizes.pp_size}")
    steps = _ascending_steps("steps_done", batch.steps_done)
    if steps and steps[-1] > rules.last_step_taken:
        raise InvalidRequest(f"steps_done has {steps[-1]}: a {jump_message(rules)}")
    if batch.at_step is not None and batch.at_step > rules.last_step_taken:
        raise InvalidRequest(f"at_step is {batch.at_step}: a {jump_message(rules)}")
    if batch.is_alone and (batch.steps_done or batch.columns.num_ops):
        raise InvalidRequest(
            "collectives has alone: true, which a rank says that records no operations and "
            "declares no steps: leave it out, or leave these out"
        )
    done = set(steps)
    for step in _ascending_steps("step_kinds", batch.step_kinds):
        if step not in done:
            raise InvalidRequest(f"step_kinds has step {step}, which steps_done has not")


def _ascending_steps(name: str, pairs: Sequence[tuple[int, object]]) -> list[int]:
    """The steps of pairs that begin with a step."""
    steps = [step for step, _ in pairs]
    if any(step >= later for step, later in pairwise(steps)):
        raise InvalidRequest(f"{name} must be ascending, each step once")
    return steps
