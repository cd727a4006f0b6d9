"""Who came late to each occurrence, and how long did the others wait for them? (docs/arrivals.md)

    transfer = min(stay)      waited[r] = stay[r] - min(stay)      lateness[r] = max(stay) - stay[r]

The late set is every member below the largest material gap among the stays, at most half of them.
Groups over several pipeline stages have none.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.occurrences import Occurrences
from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.trace.window import Floats, Ints

# A gap is material where it is this share of what the typical member waits, and longer than the
# ends of one collective are apart on its members.
GAP_SHARE = 0.25
MIN_GAP_S = 10e-6


@dataclass(frozen=True)
class Lateness:
    """Sums over the occurrences of each step.

    Shapes: `waited_s` and `waited_for_s` [seats, steps], seconds that a member waited and that
    the others waited for the late sets that it was in; `late` [seats, steps], occurrences in which
    it was late, `expected` [groups, steps] the number by chance; `lost_s` [groups, steps], what the
    others waited for any late set; `num_occurrences` [groups, steps]. Of every occurrence:
    `transfer_s`, `late_wait_s` (the others' wait for the late set) and `num_late`.
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

    def is_recorded(self, found: Occurrences) -> NDArray[np.bool_]:
        """[groups, steps], False where a sampled group is not recorded in the step."""
        recorded = np.ones(self.num_occurrences.shape, np.bool_)
        sampled = sorted(found.sampled)
        recorded[sampled] = self.num_occurrences[sampled] > 0
        return recorded

    def in_all_steps(self, found: Occurrences) -> "Lateness":
        """The same, as if sampled groups had been recorded in every step.

        What was waited in the others is the mean over those steps that have occurrences.
        """
        seen, seat_group = self.is_recorded(found), found.seat_group
        if seen.all():
            return self
        return replace(
            self,
            waited_s=filled(self.waited_s, seen[seat_group]),
            waited_for_s=filled(self.waited_for_s, seen[seat_group]),
            lost_s=filled(self.lost_s, seen),
        )


def filled(values: Floats, seen: NDArray[np.bool_]) -> Floats:
    """[rows, steps], values of steps that were not seen as the mean of those that were."""
    num = np.maximum(1, seen.sum(axis=1))
    means = np.where(seen, values, 0.0).sum(axis=1) / num
    return np.where(seen, values, means[:, None])


def lateness(found: Occurrences) -> Lateness:
    """Lateness, waits and transfers of all occurrences."""
    shape = found.seat_group.size, len(found.steps)
    of_groups = len(found.groups), len(found.steps)
    num = found.num_occurrences
    transfer_s, late_wait_s = np.zeros(num), np.zeros(num)
    num_late = np.zeros(num, np.int64)
    is_late = np.zeros(found.stay_s.size, np.bool_)

    def part(first: int, end: int) -> tuple[Floats, ...]:
        sums = tuple(np.zeros(shape) for _ in range(3)) + tuple(
            np.zeros(of_groups) for _ in range(3)
        )
        _sum(
            found.stay_s, found.first_row, found.group, found.step, found.group_size,
            found.first_seat, found.is_judged, GAP_SHARE, MIN_GAP_S, first, end, *sums,
            transfer_s, late_wait_s, num_late, is_late,
        )  # fmt: skip
        return sums

    parts = in_parallel(found.stay_s.size, num, part)
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
    """The stay below which members are late, and what the others waited for them; 0 where none.

    A material gap is a quarter of the way from the shortest stay to the typical one or more, so
    that it lies between sixteenths of that way: nothing has to be sorted.
    """
    size = stay_s.size
    # The typical member's wait; of two or three members the longest.
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
    stay_s, first_row, group, step, group_size, first_seat, is_judged, gap_share, min_gap_s,
    first, end,
    waited_s, waited_for_s, late, expected, lost_s, num_occurrences,
    transfer_s, late_wait_s, num_late, is_late,
):  # fmt: skip
    for at in range(first, end):
        size, mine, when = group_size[group[at]], first_seat[group[at]], step[at]
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
