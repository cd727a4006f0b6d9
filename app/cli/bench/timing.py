"""Seconds that calls take, and what the machine can do at that moment."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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


def to_copy() -> Any:
    """An array of 100 MB: how long one copy takes says what the memory can do at this moment."""
    import numpy as np

    return np.ones(COPIED_BYTES // 8)


def peak_rss_bytes_of(call: Callable[[], Any]) -> int:
    """The most memory that this process holds while it makes a call, in all.

    Where the system cannot forget an earlier peak, the most that the process ever held.
    """
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        forget.write_text("5")  # reset the peak (proc(5))
    except OSError:
        call()
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    call()
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
