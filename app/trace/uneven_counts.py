"""Dp ranks that run different numbers of micro-batches by design, and how that is said."""

from dataclasses import dataclass

import numpy as np

from app import formatting
from app.errors import InvalidTrace
from app.trace.completeness import tabulate, uneven_by_design, usual_operations
from app.trace.ops import OP_CODES
from app.trace.window import Ints, Trace, Window

# More different numbers are told by the lowest and the highest.
MAX_NUMBERS_NAMED = 3


@dataclass(frozen=True, slots=True)
class UnevenCounts:
    """Numbers of micro-batches [steps, dp ranks] of the uneven steps, ascending; 0 is unknown."""

    steps: tuple[int, ...]
    numbers: Ints

    @property
    def fact(self) -> str:
        """The numbers in words: "dp rank 1 runs 6 micro-batches a step, the others 8"."""
        known = [sorted({*of_rank} - {0}) for of_rank in self.numbers.T.tolist()]
        every = sorted({number for numbers in known for number in numbers})
        if len(every) > MAX_NUMBERS_NAMED or any(len(numbers) > 1 for numbers in known):
            return f"the dp ranks run {every[0]} to {every[-1]} micro-batches a step"
        by_number = {
            number: [dp for dp, own in enumerate(known) if own == [number]] for number in every
        }
        # The others are the most dp ranks; of two halves those that run more.
        others = max(every, key=lambda number: (len(by_number[number]), number))
        facts = []
        for number, dp_ranks in by_number.items():
            if number != others:
                ranks = formatting.lower_first(formatting.ranks(dp_ranks))
                run = "runs" if len(dp_ranks) == 1 else "run"
                facts.append(f"dp {ranks} {run} {number}")
        facts[0] += " micro-batches a step"
        other = "other" if len(by_number[others]) == 1 else "others"
        return f"{', '.join(facts)}, the {other} {others}"


def uneven_counts(window: Window) -> UnevenCounts | None:
    """The steps in which dp ranks run different numbers of micro-batches by design, or None."""
    sizes, trace = window.job.parallelism, window.trace
    if sizes.dp_size == 1 or not trace.num_ops:
        return None
    steps, numbers = _numbers(trace, sizes.dp_size)
    for (dp_rank, _), absent in (window.imputed.absent if window.imputed else {}).items():
        numbers[np.isin(steps, absent), dp_rank] = 0  # imputed, so not its own
    highest = numbers.max(axis=1)
    is_uneven = ((numbers > 0) & (numbers != highest[:, None])).any(axis=1)
    if not is_uneven.any():
        return None
    uneven = trace.of_steps(steps[is_uneven].tolist())
    try:
        table = tabulate(uneven, sizes, window.job.op_types)
    except InvalidTrace:
        return None
    planned = uneven_by_design(table, usual_operations(table, table.recorded)[:, 0]).any(axis=1)
    if not planned.any():
        return None
    return UnevenCounts(tuple(table.steps[planned].tolist()), numbers[is_uneven][planned])


def _numbers(trace: Trace, dp_size: int) -> tuple[Ints, Ints]:
    """Steps with computations, ascending, and the micro-batches [steps, dp ranks] in them."""
    for name in ("forward-compute", "backward-compute"):
        if (rows := trace.rows_of_type(OP_CODES[name])).size:
            break
    step, dp_rank, stage, mc = (
        trace.at(column, rows) for column in ("step", "dp_rank", "stage", "mc")
    )
    # Every micro-batch has one computation on one stage and chunk.
    chosen = (stage == stage.min(initial=0)) & (mc == mc.min(initial=0))
    steps, position = np.unique(step[chosen], return_inverse=True)
    cells = position * dp_size + dp_rank[chosen]
    counts = np.bincount(cells, minlength=steps.size * dp_size)
    return steps, counts.reshape(steps.size, dp_size)
