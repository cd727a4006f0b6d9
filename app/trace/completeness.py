"""Finds the steps that every worker recorded completely, and what is missing from the others.

`tabulate` arranges a trace as a table: which operations each worker recorded in each step.
`lost_operations` marks the gaps in this table. A worker has lost an operation of a step if

- at least half of the dp ranks of its stage recorded the same operation in that step,
- it recorded an operation of the same type with a higher `seq_id`, or
- it recorded nothing at all in that step.

A dp rank may run fewer micro-batches than the others by design: no type then lacks more operations
than whole micro-batches have. Where it does so in two steps, and its operations are numbered
without gaps, it has lost nothing (`uneven_by_design`).
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

Flags = NDArray[np.bool_]

# Limits on the size of the table: a trace of so few rows for so many cells has wrong ids (a dp
# rank or seq_id of 10**6, say), and the table would not fit into memory. Small tables are exempt.
_MAX_CELLS_PER_ROW = 64
_ALWAYS_ALLOWED_CELLS = 1 << 22

# The number of these operations in a step is its number of micro-batches (times model chunks).
_COMPUTATIONS = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]
# A micro-batch has each of these, or none of its job has.
OF_MICROBATCH = [
    OP_CODES[name]
    for name in (
        *("forward-compute", "backward-compute"),
        *("backward-input-compute", "backward-weight-compute"),
    )
]
_GC = OP_CODES["gc"]
# Steps in which a dp rank lacks whole micro-batches: one may have lost them.
MIN_UNEVEN_STEPS = 2


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Which operations were recorded, for every step and worker. Annotations are left out.

    Shapes: `recorded` [steps, dp ranks, stages, op types, seq ids]; `steps` [steps], ascending;
    `codes` [op types].
    """

    recorded: Flags
    steps: Ints
    codes: Ints
    op_types: OpTypes

    def types(self, predicate: Callable[[OpSpec], bool]) -> Flags:
        """[op types], whether the predicate is true of each type of the table."""
        return self.op_types.flags(predicate)[self.codes]


def tabulate(trace: Trace, parallelism: Parallelism, op_types: OpTypes) -> RecordTable:
    """The table of a trace whose dp ranks and stages are within the job's sizes.

    Raises:
        InvalidTrace: an operation was recorded twice, or the ids are far too large for the number
            of rows.
    """
    steps, position = _step_positions(trace.step)
    codes, type_position = _type_positions(trace.optype)
    sizes = parallelism.dp_size, parallelism.pp_size, codes.size, int(trace.seq_id.max()) + 1
    shape = (steps.size, *sizes)
    if prod(shape) > _MAX_CELLS_PER_ROW * trace.num_ops + _ALWAYS_ALLOWED_CELLS:
        raise InvalidTrace(
            f"columns dp_rank, stage and seq_id: {trace.num_ops:,} rows are too few for "
            f"{steps.size:,} steps of {parallelism.num_workers:,} workers with seq_id up to "
            f"{shape[-1] - 1:,}: all three count from 0 without gaps"
        )
    # 32-bit arithmetic takes half the time of 64-bit, and most tables are small enough for it.
    width: type[np.signedinteger[Any]] = np.int32 if prod(shape) < 2**31 else np.int64
    cell: NDArray[Any] = position.astype(width, copy=False)
    columns = trace.dp_rank, trace.stage, type_position, trace.seq_id
    for column, size in zip(columns, sizes, strict=True):
        cell *= size
        cell += column
    recorded = np.zeros(prod(shape), dtype=np.bool_)
    recorded[cell.astype(np.intp)] = True  # indexing with a narrower type takes twice as long
    if np.count_nonzero(recorded) != trace.num_ops:
        _refuse_duplicates(trace, op_types, cell)
    table = RecordTable(recorded.reshape(shape), steps, codes, op_types)
    table.recorded[:, :, :, table.types(lambda spec: spec.kind is OpKind.ANNOTATION)] = False
    return table


def _step_positions(step: Integers) -> tuple[Ints, Integers]:
    """The distinct steps, ascending, and [rows] the position of each row's step among them."""
    begins = np.flatnonzero(step[1:] != step[:-1]) + 1
    if begins.size > step.size // 8:
        steps, position = np.unique(step, return_inverse=True)
        return steps, position
    # Rows of one step are mostly adjacent: it is faster to sort one row of each stretch.
    begins = np.concatenate(([0], begins))
    steps, position = np.unique(step[begins], return_inverse=True)
    return steps, np.repeat(position.astype(np.int32), np.diff(begins, append=step.size))


