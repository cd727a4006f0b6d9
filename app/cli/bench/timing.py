"""Seconds that calls take, and what the machine can do at that moment."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

COPIED_BYTES = 100_000_000


class Timings:
    """Seconds by name, of calls made again and again."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[[], T]) -> T:
        """What the call returns; its seconds are kept."""
        started_s = time.perf_counter()
        value = call()
        self._seconds.setdefault(name, []).append(time.perf_counter() - started_s)
        return value

    def medians(self) -> dict[str, float]:
        """The median of each name, in the order of first use."""
        return {name: statistics.median(seconds) for name, seconds in self._seconds.items()}


def to_copy() -> NDArray[Any]:
    """100 MB: how long one copy takes says what the machine's memory can do at this moment."""
    return np.ones(COPIED_BYTES // 8)


def peak_rss_bytes() -> int:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
