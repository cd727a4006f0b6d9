"""Which operations did each worker report in each step?"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import FIRST_USER_CODE, NUM_CODES, Kind, OpSpec, OpTypes
from app.trace.window import Integers, Ints, Trace

# A trace in which so many cells of the table stay empty has wrong ids, not lost rows.
_MAX_CELLS_PER_ROW = 64
_ALWAYS_ALLOWED_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Whether each operation that there could be was recorded; annotations never are.

    `recorded` is [steps, dp ranks, stages, op types, seq ids], `steps` [steps] ascending, `codes`
    [op types].
    """

    recorded: NDArray[np.bool_]
    steps: Ints
    codes: Ints
    op_types: OpTypes

    def types(self, holds: Callable[[OpSpec], bool]) -> NDArray[np.bool_]:
        """[op types], whether a claim holds."""
        return self.op_types.flags(holds)[self.codes]


def tabulate(trace: Trace, parallelism: Parallelism, op_types: OpTypes) -> RecordTable:
    """The table of a trace whose dp ranks and stages are within the job's sizes.

    Raises:
        InvalidTrace: rows are duplicated, or far too few for their numbers.
    """
    steps, position = _numbered(trace.step)
    codes, type_position = _compact(trace.optype)
    sizes = parallelism.dp_size, parallelism.pp_size, codes.size, int(trace.seq_id.max()) + 1
    shape = (steps.size, *sizes)
    _refuse_a_sparse_one(trace, parallelism, shape)
    # Half as wide is twice as fast, and rarely too narrow.
    width: type[np.signedinteger[Any]] = np.int32 if prod(shape) < 2**31 else np.int64
    cell: NDArray[Any] = position.astype(width)
    columns = trace.dp_rank, trace.stage, type_position, trace.seq_id
    for column, size in zip(columns, sizes, strict=True):
        cell *= size
        cell += column
    recorded = np.zeros(prod(shape), dtype=np.bool_)
    recorded[cell] = True
    if np.count_nonzero(recorded) != trace.num_ops:
        _refuse_duplicates(trace, op_types, cell)
    table = RecordTable(recorded.reshape(shape), steps, codes, op_types)
    table.recorded[:, :, :, table.types(lambda spec: spec.kind is Kind.ANNOTATION)] = False
    return table


def _numbered(step: Integers) -> tuple[Ints, Integers]:
    """The steps, ascending, and [rows] which of them a row belongs to."""
    begins = np.flatnonzero(step[1:] != step[:-1]) + 1
    if begins.size > step.size // 8:
        steps, position = np.unique(step, return_inverse=True)
        return steps, position
    # The rows of a step mostly stand together: only one of each run has to be sorted.
    begins = np.concatenate(([0], begins))
    steps, position = np.unique(step[begins], return_inverse=True)
    return steps, np.repeat(position.astype(np.int32), np.diff(begins, append=step.size))


def _compact(optype: NDArray[np.int16]) -> tuple[Ints, NDArray[np.int16]]:
    """Codes of op types, and [rows] the position of each row's among them."""
    highest = int(optype.max())
    if highest < FIRST_USER_CODE:
        return np.arange(highest + 1), optype
    codes = np.flatnonzero(np.bincount(optype, minlength=NUM_CODES))
    position = np.zeros(NUM_CODES, np.int16)
    position[codes] = np.arange(codes.size)
    return codes, position[optype]


def _refuse_a_sparse_one(trace: Trace, parallelism: Parallelism, shape: tuple[int, ...]) -> None:
    if prod(shape) > _MAX_CELLS_PER_ROW * trace.num_ops + _ALWAYS_ALLOWED_CELLS:
        raise InvalidTrace(
            f"columns dp_rank, stage and seq_id: {trace.num_ops:,} rows are too few for "
            f"{shape[0]:,} steps of {parallelism.num_workers:,} workers with seq_id up to "
            f"{shape[-1] - 1:,}: all three count from 0 without gaps"
        )


def _refuse_duplicates(trace: Trace, op_types: OpTypes, cell: Integers) -> None:
    order = np.argsort(cell, kind="stable")
    again = order[1:][np.diff(cell[order]) == 0]
    row = int(again.min())
    first = int(np.flatnonzero(cell == cell[row])[0])
    raise InvalidTrace(
        f"column seq_id: row {row} repeats row {first} "
        f"({op_types.name(trace.optype[row])} {trace.seq_id[row]} of dp_rank "
        f"{trace.dp_rank[row]}, stage {trace.stage[row]} in step {trace.step[row]}), "
        f"{again.size:,} rows in all: keep one of each"
    )
