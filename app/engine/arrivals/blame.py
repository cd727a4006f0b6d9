"""Who is to blame for waits: late far more often than by chance, by their own delay, and by much.

The conditions are those of docs/arrivals.md, "Who is to blame".
"""

from dataclasses import dataclass
from math import exp, lgamma, log, log1p

import numpy as np

from app.engine.arrivals.lateness import Lateness
from app.engine.arrivals.occurrences import Occurrences
from app.engine.arrivals.own_delay import OwnDelays, OwnTimes
from app.engine.arrivals.waiting import Clock, Waits
from app.trace.window import Floats

# Of the mean step: what others waited for a rank, for it to be looked at.
MIN_SHARE = 0.01
# A rank counts as late in a step where the others waited for it this share of the step, and this
# share of what they waited in its typical late step.
MIN_STEP_SHARE = 0.005
MIN_OF_TYPICAL = 0.25
# A rank that is late in fewer steps is late now and then.
MIN_STEPS_LATE = 0.5
# By chance at most so often as it was late, among all members, at occurrences at which the others
# waited this share of what they wait where the rank is late.
MAX_CHANCE = 0.02
MATTERS = 0.1
# Of what the others waited for a rank its own delay has to explain this much.
MIN_OWN_SHARE = 0.5
# Of the mean step: the own delay of a culprit.
MIN_DELAY_SHARE = 0.02
# Healthy members differ as well: so many of their standard deviations.
BEYOND_PEERS = 4.0
# Suspects that the others waited for so long, of the mean step, show nothing of healthy members.
SLOW_SHARE = 0.05
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
        [seat for seat in candidates.tolist() if _stands_out(found, late, waits, seat)], np.int64
    )
    slow = suspects[amount_s[suspects] >= SLOW_SHARE * mean_s]
    delays = OwnDelays(found, waits, OwnTimes(found, waits, clock), suspects, slow)
    judged = [_judged(found, late, delays, int(seat), step_s) for seat in suspects]
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


def _stands_out(found: Occurrences, late: Lateness, waits: Waits, seat: int) -> bool:
    """More often late than by chance, at occurrences that matter."""
    rows, occurrences = waits.rows(seat)
    wait_s = late.late_wait_s[occurrences]
    is_late = late.is_late[rows]
    if not is_late.any():
        return False
    matters = wait_s >= MATTERS * wait_s[is_late].mean()
    num, times_late = int(matters.sum()), int((matters & is_late).sum())
    size = int(found.group_size[found.seat_group[seat]])
    expected = float(late.num_late[occurrences][matters].sum()) / size
    return times_late > expected and _chance(times_late, num, expected / num) <= MAX_CHANCE


def _judged(
    found: Occurrences, late: Lateness, delays: OwnDelays, seat: int, step_s: Floats
) -> LateRank:
    group = int(found.seat_group[seat])
    by_step_s = late.waited_for_s[seat]
    # The upper half, so that neither one long step nor many steps without hide what is typical.
    typical_s = float(np.median(np.sort(by_step_s)[by_step_s.size // 2 :]))
    limit_s = np.maximum(MIN_STEP_SHARE * step_s, MIN_OF_TYPICAL * typical_s)
    seen = late.is_recorded(found)
    is_late = (by_step_s >= limit_s) & seen[group]
    steps_late = float(is_late.sum() / max(1, seen[group].sum()))
    own_s = delays.of_steps_s(seat, by_stays=False)
    by_stays = not np.isfinite(own_s[is_late]).any()
    # What the rank waited in a sampled group of its own is not known in the other steps.
    ours = seen[np.unique(found.seat_group[found.seat_rank == found.seat_rank[seat]])]
    own_s = np.where((~ours & ours.any(axis=1, keepdims=True)).any(axis=0), np.nan, own_s)
    # Without starts, here or elsewhere: what it waited for others elsewhere may be what made it
    # late here.
    elsewhere = (found.seat_rank == found.seat_rank[seat]) & (found.seat_group != group)
    if by_stays:
        own_s = delays.of_steps_s(seat, by_stays=True)
    else:
        elsewhere &= ~found.has_starts[found.seat_group]
    held_up_s = late.waited_s[elsewhere].mean(axis=1)
    is_held_up = bool((held_up_s >= MIN_OWN_SHARE * float(by_step_s.mean())).any())
    counts = is_late & np.isfinite(own_s)
    # Typical late steps, so that one long pause makes nobody a culprit.
    delay_s = steps_late * float(np.median(own_s[counts])) if counts.any() else 0.0
    wait_s = steps_late * float(np.median(by_step_s[counts])) if counts.any() else 0.0
    is_own = (
        not is_held_up
        and delay_s >= MIN_OWN_SHARE * wait_s
        and delay_s >= MIN_DELAY_SHARE * float(step_s.mean())
    )
    if is_own:
        spread_s = delays.spread_s(found.groups[group].axis, by_stays=by_stays)
        is_own = spread_s is None or delay_s >= BEYOND_PEERS * spread_s
    return LateRank(
        place=int(found.seat_rank[seat]),
        group=group,
        waited_for_s=float(by_step_s.mean()),
        by_step_s=by_step_s,
        late_share=float(late.late[seat].sum() / late.num_occurrences[group].sum()),
        steps_late=steps_late,
        own_delay_s=None if by_stays else delay_s,
        is_chronic=steps_late >= MIN_STEPS_LATE,
        is_own=is_own,
    )


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
