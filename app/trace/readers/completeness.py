"""Which steps did every worker report in full?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, FIRST_USER_CODE, OP_CODES, OpTypes
from app.trace.readers.losses import Flags, are_alike, lost
from app.trace.readers.record_table import RecordTable, tabulate
from app.trace.window import SkippedStep, Trace

# Their highest number is that of the micro-batches of a step.
_COMPUTATIONS = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]
_GC = OP_CODES["gc"]


@dataclass(frozen=True, slots=True)
class Completeness:
    """The steps that can be analysed, and why the others cannot."""

    steps: tuple[int, ...]
    skipped: tuple[SkippedStep, ...]


def completeness(
    trace: Trace, parallelism: Parallelism, op_types: OpTypes = BUILT_IN
) -> Completeness:
    """Look for lost operations and workers; `losses.lost` says what is lost.

    An operation that all replicas of a step have, or none of them, is no loss: such a step has
    another structure (docs/replay.md, section 7).

    Raises:
        InvalidTrace: rows are duplicated, or the sizes are not those of the trace.
    """
    _refuse_other_sizes(trace, parallelism)
    table = tabulate(trace, parallelism, op_types)
    if are_alike(table.recorded):
        return Completeness(tuple(table.steps.tolist()), ())
    comes_and_goes = (table.codes == _GC) | (table.codes >= FIRST_USER_CODE)
    gone = lost(table.recorded, np.isin(table.codes, _COMPUTATIONS), comes_and_goes)
    is_incomplete = gone.any(axis=(1, 2, 3, 4))
    ranks = _ranks(trace, parallelism)
    skipped = [
        _skipped(table, at, gone[at], ranks) for at in np.flatnonzero(is_incomplete).tolist()
    ]
    return Completeness(tuple(table.steps[~is_incomplete].tolist()), tuple(skipped))


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


def _ranks(trace: Trace, parallelism: Parallelism) -> NDArray[np.int64]:
    """[dp ranks, stages], global rank of every worker; the usual one where it reported nothing."""
    stages = range(parallelism.pp_size)
    ranks = np.array(
        [
            [parallelism.usual_rank(dp_rank, stage) for stage in stages]
            for dp_rank in range(parallelism.dp_size)
        ]
    )
    ranks[trace.dp_rank, trace.stage] = trace.rank
    return ranks


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
