"""A first guess of every clock's offset in whole nanoseconds, so that the remainder is small.

A constant added to a clock is added to its guess exactly, so later results do not change by a bit.
"""

from dataclasses import dataclass

import numpy as np

from app.engine.clocks.shared_ends import SharedEnds
from app.engine.kernels import kernel
from app.trace.window import Floats, Ints

_SLOPE_OF = 12  # times, for a first guess
_FAR_APART = 0.3  # of the whole time


@dataclass(frozen=True, slots=True)
class FirstGuess:
    """Offset and drift of each clock against its reference host, by medians.

    Shapes: [hosts]. `drift` is a plain ratio. Hosts with different `reference` hosts are not
    connected by shared operations, not even through other hosts.
    """

    offset_ns: Ints
    drift: Floats
    reference: Ints


def first_guess(shared: SharedEnds) -> FirstGuess:
    """Medians of differences along a tree of hosts, from the one that shares most."""
    group = np.arange(shared.num_hosts)
    _unite(shared.first_member, shared.host, group)
    reference = _references(group, np.bincount(shared.host, minlength=shared.num_hosts))
    offset_ns, drift = np.zeros(shared.num_hosts, np.int64), np.zeros(shared.num_hosts)
    is_known = reference == np.arange(shared.num_hosts)
    middle_ns = _middles(
        shared.first_member, shared.host, shared.num_times, shared.first_end, shared.end_ns,
        shared.num_hosts,
    )[reference]  # fmt: skip
    while _spread(
        shared.first_member, shared.host, shared.num_times, shared.first_end, shared.end_ns,
        is_known, middle_ns, offset_ns, drift,
    ):  # fmt: skip
        pass
    return FirstGuess(offset_ns, drift, reference)


def _references(group: Ints, num_shared: Ints) -> Ints:
    """[hosts], reference of each host's group: the host in most sets, the first if equal."""
    best = np.lexsort((np.arange(group.size), -num_shared, group))
    first = np.unique(group[best], return_index=True)[1]
    of_group = np.zeros(group.size, np.int64)
    of_group[group[best[first]]] = best[first]
    return of_group[group]


@kernel
def _unite(first_member, host, group):  # type: ignore[no-untyped-def]
    """Number connected hosts by the lowest number among them."""
    for each in range(first_member.size - 1):
        one = host[first_member[each]]
        while group[one] != one:
            one = group[one]
        for member in range(first_member[each] + 1, first_member[each + 1]):
            other = host[member]
            while group[other] != other:
                group[other] = group[group[other]]
                other = group[other]
            group[max(one, other)] = min(one, other)
            one = min(one, other)
    for each in range(group.size):
        group[each] = group[group[each]]


@kernel
def _middles(  # type: ignore[no-untyped-def]
    first_member, host, num_times, first_end, end_ns, num_hosts
):
    """[hosts], midpoint between the first and last end by each host's clock."""
    first_ns, last_ns = np.full(num_hosts, end_ns[0]), np.full(num_hosts, end_ns[0])
    is_new = np.ones(num_hosts, np.bool_)
    for each in range(num_times.size):
        for member in range(first_member[each], first_member[each + 1]):
            of, times = host[member], num_times[each]
            at = first_end[each] + (member - first_member[each]) * times
            if is_new[of]:
                first_ns[of] = last_ns[of] = end_ns[at]
                is_new[of] = False
            # In order of time.
            first_ns[of] = min(first_ns[of], end_ns[at])
            last_ns[of] = max(last_ns[of], end_ns[at + times - 1])
    return first_ns + (last_ns - first_ns) // 2


@kernel
def _slope(time_ns, ahead_ns):  # type: ignore[no-untyped-def]
    """Median over all times of the median slope to distant times (after Siegel).

    In a window with a gap, slopes between near times would outvote the more exact ones across it.
    """
    every = 1 + (time_ns.size - 1) // _SLOPE_OF
    least_ns = _FAR_APART * (time_ns[-1] - time_ns[0])
    time_ns, ahead_ns = time_ns[::every], ahead_ns[::every]
    size = time_ns.size
    medians, slopes = np.empty(size), np.empty(size)
    num_medians = 0
    for one in range(size):
        num_slopes = 0
        for other in range(size):
            between_ns = time_ns[other] - time_ns[one]
            if between_ns != 0 and abs(between_ns) >= least_ns:
                slopes[num_slopes] = (ahead_ns[other] - ahead_ns[one]) / between_ns
                num_slopes += 1
        if num_slopes:
            medians[num_medians] = np.median(slopes[:num_slopes])
            num_medians += 1
    return np.median(medians[:num_medians]) if num_medians else 0.0


@kernel
def _spread(  # type: ignore[no-untyped-def]
    first_member, host, num_times, first_end, end_ns, is_known, middle_ns, offset_ns, drift
):
    """Extend known offsets to unknown hosts of sets with a known host; whether any was found."""
    has_news = False
    for each in range(num_times.size):
        first, end, times = first_member[each], first_member[each + 1], num_times[each]
        known = first
        while known < end and not is_known[host[known]]:
            known += 1
        if known == end:
            continue
        for member in range(first, end):
            if is_known[host[member]]:
                continue
            mine = first_end[each] + (member - first) * times
            theirs = first_end[each] + (known - first) * times
            their_ns = end_ns[theirs : theirs + times]
            ahead_ns = end_ns[mine : mine + times] - their_ns
            first_ns = ahead_ns[0]
            ahead_ns -= first_ns
            slope = _slope(their_ns, ahead_ns)
            time_ns = their_ns - offset_ns[host[known]] - middle_ns[host[known]]
            bias_ns = np.median(ahead_ns - slope * time_ns)
            drift[host[member]] = drift[host[known]] + slope
            offset_ns[host[member]] = offset_ns[host[known]] + first_ns + np.int64(np.rint(bias_ns))
            is_known[host[member]] = True
            has_news = True
    return has_news
