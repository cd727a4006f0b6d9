"""How far are shared ends still apart, once the clocks are corrected?"""

import numpy as np

from app.engine.clocks.least_squares import CLIP
from app.engine.clocks.lines import Lines
from app.engine.clocks.shared_ends import SharedEnds
from app.engine.clocks.sums import centre
from app.engine.compiled import kernel
from app.trace.window import Floats

# Nine in ten are nearer. Of twenty moments one may have an end that is late for its own reasons,
# and that is no fault of a clock.
SHARE = 0.9


def residuals_ns(shared: SharedEnds, found: Lines) -> tuple[float, Floats]:
    """What `SHARE` of the ends are within, of all hosts and [hosts] of each."""
    slots = shared.num_times // shared.per_slot
    num_values = np.diff(shared.first_member) * slots
    first_value = np.concatenate(([0], np.cumsum(num_values)))
    far_ns, host = np.empty(first_value[-1]), np.empty(first_value[-1], np.int64)
    _residuals(
        shared.first_member, shared.host, shared.num_times, shared.per_slot, shared.first_end,
        shared.end_ns, found.offset_ns, found.origin_ns, found.middle_ns, found.half_ns,
        found.coefficients, CLIP * found.spread_ns, first_value, far_ns, host,
    )  # fmt: skip
    return float(np.quantile(far_ns, SHARE)), _by_host(far_ns, host, shared.num_hosts, SHARE)


@kernel
def _by_host(far_ns, host, num_hosts, share):  # type: ignore[no-untyped-def]
    """[hosts], what a share of each host's values are within; NaN where it has none."""
    first = np.zeros(num_hosts + 1, np.int64)
    for each in host:
        first[each + 1] += 1
    first = np.cumsum(first)
    sorted_ns, at = np.empty(far_ns.size), first.copy()
    for value in range(far_ns.size):
        sorted_ns[at[host[value]]] = far_ns[value]
        at[host[value]] += 1
    found = np.full(num_hosts, np.nan)
    for each in range(num_hosts):
        values = np.sort(sorted_ns[first[each] : first[each + 1]])
        if values.size:
            found[each] = values[int(share * (values.size - 1) + 0.5)]
    return found


@kernel
def _residuals(  # type: ignore[no-untyped-def]
    first_member, host, num_times, per_slot, first_end, end_ns, offset_ns, origin_ns, middle_ns,
    half_ns, coefficients, limit_ns, first_value, far_ns, of_host,
):  # fmt: skip
    """Of one end in each slot, how far it is from its moment, once it is corrected."""
    for each in range(num_times.size):
        first, size = first_member[each], first_member[each + 1] - first_member[each]
        slots, left_ns = num_times[each] // per_slot[each], np.empty(size)
        for slot in range(slots):
            for member in range(size):
                of = host[first + member]
                at = first_end[each] + member * num_times[each] + slot * per_slot[each]
                since_ns = np.float64(end_ns[at] - origin_ns - offset_ns[of])
                when = (since_ns - middle_ns) / half_ns
                left_ns[member] = since_ns - coefficients[of, 0] - coefficients[of, 1] * when
            if size == 2:
                left_ns -= 0.5 * (left_ns[0] + left_ns[1])
            else:
                left_ns -= np.median(left_ns)
                centre(left_ns, limit_ns)
            for member in range(size):
                at = first_value[each] + member * slots + slot
                far_ns[at] = abs(left_ns[member])
                of_host[at] = host[first + member]
