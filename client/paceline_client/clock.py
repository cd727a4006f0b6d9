"""The recorder's clock: monotonic, and anchored once to the wall clock."""

from __future__ import annotations

import time
from typing import NamedTuple

TRIES = 9


class Anchor(NamedTuple):
    """What to add to the monotonic clock, and by how much that may be wrong."""

    epoch_ns: int
    width_ns: int


def anchored() -> Anchor:
    """The wall clock read between two looks at the monotonic one, the closest of several times.

    One anchor for the recorder's life: the wall clock may be set, the other never is.
    """
    return min((_once() for _ in range(TRIES)), key=lambda anchor: anchor.width_ns)


def _once() -> Anchor:
    before_ns = time.perf_counter_ns()
    wall_ns = time.time_ns()
    width_ns = time.perf_counter_ns() - before_ns
    return Anchor(wall_ns - before_ns - width_ns // 2, width_ns)
