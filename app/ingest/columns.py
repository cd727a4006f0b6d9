"""Columns of the wire as arrays: lengths and types are checked here, meaning in `rows`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest, TooLarge
from app.ingest.batch import OpColumns
from app.ingest.json_columns import JsonOps
from app.ingest.packed import VALUES, num_rows, unpacked
from app.ingest.rows import UNKNOWN_OPTYPE
from app.ingest.wire import MAX_OPTYPES, MAX_ROWS, BinaryBatch, BinaryColumns, Packed
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

_NO_INDEX = -1  # in place of a packed number that is the position of no name

NameOf = Callable[[int], str]  # of a row's operation type


def from_buffers(wire: BinaryColumns, optypes: list[str], op_types: OpTypes) -> OpColumns:
    """Columns of a binary batch: views of it, but for the operation types and what is packed."""
    arrays: dict[str, Any] = {}
    packed: dict[str, Packed] = {}
    for name in WIRE_DTYPES:
        column = getattr(wire, name)
        if isinstance(column, memoryview):
            arrays[name] = _array(name, column)
        elif column is not None:
            packed[name] = column
    lengths = {name: array.size for name, array in arrays.items()}
    _check_lengths(lengths | {name: num_rows(name, each) for name, each in packed.items()})
    if packed:
        _unpack(packed, arrays)
    # Every index that a byte can hold has a code, with a sign (it counts from the end) or without.
    codes = np.full(2 * MAX_OPTYPES, UNKNOWN_OPTYPE, dtype=np.int16)
    codes[: len(optypes)] = [op_types.codes.get(name, UNKNOWN_OPTYPE) for name in optypes]
    return OpColumns(optype=codes[arrays.pop("optype")], **arrays)


def num_ops_in(wire: BinaryColumns) -> int:
    """Number of rows of a binary batch that nothing else need be known of.

    Raises:
        InvalidRequest: no whole number of them.
    """
    step = wire.step
    return num_rows("step", step) if isinstance(step, Packed) else _array("step", step).size


def name_in(wire: BinaryBatch) -> NameOf:
    """Each row's operation type as it came; a row without one is said to have none."""
    column = wire.columns.optype
    indices = column if isinstance(column, memoryview) else _indices(column)

    def name(row: int) -> str:
        index = indices[row]
        return wire.optypes[index] if 0 <= index < len(wire.optypes) else "none"

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


def _unpack(packed: dict[str, Packed], arrays: dict[str, Any]) -> None:
    """Put the packed columns beside the others; starts last, since they may need durations."""
    for name, each in sorted(packed.items(), key=lambda column: column[0] == "start_ns"):
        if name == "optype":
            arrays[name] = _indices(each)
        else:
            values = unpacked(name, each, arrays.get("duration_ns"))
            arrays[name] = _narrowed(values, _DTYPES[name], each)


def _indices(column: Packed) -> Ints:
    """Positions in `optypes`, negative where a number can be none."""
    indices = unpacked("optype", column)
    if column.width == 1 and column.kind == VALUES:
        return indices
    return np.where((indices < 0) | (indices >= MAX_OPTYPES), _NO_INDEX, indices)


def _narrowed(values: Ints, dtype: np.dtype[Any], column: Packed) -> NDArray[Any]:
    """As wide as a column that is not packed, for memory's sake, unless a value has no room."""
    if dtype.itemsize == values.itemsize or not values.size:
        return values.astype(dtype, copy=False)
    fits = column.kind == VALUES and column.width <= dtype.itemsize
    if not fits:
        limits = np.iinfo(dtype)
        fits = limits.min <= values.min() and values.max() <= limits.max
    return values.astype(dtype) if fits else values  # which the rules then refuse


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
