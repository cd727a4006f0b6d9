"""Columns of the wire as arrays: lengths and types are checked here, meaning in `rows`."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, TooLarge
from app.ingest.batch import OpColumns
from app.ingest.rows import UNKNOWN_OPTYPE
from app.ingest.wire import MAX_ROWS, BinaryBatch, BinaryColumns, JsonColumns
from app.trace.ops import OpTypes
from app.trace.window import Ints

WIRE_DTYPES = {
    "step": "<i8",
    "optype": "u1",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "seq_id": "<i4",
    "mc": "<i2",
    "mb_id": "<i4",
}

NameOf = Callable[[int], str]  # of a row's operation type


def from_buffers(wire: BinaryColumns, optypes: list[str], op_types: OpTypes) -> OpColumns:
    """Columns of a binary batch, copied out of it."""
    arrays = {name: _array(name, getattr(wire, name)) for name in WIRE_DTYPES}
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


def from_lists(wire: JsonColumns, op_types: OpTypes) -> OpColumns:
    """Columns of a JSON batch; what is left out is -1, and seq_id counted by start."""
    lists = {name: getattr(wire, name) for name in WIRE_DTYPES}
    _check_lengths({name: len(values) for name, values in lists.items() if values is not None})
    num_rows = len(wire.step)
    codes = [op_types.codes.get(name, UNKNOWN_OPTYPE) for name in lists.pop("optype")]
    optype = np.array(codes, dtype=np.int16)
    arrays = {
        name: np.full(num_rows, -1) if values is None else np.array(values, dtype=np.int64)
        for name, values in lists.items()
    }
    if wire.seq_id is None:
        arrays["seq_id"] = _count_by_start(arrays["step"], optype, arrays["start_ns"])
    return OpColumns(**arrays, optype=optype)


def to_buffers(columns: OpColumns, op_types: OpTypes) -> tuple[list[str], dict[str, bytes]]:
    """Names of operation types, and the columns as the binary format has them.

    `optype` is written as the position of its name: codes are another version's business.
    """
    codes, positions = np.unique(columns.optype, return_inverse=True)
    numbered = replace(columns, optype=positions.astype(np.int16))
    buffers = {
        field.name: getattr(numbered, field.name).astype(WIRE_DTYPES[field.name]).tobytes()
        for field in fields(columns)
    }
    return [op_types.name(code) for code in codes], buffers


def _array(name: str, buffer: memoryview) -> NDArray[np.int64]:
    dtype = np.dtype(WIRE_DTYPES[name])
    if buffer.nbytes % dtype.itemsize:
        raise InvalidRequest(
            f"column {name} has {buffer.nbytes} bytes: not a multiple of {dtype.itemsize}"
        )
    return np.frombuffer(buffer, dtype=dtype).astype(np.int64)


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
