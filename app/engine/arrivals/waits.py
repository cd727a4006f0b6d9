"""When did each rank wait for others? Intervals on a clock that all of a window's steps share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.lateness import Lateness
from app.engine.arrivals.occurrences import Occurrences
from app.engine.what_if import Replayer, ReplayGroups
from app.trace.window import Floats, Ints

ShortestTransfers = dict[tuple[int, int], float]  # by code of op type and stage, seconds


@dataclass(frozen=True)
class WaitIntervals:
    """Merged intervals in which one rank waited for others.

    Shapes: `start_s`, `end_s` and `before_s` (total waiting before the interval) [intervals],
    ascending, by the clock that `StepClock` lays the steps out on.
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


def merged_intervals(start_s: Floats, end_s: Floats) -> WaitIntervals:
    """Intervals in any order, overlapping or not."""
    keep = end_s > start_s
    order = np.argsort(start_s[keep], kind="stable")
    start_s, end_s = start_s[keep][order], end_s[keep][order]
    if not start_s.size:
        return WaitIntervals(start_s, end_s, np.empty(0))
    reach_s = np.maximum.accumulate(end_s)
    is_new = np.ones(start_s.size, np.bool_)
    is_new[1:] = start_s[1:] > reach_s[:-1]
    first = np.flatnonzero(is_new)
    last = np.append(first[1:], start_s.size) - 1
    start_s, end_s = start_s[first], reach_s[last]
    length_s = end_s - start_s
    return WaitIntervals(start_s, end_s, np.cumsum(length_s) - length_s)


@dataclass(frozen=True)
class StepClock:
    """Steps one after the other on one axis; `offset_s` [steps] is where each one's times begin.

    `follows` [steps]: the step before is recorded too, by the same origin, so the time between the
    two is known.
    """

    offset_s: Floats
    follows: NDArray[np.bool_]


def step_clock(replay: ReplayGroups) -> StepClock:
    """The window's steps at their origins; without origins, far apart from each other."""
    steps = np.asarray(replay.steps)
    follows = np.zeros(steps.size, np.bool_)
    grids = [group.grid for group in replay.groups]
    if any(grid.origin_s is None for grid in grids):
        ends_s = [float(grid.spans_s[1].max()) for grid in grids]
        return StepClock(np.arange(steps.size, dtype=np.float64) * (4.0 * max(ends_s)), follows)
    offset_s = np.empty(steps.size)
    for grid in grids:
        offset_s[np.searchsorted(steps, grid.steps)] = grid.origin_s
    follows[1:] = np.diff(steps) == 1
    return StepClock(offset_s, follows)


def table_clock(occurrences: Occurrences, *, is_continuous: bool) -> StepClock:
    """Clock of a table's steps: one origin for all, or steps laid out far apart."""
    steps = np.asarray(occurrences.steps)
    follows = np.zeros(steps.size, np.bool_)
    if is_continuous:
        follows[1:] = np.diff(steps) == 1
        return StepClock(np.zeros(steps.size), follows)
    ends_s = occurrences.start_s + occurrences.stay_s
    known = np.isfinite(ends_s)
    apart_s = np.ptp(np.concatenate([occurrences.start_s[known], ends_s[known], [0.0]]))
    return StepClock(np.arange(steps.size) * (4.0 * apart_s), follows)


@dataclass(frozen=True)
class PlaceWaits:
    """Waits of several ranks, and each one's first start in each step.

    Shapes: `start_s`, `reach_s` (latest end so far) and `total_s` (total waiting by then) [places,
    intervals], ascending, empty ones where a place has fewer; `first_s` [places, steps], NaN where
    nothing was recorded.
    """

    start_s: Floats
    reach_s: Floats
    total_s: Floats
    first_s: Floats

    @classmethod
    def of(cls, start_s: Floats, end_s: Floats, first_s: Floats) -> PlaceWaits:
        """Intervals [places, intervals] in any order, overlapping or not."""
        order = np.argsort(start_s, axis=1, kind="stable")
        order += np.arange(len(order))[:, None] * order.shape[1]
        end_s = np.maximum(start_s, end_s).take(order)
        start_s = start_s.take(order)
        reach_s = np.maximum.accumulate(end_s, axis=1)
        end_s[:, :1] -= start_s[:, :1]
        end_s[:, 1:] -= np.maximum(start_s[:, 1:], reach_s[:, :-1])
        total_s = np.cumsum(np.maximum(0.0, end_s, out=end_s), axis=1, out=end_s)
        return cls(start_s, reach_s, total_s, first_s)

    def until(self, place: Ints, bounds: Ints, time_s: Floats) -> Floats:
        """[moments], total waiting before each moment, in seconds.

        Moments `bounds[i]` to `bounds[i + 1]` are those of place `place[i]`.
        """
        if not self.start_s.shape[1]:
            return np.zeros(time_s.shape)
        num = np.empty(time_s.size, np.int64)
        for at, (first, end) in zip(place.tolist(), pairwise(bounds.tolist()), strict=True):
            num[first:end] = self.start_s[at].searchsorted(time_s[first:end], "right")
        last = np.repeat(place, np.diff(bounds)), np.maximum(num - 1, 0)
        spent_s = self.total_s[last] - np.maximum(0.0, self.reach_s[last] - time_s)
        return np.where(num > 0, spent_s, 0.0)


