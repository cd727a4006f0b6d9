"""Sums over sets of shared ends, compiled; `drift` says what they are for.

Every kernel takes a set's members from `first_member` and `host` (see `SharedEnds`).
"""

import numpy as np

from app.engine.compiled import kernel

_CENTRINGS = 3


@kernel
def diagonal(first_member, host, moments, num_hosts, prior):  # type: ignore[no-untyped-def]
    """[hosts, 2], of the normal equations; what shares nothing has 1."""
    found = np.zeros((num_hosts, 2))
    for each in range(first_member.size - 1):
        size = first_member[each + 1] - first_member[each]
        for member in range(first_member[each], first_member[each + 1]):
            found[host[member], 0] += (1 - 1 / size) * moments[each, 0]
            found[host[member], 1] += (1 - 1 / size) * moments[each, 2]
    found[:, 1] += prior
    for each in range(num_hosts):
        for at in range(2):
            if found[each, at] <= 0:
                found[each, at] = 1.0
    return found


@kernel
def pull(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, weight, coefficients, limit_ns
):
    """What the ends ask for: [hosts, 2], and [values] how far each is from its moment.

    Both in nanoseconds times the root of the weight, the former times it once more.
    """
    found, spread = np.zeros((coefficients.shape[0], 2)), np.empty(apart_ns.size)
    for each in range(first_member.size - 1):
        first, size = first_member[each], first_member[each + 1] - first_member[each]
        slots, root = first_slot[each + 1] - first_slot[each], np.sqrt(weight[each])
        left_ns = np.empty(size)
        for slot in range(slots):
            when = time[first_slot[each] + slot]
            line_ns = 0.0
            for member in range(size):
                of = host[first + member]
                left_ns[member] = coefficients[of, 0] + coefficients[of, 1] * when
                line_ns += left_ns[member] / size
            for member in range(size):
                value = first_value[each] + member * slots + slot
                left_ns[member] = (apart_ns[value] - left_ns[member] + line_ns) * root
            clipped_mean_ns = centre(left_ns, limit_ns)
            for member in range(size):
                of, value = host[first + member], first_value[each] + member * slots + slot
                spread[value] = abs(left_ns[member])
                asked = min(max(left_ns[member], -limit_ns), limit_ns) - clipped_mean_ns
                found[of, 0] += root * asked
                found[of, 1] += root * asked * when
    return found, spread


@kernel
def centre(values, limit):  # type: ignore[no-untyped-def]
    """Shift values near 0 so that their clipped ones' mean is nearly 0; returns what is left."""
    left = 0.0
    for centring in range(_CENTRINGS + 1):
        left = 0.0
        for value in values:
            left += min(max(value, -limit), limit) / values.size
        if centring < _CENTRINGS:
            values -= left
    return left
