"""Which steps did every worker report in full?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES, OP_NAMES, OP_SPECS, Kind
from app.trace.window import Ints, SkippedStep, Trace

Flags = NDArray[np.bool_]

_ANNOTATIONS = [code for code, spec in enumerate(OP_SPECS) if spec.kind is Kind.ANNOTATION]
_COMPUTATIONS = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]
# A trace in which so many cells of the table below stay empty has wrong ids, not lost rows.
_MAX_CELLS_PER_ROW = 64
_ALWAYS_ALLOWED_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Completeness:
    """The steps that can be analysed, and why the others cannot."""

    steps: tuple[int, ...]
    skipped: tuple[SkippedStep, ...]


def completeness(trace: Trace, parallelism: Parallelism) -> Completeness:
    """Look for lost operations and workers.

    An operation is lost where most replicas of the steps with as many micro-batches have it.

    Raises:
        InvalidTrace: rows are duplicated, or the sizes are not those of the trace.
    """
    _refuse_other_sizes(trace, parallelism)
    steps, step_index = _numbered(trace.step)
    recorded = _recorded(trace, parallelism, step_index, steps.size)
    if _are_alike(recorded):
        return Completeness(tuple(steps.tolist()), ())
    lost = _lost(recorded)
    skipped = [
        _skipped(int(steps[i]), lost[i], recorded[i], trace, parallelism)
        for i in np.flatnonzero(lost.any(axis=(1, 2, 3, 4)))
    ]
    left_out = {skip.step for skip in skipped}
    return Completeness(
        tuple(step for step in steps.tolist() if step not in left_out), tuple(skipped)
    )


def _refuse_other_sizes(trace: Trace, parallelism: Parallelism) -> None:
    for column, name in ((trace.dp_rank, "dp"), (trace.stage, "pp")):
        size, found = getattr(parallelism, f"{name}_size"), int(column.max()) + 1
        if size != found:
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


def _numbered(step: Ints) -> tuple[Ints, Ints]:
    lowest, highest = int(step.min()), int(step.max())
    if highest - lowest > 4 * step.size + 1024:
        return np.unique(step, return_inverse=True)
    offset = step - lowest
    present = np.zeros(highest - lowest + 1, dtype=np.bool_)
    present[offset] = True
    number_of = np.cumsum(present) - 1
    return np.flatnonzero(present) + lowest, number_of[offset]


def _recorded(trace: Trace, parallelism: Parallelism, step_index: Ints, num_steps: int) -> Flags:
    """Whether an operation was recorded, [steps, dp ranks, stages, op types, seq ids]."""
    num_seq_ids = int(trace.seq_id.max()) + 1
    shape = (num_steps, parallelism.dp_size, parallelism.pp_size, len(OP_SPECS), num_seq_ids)
    num_cells = int(np.prod(np.array(shape, dtype=np.float64)))
    if num_cells > _MAX_CELLS_PER_ROW * trace.num_ops + _ALWAYS_ALLOWED_CELLS:
        raise InvalidTrace(
            f"{trace.num_ops:,} rows for {num_steps:,} steps of {parallelism.num_workers:,} "
            f"workers with seq_id up to {num_seq_ids - 1:,}: dp_rank, stage and seq_id "
            "count from 0"
        )
    cell = step_index.copy()
    columns: list[Ints] = [trace.dp_rank, trace.stage, trace.optype.astype(np.int64), trace.seq_id]
    for column, size in zip(columns, shape[1:], strict=True):
        cell *= size
        cell += column
    recorded = np.zeros(num_cells, dtype=np.bool_)
    recorded[cell] = True
    if np.count_nonzero(recorded) != trace.num_ops:
        _refuse_duplicate(trace, cell)
    recorded = recorded.reshape(shape)
    recorded[:, :, :, _ANNOTATIONS] = False
    return recorded


def _refuse_duplicate(trace: Trace, cell: Ints) -> None:
    order = np.argsort(cell, kind="stable")
    again = order[1:][np.diff(cell[order]) == 0]
    row = int(again.min())
    first = int(np.flatnonzero(cell == cell[row])[0])
    raise InvalidTrace(
        f"column seq_id: row {row} repeats row {first} "
        f"({OP_NAMES[trace.optype[row]]} {trace.seq_id[row]} of dp_rank {trace.dp_rank[row]}, "
        f"stage {trace.stage[row]} in step {trace.step[row]}), {again.size:,} rows in all: "
        "keep one of each"
    )


def _are_alike(recorded: Flags) -> bool:
    first = recorded[0, 0]
    return bool(first.any(axis=(1, 2)).all() and (recorded == first).all())


def _lost(recorded: Flags) -> Flags:
    num_microbatches = recorded[:, :, :, _COMPUTATIONS].sum(axis=4).max(axis=(1, 2, 3))
    lost = np.zeros_like(recorded)
    for number in np.unique(num_microbatches):
        alike = num_microbatches == number
        usual = recorded[alike].mean(axis=(0, 1)) >= 0.5
        lost[alike] = usual & ~recorded[alike]
    # A worker of which nothing came is lost whatever the others did.
    silent = ~recorded.any(axis=(3, 4))
    lost[silent] = True
    return lost


def _skipped(
    step: int, lost: Flags, recorded: Flags, trace: Trace, parallelism: Parallelism
) -> SkippedStep:
    workers = np.argwhere(lost.any(axis=(2, 3)))
    ranks = [_rank(trace, parallelism, int(d), int(p)) for d, p in workers]
    dp_rank, stage = (int(index) for index in workers[0])
    where = f"rank {ranks[0]} (dp_rank {dp_rank}, stage {stage})"
    more = f", and {len(ranks) - 1:,} more workers lack operations" if len(ranks) > 1 else ""
    if not recorded[dp_rank, stage].any():
        return SkippedStep(step, f"{where} reported nothing{more}", tuple(sorted(ranks)))
    code, seq_id = np.argwhere(lost[dp_rank, stage])[0]
    reason = f"{where} lacks {OP_NAMES[code]} {seq_id}{more}"
    return SkippedStep(step, reason, tuple(sorted(ranks)))


def _rank(trace: Trace, parallelism: Parallelism, dp_rank: int, stage: int) -> int:
    rows = np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage))
    return int(trace.rank[rows[0]]) if rows.size else parallelism.usual_rank(dp_rank, stage)
