"""Who came late to each occurrence, and how long did the others wait for them? (docs/arrivals.md)

    transfer = min(stay)      waited[r] = stay[r] - min(stay)      lateness[r] = max(stay) - stay[r]

The late set is every member below the largest material gap among the stays, at most half of them.
Groups over several pipeline stages have none.
"""

from dataclasses import dataclass

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
        in_order = np.sort(stay_s[row : row + size])
        # The typical member's wait; of two or three members the longest.
        typical = in_order[size // 2 if size > 3 else size - 1]
        widest, count = 0.0, 0
        for below in range(1, size // 2 + 1):
            gap = in_order[below] - in_order[below - 1]
            if gap > widest:
                widest, count = gap, below
        if widest <= min_gap_s or widest < gap_share * (typical - least):
            continue
        limit, wait = in_order[count], in_order[count] - least
        late_wait_s[at], num_late[at] = wait, count
        lost_s[group[at], when] += wait
        expected[group[at], when] += count / size
        for member in range(size):
            if stay_s[row + member] < limit:
                is_late[row + member] = True
                waited_for_s[mine + member, when] += wait
                late[mine + member, when] += 1
