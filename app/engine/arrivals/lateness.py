"""Lateness at each occurrence of a collective, and the waits of each rank (docs/arrivals.md).

    transfer = min(stay)      waited[r] = stay[r] - min(stay)      lateness[r] = max(stay) - stay[r]

The late set is every member below the largest material gap among the stays, at most half of them.
Groups over several pipeline stages have none. `RankWaitTimes` gives the intervals in which a rank
waited, by its own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.occurrences import Occurrences
from app.engine.kernels import in_parallel, kernel
from app.engine.what_if import Replayer, ReplayGroups
from app.trace.window import Floats, Ints

# A material gap is at least this share of the typical member's wait, and longer than the spread of
# one collective's ends over its members.
GAP_SHARE = 0.25
MIN_GAP_S = 10e-6


@dataclass(frozen=True)
class Lateness:
    """Sums over the occurrences of each step.

    [members, steps]: `waited_s`, the member's wait; `waited_for_s`, the others' wait for late sets
    with the member; `late`, number of occurrences in which it was late. [groups, steps]:
    `expected`, `late` by chance; `lost_s`, the others' wait for any late set; `num_occurrences`.
    [occurrences]: `transfer_s`, `late_wait_s` (the others' wait for the late set), `num_late`.
    [rows]: `is_late`.
    """

    waited_s: Floats
    waited_for_s: Floats
    late: Floats
    expected: Floats
    lost_s: Floats
    num_occurrences: Floats
    transfer_s: Floats
    late_wait_s: Floats
    num_late: Ints
    is_late: NDArray[np.bool_]

    def is_recorded(self, occurrences: Occurrences) -> NDArray[np.bool_]:
        """[groups, steps], False where a sampled group is not recorded in the step."""
        recorded = np.ones(self.num_occurrences.shape, np.bool_)
        sampled = sorted(occurrences.sampled)
        recorded[sampled] = self.num_occurrences[sampled] > 0
        return recorded

    def in_all_steps(self, occurrences: Occurrences) -> Lateness:
        """Sampled groups as if recorded in every step: missing steps get the mean of the others."""
        seen, member_group = self.is_recorded(occurrences), occurrences.member_group
        if seen.all():
            return self
        return replace(
            self,
            waited_s=fill_missing_steps(self.waited_s, seen[member_group]),
            waited_for_s=fill_missing_steps(self.waited_for_s, seen[member_group]),
            lost_s=fill_missing_steps(self.lost_s, seen),
        )


def fill_missing_steps(values: Floats, seen: NDArray[np.bool_]) -> Floats:
    """[rows, steps]: values of steps not seen become the mean of the steps seen."""
    num = np.maximum(1, seen.sum(axis=1))
    means = np.where(seen, values, 0.0).sum(axis=1) / num
    return np.where(seen, values, means[:, None])


def lateness_of(occurrences: Occurrences) -> Lateness:
    """Lateness, waits and transfers of all occurrences."""
    shape = occurrences.member_group.size, len(occurrences.steps)
    of_groups = len(occurrences.groups), len(occurrences.steps)
    num = occurrences.num_occurrences
    transfer_s, late_wait_s = np.zeros(num), np.zeros(num)
    num_late = np.zeros(num, np.int64)
    is_late = np.zeros(occurrences.stay_s.size, np.bool_)

    def part(first: int, end: int) -> tuple[Floats, ...]:
        sums = tuple(np.zeros(shape) for _ in range(3)) + tuple(
            np.zeros(of_groups) for _ in range(3)
        )
        _sum(
            occurrences.stay_s, occurrences.first_row, occurrences.group, occurrences.step,
            occurrences.group_size, occurrences.first_member, occurrences.is_judged,
            GAP_SHARE, MIN_GAP_S, first, end, *sums, transfer_s, late_wait_s, num_late, is_late,
        )  # fmt: skip
        return sums

    parts = in_parallel(occurrences.stay_s.size, num, part)
    waited_s, waited_for_s, times_late, expected, lost_s, num_in_step = (
        np.sum(each, axis=0) if len(parts) > 1 else each[0] for each in zip(*parts, strict=True)
    )
    return Lateness(
        waited_s,
        waited_for_s,
        times_late,
        expected,
        lost_s,
        num_in_step,
        transfer_s,
        late_wait_s,
        num_late,
        is_late,
    )


# Ranges between the shortest and the typical stay: a gap that lies inside one is not material.
NUM_RANGES = 16


@kernel
def _late_below(stay_s, gap_share, min_gap_s, least, most):  # type: ignore[no-untyped-def]
    """(Stay below which members are late, the wait for them); the wait is 0 if none is late.

    A material gap is at least a quarter of the range from the shortest to the typical stay, so it
    shows between sixteenths of that range and no sort is needed.
    """
    size = stay_s.size
    # The typical stay; with two or three members, the longest one.
    typical = np.partition(stay_s, size // 2)[size // 2] if size > 3 else most
    first = np.full(NUM_RANGES + 1, np.inf)
    last = np.full(NUM_RANGES + 1, -np.inf)
    scale = NUM_RANGES / (typical - least) if typical > least else 0.0
    second = most
    for at in range(size):
        stay = stay_s[at]
        if stay > least:
            second = min(second, stay)
        if stay <= typical:
            number = int((stay - least) * scale)
            first[number] = min(first[number], stay)
            last[number] = max(last[number], stay)
    if size == 3:
        # Only the shortest can be late.
        second = least if (stay_s == least).sum() > 1 else second
        gap, limit = second - least, second
    else:
        gap, limit = 0.0, least
        reached = least
        for number in range(NUM_RANGES + 1):
            if first[number] - reached > gap and first[number] < np.inf:
                gap, limit = first[number] - reached, first[number]
            if last[number] > reached:
                reached = last[number]
    if gap <= min_gap_s or gap < gap_share * (typical - least):
        return least, 0.0
    return limit, limit - least


@kernel
def _sum(  # type: ignore[no-untyped-def]
    stay_s, first_row, group, step, group_size, first_member, is_judged, gap_share, min_gap_s,
    first, end,
    waited_s, waited_for_s, late, expected, lost_s, num_occurrences,
    transfer_s, late_wait_s, num_late, is_late,
):  # fmt: skip
    for at in range(first, end):
        size, mine, when = group_size[group[at]], first_member[group[at]], step[at]
        row = first_row[at]
        least, most = stay_s[row], stay_s[row]
        for member in range(row, row + size):
            least = min(least, stay_s[member])
            most = max(most, stay_s[member])
        transfer_s[at] = least
        num_occurrences[group[at], when] += 1
        for member in range(size):
            waited_s[mine + member, when] += stay_s[row + member] - least
        if most - least <= min_gap_s or not is_judged[group[at]]:
            continue
        limit, wait = _late_below(stay_s[row : row + size], gap_share, min_gap_s, least, most)
        if wait == 0.0:
            continue
        count = 0
        for member in range(row, row + size):
            count += stay_s[member] < limit
        late_wait_s[at], num_late[at] = wait, count
        lost_s[group[at], when] += wait
        expected[group[at], when] += count / size
        for member in range(size):
            if stay_s[row + member] < limit:
                is_late[row + member] = True
                waited_for_s[mine + member, when] += wait
                late[mine + member, when] += 1


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


class RankWaitTimes:
    """Wait intervals of each rank, computed on demand."""

    def __init__(
        self,
        occurrences: Occurrences,
        lateness: Lateness,
        clock: StepClock,
        replay: ReplayGroups | None = None,
        receives: dict[int, tuple[Floats, Floats]] | None = None,
    ) -> None:
        """`receives` are additional wait intervals (start, end) by place, on the same clock."""
        self._occurrences = occurrences
        self._lateness = lateness
        self._clock = clock
        self._replay = replay
        self._receives = receives or {}
        self._known: dict[int, WaitIntervals] = {}

    @cached_property
    def _of_group(self) -> list[Ints]:
        """Occurrences of each group, in order of step and sequence."""
        found = self._occurrences
        order = np.lexsort((found.order, found.step, found.group))
        bounds = np.searchsorted(found.group[order], np.arange(len(found.groups) + 1))
        return [order[first:end] for first, end in pairwise(bounds.tolist())]

    def num_of_group(self, group: int) -> int:
        """Number of occurrences of a group."""
        return int(self._of_group[group].size)

    def has_bytes(self, group: int) -> bool:
        """Whether some occurrence of the group has the bytes of all its members."""
        found, occurrences = self._occurrences, self._of_group[group]
        rows = found.first_row[occurrences][:, None] + np.arange(int(found.group_size[group]))
        return bool(np.isfinite(found.num_bytes[rows]).all(axis=1).any())

    def rows(self, member: int) -> tuple[Ints, Ints]:
        """A member's rows in order of step and sequence, and their occurrences."""
        found, group = self._occurrences, int(self._occurrences.member_group[member])
        position = member - int(found.first_member[group])
        return found.first_row[self._of_group[group]] + position, self._of_group[group]

    def stay_s(self, member: int) -> Floats:
        """A member's stay in each of its group's occurrences."""
        return self._occurrences.stay_s[self.rows(member)[0]]

    def num_bytes(self, member: int) -> Floats:
        """Bytes of a member in each of its group's occurrences, NaN where unknown."""
        return self._occurrences.num_bytes[self.rows(member)[0]]

    def span_s(self, member: int) -> tuple[Floats, Floats, Ints]:
        """Start and end of each row of a member, and the occurrences of the rows."""
        rows, occurrences = self.rows(member)
        start_s = (
            self._occurrences.start_s[rows]
            + self._clock.offset_s[self._occurrences.step[occurrences]]
        )
        return start_s, start_s + self._occurrences.stay_s[rows], occurrences

    def of(self, place: int) -> WaitIntervals:
        """All waiting of one rank: in its collectives, and for what it receives."""
        if place not in self._known:
            self._known[place] = self._waiting(place)
        return self._known[place]

    def _waiting(self, place: int) -> WaitIntervals:
        starts, ends = [], []
        for member in np.flatnonzero(self._occurrences.member_rank == place).tolist():
            start_s, end_s, occurrences = self.span_s(member)
            is_known = np.isfinite(start_s)
            starts.append(start_s[is_known])
            ends.append((end_s - self._lateness.transfer_s[occurrences])[is_known])
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
        return merged_intervals(np.concatenate(starts), np.concatenate(ends))

    @cached_property
    def _transfers_s(self) -> ShortestTransfers:
        return {} if self._replay is None else _transfers_s(self._replay.groups)

    def offsets_s(self, replayer: Replayer) -> Floats:
        """[steps], clock offset of each step of a group."""
        at = np.searchsorted(np.asarray(self._occurrences.steps), replayer.steps)
        return self._clock.offset_s[at]


def _receives(
    replayer: Replayer, place: int, offset_s: Floats, transfer_s: ShortestTransfers
) -> tuple[Floats, Floats]:
    """Wait intervals of a worker's receives: all but the shortest transfer."""
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


def _transfers_s(replayers: Sequence[Replayer]) -> ShortestTransfers:
    """The shortest receive of each op type on each stage, over all of the window's steps."""
    found: ShortestTransfers = {}
    for replayer in replayers:
        for stage in range(replayer.template.parallelism.pp_size):
            for code, rows in _receiving(replayer, stage):
                least_s = float(replayer.grid.duration_s[rows].min())
                found[code, stage] = min(least_s, found.get((code, stage), least_s))
    return found


def _receiving(replayer: Replayer, stage: int) -> list[tuple[int, Ints]]:
    """Receiving op types of a stage, and their rows in the template."""
    template = replayer.template
    found = [
        (code, np.flatnonzero((template.optype == code) & (template.stage == stage)))
        for code in template.present
        if template.op_types.is_receive[code]
    ]
    return [(code, rows) for code, rows in found if rows.size]
