"""Arrivals in the slow, obvious way, written from docs/arrivals.md: plain lists and dicts.

An occurrence is a dict of its group, its step and, by rank, `stay` and `start`. Nothing here reads
the engine; tests compare the two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, inf, isnan
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
class Seat:
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
    seats: dict[tuple[int, int], Seat]
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
    steps: Sequence[int],
    step_s: Sequence[float],
    receives: Mapping[int, Sequence[tuple[float, float]]] | None = None,
    *,
    is_continuous: bool = True,
) -> Result:
    """Lateness, sums and blame; `receives` are the intervals in which a rank waited for a transfer.

    Receives are by the clock of steps that count from one origin.
    """
    found = [each for each in complete(rows, groups) if each.step in steps]
    position = {step: at for at, step in enumerate(steps)}
    seats = {
        (each.group, rank): Seat([0.0] * len(steps), [0.0] * len(steps))
        for each in found
        for rank in each.stay
    }
    lost = {each.group: [0.0] * len(steps) for each in found}
    for each in found:
        each.late, each.lost = late_set(each.stay)
        at = position[each.step]
        lost[each.group][at] += each.lost
        for rank in each.stay:
            seat = seats[each.group, rank]
            seat.num += 1
            seat.expected += len(each.late) / len(each.stay)
            seat.waited[at] += each.waited(rank)
            if rank in each.late:
                seat.times_late += 1
                seat.waited_for[at] += each.lost
    judged: list[Suspect] = []
    for group in lost:
        members = [rank for which, rank in seats if which == group]
        by_rank = {rank: seats[group, rank] for rank in members}
        suspects = {rank for rank in members if is_suspect(rank, by_rank, step_s)}
        for rank in suspects:
            own = own_delay(
                found, steps, group, rank, suspects, receives or {}, is_continuous=is_continuous
            )
            judged.append(judge(group, rank, seats, own, step_s))
    best: dict[int, Suspect] = {}
    for suspect in judged:
        other = best.get(suspect.rank)
        if other is None or weight(suspect) > weight(other):
            best[suspect.rank] = suspect
    return Result(found, seats, lost, best)


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


def is_often_late(seat: Seat) -> bool:
    """Whether chance would make it late as often in 0.5 % of cases or fewer."""
    return seat.times_late > seat.expected and (
        chance(seat.times_late, seat.num, seat.expected / seat.num) <= 0.005
    )


def is_suspect(rank: int, members: Mapping[int, Seat], step_s: Sequence[float]) -> bool:
    """Conditions 1 to 3."""
    seat = members[rank]
    if mean(seat.waited_for) < 0.01 * mean(step_s) or not is_often_late(seat):
        return False
    others = [
        sum(each.waited) for each in members.values() if each.times_late * 2 < seat.times_late
    ]
    if len(others) < 4:
        return True
    deviation = 1.4826 * median(abs(each - median(others)) for each in others)
    return sum(seat.waited_for) >= 3 * deviation


def share_of_steps(waited_for: Sequence[float], step_s: Sequence[float]) -> float:
    """Share of the steps in which a rank was late by enough to count."""
    upper = sorted(waited_for)[len(waited_for) // 2 :]
    least = median(upper) / 4
    return mean(
        [
            float(each >= least and each >= 0.005 * step)
            for each, step in zip(waited_for, step_s, strict=True)
        ]
    )


def judge(
    group: int,
    rank: int,
    seats: Mapping[tuple[int, int], Seat],
    own: float | None,
    step_s: Sequence[float],
) -> Suspect:
    """Conditions 4 and 5."""
    seat = seats[group, rank]
    waited_for = mean(seat.waited_for)
    steps_late = share_of_steps(seat.waited_for, step_s)
    if own is None:
        elsewhere = [
            mean(each.waited)
            for (which, who), each in seats.items()
            if who == rank and which != group
        ]
        is_own = max(elsewhere, default=0.0) < waited_for / 2
    else:
        is_own = own >= waited_for / 2
    return Suspect(group, rank, waited_for, steps_late, own, steps_late >= 0.5 and is_own)


def own_delay(
    found: Sequence[Occurrence],
    steps: Sequence[int],
    group: int,
    rank: int,
    suspects: set[int],
    receives: Mapping[int, Sequence[tuple[float, float]]],
    *,
    is_continuous: bool,
) -> float | None:
    """What a rank took longer than its peers before occurrences it was late at, seconds a step.

    None where no stretch before such an occurrence is known.
    """
    position = {step: at for at, step in enumerate(steps)}
    mine = [each for each in found if each.group == group]
    first = min(mine[0].stay)
    mine.sort(key=lambda each: (position[each.step], *place_in_step(each, first)))
    members = sorted(mine[0].stay)
    peers = [each for each in members if each != rank and each not in suspects]
    if not peers:
        peers = [each for each in members if each != rank]
    if len(peers) > MAX_PEERS:
        peers = [peers[at * (len(peers) - 1) // (MAX_PEERS - 1)] for at in range(MAX_PEERS)]
    total = all_waited = 0.0
    with_stretch = 0.0
    for before, at in zip([None, *mine], mine, strict=False):
        if rank not in at.late:
            continue
        all_waited += at.lost
        if before is None:
            continue
        if before.step != at.step and not (is_continuous and at.step - before.step == 1):
            continue
        own = {
            each: own_part(found, before, at, each, receives, is_continuous=is_continuous)
            for each in [rank, *peers]
        }
        if any(isnan(each) for each in own.values()):
            continue
        with_stretch += at.lost
        total += own[rank] - median(own[each] for each in peers)
    if with_stretch == 0:
        return None
    return total * all_waited / with_stretch / len(steps)


def place_in_step(each: Occurrence, first: int) -> tuple[float, int, int]:
    """By start on the first member; where that is not known, by number, before all others."""
    start = each.start[first]
    return (-inf if isnan(start) else start), each.sequence, each.kind


def own_part(
    found: Sequence[Occurrence],
    before: Occurrence,
    at: Occurrence,
    rank: int,
    receives: Mapping[int, Sequence[tuple[float, float]]],
    *,
    is_continuous: bool,
) -> float:
    """The time of a rank between two occurrences, less what it waited between them."""
    start, end = before.end(rank), at.start[rank]
    intervals = [
        (each.start[rank], each.start[rank] + each.waited(rank))
        for each in found
        if rank in each.stay and (is_continuous or each.step == at.step)
    ]
    intervals += receives.get(rank, ())
    waited = 0.0
    reached = start
    for opens, closes in sorted(intervals):
        opens, closes = max(opens, reached), min(closes, end)
        if closes > opens:
            waited += closes - opens
            reached = closes
    own = end - start - waited
    return own if isnan(own) else max(0.0, own)
