"""Which ranks cause the waits? Late far more often than by chance, by own delay, and by much.

Conditions: docs/arrivals.md, "Who is to blame". Own delay tells a late member that delayed itself
from one that others held up. A stretch of a member is the time from the end of its group's previous
occurrence to its start in this one, by its own clock. Own time is the stretch minus waits in any
group, waits for receives, and the extra time of routing more tokens than its peers. Own delay is
own time minus the peers' median.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from app.engine.arrivals.lateness import Lateness
from app.engine.arrivals.occurrences import Occurrences
from app.engine.arrivals.waits import RankWaitTimes, StepClock, WaitIntervals
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION, binomial_tail
from app.trace.window import Floats, Ints

# Peers' medians hardly change with more.
MAX_PEERS = 33
# Members whose pairs give the slope of own time by bytes.
MAX_PAIRED = 16
# Groups sampled per axis for the spread of healthy members, and members needed.
MAX_GROUPS = 16
MIN_MEMBERS = 6
# Share of a group's occurrences in a step that need stretches for a member's figure.
MIN_KNOWN = 0.5


@dataclass(eq=False)
class OwnTimes:
    """Own times of members before each occurrence of their group, computed on demand."""

    occurrences: Occurrences
    waits: RankWaitTimes
    clock: StepClock
    _known: dict[int, Floats] = field(default_factory=dict)
    _routed: dict[int, WaitIntervals] = field(default_factory=dict)
    _by_tokens: dict[int, Floats] = field(default_factory=dict)

    def compute(self, members: Ints) -> None:
        """Compute those of members of any groups at once, which takes less time than one by one."""
        new = np.array([at for at in members.tolist() if at not in self._known], np.int64)
        for first in range(0, new.size, self.waits.most_at_once):
            part = new[first : first + self.waits.most_at_once]
            own_s, begin_s, start_s, bounds = self._without_waits(part)
            for at, member in enumerate(part.tolist()):
                rows = slice(bounds[at], bounds[at + 1])
                if self._routed_groups:
                    routed = self._routed_s(int(self.occurrences.member_rank[member]))
                    own_s[rows] -= routed.until(start_s[rows]) - routed.until(begin_s[rows])
                self._known[member] = np.maximum(0.0, own_s[rows])

    def of(self, members: Ints) -> Floats:
        """[members, occurrences of their group], seconds; NaN without a known stretch."""
        self.compute(members)
        return np.array([self._known[member] for member in members.tolist()])

    def _without_waits(self, members: Ints) -> tuple[Floats, Floats, Floats, Ints]:
        """Stretches minus their waits, and their begins and ends, member by member.

        Also [members + 1] where each member's begin.
        """
        occurrence, row, bounds = self.waits.occurrences_of(members)
        start_s, end_s = self.waits.spans_s(occurrence, row)
        step = self.occurrences.step[occurrence]
        begin_s, is_known = np.full(start_s.size, np.nan), np.zeros(start_s.size, np.bool_)
        begin_s[1:] = end_s[:-1]
        # A step's first stretch begins at the last occurrence of the previous step if that is
        # recorded, else at the member's first start in this step.
        is_known[1:] = (step[1:] == step[:-1]) | (
            self.clock.follows[step[1:]] & (step[1:] == step[:-1] + 1)
        )
        is_known[bounds[:-1][np.diff(bounds) > 0]] = False
        waited_s = np.empty_like(start_s)
        for since in range(0, members.size, self.waits.most_at_once):
            part = bounds[since : since + self.waits.most_at_once + 1]
            rows, num = slice(part[0], part[-1]), np.diff(part)
            ranks = self.occurrences.member_rank[members[since : since + num.size]]
            places, at = np.unique(ranks, return_inverse=True)
            waiting = self.waits.of_places(places)
            first_s = waiting.first_s[np.repeat(at, num), step[rows]]
            first_s = np.where(first_s < start_s[rows], first_s, np.nan)
            begin_s[rows] = np.where(is_known[rows], begin_s[rows], first_s)
            waited_s[rows] = waiting.until(at, part - part[0], start_s[rows])
            waited_s[rows] -= waiting.until(at, part - part[0], begin_s[rows])
        # Overlapping occurrences have no stretch between them.
        own_s = np.maximum(0.0, start_s - begin_s - np.maximum(0.0, waited_s))
        return own_s, begin_s, start_s, bounds

    @cached_property
    def _routed_groups(self) -> list[int]:
        """Expert-parallel groups with the bytes of each member."""
        return [
            number
            for number, group in enumerate(self.occurrences.groups)
            if group.axis == "ep" and self.waits.has_bytes(number)
        ]

    def _routed_s(self, place: int) -> WaitIntervals:
        """Extra time of a rank's tokens against its peers', at the starts of its occurrences."""
        if place not in self._routed:
            moments, lengths = [np.empty(0)], [np.empty(0)]
            members = np.flatnonzero(self.occurrences.member_rank == place)
            for member in members.tolist():
                group = int(self.occurrences.member_group[member])
                if group in self._routed_groups:
                    at = member - int(self.occurrences.first_member[group])
                    occurrence, row, _ = self.waits.occurrences_of(np.array([member]))
                    moments.append(self.waits.spans_s(occurrence, row)[0])
                    lengths.append(self._by_tokens_s(group)[at])
            self._routed[place] = _steps_at(np.concatenate(moments), np.concatenate(lengths))
        return self._routed[place]

    def _by_tokens_s(self, group: int) -> Floats:
        """[members, occurrences], the part of own time that the members' bytes explain."""
        if group not in self._by_tokens:
            members = members_of(self.occurrences, group)
            num_bytes = self.occurrences.num_bytes[self.waits.occurrences_of(members)[1]]
            own_s, shape = self._without_waits(members)[0], (members.size, -1)
            self._by_tokens[group] = routed_s(own_s.reshape(shape), num_bytes.reshape(shape))
        return self._by_tokens[group]


