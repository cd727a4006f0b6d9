"""Columns of many workers' steps, with what repeats held once.

A run is the rows of one worker in one step, which follow on each other. Workers of one stage do the
same in every step; only the times differ. So types and numbers of operations are held once for each
shape, place and step once for each run, and both are expanded to columns where they are asked for.
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
    """What one worker does in a step, in canonical order: by type, then by seq_id.

    Shapes: all [ops], as `TABLE_DTYPES`. It `has_twins` if two are of the same type and number.
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
    """Runs one after the other.

    Shapes: `step`, `rank`, `dp_rank`, `stage` [runs], as `TABLE_DTYPES`; `shape_at` [runs] indexes
    `shapes`, of which no two are the same object.
    """

    step: Ints
    rank: Integers
    dp_rank: Integers
    stage: Integers
    shape_at: Ints
    shapes: tuple[OpShape, ...]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], shapes: Sequence[OpShape]) -> Self:
        """Runs of these places, each with its shape; `columns` has a value for each run."""
        numbers: dict[int, int] = {}  # by identity
        shape_at = [numbers.setdefault(id(each), len(numbers)) for each in shapes]
        by_number = {numbers[id(each)]: each for each in shapes}
        return cls(
            **{name: np.asarray(columns[name], TABLE_DTYPES[name]) for name in RUN_COLUMNS},
            shape_at=np.array(shape_at, np.int64),
            shapes=tuple(by_number[number] for number in range(len(by_number))),
        )

    @cached_property
    def first_row(self) -> Ints:
        """[runs + 1], the first row of each run, then the number of rows."""
        sizes = np.array([each.num_ops for each in self.shapes], np.int64)
        of_runs = sizes[self.shape_at] if sizes.size else np.empty(0, np.int64)
        return np.concatenate(([0], np.cumsum(of_runs)))

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
            repeated: NDArray[Any] = np.repeat(getattr(self, name), np.diff(self.first_row))
            return repeated
        of_shapes = [getattr(each, name) for each in self.shapes]
        parts = [of_shapes[at] for at in self.shape_at.tolist()]
        return np.concatenate(parts) if parts else np.empty(0, TABLE_DTYPES[name])

    def at(self, name: str, rows: Ints) -> NDArray[Any]:
        """The same of only some rows."""
        run = np.searchsorted(self.first_row, rows, side="right") - 1
        if name in RUN_COLUMNS:
            found: NDArray[Any] = getattr(self, name)[run]
            return found
        sizes = np.array([each.num_ops for each in self.shapes], np.int64)
        joined = [np.empty(0, TABLE_DTYPES[name]), *(getattr(each, name) for each in self.shapes)]
        since = (np.cumsum(sizes) - sizes)[self.shape_at[run]] - self.first_row[run]
        of_rows: NDArray[Any] = np.concatenate(joined)[since + rows]
        return of_rows

    def columns_of(self, rows: NDArray[Any] | slice) -> dict[str, NDArray[Any]]:
        """All columns of the chosen rows."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.num_rows))
        elif rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return {name: self.at(name, rows) for name in (*RUN_COLUMNS, *SHAPE_COLUMNS)}

    def select(self, runs: slice | NDArray[np.bool_]) -> "WorkerRuns":
        """Only these runs."""
        of_runs = {name: getattr(self, name)[runs] for name in (*RUN_COLUMNS, "shape_at")}
        return WorkerRuns(**of_runs, shapes=self.shapes)

    def rows_of_type(self, code: int) -> Ints:
        """Numbers of the rows of one operation type, ascending."""
        places = [np.flatnonzero(each.optype == code) for each in self.shapes]
        if not any(each.size for each in places):
            return np.empty(0, np.int64)
        firsts, shapes = self.first_row.tolist(), self.shape_at.tolist()
        return np.concatenate(
            [first + places[at] for first, at in zip(firsts[:-1], shapes, strict=True)]
        )

    def rows_of_runs(self, runs: Ints) -> Ints:
        """Numbers of the rows of these runs, in their order."""
        first = self.first_row
        stretches = [np.arange(first[run], first[run + 1]) for run in runs.tolist()]
        return np.concatenate([np.empty(0, np.int64), *stretches])


def joined_runs(parts: Sequence[WorkerRuns]) -> WorkerRuns:
    """The runs of all, in their order; what has the same shape object shares it."""
    shapes = [part.shapes[at] for part in parts for at in part.shape_at.tolist()]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in RUN_COLUMNS
    }
    return WorkerRuns.of(columns, shapes)


def expanded_column(name: str) -> Any:
    """A property of what holds `runs`: one of their columns, made anew at each use."""
    return property(lambda self: self.runs.column(name), doc=f"[ops], `{name}` of each row.")


class RunTrace(Trace):
    """A trace that holds its runs; each use of an expanded column makes it anew."""

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

    def __init__(
        self, runs: WorkerRuns, start_s: Floats, duration_s: Floats, optional: dict[str, Ints]
    ) -> None:
        held = {"runs": runs, "start_s": start_s, "duration_s": duration_s}
        for name, value in {**dict.fromkeys(OPTIONAL), **optional, **held}.items():
            object.__setattr__(self, name, value)

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return self.runs.num_rows

    def of_steps(self, steps: Collection[int]) -> Trace:
        """The rows of these steps."""
        chosen = np.isin(self.runs.step, list(steps))
        rows = np.repeat(chosen, np.diff(self.runs.first_row))
        optional = {name: values[rows] for name, values in self._optional().items()}
        return RunTrace(
            self.runs.select(chosen), self.start_s[rows], self.duration_s[rows], optional
        )

    def select(self, rows: NDArray[Any] | slice) -> Trace:  # type: ignore[override]
        """The chosen rows, as columns."""
        optional: dict[str, NDArray[Any]] = {
            name: values[rows] for name, values in self._optional().items()
        }
        return Trace(
            **self.runs.columns_of(rows),
            start_s=self.start_s[rows],
            duration_s=self.duration_s[rows],
            **optional,
        )

    def at(self, name: str, rows: Ints) -> NDArray[Any]:
        """One column of only some rows."""
        if name in RUN_COLUMNS or name in SHAPE_COLUMNS:
            return self.runs.at(name, rows)
        return super().at(name, rows)

    def rows_of_type(self, code: int) -> Ints:
        """Numbers of the rows of one operation type, ascending."""
        return self.runs.rows_of_type(code)

    def _optional(self) -> dict[str, Ints]:
        named = {name: getattr(self, name) for name in OPTIONAL}
        return {name: values for name, values in named.items() if values is not None}
