"""Compressed columns of the operations of many workers and steps.

A run is the adjacent rows of one worker in one step. The workers of a stage have the same
operations in every step, at other times. So the columns of types and numbers are held once per
`OpShape`, those of worker and step once per run, and both are expanded to whole columns on demand.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.trace.window import OPTIONAL, TABLE_DTYPES, Floats, Integers, Ints, Trace

SHAPE_COLUMNS = ("optype", "seq_id", "mc", "mb_id")
RUN_COLUMNS = ("step", "rank", "dp_rank", "stage")


@dataclass(frozen=True, slots=True, eq=False)
class OpShape:
    """The operations of one worker in a step, sorted by type, then by seq_id.

    Shapes: all [ops], as `TABLE_DTYPES`. With `has_twins`, two have the same type and seq_id.
    """

    optype: NDArray[np.int16]
    seq_id: Integers
    mc: Integers
    mb_id: Integers
    has_twins: bool

    @property
    def num_ops(self) -> int:
        """Number of operations."""
        return int(self.optype.size)


@dataclass(frozen=True, eq=False)
class WorkerRuns:
    """Successive runs.

    Shapes: `step`, `rank`, `dp_rank`, `stage` [runs], as `TABLE_DTYPES`; `shape_at` [runs] indexes
    `shapes`, which are different objects.
    """

    step: Ints
    rank: Integers
    dp_rank: Integers
    stage: Integers
    shape_at: Ints
    shapes: tuple[OpShape, ...]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], shapes: Sequence[OpShape]) -> Self:
        """Runs from `columns` [runs] and the shape of every run."""
        distinct = {id(shape): shape for shape in shapes}
        position = {key: at for at, key in enumerate(distinct)}
        return cls(
            **{name: np.asarray(columns[name], TABLE_DTYPES[name]) for name in RUN_COLUMNS},
            shape_at=np.array([position[id(shape)] for shape in shapes], np.int64),
            shapes=tuple(distinct.values()),
        )

    @cached_property
    def first_row(self) -> Ints:
        """[runs + 1], the first row of each run, then the number of rows."""
        return np.concatenate(([0], np.cumsum(self._shape_sizes[self.shape_at])))

    @property
    def _shape_sizes(self) -> Ints:
        """[shapes], number of operations."""
        return np.array([shape.num_ops for shape in self.shapes], np.int64)

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return int(self.shape_at.size)

    @property
    def num_rows(self) -> int:
        """Number of rows of all runs."""
        return int(self.first_row[-1])

    def column(self, name: str) -> NDArray[Any]:
        """[rows], one of `RUN_COLUMNS` or `SHAPE_COLUMNS`."""
        if name in RUN_COLUMNS:
            values: NDArray[Any] = np.repeat(getattr(self, name), np.diff(self.first_row))
            return values
        by_shape = [getattr(shape, name) for shape in self.shapes]
        parts = [by_shape[at] for at in self.shape_at.tolist()]
        return np.concatenate(parts) if parts else np.empty(0, TABLE_DTYPES[name])

    def at(self, name: str, rows: Ints) -> NDArray[Any]:
        """One column of only some rows."""
        run = np.searchsorted(self.first_row, rows, side="right") - 1
        if name in RUN_COLUMNS:
            values: NDArray[Any] = getattr(self, name)[run]
        else:
            sizes = self._shape_sizes
            by_shape = [np.empty(0, TABLE_DTYPES[name]), *(getattr(s, name) for s in self.shapes)]
            offset = (np.cumsum(sizes) - sizes)[self.shape_at[run]] - self.first_row[run]
            values = np.concatenate(by_shape)[offset + rows]
        return values

    def columns_of(self, rows: NDArray[Any] | slice) -> dict[str, NDArray[Any]]:
        """All columns of the chosen rows."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.num_rows))
        elif rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return {name: self.at(name, rows) for name in (*RUN_COLUMNS, *SHAPE_COLUMNS)}

    def select(self, runs: slice | NDArray[np.bool_]) -> "WorkerRuns":
        """Only the chosen runs."""
        columns = {name: getattr(self, name)[runs] for name in (*RUN_COLUMNS, "shape_at")}
        return WorkerRuns(**columns, shapes=self.shapes)

    def rows_of_type(self, code: int) -> Ints:
        """Numbers of the rows of one operation type, ascending."""
        by_shape = [np.flatnonzero(shape.optype == code) for shape in self.shapes]
        if not any(positions.size for positions in by_shape):
            return np.empty(0, np.int64)
        runs = zip(self.first_row[:-1].tolist(), self.shape_at.tolist(), strict=True)
        return np.concatenate([first + by_shape[at] for first, at in runs])

    def rows_of_runs(self, runs: Ints) -> Ints:
        """Numbers of the rows of the chosen runs, run by run."""
        first = self.first_row
        rows = [np.arange(first[run], first[run + 1]) for run in runs.tolist()]
        return np.concatenate([np.empty(0, np.int64), *rows])


