"""A window's operations as they are stored: small, and nothing lost."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.trace.window import Floats, Ints, Trace

# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
FORMAT = 1
FAST = 1  # zlib level: half the gain for a tenth of the time
NS = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """Operations of a window in canonical order: step, dp_rank, stage, optype, seq_id.

    Shapes: all [ops]. Unlike a Trace it has the workers' own clocks, in nanoseconds, and the
    operations of skipped steps.
    """

    step: Ints
    rank: Ints
    dp_rank: Ints
    stage: Ints
    optype: NDArray[np.int16]
    seq_id: Ints
    mc: Ints
    mb_id: Ints
    start_ns: Ints
    duration_ns: Ints

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def select(self, rows: NDArray[np.bool_] | Ints) -> "OpTable":
        """The table with only some of its rows."""
        return OpTable(*(getattr(self, field.name)[rows] for field in fields(self)))

    def trace(self, steps: Sequence[int]) -> Trace:
        """The operations of these steps (a window's complete ones), as the engine wants them."""
        table = self.select(np.isin(self.step, np.array(steps, dtype=np.int64)))
        return Trace(
            step=table.step,
            dp_rank=table.dp_rank,
            stage=table.stage,
            rank=table.rank,
            optype=table.optype,
            seq_id=table.seq_id,
            mc=table.mc,
            mb_id=table.mb_id,
            start_s=_since_step_began(table.step, table.start_ns),
            duration_s=table.duration_ns.astype(np.float64) * NS,
        )


_NONE: dict[str, Any] = {
    field.name: np.empty(0, dtype=np.int16 if field.name == "optype" else np.int64)
    for field in fields(OpTable)
}
EMPTY = OpTable(**_NONE)


def concatenate(tables: Sequence[OpTable]) -> OpTable:
    """One table out of many, in their order."""
    parts = [EMPTY, *tables]
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(OpTable)
    }
    return OpTable(**columns)


def pack(table: OpTable) -> bytes:
    """The table as compressed bytes."""
    columns = {field.name: _pack_column(getattr(table, field.name)) for field in fields(table)}
    return zlib.compress(msgspec.msgpack.encode({"format": FORMAT, "columns": columns}), FAST)


def unpack(blob: bytes) -> OpTable:
    """The table in bytes that `pack` made."""
    message = msgspec.msgpack.decode(zlib.decompress(blob))
    if message["format"] != FORMAT:
        raise ValueError(f"stored operations of format {message['format']} are not known here")
    columns = {name: _unpack_column(column) for name, column in message["columns"].items()}
    optype = columns.pop("optype").astype(np.int16)
    return OpTable(optype=optype, **columns)


def _since_step_began(step: Ints, start_ns: Ints) -> Floats:
    """[ops] seconds after the step's first start; subtracted as integers, which lose nothing."""
    if not step.size:
        return np.empty(0)
    firsts = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
    began_ns = np.minimum.reduceat(start_ns, firsts)
    num_rows = np.diff(firsts, append=step.size)
    seconds: Floats = (start_ns - np.repeat(began_ns, num_rows)) * NS
    return seconds


def _pack_column(values: NDArray[Any]) -> dict[str, Any]:
    """Differences to the least value, in the narrowest integers that hold them."""
    least = int(values.min()) if values.size else 0
    offsets = values.astype(np.int64) - least
    dtype = np.min_scalar_type(int(offsets.max()) if values.size else 0).newbyteorder("<")
    return {"least": least, "dtype": dtype.str, "bytes": offsets.astype(dtype).tobytes()}


def _unpack_column(column: dict[str, Any]) -> Ints:
    offsets = np.frombuffer(column["bytes"], dtype=column["dtype"])
    return offsets.astype(np.int64) + np.int64(column["least"])
