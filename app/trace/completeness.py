"""Which steps did every worker report in full?

`tabulate` says which operations each worker reported in each step, `lost` which of them should be
there and are not: those that at least half of the replicas of the same step have, those before one
with a higher number, and everything on a worker that reported nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, FIRST_USER_CODE, NUM_CODES, OP_CODES, OpKind, OpSpec, OpTypes
from app.trace.window import Integers, Ints, SkippedStep, Trace

# A trace with so many empty cells has wrong ids, not lost rows.
_MAX_CELLS_PER_ROW = 64
_ALWAYS_ALLOWED_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Whether each possible operation was recorded; annotations are left out.

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

    @property
    def kinds(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The last two arguments of `lost_operations`."""
        comes_and_goes = (self.codes == _GC) | (self.codes >= FIRST_USER_CODE)
        return np.isin(self.codes, _COMPUTATIONS), comes_and_goes


def tabulate(trace: Trace, parallelism: Parallelism, op_types: OpTypes) -> RecordTable:
    """The table of a trace whose dp ranks and stages are within the job's sizes.

    Raises:
        InvalidTrace: rows are duplicated, or far too few for their numbers.
    """
    steps, position = _step_positions(trace.step)
    codes, type_position = _type_positions(trace.optype)
    sizes = parallelism.dp_size, parallelism.pp_size, codes.size, int(trace.seq_id.max()) + 1
    shape = (steps.size, *sizes)
    _refuse_sparse_table(trace, parallelism, shape)
    # Half as wide is twice as fast, and rarely too narrow.
    width: type[np.signedinteger[Any]] = np.int32 if prod(shape) < 2**31 else np.int64
    cell: NDArray[Any] = position.astype(width, copy=False)
    columns = trace.dp_rank, trace.stage, type_position, trace.seq_id
    for column, size in zip(columns, sizes, strict=True):
        cell *= size
        cell += column
    recorded = np.zeros(prod(shape), dtype=np.bool_)
    recorded[cell.astype(np.intp)] = True  # which else takes as long once more
    if np.count_nonzero(recorded) != trace.num_ops:
        _refuse_duplicates(trace, op_types, cell)
    table = RecordTable(recorded.reshape(shape), steps, codes, op_types)
    table.recorded[:, :, :, table.types(lambda spec: spec.kind is OpKind.ANNOTATION)] = False
    return table


def _step_positions(step: Integers) -> tuple[Ints, Integers]:
    """The steps, ascending, and [rows] which of them a row belongs to."""
    begins = np.flatnonzero(step[1:] != step[:-1]) + 1
    if begins.size > step.size // 8:
        steps, position = np.unique(step, return_inverse=True)
        return steps, position
    # Rows of a step are mostly adjacent: only one row of each run is sorted.
    begins = np.concatenate(([0], begins))
    steps, position = np.unique(step[begins], return_inverse=True)
    return steps, np.repeat(position.astype(np.int32), np.diff(begins, append=step.size))


def _type_positions(optype: NDArray[np.int16]) -> tuple[Ints, NDArray[np.int16]]:
    """Codes of op types, and [rows] the position of each row's among them."""
    highest = int(optype.max())
    if highest < FIRST_USER_CODE:
        return np.arange(highest + 1), optype
    codes = np.flatnonzero(np.bincount(optype, minlength=NUM_CODES))
    position = np.zeros(NUM_CODES, np.int16)
    position[codes] = np.arange(codes.size)
    return codes, position[optype]


def _refuse_sparse_table(trace: Trace, parallelism: Parallelism, shape: tuple[int, ...]) -> None:
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


Flags = NDArray[np.bool_]


def is_nothing_lost(recorded: Flags) -> bool:
    """Whether all replicas of all steps have the same operations."""
    first = recorded[0, 0]
    if not first.any(axis=(1, 2)).all() or numbering_gaps(first).any():
        return False
    return bool((recorded == first).all())


def lost_operations(recorded: Flags, counted: Flags, comes_and_goes: Flags) -> Flags:
    """The operations that a worker must have had, of the shape of `recorded`.

    These are the ones that at least half of the replicas of the same step have; those before one
    with a higher number; and everything on a worker that reported nothing. A lone replica is
    compared with the other steps of as many micro-batches instead.

    Shapes: `recorded` [steps, dp ranks, stages, op types, seq ids]; [op types] each: `counted`
    flags those whose number is that of the micro-batches, `comes_and_goes` those that a step may
    have and the next one not.
    """
    found = usual_operations(recorded, counted, comes_and_goes) & ~recorded
    found |= numbering_gaps(recorded)
    found[~recorded.any(axis=(3, 4))] = True
    return found


