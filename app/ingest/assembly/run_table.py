"""Tables of whole steps from batches, with what repeats from worker to worker held once.

Batches are put in canonical order as they come, so that a step is closed by joining them.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.kernels import all_of
from app.engine.step_rows import canonical_order
from app.ingest.assembly.op_table import OpTable, seconds_in_step
from app.ingest.assembly.row_encoding import whole_segments
from app.trace.runs import (
    SHAPE_COLUMNS,
    ExpandedColumns,
    OpShape,
    RunTrace,
    WorkerRuns,
    joined_runs,
)
from app.trace.window import OPTIONAL, S_PER_NS, TABLE_DTYPES, Ints, OpColumns, Trace

_TIE_COLUMNS = (*OPTIONAL, "mb_id", "mc", "duration_ns", "start_ns")  # the last one decides first


HELD = ("start_ns", "duration_ns", *OPTIONAL)  # columns that repeat from no worker to another


class RunTable(ExpandedColumns, OpTable):
    """A table of operations that holds its runs."""

    __slots__ = ("runs",)

    def __init__(self, runs: WorkerRuns, held: Mapping[str, Ints | None]) -> None:
        """`held` are the `HELD` columns; optional ones may be left out."""
        for name, value in {"runs": runs, **dict.fromkeys(OPTIONAL), **held}.items():
            object.__setattr__(self, name, value)

    @property
    def held(self) -> dict[str, Ints | None]:
        """The `HELD` columns."""
        return {name: getattr(self, name) for name in HELD}

    def select(self, rows: NDArray[Any] | slice) -> OpTable:  # type: ignore[override]
        """The chosen rows, as columns."""
        chosen: dict[str, NDArray[Any]] = {
            name: values[rows] for name, values in self.held.items() if values is not None
        }
        return OpTable(**self.runs.columns_of(rows), **chosen)

    @property
    def run_firsts(self) -> Ints:
        """[runs], the first row of each worker's step."""
        return self.runs.first_row[:-1]

    def of_step(self, step: int) -> "RunTable":
        """The rows of one step, without copying them."""
        first, end = np.searchsorted(self.runs.step, [step, step + 1]).tolist()
        return self._of_runs(first, end)

    def pieces(self, max_rows: int) -> Iterator[OpTable]:
        """All rows, in tables of whole runs and at most so many rows, but for a longer run."""
        for first, end in whole_segments(self.runs.first_row, max_rows):
            yield self._of_runs(first, end)

    def _of_runs(self, first: int, end: int) -> "RunTable":
        rows = slice(int(self.runs.first_row[first]), int(self.runs.first_row[end]))
        held = {n: None if values is None else values[rows] for n, values in self.held.items()}
        return RunTable(self.runs.select(slice(first, end)), held)

    def trace(self, steps: Sequence[int]) -> Trace:
        """The operations of these steps (a window's complete ones), as the engine wants them."""
        is_wanted = np.isin(self.runs.step, np.array(steps, dtype=np.int64))
        if not is_wanted.all():
            runs = [self.of_step(step) for step in sorted(steps)]
            return concatenate_tables(runs).trace(steps)
        firsts = self.runs.first_row[:-1][np.diff(self.runs.step, prepend=-1) != 0]
        start_s, duration_s = all_of(
            self.num_ops,
            [
                lambda: seconds_in_step(firsts, self.start_ns),
                lambda: np.asarray(self.duration_ns * S_PER_NS, np.float64),
            ],
        )
        return RunTrace(
            self.runs,
            start_s,
            duration_s,
            {name: values for name in OPTIONAL if (values := getattr(self, name)) is not None},
        )


class BatchSlice(NamedTuple):
    """The operations of one step in one batch, in canonical order, with their `HELD` columns."""

    worker: int  # dp_rank * pp_size + stage
    rank: int
    shape: OpShape
    held: dict[str, Ints]

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return self.shape.num_ops


# Beyond so many rows of shapes all are forgotten, and known anew when they come again.
MAX_SHAPE_ROWS = 500_000


