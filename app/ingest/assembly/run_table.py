"""Tables of whole steps from batches, with what repeats from worker to worker held once.

Batches are put in canonical order as they come, so that a step is closed by joining them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ingest.assembly.op_table import OpTable, seconds_in_step
from app.trace.runs import (
    SHAPE_COLUMNS,
    OpShape,
    RunTrace,
    WorkerRuns,
    expanded_column,
    joined_runs,
)
from app.trace.window import OPTIONAL, S_PER_NS, TABLE_DTYPES, Ints, OpColumns, Trace

_TIE_COLUMNS = (*OPTIONAL, "mb_id", "mc", "duration_ns", "start_ns")  # the last one decides first
_SEQ_BITS = 31  # of a sort key; the rest is the operation type's code


class RunTable(OpTable):
    """A table that holds its runs; each use of an expanded column makes it anew."""

    __slots__ = ("runs",)
    runs: WorkerRuns

    step = expanded_column("step")
    rank = expanded_column("rank")
    dp_rank = expanded_column("dp_rank")
    stage = expanded_column("stage")
    optype = expanded_column("optype")
    seq_id = expanded_column("seq_id")
    mc = expanded_column("mc")
    mb_id = expanded_column("mb_id")

    def __init__(self, runs: WorkerRuns, held: Mapping[str, Ints | None]) -> None:
        """`held` are the columns that are not expanded; optional ones may be left out."""
        for name, value in {"runs": runs, **dict.fromkeys(OPTIONAL), **held}.items():
            object.__setattr__(self, name, value)

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return self.runs.num_rows

    @property
    def held(self) -> dict[str, Ints | None]:
        """The columns that are not expanded."""
        return {name: getattr(self, name) for name in ("start_ns", "duration_ns", *OPTIONAL)}

    def select(self, rows: NDArray[Any] | slice) -> OpTable:  # type: ignore[override]
        """The chosen rows, as columns."""
        held = {name: values for name, values in self.held.items() if values is not None}
        chosen = {name: values[rows] for name, values in held.items()}
        return OpTable(**self.runs.columns_of(rows), **chosen)

    def of_step(self, step: int) -> "RunTable":
        """The rows of one step, without copying them."""
        first, end = np.searchsorted(self.runs.step, [step, step + 1]).tolist()
        rows = slice(int(self.runs.first_row[first]), int(self.runs.first_row[end]))
        held = {n: None if values is None else values[rows] for n, values in self.held.items()}
        return RunTable(self.runs.select(slice(first, end)), held)

    def trace(self, steps: Sequence[int]) -> Trace:
        """The operations of these steps (a window's complete ones), as the engine wants them."""
        wanted = np.isin(self.runs.step, np.array(steps, dtype=np.int64))
        if not wanted.all():
            runs = [self.of_step(step) for step in sorted(steps)]
            return concatenate_tables(runs).trace(steps)
        firsts = self.runs.first_row[:-1][np.diff(self.runs.step, prepend=-1) != 0]
        return RunTrace(
            self.runs,
            seconds_in_step(firsts, self.start_ns),
            self.duration_ns * S_PER_NS,
            {name: values for name in OPTIONAL if (values := getattr(self, name)) is not None},
        )


class BatchSlice(NamedTuple):
    """What one batch holds of one step, in canonical order; `optional` has the columns sent."""

    worker: int  # dp_rank * pp_size + stage
    rank: int
    shape: OpShape
    start_ns: Ints
    duration_ns: Ints
    optional: dict[str, Ints]

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return self.shape.num_ops


# Beyond so many rows of shapes all are forgotten, and known anew when they come again.
MAX_SHAPE_ROWS = 500_000


class KnownShapes:
    """Shapes that have come before, and how their rows are ordered.

    A worker's steps are nearly always alike, and alike those of its peers: then nothing is sorted.
    """

    def __init__(self) -> None:
        self._sorted: dict[bytes, tuple[Ints, OpShape]] = {}  # by the rows as they came
        self._shapes: dict[bytes, OpShape] = {}  # by the rows in order
        self._num_rows = 0

    def slice_of(self, worker: int, rank: int, ops: OpColumns) -> BatchSlice:
        """One worker's operations of one step."""
        columns = [
            np.asarray(getattr(ops, name)).astype(TABLE_DTYPES[name], copy=False)
            for name in SHAPE_COLUMNS
        ]
        key = b"".join([each.tobytes() for each in columns])
        known = self._sorted.get(key)
        if known is None:
            order = _canonical_order(columns[0], columns[1])
            known = order, self._shape([each[order] for each in columns])
            self._sorted[key] = known
            self._count(order.size)
        order, shape = known
        if shape.has_twins:  # no order of equal ones may depend on luck
            order = _order_with_twins(ops)
            shape = self._shape([each[order] for each in columns])
        optional = {name: getattr(ops, name) for name in OPTIONAL}
        return BatchSlice(
            worker,
            rank,
            shape,
            ops.start_ns[order],
            ops.duration_ns[order],
            {name: values[order] for name, values in optional.items() if values is not None},
        )

    def merged(self, parts: Sequence[BatchSlice]) -> BatchSlice:
        """What several batches hold of one worker's step."""
        columns = {
            name: np.concatenate([getattr(part.shape, name) for part in parts])
            for name in SHAPE_COLUMNS
        }
        sizes = [part.num_ops for part in parts]
        optional = {
            name: joined_column(name, [part.optional.get(name) for part in parts], sizes)
            for name in OPTIONAL
        }
        ops = OpColumns(
            step=np.zeros(sum(sizes), np.int64),
            start_ns=np.concatenate([part.start_ns for part in parts]),
            duration_ns=np.concatenate([part.duration_ns for part in parts]),
            **columns,
            **optional,
        )
        return self.slice_of(parts[0].worker, parts[0].rank, ops)

    def _shape(self, columns: Sequence[NDArray[Any]]) -> OpShape:
        key = b"".join([each.tobytes() for each in columns])
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = OpShape(*columns, has_twins=_has_twins(*columns[:2]))
            self._count(shape.num_ops)
        return shape

    def _count(self, num_rows: int) -> None:
        self._num_rows += num_rows
        if self._num_rows > MAX_SHAPE_ROWS:
            self._sorted.clear()
            self._shapes.clear()
            self._num_rows = 0


def concatenate_tables(tables: Sequence[OpTable]) -> OpTable:
    """One table out of many, in their order."""
    if len(tables) == 1:
        return tables[0]
    sizes = [table.num_ops for table in tables]
    with_runs = [table for table in tables if isinstance(table, RunTable)]
    is_of_runs = len(with_runs) == len(tables) > 0
    names = ("start_ns", "duration_ns", *OPTIONAL) if is_of_runs else tuple(TABLE_DTYPES)
    arrays: dict[str, Any] = {
        name: joined_column(name, [getattr(table, name) for table in tables], sizes)
        for name in names
    }
    if is_of_runs:
        return RunTable(joined_runs([table.runs for table in with_runs]), arrays)
    return OpTable(**arrays)


def table_of_slices(
    step: int, parts: Sequence[BatchSlice], pp_size: int, known: KnownShapes
) -> RunTable:
    """The operations of one step from its batches, in any order of arrival."""
    by_worker: dict[int, list[BatchSlice]] = {}
    for part in parts:
        by_worker.setdefault(part.worker, []).append(part)
    whole = [
        of_worker[0] if len(of_worker) == 1 else known.merged(of_worker)
        for _, of_worker in sorted(by_worker.items())
    ]
    worker = np.array([part.worker for part in whole], np.int64)
    dp_rank, stage = np.divmod(worker, pp_size)
    rank = np.array([part.rank for part in whole], np.int32)
    places = {
        "step": np.full(worker.size, step, np.int64),
        "rank": rank,
        "dp_rank": dp_rank,
        "stage": stage,
    }
    sizes = [part.num_ops for part in whole]
    optional = {
        name: joined_column(name, [part.optional.get(name) for part in whole], sizes)
        for name in OPTIONAL
    }
    return RunTable(
        WorkerRuns.of(places, [part.shape for part in whole]),
        {
            "start_ns": joined_column("start_ns", [part.start_ns for part in whole], sizes),
            "duration_ns": joined_column(
                "duration_ns", [part.duration_ns for part in whole], sizes
            ),
            **optional,
        },
    )


def joined_column(
    name: str, arrays: Sequence[NDArray[Any] | None], sizes: Sequence[int]
) -> NDArray[Any] | None:
    """One column of all parts, -1 where a part lacks it; None if all do."""
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


def _canonical_order(optype: NDArray[np.int16], seq_id: NDArray[Any]) -> Ints:
    """The order of one worker's operations, by type and seq_id."""
    return np.argsort(_order_key(optype, seq_id))


def _order_with_twins(ops: OpColumns) -> Ints:
    """The same; operations of one type and number by their times, and then all else."""
    others = [getattr(ops, name) for name in _TIE_COLUMNS if getattr(ops, name) is not None]
    return np.lexsort((*others, _order_key(ops.optype, ops.seq_id)))


def _order_key(optype: NDArray[np.int16], seq_id: NDArray[Any]) -> Ints:
    return (optype.astype(np.int64) << _SEQ_BITS) | seq_id.astype(np.int64)


def _has_twins(optype: NDArray[np.int16], seq_id: NDArray[Any]) -> bool:
    return bool(((optype[1:] == optype[:-1]) & (seq_id[1:] == seq_id[:-1])).any())