def members_of(occurrences: Occurrences, group: int) -> Ints:
    """All members of a group."""
    first = int(occurrences.first_member[group])
    return first + np.arange(int(occurrences.group_size[group]))


# Clocks count nanoseconds; what is left below, where waits fill a stretch, is of rounding.
_SHORTEST_S = 1e-9


def routed_s(own_s: Floats, num_bytes: Floats) -> Floats:
    """[members, occurrences], the part of own times that members' bytes explain; 0 if unknown.

    With e the median slope (of all pairs of members at one occurrence, at least 0 and at most 1) of
    the logarithm of own time by that of bytes, it is own time x (1 - (bytes / median bytes)^-e).
    """
    is_time = np.isfinite(own_s) & (own_s >= _SHORTEST_S)
    known = (is_time & np.isfinite(num_bytes) & (num_bytes > 0)).all(axis=0)
    explained_s = np.zeros(own_s.shape)
    if not known.any():
        return explained_s
    time = np.log(own_s[:, known])
    size = np.log(num_bytes[:, known] / np.median(num_bytes[:, known], axis=0))
    chosen = evenly_spaced(len(size), MAX_PAIRED)
    first, second = np.triu_indices(chosen.size, 1)
    first, second = chosen[first], chosen[second]
    apart = size[second] - size[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(np.abs(apart) > 1e-6, (time[second] - time[first]) / apart, np.nan)
    has_slope = np.isfinite(slopes).any(axis=0)
    slope = np.zeros(slopes.shape[1])
    slope[has_slope] = np.clip(np.nanmedian(slopes[:, has_slope], axis=0), 0.0, 1.0)
    explained_s[:, known] = own_s[:, known] * (1.0 - np.exp(-slope * size))
    return explained_s


def _steps_at(moment_s: Floats, length_s: Floats) -> WaitIntervals:
    """Lengths added at moments, as wait intervals of zero width."""
    keep = np.isfinite(moment_s) & (length_s != 0)
    order = np.argsort(moment_s[keep], kind="stable")
    moment_s, length_s = moment_s[keep][order], length_s[keep][order]
    return WaitIntervals(moment_s, moment_s, np.cumsum(length_s))


@dataclass(eq=False)
class OwnDelays:
    """Own delays of suspects, and the spread of healthy members of an axis.

    `suspects` are not used as peers; those in `slow` are left out of the spread, too.
    """

    occurrences: Occurrences
    waits: RankWaitTimes
    own: OwnTimes
    suspects: Ints
    slow: Ints
    _peers: dict[int, Ints] = field(default_factory=dict)
    _spread: dict[tuple[str, bool], float | None] = field(default_factory=dict)

    def of_steps_s(self, member: int, *, by_stays: bool) -> Floats:
        """[steps], own time beyond the peers' median; NaN with too few known occurrences.

        With `by_stays` (without starts), its lateness against the peers' median instead.
        """
        group = int(self.occurrences.member_group[member])
        members = self.with_peers(member)
        times_s = self._times_s(members, by_stays=by_stays)
        usual_s = medians_of_known(times_s[1:].T)
        usual_s[np.isnan(times_s[1:]).any(axis=0)] = np.nan
        delay_s = times_s[:1] - usual_s
        return np.asarray(self._by_step(group, delay_s)[0])

    def with_peers(self, member: int) -> Ints:
        """The member, then those that it is compared with."""
        peers = self._peers_of(int(self.occurrences.member_group[member]))
        return np.concatenate([[member], peers[peers != member]])

    def spread_s(self, axis: str, *, by_stays: bool) -> float | None:
        """Robust standard deviation of own delays per step among members of an axis, seconds.

        None with too few members besides the suspects.
        """
        key = axis, by_stays
        if key not in self._spread:
            groups = self._sample(axis)
            delays_s = [self._of_members_s(group, by_stays=by_stays) for group in groups]
            known_s = np.concatenate([np.empty(0), *delays_s])
            self._spread[key] = None
            if known_s.size >= MIN_MEMBERS:
                away_s = np.abs(known_s - median_of(known_s))
                self._spread[key] = MAD_TO_DEVIATION * median_of(away_s)
        return self._spread[key]

    def _sample(self, axis: str) -> list[int]:
        """Evenly spaced groups of an axis that have occurrences."""
        groups = [
            number
            for number, group in enumerate(self.occurrences.groups)
            if group.axis == axis and self.waits.of_group[number].size
        ]
        return [groups[at] for at in evenly_spaced(len(groups), MAX_GROUPS)]

    def _of_members_s(self, group: int, *, by_stays: bool) -> Floats:
        """Median own delay per step of each member outside `slow` of which it is known."""
        members = self._without(members_of(self.occurrences, group), self.slow)
        members = members[evenly_spaced(members.size, MAX_PEERS)]
        if members.size < 2:
            return np.empty(0)
        times_s = self._times_s(members, by_stays=by_stays)
        by_step_s = self._by_step(group, times_s - median_of_others(times_s))
        typical_s = medians_of_known(by_step_s)
        return typical_s[np.isfinite(typical_s)]

    def _peers_of(self, group: int) -> Ints:
        """Members that are no suspects, or all if none is left; evenly spaced if many."""
        if group not in self._peers:
            members = members_of(self.occurrences, group)
            peers = self._without(members, self.suspects)
            peers = peers if peers.size else members
            self._peers[group] = peers[evenly_spaced(peers.size, MAX_PEERS)]
        return self._peers[group]

    def _without(self, members: Ints, left_out: Ints) -> Ints:
        is_left_out = np.zeros(self.occurrences.member_rank.size, np.bool_)
        is_left_out[left_out] = True
        return members[~is_left_out[members]]

    def _times_s(self, members: Ints, *, by_stays: bool) -> Floats:
        if by_stays:
            row = self.waits.occurrences_of(members)[1]
            return -self.occurrences.stay_s[row].reshape(members.size, -1)
        return self.own.of(members)

    def _by_step(self, group: int, delay_s: Floats) -> Floats:
        """[members, steps], sums of [members, occurrences]; NaN if less than half are known."""
        first, steps = self.waits.steps_of(group)
        known = np.isfinite(delay_s)
        num_known = np.add.reduceat(known, first, axis=1, dtype=np.int64)
        sums_s = np.add.reduceat(np.where(known, delay_s, 0.0), first, axis=1)
        total = np.diff(first, append=delay_s.shape[1])
        enough = (num_known > 0) & (num_known >= MIN_KNOWN * total)
        by_step_s = np.full((len(delay_s), len(self.occurrences.steps)), np.nan)
        by_step_s[:, steps] = np.where(enough, sums_s, np.nan)
        return by_step_s


def median_of_others(values: Floats) -> Floats:
    """[members, ...], for every member the median of all others; needs two members."""
    ranked = np.sort(values, axis=0)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    # Without a member, the later ones move up by one place.
    below = np.where(values <= ranked[low], ranked[low + 1], ranked[low])
    above = np.where(values <= ranked[high], ranked[high + 1], ranked[high])
    return np.asarray((below + above) / 2)


def evenly_spaced(num: int, most: int) -> Ints:
    """At most `most` positions of `num`, including the first and the last."""
    chosen = min(num, most)
    if chosen < 2:
        return np.arange(chosen)
    return np.arange(chosen) * (num - 1) // (chosen - 1)


# Share of the mean step that others wait for a rank before it is considered.
MIN_SHARE = 0.01
# A rank is late in a step if the others waited for it this share of the step, and this share of
# their wait in its typical late step.
MIN_STEP_SHARE = 0.005
MIN_OF_TYPICAL = 0.25
# Share of steps from which a rank is chronically late.
MIN_STEPS_LATE = 0.5
# Probability limit for the number of late occurrences, counting occurrences in which the others
# waited at least this share of their mean wait for the rank.
MAX_CHANCE = 0.02
MIN_MATERIAL_WAIT = 0.1
# Share of the others' wait that the rank's own delay has to explain.
MIN_OWN_SHARE = 0.5
# Share of the mean step from which an own delay makes a culprit.
MIN_DELAY_SHARE = 0.02
# Own delay in standard deviations of healthy members.
MIN_PEER_DEVIATIONS = 4.0
# Suspects with a larger share of the mean step are no sample of healthy members.
MIN_SUSPECT_SHARE = 0.05
MAX_SUSPECTS = 256


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that others waited for, in the group where they waited most.

    `place` indexes the occurrences' places, `group` their groups. `waited_for_s` and
    `own_delay_s` are mean seconds a step, `own_delay_s` None without starts; `by_step_s` [steps] is
    the others' wait for it. `late_share` is a share of occurrences, `steps_late` of steps.
    `is_chronic`: late in at least half of the steps; `is_own`: its own delay explains the wait.
    A culprit has both.
    """

    place: int
    group: int
    waited_for_s: float
    by_step_s: Floats
    late_share: float
    steps_late: float
    own_delay_s: float | None
    is_chronic: bool
    is_own: bool

    @property
    def is_culprit(self) -> bool:
        """Whether all conditions of blame hold."""
        return self.is_chronic and self.is_own


def late_ranks(
    occurrences: Occurrences,
    lateness: Lateness,
    waits: RankWaitTimes,
    clock: StepClock,
    step_s: Floats,
) -> tuple[LateRank, ...]:
    """Every rank that passes the tests of frequency and amount, most waited for first."""
    mean_s = float(step_s.mean())
    amount_s = lateness.waited_for_s.mean(axis=1)
    candidates = np.flatnonzero(amount_s >= MIN_SHARE * mean_s)
    candidates = candidates[np.argsort(-amount_s[candidates], kind="stable")][:MAX_SUSPECTS]
    members = candidates.tolist()
    frequent = [at for at in members if _is_frequent(occurrences, lateness, waits, at)]
    suspects = np.array(frequent, np.int64)
    slow = suspects[amount_s[suspects] >= MIN_SUSPECT_SHARE * mean_s]
    own = OwnTimes(occurrences, waits, clock)
    delays = OwnDelays(occurrences, waits, own, suspects, slow)
    compared = [delays.with_peers(suspect) for suspect in suspects.tolist()]
    own.compute(np.unique(np.concatenate([suspects, *compared])))
    judged = [_verdict(occurrences, lateness, delays, int(member), step_s) for member in suspects]
    # One entry per rank: its group with a culprit verdict first, then the longest wait.
    worst: dict[int, LateRank] = {}
    for late in judged:
        worst[late.place] = max(worst.get(late.place, late), late, key=_severity)
    return tuple(sorted(worst.values(), key=_severity, reverse=True))


def _severity(late: LateRank) -> tuple[bool, float]:
    return late.is_culprit, late.waited_for_s


def _is_frequent(
    occurrences: Occurrences, lateness: Lateness, waits: RankWaitTimes, member: int
) -> bool:
    """Whether it is late more often than by chance, counting occurrences with a material wait."""
    group = int(occurrences.member_group[member])
    of_group, rows, _ = waits.occurrences_of(np.array([member]))
    wait_s = lateness.late_wait_s[of_group]
    is_late = lateness.is_late[rows]
    if not is_late.any():
        return False
    matters = wait_s >= MIN_MATERIAL_WAIT * wait_s[is_late].mean()
    num, times_late = int(matters.sum()), int((matters & is_late).sum())
    size = int(occurrences.group_size[group])
    expected = float(lateness.num_late[of_group][matters].sum()) / size
    return times_late > expected and binomial_tail(times_late, num, expected / num) <= MAX_CHANCE


def _waited_once_s(
    occurrences: Occurrences, lateness: Lateness, waits: RankWaitTimes, member: int
) -> Floats:
    """[steps], what the others waited for a member, once where they wait in several occurrences.

    By its own clock: it ends when the member starts. Buckets are queued while others still wait.
    """
    of_group, rows, _ = waits.occurrences_of(np.array([member]))
    late = lateness.is_late[rows] & np.isfinite(occurrences.start_s[rows])
    until_s, _ = waits.spans_s(of_group[late], rows[late])
    since_s = until_s - lateness.late_wait_s[of_group[late]]
    step, num_steps = occurrences.step[of_group[late]], len(occurrences.steps)
    # Steps far apart, as the waits of each count for themselves.
    apart_s = 2 * step * np.ptp(np.concatenate([[0.0], since_s, until_s]))
    since_s, until_s = since_s + apart_s, until_s + apart_s
    order = np.argsort(since_s, kind="stable")
    since_s, until_s, step = since_s[order], until_s[order], step[order]
    since_s[1:] = np.maximum(since_s[1:], np.maximum.accumulate(until_s)[:-1])
    return np.asarray(np.bincount(step, np.maximum(0.0, until_s - since_s), num_steps))


def _verdict(
    occurrences: Occurrences, lateness: Lateness, delays: OwnDelays, member: int, step_s: Floats
) -> LateRank:
    group = int(occurrences.member_group[member])
    by_step_s = lateness.waited_for_s[member]
    # Median of the upper half: neither one long step nor many steps without waits dominate it.
    typical_s = median_of(np.sort(by_step_s)[by_step_s.size // 2 :])
    limit_s = np.maximum(MIN_STEP_SHARE * step_s, MIN_OF_TYPICAL * typical_s)
    seen = lateness.is_recorded(occurrences)
    is_late = (by_step_s >= limit_s) & seen[group]
    steps_late = float(is_late.sum() / max(1, seen[group].sum()))
    own_s = delays.of_steps_s(member, by_stays=False)
    by_stays = not np.isfinite(own_s[is_late]).any()
    of_rank = occurrences.member_rank == occurrences.member_rank[member]
    if occurrences.sampled:
        # In steps where one of its groups was not recorded, the rank's own waits are unknown.
        of_groups = seen[np.unique(occurrences.member_group[of_rank])]
        is_partial = ~of_groups & of_groups.any(axis=1, keepdims=True)
        own_s = np.where(is_partial.any(axis=0), np.nan, own_s)
    # Without starts here or elsewhere, its waits in other groups may be the reason it is late here.
    elsewhere = of_rank & (occurrences.member_group != group)
    if by_stays:
        own_s = delays.of_steps_s(member, by_stays=True)
    else:
        elsewhere &= ~occurrences.has_starts[occurrences.member_group]
    held_up_s = lateness.waited_s[elsewhere].mean(axis=1)
    is_held_up = bool((held_up_s >= MIN_OWN_SHARE * float(by_step_s.mean())).any())
    counts = is_late & np.isfinite(own_s)
    # Medians, so that one long pause makes no culprit.
    delay_s = steps_late * median_of(own_s[counts]) if counts.any() else 0.0
    once_s = by_step_s if by_stays else _waited_once_s(occurrences, lateness, delays.waits, member)
    wait_s = steps_late * median_of(once_s[counts]) if counts.any() else 0.0
    is_own = (
        not is_held_up
        and delay_s >= MIN_OWN_SHARE * wait_s
        and delay_s >= MIN_DELAY_SHARE * float(step_s.mean())
    )
    if is_own:
        spread_s = delays.spread_s(occurrences.groups[group].axis, by_stays=by_stays)
        is_own = spread_s is None or delay_s >= MIN_PEER_DEVIATIONS * spread_s
    return LateRank(
        place=int(occurrences.member_rank[member]),
        group=group,
        waited_for_s=float(by_step_s.mean()),
        by_step_s=by_step_s,
        late_share=float(lateness.late[member].sum() / lateness.num_occurrences[group].sum()),
        steps_late=steps_late,
        own_delay_s=None if by_stays else delay_s,
        is_chronic=steps_late >= MIN_STEPS_LATE,
        is_own=is_own,
    )