class KnownShapes:
    """Shapes that have come before: most of a worker's steps are alike, and alike its peers'."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, OpShape] = {}
        self._num_rows = 0

    def slices_of(self, worker: int, rank: int, ops: OpColumns) -> dict[int, BatchSlice]:
        """One worker's operations by step, ascending."""
        if not ops.num_ops:
            return {}
        ops, bounds = _by_step(ops)
        shapes = np.empty((len(SHAPE_COLUMNS), ops.num_ops), np.int32)
        for at, name in enumerate(SHAPE_COLUMNS):
            shapes[at] = getattr(ops, name)
        order = canonical_order(np.array(bounds), shapes[0], shapes[1])
        shapes = shapes.take(order, axis=1)
        times = {
            name: values.take(order) for name in HELD if (values := getattr(ops, name)) is not None
        }
        steps = ops.step[bounds[:-1]].tolist()
        return {
            step: self._slice(
                worker,
                rank,
                shapes[:, first:end],
                {name: values[first:end] for name, values in times.items()},
            )
            for step, (first, end) in zip(steps, pairwise(bounds), strict=True)
        }

    def _slice(
        self, worker: int, rank: int, columns: NDArray[np.int32], times: dict[str, Ints]
    ) -> BatchSlice:
        """Operations of one step, in order but for those of the same type and number."""
        shape = self._shape(columns)
        if shape.has_twins:  # no order of equal ones may depend on luck
            by_name = {**{name: getattr(shape, name) for name in SHAPE_COLUMNS}, **times}
            tie_columns = [by_name[name] for name in _TIE_COLUMNS if name in by_name]
            order = np.lexsort((*tie_columns, shape.seq_id, shape.optype))
            times = {name: values[order] for name, values in times.items()}
            shape = self._shape(columns[:, order])
        # Copies, as a view would hold the whole batch until its last step is settled.
        held = {name: values.copy() for name, values in times.items()}
        return BatchSlice(worker, rank, shape, held)

    def _shape(self, columns: NDArray[np.int32]) -> OpShape:
        """The shape with these `SHAPE_COLUMNS` [4, ops]."""
        key = columns.tobytes()
        shape = self._shapes.get(key)
        if shape is None:
            num_rows = columns.shape[1]
            if self._num_rows + num_rows > MAX_SHAPE_ROWS:
                self._shapes, self._num_rows = {}, 0
            optype, seq_id = columns[0], columns[1]
            are_alike = (optype[1:] == optype[:-1]) & (seq_id[1:] == seq_id[:-1])
            held = {
                name: values.astype(TABLE_DTYPES[name])
                for name, values in zip(SHAPE_COLUMNS, columns, strict=True)
            }
            shape = OpShape(**held, has_twins=bool(are_alike.any()))
            self._shapes[key] = shape
            self._num_rows += num_rows
        return shape

    def merged(self, parts: Sequence[BatchSlice]) -> BatchSlice:
        """One slice out of those of several batches, all of one worker's step."""
        columns = {
            name: np.concatenate([getattr(part.shape, name) for part in parts])
            for name in SHAPE_COLUMNS
        }
        sizes = [part.num_ops for part in parts]
        held = {name: values for name, values in _joined_held(parts).items() if values is not None}
        ops = OpColumns(step=np.zeros(sum(sizes), np.int64), **columns, **held)
        [merged] = self.slices_of(parts[0].worker, parts[0].rank, ops).values()
        return merged


def concatenate_tables(tables: Sequence[OpTable]) -> OpTable:
    """One table out of many, in their order."""
    if len(tables) == 1:
        return tables[0]
    sizes = [table.num_ops for table in tables]
    with_runs = [table for table in tables if isinstance(table, RunTable)]
    is_of_runs = len(with_runs) == len(tables) > 0
    names = HELD if is_of_runs else tuple(TABLE_DTYPES)
    joined = all_of(sum(sizes), [partial(_joined_tables, name, tables, sizes) for name in names])
    named = zip(names, joined, strict=True)
    arrays = {name: values for name, values in named if values is not None}
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
    merged = [
        of_worker[0] if len(of_worker) == 1 else known.merged(of_worker)
        for _, of_worker in sorted(by_worker.items())
    ]
    worker = np.array([part.worker for part in merged], np.int64)
    dp_rank, stage = np.divmod(worker, pp_size)
    places: dict[str, NDArray[Any]] = {
        "step": np.full(worker.size, step, np.int64),
        "rank": np.array([part.rank for part in merged], np.int32),
        "dp_rank": dp_rank,
        "stage": stage,
    }
    return RunTable(WorkerRuns.of(places, [part.shape for part in merged]), _joined_held(merged))


def _joined_held(parts: Sequence[BatchSlice]) -> dict[str, NDArray[Any] | None]:
    sizes = [part.num_ops for part in parts]
    return {
        name: joined_column(name, [part.held.get(name) for part in parts], sizes) for name in HELD
    }


def _joined_tables(
    name: str, tables: Sequence[OpTable], sizes: Sequence[int]
) -> NDArray[Any] | None:
    return joined_column(name, [getattr(table, name) for table in tables], sizes)


def joined_column(
    name: str, arrays: Sequence[NDArray[Any] | None], sizes: Sequence[int]
) -> NDArray[Any] | None:
    """One column of all parts, -1 where a part lacks it; None if all do."""
    dtype = np.dtype(TABLE_DTYPES[name])
    if name in OPTIONAL and all(values is None for values in arrays):
        return None
    columns = [
        np.full(size, -1, dtype) if values is None else values
        for values, size in zip(arrays, sizes, strict=True)
    ]
    if not columns:
        return np.empty(0, dtype)
    joined: NDArray[Any] = np.concatenate(columns, dtype=dtype, casting="same_kind")
    return joined


def _by_step(ops: OpColumns) -> tuple[OpColumns, list[int]]:
    """The rows ordered by step, as they nearly always come; the bounds of the steps."""
    step = ops.step
    changes = np.flatnonzero(step[1:] != step[:-1])
    if changes.size and (step[1:] < step[:-1]).any():
        ops = ops.select(np.argsort(step, kind="stable"))
        changes = np.flatnonzero(ops.step[1:] != ops.step[:-1])
    return ops, [0, *(changes + 1).tolist(), step.size]
