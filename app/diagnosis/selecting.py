"""The k-th smallest of some values and their median: sorting all of them would take longer."""

import numpy as np

from app.engine.compiled import kernel
from app.trace.window import Floats


@kernel
def smallest(values, count, k):  # type: ignore[no-untyped-def]
    """The k-th smallest, from 0, of the first `count` values; it puts them into another order.

    Hoare's selection; the pivot is the median of three.
    """
    first, last = 0, count - 1
    while last - first > 8:
        pivot = _median_of_three(values[first], values[(first + last) // 2], values[last])
        low, high = first, last
        while low <= high:
            while values[low] < pivot:
                low += 1
            while pivot < values[high]:
                high -= 1
            if low <= high:
                values[low], values[high] = values[high], values[low]
                low += 1
                high -= 1
        if k <= high:
            last = high
        elif k >= low:
            first = low
        else:
            return values[k]
    put_in_order(values, first, last + 1)
    return values[k]


@kernel
def _median_of_three(one, other, third):  # type: ignore[no-untyped-def]
    return max(min(one, other), min(max(one, other), third))


@kernel
def put_in_order(values, first, end):  # type: ignore[no-untyped-def]
    """Sort a few values in their place."""
    for at in range(first + 1, end):
        value, to = values[at], at
        while to > first and values[to - 1] > value:
            values[to] = values[to - 1]
            to -= 1
        values[to] = value


@kernel
def median(values, count):  # type: ignore[no-untyped-def]
    """The median of the first `count` values, at least one; it puts them into another order."""
    upper = smallest(values, count, count // 2)
    if count % 2:
        return upper
    # What is left of a selected value is no larger than it.
    lower = values[0]
    for at in range(1, count // 2):
        lower = max(lower, values[at])
    return (lower + upper) / 2


def medians(values: Floats) -> Floats:
    """[...], of each row [..., n] of few values, none of them NaN; as NumPy's, only sooner."""
    rows = np.ascontiguousarray(values, np.float64).reshape(-1, values.shape[-1])
    found = np.empty(rows.shape[0])
    _medians(rows, found)
    return found.reshape(values.shape[:-1])


@kernel
def _medians(rows, found):  # type: ignore[no-untyped-def]
    values = np.empty(rows.shape[1])
    for row in range(found.size):
        values[:] = rows[row]
        found[row] = median(values, values.size)