def usual_operations(recorded: Flags, counted: Flags, comes_and_goes: Flags) -> Flags:
    """The operations that at least half of the replicas of the same step have.

    Of a lone replica those of at least half of the steps with as many micro-batches. Arguments and
    shapes are those of `lost_operations`; the dp axis of the result may be 1.
    """
    dp_size = recorded.shape[1]
    if dp_size > 1:
        return np.asarray(2 * np.count_nonzero(recorded, axis=1, keepdims=True) >= dp_size)
    num_microbatches = recorded[:, :, :, counted].sum(axis=4).max(axis=(1, 2, 3), initial=0)
    usual = np.empty_like(recorded)
    for number in np.unique(num_microbatches):
        alike = num_microbatches == number
        usual[alike] = recorded[alike].mean(axis=0) >= 0.5
    usual[:, :, :, comes_and_goes] = False
    return usual


def numbering_gaps(recorded: Flags) -> Flags:
    """The numbers that were left out: operations are numbered from 0 on each worker."""
    has_later = np.logical_or.accumulate(recorded[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(has_later & ~recorded)


# Their highest number is that of the micro-batches of a step.
_COMPUTATIONS = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]
_GC = OP_CODES["gc"]


@dataclass(frozen=True, slots=True)
class Completeness:
    """The steps that can be analysed, and the reasons for skipping the others."""

    steps: tuple[int, ...]
    skipped: tuple[SkippedStep, ...]


def completeness(
    trace: Trace, parallelism: Parallelism, op_types: OpTypes = BUILT_IN
) -> Completeness:
    """Look for lost operations and workers; `lost_operations` defines a loss.

    An operation that all replicas of a step have, or none of them, is no loss: such a step has
    another structure (docs/replay.md, section 7).

    Raises:
        InvalidTrace: rows are duplicated, or the sizes are not those of the trace.
    """
    _refuse_other_sizes(trace, parallelism)
    table = tabulate(trace, parallelism, op_types)
    if is_nothing_lost(table.recorded):
        return Completeness(tuple(table.steps.tolist()), ())
    gone = lost_operations(table.recorded, *table.kinds)
    is_incomplete = gone.any(axis=(1, 2, 3, 4))
    ranks = parallelism.usual_ranks()  # where a worker reported nothing
    ranks[trace.dp_rank, trace.stage] = trace.rank
    skipped = [
        _skipped(table, at, gone[at], ranks) for at in np.flatnonzero(is_incomplete).tolist()
    ]
    return Completeness(tuple(table.steps[~is_incomplete].tolist()), tuple(skipped))


def _refuse_other_sizes(trace: Trace, parallelism: Parallelism) -> None:
    for column, name in ((trace.dp_rank, "dp"), (trace.stage, "pp")):
        size, found = getattr(parallelism, f"{name}_size"), int(column.max()) + 1
        # Of the last dp ranks nothing may have been recorded at all.
        if size < found or (size > found and (name == "pp" or 2 * found <= size)):
            axis = "dp_rank" if name == "dp" else "stage"
            raise InvalidTrace(
                f"{name}_size is {size}, but the trace's highest {axis} is {found - 1}: "
                "correct the meta file, or record all workers"
            )
    if trace.mc.max() >= parallelism.vpp_size:
        raise InvalidTrace(
            f"vpp_size is {parallelism.vpp_size}, but the trace has model chunk {trace.mc.max()}: "
            "correct the meta file"
        )


def _skipped(table: RecordTable, at: int, gone: Flags, ranks: NDArray[np.int64]) -> SkippedStep:
    """The step at a position, in words; `gone` is [dp ranks, stages, op types, seq ids]."""
    workers = np.argwhere(gone.any(axis=(2, 3)))
    dp_rank, stage = workers[0].tolist()
    missing = ranks[workers[:, 0], workers[:, 1]].tolist()
    said = "reported nothing"
    if table.recorded[at, dp_rank, stage].any():
        said = f"lacks {_operations(table, gone[dp_rank, stage])}"
    if len(missing) > 1:
        said += f", and {len(missing) - 1:,} more workers lack operations"
    reason = f"rank {missing[0]} (dp_rank {dp_rank}, stage {stage}) {said}"
    return SkippedStep(int(table.steps[at]), reason, tuple(sorted(missing)))


def _operations(table: RecordTable, gone: Flags) -> str:
    lacking = np.argwhere(gone)
    column, seq_id = lacking[0]
    more = f" and {len(lacking) - 1:,} more operations" if len(lacking) > 1 else ""
    return f"{table.op_types.name(table.codes[column])} {seq_id}{more}"
