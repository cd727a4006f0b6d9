"""When did a rank wait, by its own clock, and how much of a stretch of time was waiting?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.lateness import Lateness
from app.engine.arrivals.occurrences import Occurrences
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints

if TYPE_CHECKING:
    from app.engine.replays import WindowReplay

Transfers = dict[tuple[int, int], float]  # by code of op type and stage, seconds


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


def clock_of_table(found: Occurrences, *, is_continuous: bool) -> Clock:
    """Times of a table: of all steps from one origin, or laid out apart from each other."""
    steps = np.asarray(found.steps)
    follows = np.zeros(steps.size, np.bool_)
    if is_continuous:
        follows[1:] = np.diff(steps) == 1
        return Clock(np.zeros(steps.size), follows)
    ends_s = found.start_s + found.stay_s
    known = np.isfinite(ends_s)
    apart_s = np.ptp(np.concatenate([found.start_s[known], ends_s[known], [0.0]]))
    return Clock(np.arange(steps.size) * (4.0 * apart_s), follows)


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

    @cached_property
    def _of_group(self) -> list[Ints]:
        """Occurrences of each group, in order of step and sequence."""
        found = self._found
        order = np.lexsort((found.order, found.step, found.group))
        bounds = np.searchsorted(found.group[order], np.arange(len(found.groups) + 1))
        return [order[first:end] for first, end in pairwise(bounds.tolist())]

    def num_of_group(self, group: int) -> int:
        """Number of occurrences of a group."""
        return int(self._of_group[group].size)

    def has_bytes(self, group: int) -> bool:
        """Whether all members of some occurrence of the group say how many bytes they had."""
        found, occurrences = self._found, self._of_group[group]
        rows = found.first_row[occurrences][:, None] + np.arange(int(found.group_size[group]))
        return bool(np.isfinite(found.num_bytes[rows]).all(axis=1).any())

    def rows(self, seat: int) -> tuple[Ints, Ints]:
        """A seat's rows in order of step and sequence, and their occurrences."""
        found, group = self._found, int(self._found.seat_group[seat])
        member = seat - int(found.first_seat[group])
        return found.first_row[self._of_group[group]] + member, self._of_group[group]

    def stay_s(self, seat: int) -> Floats:
        """How long a seat stayed in each of its group's occurrences."""
        return self._found.stay_s[self.rows(seat)[0]]

    def num_bytes(self, seat: int) -> Floats:
        """Bytes of a seat in each of its group's occurrences, NaN where unknown."""
        return self._found.num_bytes[self.rows(seat)[0]]

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
                start_s, end_s = _receives(
                    replayer, place, self.offsets_s(replayer), self._transfers_s
                )
                starts.append(start_s)
                ends.append(end_s)
        return merged(np.concatenate(starts), np.concatenate(ends))

    @cached_property
    def _transfers_s(self) -> Transfers:
        return {} if self._replay is None else _transfers_s(self._replay.groups)

    def offsets_s(self, replayer: Replayer) -> Floats:
        """[steps], where the times of a group's steps begin by the clock."""
        at = np.searchsorted(np.asarray(self._found.steps), replayer.steps)
        return self._clock.offset_s[at]


def _receives(
    replayer: Replayer, place: int, offset_s: Floats, transfer_s: Transfers
) -> tuple[Floats, Floats]:
    """When a worker waited for what it received: all but what the transfer takes at least."""
    template, grid = replayer.template, replayer.grid
    dp_rank, stage = divmod(place, template.parallelism.pp_size)
    starts, ends = [np.empty(0)], [np.empty(0)]
    if dp_rank >= template.parallelism.dp_size:
        return starts[0], ends[0]
    lanes = slice(dp_rank * grid.num_steps, (dp_rank + 1) * grid.num_steps)
    for code, rows in _receiving(replayer, stage):
        stay_s = grid.duration_s[rows, lanes]
        start_s = grid.start_s[rows, lanes] + offset_s
        starts.append(start_s.ravel())
        ends.append((start_s + stay_s - transfer_s[code, stage]).ravel())
    return np.concatenate(starts), np.concatenate(ends)


def _transfers_s(replayers: Sequence[Replayer]) -> Transfers:
    """The shortest receive of each op type on each stage, over all of the window's steps."""
    found: Transfers = {}
    for replayer in replayers:
        for stage in range(replayer.template.parallelism.pp_size):
            for code, rows in _receiving(replayer, stage):
                least_s = float(replayer.grid.duration_s[rows].min())
                found[code, stage] = min(least_s, found.get((code, stage), least_s))
    return found


def _receiving(replayer: Replayer, stage: int) -> list[tuple[int, Ints]]:
    """Op types that receive on a stage, and their rows in the template."""
    template = replayer.template
    found = [
        (code, np.flatnonzero((template.optype == code) & (template.stage == stage)))
        for code in template.present
        if template.op_types.is_receive[code]
    ]
    return [(code, rows) for code, rows in found if rows.size]
