"""Arrivals in the slow, obvious way, written from docs/arrivals.md: plain lists and dicts.

An occurrence is a dict of its group, its step and, by rank, `stay` and `start`. Nothing here reads
the engine; tests compare the two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import comb, inf, isnan, log, nan
from statistics import median

NEGLIGIBLE_S = 10e-6
MAX_PEERS = 33


@dataclass
class Row:
    """One rank's part of one occurrence of a collective."""

    group: int
    kind: int
    step: int
    sequence: int
    rank: int
    start: float
    stay: float
    num_bytes: int = -1


@dataclass
class Occurrence:
    """A collective that every member recorded, with stays and starts by rank."""

    group: int
    kind: int
    step: int
    sequence: int
    stay: dict[int, float]
    start: dict[int, float]
    num_bytes: dict[int, int]
    late: set[int] = field(default_factory=set)
    lost: float = 0.0

    def waited(self, rank: int) -> float:
        """How much longer a rank stayed than the transfer took."""
        return self.stay[rank] - min(self.stay.values())

    def end(self, rank: int) -> float:
        """When a rank left it."""
        return self.start[rank] + self.stay[rank]


@dataclass
class Member:
    """One member of one group; lists have one value a step."""

    waited: list[float]
    waited_for: list[float]
    times_late: int = 0
    expected: float = 0.0
    num: int = 0


@dataclass
class Suspect:
    """A rank that is late far more often than by chance, in one group."""

    group: int
    rank: int
    waited_for: float
    steps_late: float
    own_delay: float | None
    is_culprit: bool


@dataclass
class Result:
    """Everything that docs/arrivals.md defines for one table."""

    occurrences: list[Occurrence]
    by_member: dict[tuple[int, int], Member]
    lost: dict[int, list[float]]
    suspects: dict[int, Suspect]

    @property
    def culprits(self) -> set[int]:
        """The ranks that are to blame."""
        return {rank for rank, each in self.suspects.items() if each.is_culprit}


