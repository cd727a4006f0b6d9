"""Medians by selection, for kernels and for rows of arrays; NumPy's would take longer."""

import math

import numpy as np

from app.engine.kernels import kernel
from app.trace.window import Floats, Ints


@kernel
def kth_smallest(values, count, k):  # type: ignore[no-untyped-def]
    """The k-th smallest, from 0, of the first `count` values, which it reorders.

    Hoare's selection with the median of three as pivot.
    """
    first, last = 0, count - 1
    while last - first > 8:
        one, other, third = values[first], values[(first + last) // 2], values[last]
        pivot = max(min(one, other), min(max(one, other), third))
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
    for at in range(first + 1, last + 1):
        value, to = values[at], at
        while to > first and values[to - 1] > value:
            values[to] = values[to - 1]
            to -= 1
        values[to] = value
    return values[k]


@kernel
def median(values, count):  # type: ignore[no-untyped-def]
    """The median of the first `count` values, at least one, which it reorders."""
    upper = kth_smallest(values, count, count // 2)
    if count % 2:
        return upper
    # Values before the selected one are no larger.
    lower = values[0]
    for at in range(1, count // 2):
        lower = max(lower, values[at])
    return (lower + upper) / 2


@kernel
def _medians(rows, medians):  # type: ignore[no-untyped-def]
    values = np.empty(rows.shape[1])
    for row in range(medians.size):
        count = 0
        for value in rows[row]:
            if not np.isnan(value):
                values[count] = value
                count += 1
        medians[row] = median(values, count) if count else np.nan


def medians_of_known(values: Floats) -> Floats:
    """[...], medians of rows [..., n] without their NaN; NaN where all of a row are."""
    num_rows = math.prod(values.shape[:-1])  # reshape cannot infer it where rows are empty
    rows = np.ascontiguousarray(values, np.float64).reshape(num_rows, values.shape[-1])
    medians = np.empty(num_rows)
    _medians(rows, medians)
    return medians.reshape(values.shape[:-1])


def median_of(values: Floats) -> float:
    """The median of all values [...], NaN if one is NaN or there is none."""
    flat = np.asarray(values, np.float64).ravel()
    if not flat.size or np.isnan(flat).any():
        return float("nan")
    # One place only, which NumPy finds several times as fast as two.
    half = np.partition(flat, flat.size // 2)[: flat.size // 2 + 1]
    lower = half[-1] if flat.size % 2 else half[:-1].max()
    return float((lower + half[-1]) / 2)


# In larger arrays a sample first brackets the median: so many values, and so many on each side
# of the middle, four standard errors of its rank.
_SAMPLED, _MARGIN = 1 << 12, 128
_BLOCK_VALUES = 1 << 18


def median_of_rows(values: Floats, rows: Ints) -> float:
    """The median of some rows of [..., n], none of them NaN, without a copy of them all."""
    num = values.shape[1]
    size = rows.size * num
    if size < 8 * _SAMPLED:
        return median_of(values[rows])
    at = np.arange(0, size, size // _SAMPLED | 1)  # odd, so as not to keep to a few columns
    sample = np.sort(values[rows[at // num], at % num])
    low, high = sample[[sample.size // 2 - _MARGIN, sample.size // 2 + _MARGIN]]
    num_below, near = 0, []
    num_rows = max(1, _BLOCK_VALUES // num)
    for first in range(0, rows.size, num_rows):
        block = values[rows[first : first + num_rows]]
        num_below += int(np.count_nonzero(block < low))
        near.append(block[(block >= low) & (block <= high)])
    middle = np.concatenate(near)
    places = (size - 1) // 2 - num_below, size // 2 - num_below
    if places[0] < 0 or places[1] >= middle.size:
        return median_of(values[rows])
    middle.partition(places)
    return float((middle[places[0]] + middle[places[1]]) / 2)