def joined_runs(parts: Sequence[WorkerRuns]) -> WorkerRuns:
    """The runs of all parts, part by part; shapes that are the same object are held once."""
    shapes = [part.shapes[at] for part in parts for at in part.shape_at.tolist()]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in RUN_COLUMNS
    }
    return WorkerRuns.of(columns, shapes)


def _expanded(name: str) -> Any:
    return property(lambda self: self.runs.column(name), doc=f"[ops], `{name}` of each row.")


class ExpandedColumns:
    """The columns of a table that holds its runs; each use of one expands it anew."""

    __slots__ = ()
    runs: WorkerRuns

    step = _expanded("step")
    rank = _expanded("rank")
    dp_rank = _expanded("dp_rank")
    stage = _expanded("stage")
    optype = _expanded("optype")
    seq_id = _expanded("seq_id")
    mc = _expanded("mc")
    mb_id = _expanded("mb_id")

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return self.runs.num_rows


class RunTrace(ExpandedColumns, Trace):
    """A trace of compressed columns; every use of an expanded column computes it again."""

    __slots__ = ("runs",)

    def __init__(
        self, runs: WorkerRuns, start_s: Floats, duration_s: Floats, optional: dict[str, Ints]
    ) -> None:
        held = {"runs": runs, "start_s": start_s, "duration_s": duration_s}
        for name, value in {**dict.fromkeys(OPTIONAL), **optional, **held}.items():
            object.__setattr__(self, name, value)

    def of_steps(self, steps: Collection[int]) -> Trace:
        """The rows of these steps."""
        chosen = np.isin(self.runs.step, list(steps))
        rows = np.repeat(chosen, np.diff(self.runs.first_row))
        optional = self._optional(rows)
        return RunTrace(self.runs.select(chosen), optional=optional, **self._times(rows))

    def select(self, rows: NDArray[Any] | slice) -> Trace:  # type: ignore[override]
        """The chosen rows, as columns."""
        return Trace(**self.runs.columns_of(rows), **self._times(rows), **self._optional(rows))

    def at(self, name: str, rows: Ints) -> NDArray[Any]:
        """One column of only some rows."""
        if name in RUN_COLUMNS or name in SHAPE_COLUMNS:
            return self.runs.at(name, rows)
        return super().at(name, rows)

    def rows_of_type(self, code: int) -> Ints:
        """Numbers of the rows of one operation type, ascending."""
        return self.runs.rows_of_type(code)

    def _times(self, rows: NDArray[Any] | slice) -> dict[str, Any]:
        return {"start_s": self.start_s[rows], "duration_s": self.duration_s[rows]}

    def _optional(self, rows: NDArray[Any] | slice) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in OPTIONAL}
        return {name: values[rows] for name, values in columns.items() if values is not None}
