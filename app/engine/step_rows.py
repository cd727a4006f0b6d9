"""Rows of workers' steps: their canonical order, by type and then by number, and their span.

Recorders send operations as they ended. A batch has hundreds of each step, nearly always ascending
within a type, so they are put in order by counting.
"""

import numpy as np

from app.engine.kernels import kernel
from app.trace.window import Integers, Ints


def canonical_order(bounds: Ints, optype: Integers, seq_id: Integers) -> Ints:
    """[ops], rows of each step by type and number; equal ones keep their order.

    Shapes: `bounds` [steps + 1] are the steps' first rows and the number of rows, `optype` and
    `seq_id` [ops] int32; types fit in 16 bits, as memory is taken for all between the least and
    the greatest.
    """
    order = np.empty(optype.size, np.int64)
    if order.size:
        is_in_order = np.ones(bounds.size - 1, np.bool_)
        _sort_steps(
            bounds, optype, seq_id, int(optype.min()), int(optype.max()), order, is_in_order
        )
        for at in np.flatnonzero(~is_in_order).tolist():
            rows = slice(int(bounds[at]), int(bounds[at + 1]))
            order[rows] = rows.start + np.lexsort((seq_id[rows], optype[rows]))
    return order


def longest_span_ns(bounds: Ints, start_ns: Ints, duration_ns: Ints) -> float:
    """Longest time from the first start to the last end of the rows between two `bounds`."""
    first = bounds[:-1]
    ended_ns = np.maximum.reduceat(start_ns + duration_ns, first)
    return float((ended_ns - np.minimum.reduceat(start_ns, first)).max(initial=0))


@kernel
def _sort_steps(bounds, optype, seq_id, least, greatest, order, is_in_order):  # type: ignore[no-untyped-def]
    """Order by type; `is_in_order` [steps] is False where numbers of a type do not ascend then."""
    places = np.empty(greatest - least + 2, np.int64)
    for at in range(bounds.size - 1):
        first, end = bounds[at], bounds[at + 1]
        places[:] = 0
        for row in range(first, end):
            places[optype[row] - least + 1] += 1
        places[0] = first
        for code in range(1, places.size):
            places[code] += places[code - 1]
        for row in range(first, end):
            order[places[optype[row] - least]] = row
            places[optype[row] - least] += 1
        for place in range(first + 1, end):
            before, after = order[place - 1], order[place]
            if optype[before] == optype[after] and seq_id[before] > seq_id[after]:
                is_in_order[at] = False
