"""Did a late member delay itself, or had others held it up? (docs/arrivals.md, "Own delay")

A stretch of a member lies between the end of its group's occurrence before and its start in this
one, by its own clock. Its own time there is the stretch without what the member waited for others
in any group, for what it received, and without what more tokens than its peers' took it. Own delay
is own time minus the peers' median.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.occurrences import Occurrences
from app.engine.arrivals.waiting import Clock, Waiting, Waits
from app.trace.window import Floats, Ints

# Peers' medians hardly change with more.
MAX_PEERS = 33
# Members whose pairs tell how own time follows bytes.
MAX_PAIRED = 16
# Groups of an axis whose members show how much healthy ones differ, and how many have to.
MAX_GROUPS = 16
MIN_MEMBERS = 6
MAD_TO_DEVIATION = 1.4826
# A step says something of a member where this share of the group's occurrences has stretches.
MIN_KNOWN = 0.5


class OwnTimes:
    """Own times of members before each occurrence of their group, worked out when asked for."""

    def __init__(self, found: Occurrences, waits: Waits, clock: Clock) -> None:
        self._found = found
        self._waits = waits
        self._clock = clock
        self._known: dict[int, Floats] = {}
        self._routed: dict[int, Waiting] = {}
        self._first: dict[int, Floats] = {}

    def of(self, seat: int) -> Floats:
        """[the group's occurrences, by step and order], seconds; NaN without a known stretch."""
        if seat not in self._known:
            own_s, begin_s, start_s = self._without_waits(seat)
            if self._routed_groups:
                routed = self._routed_s(int(self._found.seat_rank[seat]))
                own_s = own_s - (routed.until(start_s) - routed.until(begin_s))
            self._known[seat] = np.maximum(0.0, own_s)
        return self._known[seat]

    def _without_waits(self, seat: int) -> tuple[Floats, Floats, Floats]:
        """Stretches less the waits in them, and where they begin and end."""
        start_s, end_s, occurrences = self._waits.span_s(seat)
        step = self._found.step[occurrences]
        place = int(self._found.seat_rank[seat])
        begin_s = np.full(start_s.size, np.nan)
        begin_s[1:] = end_s[:-1]
        is_known = np.zeros(start_s.size, np.bool_)
        # The first one of a step goes back to the last of the step before, where steps follow,
        # else to what the member recorded first in this step.
        is_known[1:] = (step[1:] == step[:-1]) | (
            self._clock.follows[step[1:]] & (step[1:] == step[:-1] + 1)
        )
        first_s = self._first_start_s(place)[step]
        begin_s = np.where(is_known, begin_s, np.where(first_s < start_s, first_s, np.nan))
        waiting = self._waits.of(place)
        waited_s = np.maximum(0.0, waiting.until(start_s) - waiting.until(begin_s))
        # Occurrences that overlap have nothing between them.
        return np.maximum(0.0, start_s - begin_s - waited_s), begin_s, start_s

    def _first_start_s(self, place: int) -> Floats:
        """[steps], the first start that a rank recorded in each step; NaN where there is none."""
        if place not in self._first:
            first_s = np.full(len(self._found.steps), np.inf)
            for seat in np.flatnonzero(self._found.seat_rank == place).tolist():
                start_s, _, occurrences = self._waits.span_s(seat)
                known = np.isfinite(start_s)
                np.minimum.at(first_s, self._found.step[occurrences][known], start_s[known])
            self._first[place] = np.where(np.isfinite(first_s), first_s, np.nan)
        return self._first[place]

    @cached_property
    def _routed_groups(self) -> list[int]:
        """Expert-parallel groups whose members say how many bytes each had."""
        return [
            number
            for number, group in enumerate(self._found.groups)
            if group.axis == "ep" and self._waits.has_bytes(number)
        ]

    def _routed_s(self, place: int) -> Waiting:
        """What a rank's tokens took it more, or less, than its peers': at the moments it was."""
        if place not in self._routed:
            moments, lengths = [np.empty(0)], [np.empty(0)]
            seats = np.flatnonzero(self._found.seat_rank == place)
            for seat in seats[np.isin(self._found.seat_group[seats], self._routed_groups)].tolist():
                start_s, _, _ = self._waits.span_s(seat)
                moments.append(start_s)
                lengths.append(self._by_tokens_s(int(self._found.seat_group[seat]))[seat])
            self._routed[place] = _steps_at(np.concatenate(moments), np.concatenate(lengths))
        return self._routed[place]

    def _by_tokens_s(self, group: int) -> dict[int, Floats]:
        """Of each seat [occurrences], own time that follows the tokens, by the members' bytes."""
        if group not in self._by_tokens:
            first = int(self._found.first_seat[group])
            seats = list(range(first, first + int(self._found.group_size[group])))
            own_s = np.array([self._without_waits(seat)[0] for seat in seats])
            num_bytes = np.array([self._waits.num_bytes(seat) for seat in seats])
            excess_s = routed_s(own_s, num_bytes)
            self._by_tokens[group] = dict(zip(seats, excess_s, strict=True))
        return self._by_tokens[group]

    @cached_property
    def _by_tokens(self) -> dict[int, dict[int, Floats]]:
        return {}


def routed_s(own_s: Floats, num_bytes: Floats) -> Floats:
    """[members, occurrences], the part of own times that members' bytes explain; 0 if unknown.

    With e the median slope (of all pairs of members at one occurrence, at least 0 and at most 1) of
    the logarithm of own time by that of bytes, it is own time x (1 - (bytes / median bytes)^-e).
    """
    known = (np.isfinite(own_s) & (own_s > 0) & np.isfinite(num_bytes) & (num_bytes > 0)).all(0)
    found = np.zeros(own_s.shape)
    if not known.any():
        return found
    time = np.log(own_s[:, known])
    size = np.log(num_bytes[:, known] / np.median(num_bytes[:, known], axis=0))
    chosen = evenly(len(size), MAX_PAIRED)
    first, second = np.triu_indices(chosen.size, 1)
    first, second = chosen[first], chosen[second]
    apart = size[second] - size[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(np.abs(apart) > 1e-6, (time[second] - time[first]) / apart, np.nan)
    has_slope = np.isfinite(slopes).any(axis=0)
    slope = np.zeros(slopes.shape[1])
    slope[has_slope] = np.clip(np.nanmedian(slopes[:, has_slope], axis=0), 0.0, 1.0)
    share = 1.0 - np.exp(-slope * size)
    found[:, known] = own_s[:, known] * share
    return found


def _steps_at(moment_s: Floats, length_s: Floats) -> Waiting:
    """Lengths that are added at moments, as waiting whose intervals take no time."""
    keep = np.isfinite(moment_s) & (length_s != 0)
    order = np.argsort(moment_s[keep], kind="stable")
    moment_s, length_s = moment_s[keep][order], length_s[keep][order]
    return Waiting(moment_s, moment_s, np.cumsum(length_s))


class OwnDelays:
    """Own delays of suspects, and how much healthy members of an axis differ."""

    def __init__(
        self, found: Occurrences, waits: Waits, own: OwnTimes, suspects: Ints, slow: Ints
    ) -> None:
        """`suspects` are no peers of each other; those of them in `slow` are surely not healthy."""
        self._found = found
        self._slow = slow
        self._waits = waits
        self._own = own
        self._suspects = suspects
        self._peers: dict[int, Ints] = {}
        self._spread: dict[tuple[str, bool], float | None] = {}

    def of_steps_s(self, seat: int, *, by_stays: bool) -> Floats:
        """[steps], own time beyond the peers' median; NaN where too little is known.

        With `by_stays` how much later than the peers' median it came, where starts are not known.
        """
        peers = self._peers_of(int(self._found.seat_group[seat]))
        times_s = self._times_s([seat, *peers[peers != seat].tolist()], by_stays=by_stays)
        return self._by_step(seat, times_s[0] - np.median(times_s[1:], axis=0))

    def spread_s(self, axis: str, *, by_stays: bool) -> float | None:
        """Robust standard deviation of own delays a step among members of an axis, seconds.

        None where too few members are no suspects.
        """
        key = axis, by_stays
        if key not in self._spread:
            delays_s = [
                delay_s
                for group in self._sample(axis)
                for delay_s in self._of_members_s(group, by_stays=by_stays)
            ]
            known_s = np.array([each for each in delays_s if np.isfinite(each)])
            self._spread[key] = None
            if known_s.size >= MIN_MEMBERS:
                away_s = np.abs(known_s - np.median(known_s))
                self._spread[key] = MAD_TO_DEVIATION * float(np.median(away_s))
        return self._spread[key]

    def _sample(self, axis: str) -> list[int]:
        """Groups of an axis that have occurrences, spread evenly."""
        groups = [
            number
            for number, group in enumerate(self._found.groups)
            if group.axis == axis and self._waits.num_of_group(number)
        ]
        return [groups[at] for at in evenly(len(groups), MAX_GROUPS)]

    def _of_members_s(self, group: int, *, by_stays: bool) -> list[float]:
        """The typical own delay a step of each member that is not surely slow."""
        members = np.setdiff1d(self._seats_of(group), self._slow)
        members = members[evenly(members.size, MAX_PEERS)]
        if members.size < 2:
            return []
        times_s = self._times_s(members.tolist(), by_stays=by_stays)
        delay_s = times_s - median_of_others(times_s)
        by_step_s = [
            self._by_step(seat, each) for seat, each in zip(members.tolist(), delay_s, strict=True)
        ]
        return [
            float(np.median(each[np.isfinite(each)])) if np.isfinite(each).any() else np.nan
            for each in by_step_s
        ]

    def _peers_of(self, group: int) -> Ints:
        """Members that are no suspects, all where none is left; of many an even choice."""
        if group not in self._peers:
            seats = self._seats_of(group)
            peers = np.setdiff1d(seats, self._suspects)
            peers = peers if peers.size else seats
            self._peers[group] = peers[evenly(peers.size, MAX_PEERS)]
        return self._peers[group]

    def _seats_of(self, group: int) -> Ints:
        first = int(self._found.first_seat[group])
        return first + np.arange(int(self._found.group_size[group]))

    def _times_s(self, seats: list[int], *, by_stays: bool) -> Floats:
        if by_stays:
            return np.array([-self._waits.stay_s(seat) for seat in seats])
        return np.array([self._own.of(seat) for seat in seats])

    def _by_step(self, seat: int, delay_s: Floats) -> Floats:
        """[steps], sums over a group's occurrences; NaN where less than half of them are known."""
        occurrences = self._waits.rows(seat)[1]
        step, num = self._found.step[occurrences], len(self._found.steps)
        known: NDArray[np.bool_] = np.isfinite(delay_s)
        total = np.bincount(step, minlength=num)
        num_known = np.bincount(step[known], minlength=num)
        sums_s = np.bincount(step[known], delay_s[known], num)
        enough = (num_known > 0) & (num_known >= MIN_KNOWN * total)
        return np.where(enough, sums_s, np.nan)


def median_of_others(values: Floats) -> Floats:
    """[members, ...], for each member the median of all others; needs two members."""
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, axis=0)
    position = np.empty_like(order)
    count = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
    np.put_along_axis(position, order, np.broadcast_to(count, order.shape), axis=0)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    below = np.take_along_axis(ranked, low + (low >= position), axis=0)
    above = np.take_along_axis(ranked, high + (high >= position), axis=0)
    return np.asarray((below + above) / 2)


def evenly(num: int, most: int) -> Ints:
    """Positions of at most so many of `num`, first and last among them."""
    chosen = min(num, most)
    if chosen < 2:
        return np.arange(chosen)
    return np.arange(chosen) * (num - 1) // (chosen - 1)
