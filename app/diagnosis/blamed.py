"""Single operations that a cause is blamed for, and what they would take without it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.diagnosis.repair import Repair, Repaired
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Blamed:
    """Some operations of a group of steps, each once.

    Shapes: [operations] for `row` of the template, `lane` and `seconds`: their durations without
    the cause, or the launch delays that are its.
    """

    row: Ints
    lane: Ints
    seconds: Floats


# By the steps of the group: replayers are too large to be keys.
Blames = Mapping[tuple[int, ...], Blamed]


def repair_of(blames: Blames) -> Repair:
    """Those operations take what `seconds` says, all others what they took."""

    def repair(replayer: Replayer) -> Repaired:
        return _repaired(replayer, blames, replayer.durations.recorded_s)

    return repair


def delays_of(blames: Blames) -> Repair:
    """Those operations were launched `seconds` too late, all others in time."""

    def late(replayer: Replayer) -> Repaired:
        return _repaired(replayer, blames, None)

    return late


def _repaired(replayer: Replayer, blames: Blames, else_s: Floats | None) -> Repaired:
    blamed = blames.get(replayer.steps)
    if blamed is None:
        return Repaired(np.empty(0, np.int64), np.empty((0, replayer.grid.start_s.shape[1])))
    rows, at = np.unique(blamed.row, return_inverse=True)
    shape = (rows.size, replayer.grid.start_s.shape[1])
    duration_s = np.zeros(shape) if else_s is None else else_s[rows]
    duration_s[at, blamed.lane] = blamed.seconds
    return Repaired(rows, duration_s)
