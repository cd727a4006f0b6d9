"""Columns in few bytes: differences, in as many bytes as they need, laid out plane by plane."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Sequence

VALUES, DIFFERENCES, AFTER_THE_ROW_BEFORE = 0, 1, 2


def packed(name: str, values: Sequence[int], duration_ns: Sequence[int]) -> list[int | bytes]:
    """`[kind, width, planes]` of a column: of the kinds that it may have, that which gzip likes."""
    if name == "start_ns":
        return list(_planes(AFTER_THE_ROW_BEFORE, _after_the_row_before(values, duration_ns)))
    first, second = _planes(VALUES, values), _planes(DIFFERENCES, differences(values))
    return list(first if _squeezed(first) <= _squeezed(second) else second)


def differences(values: Sequence[int]) -> list[int]:
    """Each value less the one before; the first less 0."""
    return [value - before for value, before in zip(values, [0, *values])]


def little_endian(column: array[int]) -> bytes:
    """A column's bytes as they stand in the format."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _after_the_row_before(start_ns: Sequence[int], duration_ns: Sequence[int]) -> list[int]:
    end_ns = [0] + [start + duration for start, duration in zip(start_ns, duration_ns)]
    return [start - before for start, before in zip(start_ns, end_ns)]


def _planes(kind: int, values: Sequence[int]) -> tuple[int, int, bytes]:
    """The lowest byte of all values, then their second, and so on, as far as one needs it.

    Raises:
        OverflowError: a difference is too large for 8 bytes.
    """
    raw = little_endian(array("q", values))
    width = _width(values)
    return kind, width, b"".join(raw[plane::8] for plane in range(width))


def _width(values: Sequence[int]) -> int:
    """Bytes that hold every value with its sign."""
    if not values:
        return 1
    bits = max((value if value >= 0 else ~value).bit_length() for value in values)
    return bits // 8 + 1


def _squeezed(column: tuple[int, int, bytes]) -> int:
    return len(zlib.compress(column[2]))
