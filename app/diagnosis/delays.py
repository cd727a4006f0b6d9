"""How late was each computation launched, when all that it waits for had ended?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.features import Features
from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Delays:
    """Launch delays of forward and backward computations.

    Shapes: `rows` [computations] of the template, `stage`, `is_backward` and `is_first` (the
    stage's first forward) beside them; `delay_s` [computations, lanes]. `usual_s` is the median
    over all but the first forwards.
    """

    rows: Ints
    stage: Ints
    is_backward: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    delay_s: Floats
    usual_s: float


def delays(group: Features) -> Delays:
    """Recorded start - latest end of what the computation waits for, never below 0.

    One that waits for nothing is measured from the step's earliest start.
    """
    computed = group.computed_rows
    is_one = np.zeros((2, group.replayer.template.num_ops), np.bool_)
    for flags, each in zip(is_one, computed, strict=True):
        flags[each[each >= 0]] = True
    rows = np.flatnonzero(is_one.any(axis=0))
    delay_s = launch_delays_s(group.replayer, rows)
    # Operations of a worker are numbered in recorded order.
    firsts = [each[each >= 0].min(initial=rows.max(initial=0)) for each in computed[0]]
    is_first = np.zeros(is_one.shape[1], np.bool_)
    is_first[firsts] = True
    is_first = is_first[rows]
    others_s = delay_s[~is_first]
    return Delays(
        rows=rows,
        stage=group.replayer.template.stage[rows],
        is_backward=is_one[1, rows],
        is_first=is_first,
        delay_s=delay_s,
        usual_s=_median(others_s if others_s.size else delay_s),
    )


def launch_delays_s(replayer: Replayer, rows: Ints) -> Floats:
    """[rows, lanes], seconds from the end of what an operation waits for to its recorded start."""
    graph, grid = replayer.graph, replayer.grid
    delay_s = np.empty((rows.size, grid.start_s.shape[1]))
    earliest_s = grid.began_s
    in_parallel(
        delay_s.size * 2,
        rows.size,
        lambda first, end: _delays(
            rows, graph.pred_ptr, graph.preds, graph.milestone_of, graph.milestone_share,
            grid.start_s, grid.duration_s, earliest_s, first, end, delay_s,
        ),
    )  # fmt: skip
    return delay_s


# A median of so many values is as good as one of all.
_ENOUGH = 100_000


def _median(values: Floats) -> float:
    flat = values.ravel()
    return float(np.median(flat[:: max(1, flat.size // _ENOUGH)]))


@kernel
def _delays(  # type: ignore[no-untyped-def]
    rows, pred_ptr, preds, milestone_of, milestone_share, start_s, duration_s, earliest_s,
    first, end, delay_s,
):  # fmt: skip
    num_ops, num_lanes = start_s.shape
    ready_s = np.empty(num_lanes)
    for at in range(first, end):
        op = rows[at]
        for lane in range(num_lanes):
            ready_s[lane] = earliest_s[lane % earliest_s.size]
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            before, share = preds[edge], 1.0
            if before >= num_ops:
                share = milestone_share[before - num_ops]
                before = milestone_of[before - num_ops]
            for lane in range(num_lanes):
                ready_s[lane] = max(
                    ready_s[lane], start_s[before, lane] + share * duration_s[before, lane]
                )
        for lane in range(num_lanes):
            delay_s[at, lane] = max(0.0, start_s[op, lane] - ready_s[lane])
