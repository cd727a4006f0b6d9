"""Operations in JSON, by columns or by rows, as arrays.

Numbers in JSON grow tenfold in memory, so each column is read by itself, and only after its
commas were counted.
"""

from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.errors import BadRequest, InvalidRequest, TooLarge
from app.ingest.batch import UNKNOWN_OPTYPE, check_lengths
from app.ingest.wire.body import (
    LEFT_OUT_OF_JSON,
    MAX_ROWS,
    UNDECODABLE,
    Int64,
    JsonBatch,
    Name,
    StepsDone,
    columns_struct,
    count_byte,
    format_error,
    format_error_at,
)
from app.trace.ops import OpTypes
from app.trace.window import WIRE_DTYPES, Ints, OpColumns

MAX_JSON_ROWS = 50_000  # each value of them is an object while it is read


class _Row(
    columns_struct(WIRE_DTYPES, Int64, LEFT_OUT_OF_JSON, None, optype=Name)  # type: ignore[misc]
):
    """One operation."""


_INTEGERS = [name for name in WIRE_DTYPES if name != "optype"]
_INTEGERS_OF = msgspec.json.Decoder(list[Int64])
_NAMES_OF = msgspec.json.Decoder(list[Name])
_ROWS_OF = msgspec.json.Decoder(list[_Row])
_STEPS_OF = msgspec.json.Decoder(StepsDone)

ValueT = TypeVar("ValueT")


def steps_done_of(batch: JsonBatch) -> StepsDone:
    """The steps that the worker has finished."""
    return _read(_STEPS_OF, batch.steps_done, "$.steps_done", b"[", MAX_ROWS + 1)


def columns_from_json(batch: JsonBatch, op_types: OpTypes) -> tuple[OpColumns, list[str]]:
    """The batch's operations, from its columns or its rows, and the names of their types.

    A column that is left out is -1 in every row; `seq_id` counts the operations of a type and step
    by their start.
    """
    if (batch.columns is not None) == _is_present(batch.rows):
        raise format_error("it has to have either `columns` or `rows` - at `$`")
    if batch.columns is None:
        rows = _read(_ROWS_OF, batch.rows, "$.rows", b"{", MAX_JSON_ROWS)
        names = [row.optype for row in rows]
        integers = {name: _column_of_rows(rows, name) for name in _INTEGERS}
    else:
        integers = {name: _column(getattr(batch.columns, name), name) for name in _INTEGERS}
        # Two quotation marks a name.
        names = _read(_NAMES_OF, batch.columns.optype, "$.columns.optype", b'"', 2 * MAX_JSON_ROWS)
    arrays = {name: values for name, values in integers.items() if values is not None}
    check_lengths({**{name: values.size for name, values in arrays.items()}, "optype": len(names)})
    optype = np.array([op_types.codes.get(name, UNKNOWN_OPTYPE) for name in names], dtype=np.int16)
    if "seq_id" not in arrays:
        arrays["seq_id"] = _count_by_start(arrays["step"], optype, arrays["start_ns"])
    for name in ("mc", "mb_id"):
        arrays.setdefault(name, np.full(optype.size, -1))
    return OpColumns(**arrays, optype=optype), names


def _count_by_start(step: Ints, optype: NDArray[np.int16], start_ns: Ints) -> Ints:
    order = np.lexsort((start_ns, optype, step))
    is_first = np.ones(order.size, dtype=np.bool_)
    is_first[1:] = (np.diff(step[order]) != 0) | (np.diff(optype[order]) != 0)
    position = np.arange(order.size)
    first = np.maximum.accumulate(np.where(is_first, position, 0))
    seq_id = np.empty(order.size, dtype=np.int64)
    seq_id[order] = position - first
    return seq_id


def _column(raw: msgspec.Raw, name: str) -> Ints | None:
    if name in LEFT_OUT_OF_JSON and not _is_present(raw):
        return None
    values = _read(_INTEGERS_OF, raw, f"$.columns.{name}", b",", MAX_JSON_ROWS - 1)
    return np.array(values, dtype=np.int64)


def _column_of_rows(rows: list[_Row], name: str) -> Ints | None:
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
        if not isinstance(error, msgspec.ValidationError):
            raise BadRequest(f"the batch cannot be decoded: {error} in {where}") from error
        raise format_error_at(where, error) from error