def _type_positions(optype: NDArray[np.int16]) -> tuple[Ints, NDArray[np.int16]]:
    """Codes of the op types, and [rows] the position of each row's code among them."""
    highest = int(optype.max())
    if highest < FIRST_USER_CODE:
        return np.arange(highest + 1), optype
    codes = np.flatnonzero(np.bincount(optype, minlength=NUM_CODES))
    position = np.zeros(NUM_CODES, np.int16)
    position[codes] = np.arange(codes.size)
    return codes, position[optype]


def _refuse_duplicates(trace: Trace, op_types: OpTypes, cell: Integers) -> None:
    order = np.argsort(cell, kind="stable")
    duplicates = order[1:][np.diff(cell[order]) == 0]
    row = int(duplicates.min())
    first = int(np.flatnonzero(cell == cell[row])[0])
    raise InvalidTrace(
        f"column seq_id: row {row} repeats row {first} "
        f"({op_types.name(trace.optype[row])} {trace.seq_id[row]} of dp_rank "
        f"{trace.dp_rank[row]}, stage {trace.stage[row]} in step {trace.step[row]}), "
        f"{duplicates.size:,} rows in all: keep one of each"
    )


def _has_no_losses(recorded: Flags) -> bool:
    """Whether all dp ranks have the same operations in all steps, numbered without gaps.

    A fast test for the usual case: `lost_operations` would then mark nothing.
    """
    first = recorded[0, 0]
    if not first.any(axis=(1, 2)).all() or numbering_gaps(first).any():
        return False
    return bool((recorded == first).all())


def lost_operations(table: RecordTable) -> Flags:
    """The operations that each worker has lost, of the shape of `table.recorded`.

    The module's docstring says when an operation counts as lost.
    """
    recorded = table.recorded
    usual = usual_operations(table, recorded)
    lost = usual & ~recorded
    if recorded.shape[1] > 1:
        lost &= ~beyond_design(table, usual[:, 0])
    lost |= numbering_gaps(recorded)
    lost[~recorded.any(axis=(3, 4))] = True
    return lost


def usual_operations(table: RecordTable, recorded: Flags) -> Flags:
    """The operations that at least half of the dp ranks recorded, for every step and stage.

    `recorded` is that of the table, or a part of it. A job with one dp rank has no peers: there,
    those that at least half of the steps with the same number of micro-batches have, without types
    that only some steps have. The dp axis of the result has size 1.
    """
    dp_size = recorded.shape[1]
    if dp_size > 1:
        return np.asarray(2 * np.count_nonzero(recorded, axis=1, keepdims=True) >= dp_size)
    is_computation = np.isin(table.codes, _COMPUTATIONS)
    num_microbatches = recorded[:, :, :, is_computation].sum(axis=4).max(axis=(1, 2, 3), initial=0)
    usual = np.empty_like(recorded)
    for number in np.unique(num_microbatches):
        same_number = num_microbatches == number
        usual[same_number] = recorded[same_number].mean(axis=0) >= 0.5
    is_in_some_steps = (table.codes == _GC) | (table.codes >= FIRST_USER_CODE)
    usual[:, :, :, is_in_some_steps] = False
    return usual


def uneven_by_design(table: RecordTable, usual: Flags) -> Flags:
    """[steps, dp ranks], whether a dp rank runs fewer micro-batches than others by design.

    `usual` [steps, stages, op types, seq ids] are the usual operations of a stage. What the dp rank
    lacks has to be whole micro-batches, on all stages that it recorded, in `MIN_UNEVEN_STEPS`.
    """
    own = table.recorded.sum(axis=4)
    most, of_group = own.max(axis=1, keepdims=True), usual.sum(axis=3)[:, None]
    is_of_each = np.isin(table.codes, OF_MICROBATCH)
    counting = np.flatnonzero(is_of_each & own.any(axis=(0, 1, 2)))[:1]
    if not counting.size:
        return np.zeros(own.shape[:2], np.bool_)
    number = own[..., counting]
    most_microbatches = np.broadcast_to(most[..., counting], number.shape)
    # Of computations it has the share that it has of micro-batches, of other types that at least.
    has_share = np.asarray(own * most_microbatches == most * number)
    has_share |= ~is_of_each & (own * most_microbatches >= of_group * number)
    # Some dp ranks may collect garbage in a step, or run a type of the job.
    has_share |= (table.codes == _GC) | (table.codes >= FIRST_USER_CODE)
    has_fewer = np.asarray((number > 0) & (number < most_microbatches))
    is_fewer = has_share.all(axis=3) & has_fewer[..., 0]
    is_recorded = own.any(axis=3)
    of_replica = (is_fewer | ~is_recorded).all(axis=2) & is_recorded.any(axis=2)
    return np.asarray(of_replica & (of_replica.sum(axis=0) >= MIN_UNEVEN_STEPS))


