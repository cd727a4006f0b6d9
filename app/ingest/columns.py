"""Columns of the wire as arrays: lengths and types are checked here, meaning in `rows`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, TooLarge
from app.ingest.batch import OpColumns
from app.ingest.json_columns import JsonOps
from app.ingest.rows import UNKNOWN_OPTYPE
from app.ingest.wire import MAX_ROWS, BinaryBatch, BinaryColumns
from app.trace.ops import OpTypes
from app.trace.window import OPTIONAL, Ints

WIRE_DTYPES = {
    "step": "<i8",
    "optype": "u1",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "seq_id": "<i4",
    "mc": "<i2",
    "mb_id": "<i4",
    **dict.fromkeys(OPTIONAL, "<i8"),
}
NEEDED = ("step", "optype", "start_ns", "duration_ns", "seq_id", "mc", "mb_id")
_DTYPES = {name: np.dtype(code) for name, code in WIRE_DTYPES.items()}

NameOf = Callable[[int], str]  # of a row's operation type


def from_buffers(wire: BinaryColumns, optypes: list[str], op_types: OpTypes) -> OpColumns:
    """Columns of a binary batch: views of it, but for the operation types."""
    buffers = ((name, getattr(wire, name)) for name in WIRE_DTYPES)
    arrays: dict[str, Any] = {
        name: _array(name, buffer) for name, buffer in buffers if buffer is not None
    }
    _check_lengths({name: array.size for name, array in arrays.items()})
    # Every index that a byte can hold has a code, so none is out of bounds.
    codes = np.full(256, UNKNOWN_OPTYPE, dtype=np.int16)
    codes[: len(optypes)] = [op_types.codes.get(name, UNKNOWN_OPTYPE) for name in optypes]
    return OpColumns(optype=codes[arrays.pop("optype")], **arrays)


def name_in(wire: BinaryBatch) -> NameOf:
    """Each row's operation type as it came; a row without one is said to have none."""

    def name(row: int) -> str:
        index = wire.columns.optype[row]
        return wire.optypes[index] if index < len(wire.optypes) else "none"

    return name


def from_json(ops: JsonOps, op_types: OpTypes) -> OpColumns:
    """Columns of a JSON batch; what is left out is -1, and seq_id counted by start."""
    lengths = {name: values.size for name, values in ops.integers.items() if values is not None}
    _check_lengths({**lengths, "optype": len(ops.optype)})
    integers = ops.integers
    codes = [op_types.codes.get(name, UNKNOWN_OPTYPE) for name in ops.optype]
    optype = np.array(codes, dtype=np.int16)
    arrays: dict[str, Any] = {
        name: np.full(optype.size, -1) if values is None and name in NEEDED else values
        for name, values in integers.items()
    }
    if integers["seq_id"] is None:
        arrays["seq_id"] = _count_by_start(arrays["step"], optype, arrays["start_ns"])
    return OpColumns(**arrays, optype=optype)


def to_buffers(columns: OpColumns, op_types: OpTypes) -> tuple[list[str], dict[str, bytes]]:
    """Names of operation types, and the columns as the binary format has them.

    `optype` is written as the position of its name: codes are another version's business.
    """
    codes, positions = np.unique(columns.optype, return_inverse=True)
    numbered = replace(columns, optype=positions.astype(np.int16))
    buffers = {
        name: column.astype(dtype).tobytes()
        for name, dtype in WIRE_DTYPES.items()
        if (column := getattr(numbered, name)) is not None
    }
    return [op_types.name(code) for code in codes], buffers


def _array(name: str, buffer: memoryview) -> NDArray[Any]:
    dtype = _DTYPES[name]
    if buffer.nbytes % dtype.itemsize:
        raise InvalidRequest(
            f"column {name} has {buffer.nbytes} bytes: not a multiple of {dtype.itemsize}"
        )
    return np.frombuffer(buffer, dtype=dtype)


def _check_lengths(lengths: dict[str, int]) -> None:
    if max(lengths.values()) > MAX_ROWS:
        raise TooLarge(f"a batch has at most {MAX_ROWS} rows: split it")
    if len(set(lengths.values())) > 1:
        raise InvalidRequest(f"columns must be of equal length, got {lengths}")


def _count_by_start(step: Ints, optype: NDArray[np.int16], start_ns: Ints) -> Ints:
    order = np.lexsort((start_ns, optype, step))
    is_first = np.ones(order.size, dtype=np.bool_)
    is_first[1:] = (np.diff(step[order]) != 0) | (np.diff(optype[order]) != 0)
    position = np.arange(order.size)
    first = np.maximum.accumulate(np.where(is_first, position, 0))
    seq_id = np.empty(order.size, dtype=np.int64)
    seq_id[order] = position - first
    return seq_id
