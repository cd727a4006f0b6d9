"""Packed columns: differences, in as few bytes as they need, laid out so that they compress well.

A value has `width` bytes, little-endian, two's complement; byte 0 of all rows comes first, then
byte 1 of all rows, and so on.
"""

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.ingest.wire import Packed
from app.trace.window import Ints

Bools = NDArray[np.bool_]

VALUES, DIFFERENCES, AFTER_END = 0, 1, 2
_BYTES = 8  # of what a column is unpacked to
# Differences of at most so many bytes cannot leave 64 bits, in however many rows a batch has.
_SAFE_WIDTH = 5


def num_rows(name: str, column: Packed) -> int:
    """How many values there are.

    Raises:
        InvalidRequest: no whole number of them, or they count from another column's.
    """
    if column.kind == AFTER_END and name != "start_ns":
        raise InvalidRequest(f"column {name} is packed by kind {AFTER_END}: only start_ns may be")
    rows, rest = divmod(column.planes.nbytes, column.width)
    if rest:
        raise InvalidRequest(
            f"column {name} has {column.planes.nbytes} bytes: not a multiple of its width, "
            f"{column.width}"
        )
    return rows


def unpacked(name: str, column: Packed, duration_ns: Ints | None = None) -> Ints:
    """[ops] int64, of a column whose length was checked.

    `duration_ns` are those of the same rows; starts may be packed as differences to the end of the
    row before.

    Raises:
        InvalidRequest: the differences add up to what 64 bits do not hold.
    """
    values = _signed(column)
    if column.kind == VALUES or not values.size:
        return values
    is_safe = column.width <= _SAFE_WIDTH
    if column.kind == AFTER_END and duration_ns is not None:
        gaps, values = values, values.copy()
        values[1:] += duration_ns[:-1]
        _check(name, values[1:] < gaps[1:], duration_ns[:-1] < 0)
        is_safe = False
    sums = np.cumsum(values, dtype=np.int64)
    if not is_safe:
        _check(name, sums[1:] < sums[:-1], values[1:] < 0)
    return sums


def _signed(column: Packed) -> Ints:
    """The values in eight bytes each: put into the upper ones, and shifted down with their sign."""
    width = column.width
    if width == 1:  # as many columns are
        return np.frombuffer(column.planes, np.int8).astype(np.int64)
    planes = np.frombuffer(column.planes, np.uint8).reshape(width, -1)
    wide = np.zeros((planes.shape[1], _BYTES), np.uint8)
    wide[:, _BYTES - width :] = planes.T
    return wide.reshape(-1).view("<i8") >> np.int64(8 * (_BYTES - width))


def _check(name: str, became_less: Bools, is_less: Bools) -> None:
    """What was added is negative exactly where the sum is less than before, unless it ran over."""
    if not np.array_equal(became_less, is_less):
        row = int(np.argmax(became_less != is_less)) + 1
        raise InvalidRequest(f"column {name} leaves 64 bits in row {row}")
