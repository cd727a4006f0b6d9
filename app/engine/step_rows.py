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
        _sort_steps(bounds, optype, seq_id, order)
    return order


def longest_span_ns(bounds: Ints, start_ns: Ints, duration_ns: Ints) -> float:
    """Longest time from the first start to the last end of the rows between two `bounds`."""
    return float(_longest_span(bounds, start_ns, duration_ns))


@kernel
def _longest_span(bounds, start_ns, duration_ns):  # type: ignore[no-untyped-def]
    longest = 0
    for at in range(bounds.size - 1):
        first = bounds[at]
        began, ended = start_ns[first], start_ns[first] + duration_ns[first]
        for row in range(first, bounds[at + 1]):
            began = min(began, start_ns[row])
            ended = max(ended, start_ns[row] + duration_ns[row])
        longest = max(longest, ended - began)
    return longest


@kernel
def _sort_steps(bounds, optype, seq_id, order):  # type: ignore[no-untyped-def]
    least = optype.min()
    num_types = np.int64(optype.max()) - least + 1
    for at in range(bounds.size - 1):
        first, end = bounds[at], bounds[at + 1]
        places = np.zeros(num_types + 1, np.int64)
        for row in range(first, end):
            places[optype[row] - least + 1] += 1
        places[0] = first
        places = np.cumsum(places)
        for row in range(first, end):
            order[places[optype[row] - least]] = row
            places[optype[row] - least] += 1
        is_in_order = True
        for place in range(first + 1, end):
            before, after = order[place - 1], order[place]
            if optype[before] == optype[after] and seq_id[before] > seq_id[after]:
                is_in_order = False
        if not is_in_order:
            keys = np.empty(end - first, np.int64)
            for row in range(first, end):
                keys[row - first] = np.int64(optype[row]) * 2**32 + seq_id[row]
            order[first:end] = first + np.argsort(keys, kind="mergesort")
