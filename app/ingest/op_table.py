"""The operations of whole steps as the workers recorded them, in one canonical order."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ingest.batch import OpColumns
from app.trace.window import OPTIONAL, Floats, Integers, Ints, Trace

NS = 1e-9
TABLE_DTYPES: dict[str, type[np.generic]] = {
    "step": np.int64,
    "rank": np.int32,
    "dp_rank": np.int32,
    "stage": np.int16,
    "optype": np.int16,
    "seq_id": np.int32,
    "mc": np.int16,
    "mb_id": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    **dict.fromkeys(OPTIONAL, np.int64),
}
_OF_PART = ("optype", "seq_id", "mc", "mb_id", "start_ns", "duration_ns")
_TIES = (*OPTIONAL, "mb_id", "mc", "duration_ns", "start_ns")  # the last one decides first
_SEQ_BITS, _OPTYPE_BITS = 31, 8  # of a sort key; the rest is the worker's number


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """Operations in canonical order: step, dp_rank, stage, optype, seq_id.

    Shapes: all [ops], of `TABLE_DTYPES`. Unlike a Trace it has the workers' own clocks, in
    nanoseconds, and the operations of skipped steps. The `OPTIONAL` ones are None where no worker
    sent them, and -1 where an operation has none.
    """

    step: Ints
    rank: Integers
    dp_rank: Integers
    stage: Integers
    optype: NDArray[np.int16]
    seq_id: Integers
    mc: Integers
    mb_id: Integers
    start_ns: Ints
    duration_ns: Ints
    tokens: Ints | None = None
    seq_len_sq: Ints | None = None
    bytes: Ints | None = None
    sm_clock_mhz: Ints | None = None
    temperature_c: Ints | None = None
    power_w: Ints | None = None
    xid: Ints | None = None
    contains_waits: Ints | None = None

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns that are there, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: values for name, values in named if values is not None}

    def select(self, rows: NDArray[Any] | slice) -> "OpTable":
        """The table with only some of its rows."""
        return OpTable(**{name: values[rows] for name, values in self.columns().items()})

    def of_step(self, step: int) -> "OpTable":
        """The rows of one step, without copying them."""
        first, end = np.searchsorted(self.step, [step, step + 1]).tolist()
        return self.select(slice(first, end))

    def trace(self, steps: Sequence[int]) -> Trace:
        """The operations of these steps (a window's complete ones), as the engine wants them."""
        wanted = np.isin(self.step, np.array(steps, dtype=np.int64))
        table = self if wanted.all() else self.select(wanted)
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
            **{name: getattr(table, name) for name in OPTIONAL},
        )

    def origins_ns(self, steps: Sequence[int]) -> tuple[int, ...]:
        """[steps], the first start of each by the workers' own clocks: what `trace` counts from."""
        firsts = (self.of_step(step).start_ns for step in steps)
        return tuple(int(each.min()) if each.size else 0 for each in firsts)


class Part(NamedTuple):
    """What one batch holds of one step: the rows from `first` to before `end` of its columns."""

    worker: int  # dp_rank * pp_size + stage
    rank: int
    columns: OpColumns
    first: int
    end: int

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return self.end - self.first

    def column(self, name: str) -> NDArray[Any] | None:
        """Its rows of one column, without copying them; None where the batch has none."""
        values: NDArray[Any] | None = getattr(self.columns, name)
        return None if values is None else values[self.first : self.end]


def concatenate(tables: Sequence[OpTable]) -> OpTable:
    """One table out of many, in their order."""
    if len(tables) == 1:
        return tables[0]
    sizes = [table.num_ops for table in tables]
    named = {name: [getattr(table, name) for table in tables] for name in TABLE_DTYPES}
    arrays: dict[str, Any] = {name: _joined(name, each, sizes) for name, each in named.items()}
    return OpTable(**arrays)


def of_parts(step: int, parts: Sequence[Part], pp_size: int) -> OpTable:
    """The operations of one step out of its batches, whatever order they came in."""
    parts = sorted(parts, key=lambda part: part.worker)
    sizes = [part.num_ops for part in parts]
    named = {name: [part.column(name) for part in parts] for name in (*_OF_PART, *OPTIONAL)}
    arrays: dict[str, Any] = {name: _joined(name, each, sizes) for name, each in named.items()}
    worker = np.repeat(np.array([part.worker for part in parts], dtype=np.int64), sizes)
    order = _canonical(worker, arrays)
    arrays = {n: None if values is None else values[order] for n, values in arrays.items()}
    # The workers' rows stay together in the canonical order.
    dp_rank, stage = np.divmod(worker, pp_size)
    rank = np.repeat(np.array([part.rank for part in parts], dtype=np.int32), sizes)
    return OpTable(
        step=np.full(worker.size, step, dtype=np.int64),
        rank=rank,
        dp_rank=dp_rank.astype(np.int32),
        stage=stage.astype(np.int16),
        **arrays,
    )


def _joined(
    name: str, arrays: Sequence[NDArray[Any] | None], sizes: Sequence[int]
) -> NDArray[Any] | None:
    """Columns end to end, -1 where a part has none; None for one that nobody has."""
    dtype = np.dtype(TABLE_DTYPES[name])
    if name in OPTIONAL and all(each is None for each in arrays):
        return None
    there = [
        np.full(size, -1, dtype) if each is None else each
        for each, size in zip(arrays, sizes, strict=True)
    ]
    if not there:
        return np.empty(0, dtype)
    joined: NDArray[Any] = np.concatenate(there, dtype=dtype, casting="same_kind")
    return joined


def _canonical(worker: Ints, arrays: dict[str, NDArray[Any]]) -> Ints:
    """The order by worker, operation type and seq_id; of equal ones by their times."""
    key = worker << (_SEQ_BITS + _OPTYPE_BITS)
    key |= arrays["optype"].astype(np.int64) << _SEQ_BITS
    key |= arrays["seq_id"].astype(np.int64)
    order = np.argsort(key)
    ascending = key[order]
    if (ascending[1:] == ascending[:-1]).any():  # recorded twice: no order may depend on luck
        others = [arrays[name] for name in _TIES if arrays[name] is not None]
        order = np.lexsort((*others, key))
    return order


def _since_step_began(step: Ints, start_ns: Ints) -> Floats:
    """[ops] seconds after the step's first start; subtracted as integers, which lose nothing."""
    if not step.size:
        return np.empty(0)
    firsts = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
    began_ns = np.minimum.reduceat(start_ns, firsts)
    num_rows = np.diff(firsts, append=step.size)
    seconds: Floats = (start_ns - np.repeat(began_ns, num_rows)) * NS
    return seconds
