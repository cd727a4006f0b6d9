"""When did a rank wait, by its own clock, and how much of a stretch of time was waiting?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.lateness import Lateness
from app.engine.arrivals.occurrences import Occurrences
from app.engine.what_if import Replayer
from app.trace.ops import Kind
from app.trace.window import Floats, Ints

if TYPE_CHECKING:
    from app.engine.replays import WindowReplay


@dataclass(frozen=True)
class Waiting:
    """Merged intervals in which one rank waited for others.

    Shapes: `start_s`, `end_s` and `before_s` (total waiting before the interval) [intervals],
    ascending, by the clock that `Clock` lays the steps out on.
    """

    start_s: Floats
    end_s: Floats
    before_s: Floats

    def until(self, time_s: Floats) -> Floats:
        """Total waiting before each moment, in seconds."""
        if not self.start_s.size:
            return np.zeros(np.shape(time_s))
        at = np.searchsorted(self.start_s, time_s, side="right") - 1
        inside = np.maximum(at, 0)
        spent_s = np.minimum(time_s, self.end_s[inside]) - self.start_s[inside]
        return np.where(at >= 0, self.before_s[inside] + spent_s, 0.0)


def merged(start_s: Floats, end_s: Floats) -> Waiting:
    """Intervals in any order, overlapping or not."""
    keep = end_s > start_s
    order = np.argsort(start_s[keep], kind="stable")
    start_s, end_s = start_s[keep][order], end_s[keep][order]
    if not start_s.size:
        return Waiting(start_s, end_s, np.empty(0))
    reach_s = np.maximum.accumulate(end_s)
    is_new = np.ones(start_s.size, np.bool_)
    is_new[1:] = start_s[1:] > reach_s[:-1]
    first = np.flatnonzero(is_new)
    last = np.append(first[1:], start_s.size) - 1
    start_s, end_s = start_s[first], reach_s[last]
    length_s = end_s - start_s
    return Waiting(start_s, end_s, np.cumsum(length_s) - length_s)


@dataclass(frozen=True)
class Clock:
    """Steps one after the other on one axis; `offset_s` [steps] is where each one's times begin.

    `follows` [steps] says that a step's predecessor is the step before it and both count from one
    origin, so that what lies between them is known.
    """

    offset_s: Floats
    follows: NDArray[np.bool_]


def clock_of(replay: WindowReplay) -> Clock:
    """The window's steps by their own origins; apart from each other where there are none."""
    steps = np.asarray(replay.steps)
    follows = np.zeros(steps.size, np.bool_)
    grids = [group.grid for group in replay.groups]
    if any(grid.origin_s is None for grid in grids):
        ends_s = [float(grid.spans_s[1].max()) for grid in grids]
        return Clock(np.arange(steps.size, dtype=np.float64) * (4.0 * max(ends_s)), follows)
    offset_s = np.empty(steps.size)
    for grid in grids:
        offset_s[np.searchsorted(steps, grid.steps)] = grid.origin_s
    follows[1:] = np.diff(steps) == 1
    return Clock(offset_s, follows)


def continuous(num_steps: int) -> Clock:
    """Times that count from one origin in all steps."""
    follows = np.ones(num_steps, np.bool_)
    follows[:1] = False
    return Clock(np.zeros(num_steps), follows)


class Waits:
    """Waiting of any rank, worked out when it is asked for."""

    def __init__(
        self,
        found: Occurrences,
        late: Lateness,
        clock: Clock,
        replay: WindowReplay | None = None,
        receives: dict[int, tuple[Floats, Floats]] | None = None,
    ) -> None:
        """`receives` are further intervals (start, end) of a place, by the same clock."""
        self._found = found
        self._late = late
        self._clock = clock
        self._replay = replay
        self._receives = receives or {}
        self._known: dict[int, Waiting] = {}
        self._of_group = [
            np.flatnonzero(found.group == group) for group in range(len(found.groups))
        ]

    def rows(self, seat: int) -> tuple[Ints, Ints]:
        """A seat's rows in order of step and sequence, and their occurrences."""
        found, group = self._found, int(self._found.seat_group[seat])
        occurrences = self._of_group[group]
        occurrences = occurrences[np.lexsort((found.order[occurrences], found.step[occurrences]))]
        member = seat - int(found.first_seat[group])
        return found.first_row[occurrences] + member, occurrences

    def span_s(self, seat: int) -> tuple[Floats, Floats, Ints]:
        """Start and end of each of a seat's rows by the clock, and their occurrences."""
        rows, occurrences = self.rows(seat)
        start_s = self._found.start_s[rows] + self._clock.offset_s[self._found.step[occurrences]]
        return start_s, start_s + self._found.stay_s[rows], occurrences

    def of(self, place: int) -> Waiting:
        """All waiting of one rank: in its collectives, and for what it receives."""
        if place not in self._known:
            self._known[place] = self._waiting(place)
        return self._known[place]

    def _waiting(self, place: int) -> Waiting:
        starts, ends = [], []
        for seat in np.flatnonzero(self._found.seat_rank == place).tolist():
            start_s, end_s, occurrences = self.span_s(seat)
            is_known = np.isfinite(start_s)
            starts.append(start_s[is_known])
            ends.append((end_s - self._late.transfer_s[occurrences])[is_known])
        if place in self._receives:
            start_s, end_s = self._receives[place]
            starts.append(start_s)
            ends.append(end_s)
        if self._replay is not None:
            for replayer in self._replay.groups:
                start_s, end_s = _receives(replayer, place, self.offsets_s(replayer))
                starts.append(start_s)
                ends.append(end_s)
        return merged(np.concatenate(starts), np.concatenate(ends))

    def offsets_s(self, replayer: Replayer) -> Floats:
        """[steps], where the times of a group's steps begin by the clock."""
        at = np.searchsorted(np.asarray(self._found.steps), replayer.steps)
        return self._clock.offset_s[at]


def _receives(replayer: Replayer, place: int, offset_s: Floats) -> tuple[Floats, Floats]:
    """When a worker waited for what it received: all but the shortest receive of each kind."""
    template, grid = replayer.template, replayer.grid
    dp_rank, stage = divmod(place, template.parallelism.pp_size)
    starts, ends = [np.empty(0)], [np.empty(0)]
    if dp_rank >= template.parallelism.dp_size:
        return starts[0], ends[0]
    lanes = slice(dp_rank * grid.num_steps, (dp_rank + 1) * grid.num_steps)
    for code in template.present:
        spec = template.op_types.by_code[code]
        if spec.kind is not Kind.P2P or not spec.name.endswith("-recv"):
            continue
        rows = np.flatnonzero((template.optype == code) & (template.stage == stage))
        if not rows.size:
            continue
        stay_s = grid.duration_s[rows, lanes]
        start_s = grid.start_s[rows, lanes] + offset_s
        starts.append(start_s.ravel())
        ends.append((start_s + stay_s - grid.duration_s[rows].min()).ravel())
    return np.concatenate(starts), np.concatenate(ends)