def beyond_design(table: RecordTable, usual: Flags) -> Flags:
    """Operations that no worker of a dp rank with fewer micro-batches is expected to record.

    They are those beyond its own highest number, of the steps in which it was seen to run fewer by
    design. Shapes: `usual` [steps, stages, op types, seq ids]; the result is as `table.recorded`.
    """
    recorded, is_uneven = table.recorded, uneven_by_design(table, usual)
    if not is_uneven.any():
        return np.zeros_like(recorded)
    own = recorded.sum(axis=4)
    is_shown = is_uneven[..., None] & own.any(axis=3)
    highest = np.where(is_shown[..., None], own, own.max(axis=0))
    is_beyond = np.asarray(np.arange(recorded.shape[4]) >= highest[..., None])
    runs_fewer = np.asarray(is_uneven.any(axis=0))[:, None, None, None]
    return is_beyond & runs_fewer


def numbering_gaps(recorded: Flags) -> Flags:
    """Operations that were not recorded, while one of their type with a higher `seq_id` was."""
    has_higher = np.logical_or.accumulate(recorded[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(has_higher & ~recorded)


@dataclass(frozen=True, slots=True)
class Completeness:
    """The steps that can be analysed, and those that cannot, with the reason."""

    steps: tuple[int, ...]
    skipped: tuple[SkippedStep, ...]


def completeness(
    trace: Trace, parallelism: Parallelism, op_types: OpTypes = BUILT_IN
) -> Completeness:
    """Divide the steps of a trace into complete ones and ones with lost operations.

    An operation that all dp ranks of a step have, or none of them, is not lost: such a step has a
    structure of its own (docs/replay.md, section 7).

    Raises:
        InvalidTrace: an operation was recorded twice, or the sizes are not those of the trace.
    """
    _refuse_other_sizes(trace, parallelism)
    table = tabulate(trace, parallelism, op_types)
    if _has_no_losses(table.recorded):
        return Completeness(tuple(table.steps.tolist()), ())
    lost = lost_operations(table)
    is_incomplete = lost.any(axis=(1, 2, 3, 4))
    ranks = parallelism.usual_ranks()  # for workers that recorded nothing
    ranks[trace.dp_rank, trace.stage] = trace.rank
    positions = np.flatnonzero(is_incomplete).tolist()
    return Completeness(
        tuple(table.steps[~is_incomplete].tolist()),
        tuple(_skipped(table, at, lost[at], ranks) for at in positions),
    )


def _refuse_other_sizes(trace: Trace, parallelism: Parallelism) -> None:
    for column, name in ((trace.dp_rank, "dp"), (trace.stage, "pp")):
        size, recorded = getattr(parallelism, f"{name}_size"), int(column.max()) + 1
        # The last dp ranks, fewer than half of them, may have recorded nothing at all.
        if size < recorded or (size > recorded and (name == "pp" or 2 * recorded <= size)):
            axis = "dp_rank" if name == "dp" else "stage"
            raise InvalidTrace(
                f"{name}_size is {size}, but the trace's highest {axis} is {recorded - 1}: "
                "correct the meta file, or record all workers"
            )
    if trace.mc.max() >= parallelism.vpp_size:
        raise InvalidTrace(
            f"vpp_size is {parallelism.vpp_size}, but the trace has model chunk {trace.mc.max()}: "
            "correct the meta file"
        )


def _skipped(table: RecordTable, at: int, lost: Flags, ranks: NDArray[np.int64]) -> SkippedStep:
    """The step at a position, with the reason; `lost` [dp ranks, stages, op types, seq ids]."""
    workers = np.argwhere(lost.any(axis=(2, 3)))
    dp_rank, stage = workers[0].tolist()
    incomplete_ranks = ranks[workers[:, 0], workers[:, 1]].tolist()
    problem = "reported nothing"
    if table.recorded[at, dp_rank, stage].any():
        operations = np.argwhere(lost[dp_rank, stage])
        type_at, seq_id = operations[0]
        problem = f"lacks {table.op_types.name(table.codes[type_at])} {seq_id}"
        if len(operations) > 1:
            problem += f" and {len(operations) - 1:,} more operations"
    if len(workers) > 1:
        problem += f", and {len(workers) - 1:,} more workers lack operations"
    reason = f"rank {incomplete_ranks[0]} (dp_rank {dp_rank}, stage {stage}) {problem}"
    return SkippedStep(int(table.steps[at]), reason, tuple(sorted(incomplete_ranks)))
