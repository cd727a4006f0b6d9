"""Put right the few clocks that were guessed far wrong, each by all that it shares.

Least squares would take many turns for these, since what is far off is clipped.
"""

import numpy as np

from app.engine.compiled import kernel

_SWEEPS = 2
_FAR = 3.0  # spreads


@kernel
def straightened(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, is_free, spread_ns
):
    """[hosts, 2], what is to be added to the coefficients; 0 of those that are near."""
    more = np.zeros((is_free.size, 2))
    first, at = np.zeros(is_free.size + 1, np.int64), np.zeros(is_free.size, np.int64)
    for each in range(first_member.size - 1):
        slots = first_slot[each + 1] - first_slot[each]
        for member in range(first_member[each], first_member[each + 1]):
            first[host[member] + 1] += slots
    first = np.cumsum(first)
    far_ns, when = np.empty(apart_ns.size), np.empty(apart_ns.size)
    for _ in range(_SWEEPS):
        at[:] = first[:-1]
        _by_host(
            first_member, host, first_slot, first_value, apart_ns, time, more, at, far_ns, when
        )
        has_news = False
        for each in range(is_free.size):
            low, high, num_far = first[each], first[each + 1], 0
            for value in range(low, high):
                num_far += abs(far_ns[value]) > _FAR * spread_ns
            # One in three: the least that a line through all but the late ones can be far by.
            if is_free[each] and 3 * num_far > high - low and high - low > 2:
                has_news |= _line(far_ns[low:high], when[low:high], spread_ns, more[each])
        if not has_news:
            break
    return more


@kernel
def _by_host(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, more, at, far_ns, when
):
    """How far each value is from where the others of its slot are, and when, host by host."""
    for each in range(first_member.size - 1):
        first, size = first_member[each], first_member[each + 1] - first_member[each]
        slots, left_ns = first_slot[each + 1] - first_slot[each], np.empty(size)
        for slot in range(slots):
            moment = time[first_slot[each] + slot]
            for member in range(size):
                of, value = host[first + member], first_value[each] + member * slots + slot
                left_ns[member] = apart_ns[value] - more[of, 0] - more[of, 1] * moment
            middle_ns = np.median(left_ns) if size > 2 else 0.0
            for member in range(size):
                of = host[first + member]
                if size == 2:
                    middle_ns = left_ns[1 - member]
                far_ns[at[of]] = left_ns[member] - middle_ns
                when[at[of]] = moment
                at[of] += 1


@kernel
def _line(far_ns, when, spread_ns, coefficients):  # type: ignore[no-untyped-def]
    """Whether a line through the values is far from 0; it is added then."""
    is_late = when > np.median(when)
    slope = 0.0
    if is_late.any():
        between = np.median(when[is_late]) - np.median(when[~is_late])
        slope = (np.median(far_ns[is_late]) - np.median(far_ns[~is_late])) / between
    bias_ns = np.median(far_ns - slope * when)
    if abs(bias_ns) + abs(slope) < _FAR * spread_ns:
        return False
    coefficients[0] += bias_ns
    coefficients[1] += slope
    return True