# Waits that are computed at once, which takes ten arrays of so many.
_MAX_TOGETHER = 1 << 20


@dataclass(eq=False)
class RankWaitTimes:
    """Wait intervals of each rank, computed on demand; `groups` are those of a replay, if any.

    `receives` are additional wait intervals (start, end) by place, on the same clock.
    """

    occurrences: Occurrences
    lateness: Lateness
    clock: StepClock
    groups: tuple[Replayer, ...] = ()
    receives: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)
    _known: dict[int, WaitIntervals] = field(default_factory=dict)
    _steps: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)

    @cached_property
    def of_group(self) -> list[Ints]:
        """Occurrences of each group, in order of step and sequence."""
        group = self.occurrences.group
        order = np.lexsort((self.occurrences.order, self.occurrences.step, group))
        bounds = np.searchsorted(group[order], np.arange(len(self.occurrences.groups) + 1))
        return [order[first:end] for first, end in pairwise(bounds.tolist())]

    def steps_of(self, group: int) -> tuple[Ints, Ints]:
        """Position of the first occurrence of each step among those of a group, and the steps."""
        if group not in self._steps:
            step = self.occurrences.step[self.of_group[group]]
            first = np.flatnonzero(np.concatenate([step[:1] >= 0, step[1:] != step[:-1]]))
            self._steps[group] = first, step[first]
        return self._steps[group]

    def has_bytes(self, group: int) -> bool:
        """Whether some occurrence of the group has the bytes of all its members."""
        first_row = self.occurrences.first_row[self.of_group[group]]
        rows = first_row[:, None] + np.arange(int(self.occurrences.group_size[group]))
        return bool(np.isfinite(self.occurrences.num_bytes[rows]).all(axis=1).any())

    def occurrences_of(self, members: Ints) -> tuple[Ints, Ints, Ints]:
        """Occurrences of members' groups, member by member, in order of step and sequence.

        Also the member's row in each, and [members + 1] where each member's occurrences begin.
        """
        group = self.occurrences.member_group[members]
        of_members = [self.of_group[number] for number in group.tolist()]
        occurrence = np.concatenate([np.empty(0, np.int64), *of_members])
        num = np.array([of_member.size for of_member in of_members], np.int64)
        position = members - self.occurrences.first_member[group]
        row = self.occurrences.first_row[occurrence] + np.repeat(position, num)
        return occurrence, row, np.concatenate([[0], np.cumsum(num)])

    def spans_s(self, occurrence: Ints, row: Ints) -> tuple[Floats, Floats]:
        """[occurrences], starts and ends of the members with these rows."""
        offset_s = self.clock.offset_s[self.occurrences.step[occurrence]]
        start_s = self.occurrences.start_s[row] + offset_s
        return start_s, start_s + self.occurrences.stay_s[row]

    def of(self, place: int) -> WaitIntervals:
        """All waiting of one rank: in its collectives, and for what it receives."""
        if place not in self._known:
            start_s, end_s, _ = self._spans_of(np.array([place]))
            self._known[place] = merged_intervals(start_s[0], end_s[0])
        return self._known[place]

    def of_places(self, places: Ints) -> PlaceWaits:
        """All waiting of several ranks, and their first starts."""
        return PlaceWaits.of(*self._spans_of(places))

    @cached_property
    def most_at_once(self) -> int:
        """Number of ranks whose waits fit the memory for them."""
        num_received = sum(
            int(np.count_nonzero(group.template.op_types.is_receive[group.template.optype]))
            * group.grid.start_s.shape[1]
            for group in self.groups
        )
        num_waits = self.occurrences.stay_s.size + num_received
        return max(1, int(_MAX_TOGETHER * len(self.occurrences.places) // max(1, num_waits)))

    def _spans_of(self, places: Ints) -> tuple[Floats, Floats, Floats]:
        """[places, intervals], starts and ends of waits, both 0 where a place has fewer.

        Also [places, steps], the first recorded start in each step, NaN where there is none.
        """
        num_steps = len(self.occurrences.steps)
        at_place = np.full(len(self.occurrences.places), -1, np.int64)
        at_place[places] = np.arange(places.size)
        of_member = at_place[self.occurrences.member_rank]
        members = np.flatnonzero(of_member >= 0)
        occurrence, row, bounds = self.occurrences_of(members)
        start_s, end_s = self.spans_s(occurrence, row)
        is_known = np.isfinite(start_s)
        first_s = np.full(places.size * num_steps, np.inf)
        cell = np.repeat(of_member[members], np.diff(bounds)) * num_steps
        cell += self.occurrences.step[occurrence]
        np.minimum.at(first_s, cell, np.where(is_known, start_s, np.inf))
        for replayer in self.groups:
            self._begin_with_operations(replayer, places, first_s.reshape(-1, num_steps))
        end_s -= self.lateness.transfer_s[occurrence]
        start_s, end_s = (np.where(is_known, times_s, 0.0) for times_s in (start_s, end_s))
        spans = [
            (place, start_s[first:end], end_s[first:end])
            for place, (first, end) in zip(
                of_member[members].tolist(), pairwise(bounds.tolist()), strict=True
            )
        ]
        for place in self.receives.keys() & set(places.tolist()):
            spans.append((int(at_place[place]), *self.receives[place]))
        for replayer in self.groups:
            spans += _receives(replayer, places, self.offsets_s(replayer), self._transfers_s)
        first_s = np.where(np.isfinite(first_s), first_s, np.nan)
        return *_beside(spans, places.size), first_s.reshape(-1, num_steps)

    def _begin_with_operations(self, replayer: Replayer, places: Ints, first_s: Floats) -> None:
        """Lower `first_s` [places, steps] to the workers' first operations, in recorded order."""
        template, grid = replayer.template, replayer.grid
        dp_rank, stage = np.divmod(places, template.parallelism.pp_size)
        of_workers = np.flatnonzero(dp_rank < template.parallelism.dp_size)
        # Operations are numbered stage by stage.
        first_op = np.searchsorted(template.stage, stage[of_workers])
        lanes = dp_rank[of_workers, None] * grid.num_steps + np.arange(grid.num_steps)
        start_s = grid.start_s[first_op[:, None], lanes] + self.offsets_s(replayer)
        steps = np.searchsorted(np.asarray(self.occurrences.steps), replayer.steps)
        cells = np.ix_(of_workers, steps)
        first_s[cells] = np.minimum(first_s[cells], start_s)

    @cached_property
    def _transfers_s(self) -> ShortestTransfers:
        """The shortest receive of each op type on each stage, over all of the window's steps."""
        shortest_s: ShortestTransfers = {}
        for replayer in self.groups:
            for stage in range(replayer.template.parallelism.pp_size):
                for code, rows in _receiving(replayer, stage):
                    least_s = float(replayer.grid.duration_s[rows].min())
                    shortest_s[code, stage] = min(least_s, shortest_s.get((code, stage), least_s))
        return shortest_s

    def offsets_s(self, replayer: Replayer) -> Floats:
        """[steps], clock offset of each step of a group."""
        at = np.searchsorted(np.asarray(self.occurrences.steps), replayer.steps)
        return self.clock.offset_s[at]


def _beside(spans: list[tuple[int, Floats, Floats]], num_places: int) -> tuple[Floats, Floats]:
    """[places, intervals], starts and ends side by side; 0 where a place has fewer."""
    nums = np.bincount([at for at, *_ in spans], [start_s.size for _, start_s, _ in spans], 1)
    starts_s, ends_s = np.zeros((2, num_places, int(nums.max())))
    filled = [0] * num_places
    for place, start_s, end_s in spans:
        new = slice(filled[place], filled[place] + start_s.size)
        starts_s[place, new], ends_s[place, new] = start_s, end_s
        filled[place] = new.stop
    return starts_s, ends_s


def _receives(
    replayer: Replayer, places: Ints, offset_s: Floats, transfer_s: ShortestTransfers
) -> list[tuple[int, Floats, Floats]]:
    """Wait intervals of workers' receives: all but the shortest transfer."""
    template, grid = replayer.template, replayer.grid
    sizes = template.parallelism
    intervals: list[tuple[int, Floats, Floats]] = []
    dp_rank, stage = np.divmod(places, sizes.pp_size)
    is_worker = dp_rank < sizes.dp_size
    begun_s, took_s = (
        times_s.reshape(-1, sizes.dp_size, grid.num_steps)
        for times_s in (grid.start_s, grid.duration_s)
    )
    for of_stage in np.unique(stage[is_worker]).tolist():
        on_stage = np.flatnonzero(is_worker & (stage == of_stage))
        for code, rows in _receiving(replayer, of_stage):
            chosen = rows[:, None], dp_rank[on_stage]
            # Step by step, so mostly in order of time, which sorts several times as fast.
            start_s = np.add(begun_s[chosen].transpose(1, 2, 0), offset_s[:, None], order="C")
            end_s = start_s + took_s[chosen].transpose(1, 2, 0) - transfer_s[code, of_stage]
            waits_s = (times_s.reshape(on_stage.size, -1) for times_s in (start_s, end_s))
            intervals += zip(on_stage.tolist(), *waits_s, strict=True)
    return intervals


def _receiving(replayer: Replayer, stage: int) -> list[tuple[int, Ints]]:
    """Receiving op types of a stage, and their rows in the template."""
    template = replayer.template
    receives = [
        (code, np.flatnonzero((template.optype == code) & (template.stage == stage)))
        for code in template.present
        if template.op_types.is_receive[code]
    ]
    return [(code, rows) for code, rows in receives if rows.size]
