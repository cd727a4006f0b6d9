"""The columns of a published parquet file, checked and as plain arrays."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.ops import OP_CODES, OP_NAMES
from app.trace.window import Trace

_INTEGERS = ("step", "dp_rank", "stage", "rank", "seq_id", "mc", "mb_id")
_SECONDS = ("start_ts", "duration")
_ALL = (*_INTEGERS, *_SECONDS, "optype")
# Where an operation has no chunk or micro-batch, -1 stands; nothing else is below 0.
_LOWEST = {"mc": -1, "mb_id": -1}
_KNOWN = ", ".join(OP_NAMES)


def load(path: Path) -> Trace:
    """Every row of the file, in its order.

    Raises:
        InvalidTrace: the file cannot be read, or the message names a column and its rows.
    """
    table = _table(path)
    if table.num_rows == 0:
        raise InvalidTrace(f"{path.name}: has no rows: record at least one step")
    ints = {name: _integers(path, table, name) for name in _INTEGERS}
    start_s, duration_s = (_seconds(path, table, name) for name in _SECONDS)
    _refuse(path, "duration", duration_s < 0, "are negative: an operation ends after its start")
    return Trace(
        **ints,
        optype=_optypes(path, table),
        start_s=start_s,
        duration_s=duration_s,
    )


def _table(path: Path) -> Any:
    try:
        file = pq.ParquetFile(path, read_dictionary=["optype"])
        if missing := set(_ALL) - set(file.schema_arrow.names):
            names = ", ".join(sorted(missing))
            raise InvalidTrace(f"{path.name}: column {names} is missing: add it")
        return file.read(columns=list(_ALL))
    except pa.ArrowInvalid as error:
        raise InvalidTrace(
            f"{path.name}: is no whole parquet file: copy or record it again"
        ) from error
    except OSError as error:
        damaged = "it is damaged: copy or record it again"
        reason = os.strerror(error.errno) if error.errno else damaged
        raise InvalidTrace(f"{path}: cannot be read: {reason}") from error


def _integers(path: Path, table: Any, name: str) -> NDArray[np.int64]:
    column = _without_nulls(path, table, name)
    if not pa.types.is_integer(column.type):
        raise InvalidTrace(f"{path.name}: column {name} is {column.type}: want whole numbers")
    values: NDArray[np.int64] = column.to_numpy()
    lowest = _LOWEST.get(name, 0)
    if values.min() < lowest:
        _refuse(path, name, values < lowest, f"are below {lowest}: number from {lowest} up")
    if values.max() > np.iinfo(np.int64).max // 2:
        raise InvalidTrace(f"{path.name}: column {name} holds {values.max()}: that is no {name}")
    return values.astype(np.int64)


def _seconds(path: Path, table: Any, name: str) -> NDArray[np.float64]:
    column = _without_nulls(path, table, name)
    if not pa.types.is_floating(column.type):
        raise InvalidTrace(f"{path.name}: column {name} is {column.type}: want seconds as floats")
    values = column.to_numpy().astype(np.float64)
    # A sum is finite only if every term is; the rows are looked for only when it is not.
    if not np.isfinite(values.sum()):
        _refuse(path, name, ~np.isfinite(values), "are not finite: give seconds")
    return np.asarray(values, dtype=np.float64)


def _optypes(path: Path, table: Any) -> NDArray[np.int16]:
    column = _without_nulls(path, table, "optype")
    if not pa.types.is_dictionary(column.type):
        raise InvalidTrace(f"{path.name}: column optype is {column.type}: want names")
    codes = np.concatenate([_codes(chunk) for chunk in column.chunks])
    if codes.min() < 0:
        rows = np.flatnonzero(codes < 0)
        name = column[int(rows[0])].as_py()
        _refuse(
            path, "optype", codes < 0, f"are of an unknown type ({name!r}): use one of {_KNOWN}"
        )
    return codes


def _codes(chunk: Any) -> NDArray[np.int16]:
    names = chunk.dictionary.to_pylist()
    code_of = np.array([OP_CODES.get(name, -1) for name in names], dtype=np.int16)
    codes: NDArray[np.int16] = code_of[chunk.indices.to_numpy()]
    return codes


def _without_nulls(path: Path, table: Any, name: str) -> Any:
    column = table.column(name)
    if column.null_count:
        _refuse(path, name, column.is_null().to_numpy(), "are null: give every row a value")
    return column


def _refuse(path: Path, name: str, bad: NDArray[np.bool_], what: str) -> None:
    rows = np.flatnonzero(bad)
    if rows.size == 0:
        return
    shown = ", ".join(str(row) for row in rows[:3])
    more = f" and {rows.size - 3:,} more" if rows.size > 3 else ""
    raise InvalidTrace(f"{path.name}: column {name}: rows {shown}{more} {what}")
