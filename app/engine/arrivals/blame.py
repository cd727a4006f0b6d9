"""Who is to blame for waits: late far more often than by chance, by their own delay, and by much.

The three conditions are those of docs/arrivals.md, "From last to to blame".
"""

from dataclasses import dataclass
from math import exp, lgamma, log, log1p

import numpy as np

from app.engine.arrivals.lateness import Lateness
from app.engine.arrivals.occurrences import Occurrences
from app.engine.arrivals.own_delay import own_delays_s
from app.engine.arrivals.waiting import Clock, Waits
from app.trace.window import Floats, Ints

# Of the mean step: what others waited for a rank, for it to be looked at.
MIN_SHARE = 0.01
# A rank counts as late in a step where the others waited for it this share of the step, and this
# share of what they waited in its typical late step.
MIN_STEP_SHARE = 0.005
MIN_OF_TYPICAL = 0.25
# A rank that is late in fewer steps is late now and then.
MIN_STEPS_LATE = 0.5
# By chance at most so often as it was late, among all members.
MAX_CHANCE = 0.005
# Of what the others waited for a rank its own delay has to explain this much.
MIN_OWN_SHARE = 0.5
# Healthy members differ as well: so many of their standard deviations.
BEYOND_PEERS = 3.0
_MAD_TO_DEVIATION = 1.4826
_ENOUGH_PEERS = 4
MAX_SUSPECTS = 256


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that others waited for, in the group where they waited most.

    `place` indexes the occurrences' places, `group` their groups. `waited_for_s` and
    `own_delay_s` are mean seconds a step, `own_delay_s` None where starts are not known;
    `by_step_s` [steps] is what the others waited for it in each.
    `late_share` is of the occurrences, `steps_late` of the steps. `is_chronic` says that it was
    late in at least half of the steps, `is_own` that its own delay explains it: both make a
    culprit.
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
    found: Occurrences, late: Lateness, waits: Waits, clock: Clock, step_s: Floats
) -> list[LateRank]:
    """Every rank that passes the tests of frequency and amount, most waited for first."""
    mean_s = float(step_s.mean())
    amount_s = late.waited_for_s.mean(axis=1)
    candidates = np.flatnonzero(amount_s >= MIN_SHARE * mean_s)
    candidates = candidates[np.argsort(-amount_s[candidates], kind="stable")][:MAX_SUSPECTS]
    suspects = np.array(
        [seat for seat in candidates.tolist() if _stands_out(found, late, seat)], np.int64
    )
    judged = [_judged(found, late, waits, clock, int(seat), suspects, step_s) for seat in suspects]
    return _by_rank(judged)


def _by_rank(judged: list[LateRank]) -> list[LateRank]:
    """One entry a rank: where it is a culprit before where it was held up, then the larger."""
    best: dict[int, LateRank] = {}
    for each in judged:
        known = best.get(each.place)
        if known is None or _weight(each) > _weight(known):
            best[each.place] = each
    return sorted(best.values(), key=lambda each: (-each.is_culprit, -each.waited_for_s))


def _weight(late: LateRank) -> tuple[bool, float]:
    return late.is_culprit, late.waited_for_s


def _stands_out(found: Occurrences, late: Lateness, seat: int) -> bool:
    """More often late than by chance, and by more than the others differ."""
    group = int(found.seat_group[seat])
    num = int(late.num_occurrences[group].sum())
    expected = float(late.expected[group].sum())
    times_late = int(late.late[seat].sum())
    if times_late <= expected or _chance(times_late, num, expected / num) > MAX_CHANCE:
        return False
    size, first = int(found.group_size[group]), int(found.first_seat[group])
    waited_s = late.waited_s[first : first + size].mean(axis=1)
    # Without those that are late as often, which are no measure of healthy ones.
    often = late.late[first : first + size].sum(axis=1) * 2 >= times_late
    others_s = waited_s[~often]
    if others_s.size < _ENOUGH_PEERS:
        return True
    spread_s = _MAD_TO_DEVIATION * float(np.median(np.abs(others_s - np.median(others_s))))
    return bool(late.waited_for_s[seat].mean() >= BEYOND_PEERS * spread_s)


def _judged(
    found: Occurrences,
    late: Lateness,
    waits: Waits,
    clock: Clock,
    seat: int,
    suspects: Ints,
    step_s: Floats,
) -> LateRank:
    group = int(found.seat_group[seat])
    by_step_s = late.waited_for_s[seat]
    # The upper half, so that neither one long step nor many steps without hide what is typical.
    typical_s = float(np.median(np.sort(by_step_s)[by_step_s.size // 2 :]))
    limit_s = np.maximum(MIN_STEP_SHARE * step_s, MIN_OF_TYPICAL * typical_s)
    steps_late = float((by_step_s >= limit_s).mean())
    own_s = _own_delay_s(found, late, waits, clock, seat, suspects)
    waited_for_s = float(by_step_s.mean())
    if own_s is None:
        # Without starts: what it waited elsewhere for others may be what made it late here.
        same_rank = found.seat_rank == found.seat_rank[seat]
        elsewhere = same_rank & (found.seat_group != group)
        held_up_s = float(late.waited_s[elsewhere].mean(axis=1).max(initial=0.0))
        is_own = held_up_s < MIN_OWN_SHARE * waited_for_s
    else:
        is_own = own_s >= MIN_OWN_SHARE * waited_for_s
    return LateRank(
        place=int(found.seat_rank[seat]),
        group=group,
        waited_for_s=waited_for_s,
        by_step_s=by_step_s,
        late_share=float(late.late[seat].sum() / late.num_occurrences[group].sum()),
        steps_late=steps_late,
        own_delay_s=own_s,
        is_chronic=steps_late >= MIN_STEPS_LATE,
        is_own=is_own,
    )


def _own_delay_s(
    found: Occurrences, late: Lateness, waits: Waits, clock: Clock, seat: int, suspects: Ints
) -> float | None:
    """Mean own delay a step, before occurrences in which the rank was late; None if not known."""
    rows, occurrences = waits.rows(seat)
    own_s = own_delays_s(found, waits, clock, seat, suspects)
    known = np.isfinite(own_s)
    is_late = late.is_late[rows]
    # The share of what was waited for whose stretch is known stands for the rest.
    waited_s = late.late_wait_s[occurrences] * is_late
    known_s = float(waited_s[known].sum())
    if known_s <= 0:
        return None
    delay_s = float(own_s[known & is_late].sum())
    return delay_s * float(waited_s.sum()) / known_s / len(found.steps)


def _chance(times: int, num: int, rate: float) -> float:
    """P(X >= times) of a binomial distribution."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    total = 0.0
    for count in range(times, num + 1):
        term = exp(
            lgamma(num + 1) - lgamma(count + 1) - lgamma(num - count + 1)
            + count * log(rate) + (num - count) * log1p(-rate)
        )  # fmt: skip
        total += term
        if term < 1e-12 * total:
            break
    return min(total, 1.0)
