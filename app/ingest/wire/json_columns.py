"""Operations in JSON, by columns or by rows, as arrays.

Numbers in JSON grow tenfold in memory, so each column is read by itself, and only after its
commas were counted.
"""

import re
from typing import TypeVar

import msgspec
import numpy as np

from app.errors import BadRequest, InvalidRequest, PacelineError, TooLarge
from app.ingest.wire.body import (
    MAX_ROWS,
    UNDECODABLE,
    Int64,
    JsonBatch,
    JsonColumns,
    Name,
    StepsDone,
    count_byte,
    format_error,
)
from app.trace.window import OPTIONAL, Ints

MAX_JSON_ROWS = 50_000  # each value of them is an object while it is read


class _Row(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    step: Int64
    optype: Name
    start_ns: Int64
    duration_ns: Int64
    seq_id: Int64 | None = None
    mc: Int64 | None = None
    mb_id: Int64 | None = None
    tokens: Int64 | None = None
    seq_len_sq: Int64 | None = None
    bytes: Int64 | None = None
    sm_clock_mhz: Int64 | None = None
    temperature_c: Int64 | None = None
    power_w: Int64 | None = None
    xid: Int64 | None = None
    contains_waits: Int64 | None = None


class JsonOps(msgspec.Struct, kw_only=True):
    """The operations of a JSON batch; a column is None where no operation has it."""

    optype: list[str]
    integers: dict[str, Ints | None]


_LEFT_OUT = ("seq_id", "mc", "mb_id", *OPTIONAL)
_INTEGERS = [name for name in JsonColumns.__struct_fields__ if name != "optype"]
_INTEGERS_OF = msgspec.json.Decoder(list[Int64])
_NAMES_OF = msgspec.json.Decoder(list[Name])
_ROWS_OF = msgspec.json.Decoder(list[_Row])
_STEPS_OF = msgspec.json.Decoder(StepsDone)
_ROOT = re.compile(r"(?<=`)\$")

ValueT = TypeVar("ValueT")


def steps_done_of(batch: JsonBatch) -> StepsDone:
    """The steps that the worker has finished."""
    return _read(_STEPS_OF, batch.steps_done, "$.steps_done", b"[", MAX_ROWS + 1)


def json_ops_of(batch: JsonBatch) -> JsonOps:
    """The batch's operations, from its columns or its rows."""
    if (batch.columns is not None) == _is_present(batch.rows):
        raise format_error("it has to have either `columns` or `rows` - at `$`")
    return _from_rows(batch.rows) if batch.columns is None else _from_columns(batch.columns)


def _from_columns(columns: JsonColumns) -> JsonOps:
    integers = {name: _column(getattr(columns, name), name) for name in _INTEGERS}
    # Two quotation marks a name.
    names = _read(_NAMES_OF, columns.optype, "$.columns.optype", b'"', 2 * MAX_JSON_ROWS)
    return JsonOps(optype=names, integers=integers)


def _column(raw: msgspec.Raw, name: str) -> Ints | None:
    if name in _LEFT_OUT and not _is_present(raw):
        return None
    values = _read(_INTEGERS_OF, raw, f"$.columns.{name}", b",", MAX_JSON_ROWS - 1)
    return np.array(values, dtype=np.int64)


def _from_rows(raw: msgspec.Raw) -> JsonOps:
    rows = _read(_ROWS_OF, raw, "$.rows", b"{", MAX_JSON_ROWS)
    return JsonOps(
        optype=[row.optype for row in rows],
        integers={name: _from_row_values(rows, name) for name in _INTEGERS},
    )


def _from_row_values(rows: list[_Row], name: str) -> Ints | None:
    values = [getattr(row, name) for row in rows]
    num_absent = values.count(None)
    if num_absent and num_absent == len(values):
        return None
    if not num_absent:
        return np.array(values, dtype=np.int64)
    if name == "seq_id":
        row = values.index(None)
        raise InvalidRequest(f"seq_id is in some rows and not in row {row}: give it to all or none")
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)


def _is_present(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:5]).strip() != b"null"


def _read(
    decoder: msgspec.json.Decoder[ValueT],
    raw: msgspec.Raw,
    where: str,
    mark: bytes,
    most: int,
) -> ValueT:
    """The value in a part of the batch, of which each element has the mark once."""
    if count_byte(raw, mark) > most:
        raise TooLarge(f"{where.removeprefix('$.')} has more than a batch may have: split it")
    try:
        return decoder.decode(raw)
    except UNDECODABLE as error:
        raise _decode_error(error, where) from error


def _decode_error(error: Exception, where: str) -> PacelineError:
    if not isinstance(error, msgspec.ValidationError):
        return BadRequest(f"the batch cannot be decoded: {error} in {where}")
    reason = str(error) if "`$" in str(error) else f"{error} - at `$`"
    return format_error(_ROOT.sub(lambda _: where, reason))
