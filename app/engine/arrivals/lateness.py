"""Lateness at each occurrence of a collective, and the waits of each rank (docs/arrivals.md).

    transfer = min(stay)      waited[r] = stay[r] - min(stay)      lateness[r] = max(stay) - stay[r]

The late set is every member below the largest material gap among the stays, at most half of them.
Groups over several pipeline stages have none. waits.py has the intervals in which ranks waited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.occurrences import Occurrences
from app.engine.kernels import in_parallel, kernel
from app.engine.medians import kth_smallest
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
    group_shape = len(occurrences.groups), len(occurrences.steps)
    num = occurrences.num_occurrences
    transfer_s, late_wait_s = np.zeros(num), np.zeros(num)
    num_late = np.zeros(num, np.int64)
    is_late = np.zeros(occurrences.stay_s.size, np.bool_)

    def part(first: int, end: int) -> tuple[Floats, ...]:
        sums = (*np.zeros((3, *shape)), *np.zeros((3, *group_shape)))
        _sum(
            occurrences.stay_s, occurrences.first_row, occurrences.group, occurrences.step,
            occurrences.group_size, occurrences.first_member, occurrences.is_judged,
            GAP_SHARE, MIN_GAP_S, first, end, *sums, transfer_s, late_wait_s, num_late, is_late,
        )  # fmt: skip
        return sums

    parts = in_parallel(occurrences.stay_s.size, num, part)
    sums = (reduce(np.add, of_parts) for of_parts in zip(*parts, strict=True))
    columns: tuple[Any, ...] = (*sums, transfer_s, late_wait_s, num_late, is_late)
    return Lateness(*columns)


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
    typical = kth_smallest(stay_s.copy(), size, size // 2) if size > 3 else most
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
        size, member_of_group, when = group_size[group[at]], first_member[group[at]], step[at]
        row = first_row[at]
        least, most = stay_s[row], stay_s[row]
        for member in range(row, row + size):
            least = min(least, stay_s[member])
            most = max(most, stay_s[member])
        transfer_s[at] = least
        num_occurrences[group[at], when] += 1
        for member in range(size):
            waited_s[member_of_group + member, when] += stay_s[row + member] - least
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
                waited_for_s[member_of_group + member, when] += wait
                late[member_of_group + member, when] += 1