def late_set(stay: Mapping[int, float]) -> tuple[set[int], float]:
    """Who was late at one occurrence, and how long the others waited for them."""
    ordered = sorted(stay.values())
    num = len(ordered)
    if num < 2 or ordered[-1] - ordered[0] <= NEGLIGIBLE_S:
        return set(), 0.0
    gaps = [ordered[at + 1] - ordered[at] for at in range(num // 2)]
    widest = gaps.index(max(gaps))
    typical = ordered[num // 2] if num > 3 else ordered[-1]
    if gaps[widest] <= NEGLIGIBLE_S or gaps[widest] < (typical - ordered[0]) / 4:
        return set(), 0.0
    above = ordered[widest + 1]
    return {rank for rank, value in stay.items() if value < above}, above - ordered[0]


def complete(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> list[Occurrence]:
    """The occurrences that every member of their group has a row of."""
    found: dict[tuple[int, int, int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.group, row.kind, row.step, row.sequence), []).append(row)
    return [
        Occurrence(
            *key,
            {row.rank: row.stay for row in its},
            {row.rank: row.start for row in its},
            {row.rank: row.num_bytes for row in its},
        )
        for key, its in found.items()
        if len(groups[key[0]]) > 1 and {row.rank for row in its} == set(groups[key[0]])
    ]


def arrivals(
    rows: Sequence[Row],
    groups: Sequence[Sequence[int]],
    axes: Sequence[str],
    steps: Sequence[int],
    step_s: Sequence[float],
    receives: Mapping[int, Sequence[tuple[float, float]]] | None = None,
    *,
    is_continuous: bool = True,
    began: Mapping[tuple[int, int], float] | None = None,
) -> Result:
    """Lateness, sums and blame; `receives` are the intervals in which a rank waited for a transfer.

    `began` is when its first operation did, by rank and step.

    Receives are by the clock of steps that count from one origin.
    """
    found = [each for each in complete(rows, groups) if each.step in steps]
    position = {step: at for at, step in enumerate(steps)}
    by_member = {
        (each.group, rank): Member([0.0] * len(steps), [0.0] * len(steps))
        for each in found
        for rank in each.stay
    }
    lost = {each.group: [0.0] * len(steps) for each in found}
    for each in found:
        if axes[each.group] != "pp":
            each.late, each.lost = late_set(each.stay)
        at = position[each.step]
        lost[each.group][at] += each.lost
        for rank in each.stay:
            of_member = by_member[each.group, rank]
            of_member.num += 1
            of_member.expected += len(each.late) / len(each.stay)
            of_member.waited[at] += each.waited(rank)
            if rank in each.late:
                of_member.times_late += 1
                of_member.waited_for[at] += each.lost
    window = Window(found, groups, axes, steps, step_s, receives or {}, is_continuous, began or {})
    suspects = {
        group: {
            rank
            for which, rank in by_member
            if which == group and window.is_suspect(group, rank, by_member[group, rank])
        }
        for group in lost
    }
    # In the groups' order: of two in which a rank is waited for alike, the first one is named.
    judged = [
        window.judge(group, rank, by_member, suspects)
        for group in sorted(lost)
        for rank in suspects[group]
    ]
    best: dict[int, Suspect] = {}
    for suspect in judged:
        other = best.get(suspect.rank)
        if other is None or weight(suspect) > weight(other):
            best[suspect.rank] = suspect
    return Result(found, by_member, lost, best)


def weight(suspect: Suspect) -> tuple[bool, float]:
    """Where a rank is suspect in several groups: a culprit first, then waited for longest."""
    return suspect.is_culprit, suspect.waited_for


def mean(values: Sequence[float]) -> float:
    """The mean of a list that is not empty."""
    return sum(values) / len(values)


def chance(times: int, num: int, rate: float) -> float:
    """Probability of `times` or more out of `num`."""
    return sum(
        comb(num, each) * rate**each * (1 - rate) ** (num - each) for each in range(times, num + 1)
    )


def even_choice(values: Sequence[int], most: int) -> list[int]:
    """At most so many of them, first and last among them."""
    if len(values) <= most:
        return list(values)
    return [values[at * (len(values) - 1) // (most - 1)] for at in range(most)]


@dataclass
class Window:
    """Who is to blame; all occurrences are complete, and know who was late."""

    found: list[Occurrence]
    groups: Sequence[Sequence[int]]
    axes: Sequence[str]
    steps: Sequence[int]
    step_s: Sequence[float]
    receives: Mapping[int, Sequence[tuple[float, float]]]
    is_continuous: bool
    began: Mapping[tuple[int, int], float]  # first operation by rank and step

    def is_suspect(self, group: int, rank: int, of_member: Member) -> bool:
        """Conditions 1 and 2."""
        if mean(of_member.waited_for) < 0.01 * mean(self.step_s):
            return False
        mine = [each for each in self.found if each.group == group]
        late = [each.lost for each in mine if rank in each.late]
        if not late:
            return False
        counted = [each for each in mine if each.lost >= mean(late) / 10]
        times = sum(rank in each.late for each in counted)
        expected = sum(len(each.late) / len(each.stay) for each in counted)
        return times > expected and chance(times, len(counted), expected / len(counted)) <= 0.02

    def judge(
        self,
        group: int,
        rank: int,
        by_member: Mapping[tuple[int, int], Member],
        suspects: Mapping[int, set[int]],
    ) -> Suspect:
        """Conditions 3 to 6."""
        of_member = by_member[group, rank]
        is_late = late_steps(of_member.waited_for, self.step_s)
        share = mean([float(each) for each in is_late])
        by_stays = False
        own = self.own_delay_of_steps(group, rank, suspects[group], by_stays=by_stays)
        is_held_up = False
        if all(each is None for each, late in zip(own, is_late, strict=True) if late):
            by_stays = True
            own = self.own_delay_of_steps(group, rank, suspects[group], by_stays=by_stays)
            elsewhere = [
                mean(each.waited)
                for (which, who), each in by_member.items()
                if who == rank and which != group
            ]
            is_held_up = max(elsewhere, default=0.0) >= mean(of_member.waited_for) / 2
        both = [
            (delay, waited)
            for delay, waited, late in zip(
                own,
                of_member.waited_for if by_stays else self.waited_once(group, rank),
                is_late,
                strict=True,
            )
            if late and delay is not None
        ]
        delay = share * median(each for each, _ in both) if both else 0.0
        waited = share * median(each for _, each in both) if both else 0.0
        is_culprit = (
            share >= 0.5
            and not is_held_up
            and delay >= waited / 2
            and delay >= 0.02 * mean(self.step_s)
        )
        if is_culprit:
            deviation = self.deviation(self.axes[group], by_member, suspects, by_stays=by_stays)
            is_culprit = deviation is None or delay >= 4 * deviation
        reported = None if by_stays else delay
        return Suspect(group, rank, mean(of_member.waited_for), share, reported, is_culprit)

    def waited_once(self, group: int, rank: int) -> list[float]:
        """[steps], what the others waited for it, moments of several occurrences once."""
        found = []
        for step in self.steps:
            waits = sorted(
                (each.start[rank] - each.lost, each.start[rank])
                for each in self.found
                if each.group == group and each.step == step and rank in each.late
                if not isnan(each.start[rank])
            )
            reach, once = -inf, 0.0
            for since, until in waits:
                once += max(0.0, until - max(since, reach))
                reach = max(reach, until)
            found.append(once)
        return found

    def deviation(
        self,
        axis: str,
        by_member: Mapping[tuple[int, int], Member],
        suspects: Mapping[int, set[int]],
        *,
        by_stays: bool,
    ) -> float | None:
        """By how much healthy members of an axis differ; None where too few are known."""
        of_axis = [
            group
            for group in range(len(self.groups))
            if self.axes[group] == axis and any(each.group == group for each in self.found)
        ]
        values = []
        for group in even_choice(of_axis, 16):
            slow = {
                rank
                for rank in suspects[group]
                if mean(by_member[group, rank].waited_for) >= 0.05 * mean(self.step_s)
            }
            members = [rank for rank in self.groups[group] if rank not in slow]
            members = even_choice(members, MAX_PEERS)
            if len(members) < 2:
                continue
            for rank in members:
                peers = [each for each in members if each != rank]
                by_step = self.by_step(group, rank, peers, by_stays=by_stays)
                known = [each for each in by_step if each is not None]
                if known:
                    values.append(median(known))
        if len(values) < 6:
            return None
        return 1.4826 * median(abs(each - median(values)) for each in values)

    def own_delay_of_steps(
        self, group: int, rank: int, suspects: set[int], *, by_stays: bool
    ) -> list[float | None]:
        """By how much it takes longer than its peers in each step."""
        others = [each for each in self.groups[group] if each not in suspects]
        if not others:
            others = list(self.groups[group])
        peers = [each for each in even_choice(others, MAX_PEERS) if each != rank]
        return self.by_step(group, rank, peers, by_stays=by_stays)

    def by_step(
        self, group: int, rank: int, peers: Sequence[int], *, by_stays: bool
    ) -> list[float | None]:
        """[steps], the sum of own delays where half of the occurrences or more have them."""
        delays: dict[int, list[float | None]] = {step: [] for step in self.steps}
        for before, at in self.in_order(group):
            if by_stays:
                delays[at.step].append(median(at.stay[peer] for peer in peers) - at.stay[rank])
                continue
            own = {each: self.own(before, at, each) for each in [rank, *peers]}
            if any(isnan(each) for each in own.values()):
                delays[at.step].append(None)
            else:
                delays[at.step].append(own[rank] - median(own[each] for each in peers))
        found: list[float | None] = []
        for step in self.steps:
            known = [each for each in delays[step] if each is not None]
            enough = known and len(known) >= len(delays[step]) / 2
            found.append(sum(known) if enough else None)
        return found

    def in_order(self, group: int) -> list[tuple[Occurrence | None, Occurrence]]:
        """A group's occurrences, each with the one that it follows, if it is known."""
        mine = [each for each in self.found if each.group == group]
        first = self.groups[group][0]
        position = {step: at for at, step in enumerate(self.steps)}
        mine.sort(key=lambda each: (position[each.step], *place_in_step(each, first)))
        found: list[tuple[Occurrence | None, Occurrence]] = []
        for before, at in zip([None, *mine], mine, strict=False):
            follows = before is not None and (
                before.step == at.step or (self.is_continuous and at.step - before.step == 1)
            )
            found.append((before if follows else None, at))
        return found

    def stretch(
        self, before: Occurrence | None, at: Occurrence, rank: int
    ) -> tuple[float, float] | None:
        """Where it begins and ends; None where there is none."""
        end = at.start[rank]
        if before is not None:
            begin = before.end(rank)
        else:
            starts = [
                each.start[rank]
                for each in self.found
                if rank in each.stay and each.step == at.step and not isnan(each.start[rank])
            ]
            begin = min([*starts, self.began.get((rank, at.step), inf)], default=inf)
            if not begin < end:
                return None
        return None if isnan(begin) or isnan(end) else (begin, end)

    def without_waits(self, before: Occurrence | None, at: Occurrence, rank: int) -> float:
        """A rank's stretch less what it waited there; NaN where there is none."""
        stretch = self.stretch(before, at, rank)
        if stretch is None:
            return nan
        start, end = stretch
        intervals = [
            (each.start[rank], each.start[rank] + each.waited(rank))
            for each in self.found
            if rank in each.stay and (self.is_continuous or each.step == at.step)
        ]
        intervals += self.receives.get(rank, ())
        waited, reached = 0.0, start
        for opens, closes in sorted(each for each in intervals if not isnan(each[0])):
            opens, closes = max(opens, reached), min(closes, end)
            if closes > opens:
                waited += closes - opens
                reached = closes
        return max(0.0, end - start - waited)

    def own(self, before: Occurrence | None, at: Occurrence, rank: int) -> float:
        """The same less what its tokens took."""
        own = self.without_waits(before, at, rank)
        stretch = self.stretch(before, at, rank)
        if stretch is None:
            return nan
        begin, end = stretch
        for (which, moment), extra in self.tokens(rank).items():
            if begin < moment <= end and (self.is_continuous or which == at.step):
                own -= extra
        return max(0.0, own)

    def tokens(self, rank: int) -> dict[tuple[int, float], float]:
        """What a rank's tokens took it beyond its peers', by step and moment."""
        if rank in self.known_tokens:
            return self.known_tokens[rank]
        found: dict[tuple[int, float], float] = {}
        for group, members in enumerate(self.groups):
            if self.axes[group] != "ep" or rank not in members:
                continue
            for before, at in self.in_order(group):
                time = {each: self.without_waits(before, at, each) for each in at.stay}
                size = at.num_bytes
                if all(time[each] >= 1e-9 and size[each] > 0 for each in at.stay):
                    exponent = slope(time, size)
                    ratio = size[rank] / median(size.values())
                    moment = at.step, at.start[rank]
                    found[moment] = time[rank] * (1 - ratio**-exponent) + found.get(moment, 0.0)
        self.known_tokens[rank] = found
        return found

    @cached_property
    def known_tokens(self) -> dict[int, dict[tuple[int, float], float]]:
        """Those of the ranks that were asked for."""
        return {}


def slope(time: Mapping[int, float], size: Mapping[int, int]) -> float:
    """The median slope of log time by log size over all pairs, between 0 and 1."""
    ranks = even_choice(sorted(time), 16)
    slopes = []
    for first, second in combinations(ranks, 2):
        apart = log(size[second]) - log(size[first])
        if abs(apart) > 1e-6:
            slopes.append((log(time[second]) - log(time[first])) / apart)
    return min(1.0, max(0.0, median(slopes))) if slopes else 0.0


def late_steps(waited_for: Sequence[float], step_s: Sequence[float]) -> list[bool]:
    """The steps in which a rank was late by enough to count."""
    upper = sorted(waited_for)[len(waited_for) // 2 :]
    least = median(upper) / 4
    return [
        each >= least and each >= 0.005 * step
        for each, step in zip(waited_for, step_s, strict=True)
    ]


def place_in_step(each: Occurrence, first: int) -> tuple[float, int, int]:
    """By start on the first member; where that is not known, by number, before all others."""
    start = each.start[first]
    return (-inf if isnan(start) else start), each.sequence, each.kind
