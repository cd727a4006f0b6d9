"""A first guess of every clock's offset in whole nanoseconds, so that the remainder is small.

A constant added to a clock is added to its guess exactly, so later results do not change by a bit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.clocks.shared_ends import Sets, SharedEnds
from app.engine.medians import medians_of_known
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
    num_shared = sum(
        (np.bincount(sets.host.ravel(), minlength=shared.num_hosts) for sets in shared.of_shape),
        np.zeros(shared.num_hosts, np.int64),
    )
    reference = _references(_connected(shared), num_shared)
    offset_ns, drift = np.zeros(shared.num_hosts, np.int64), np.zeros(shared.num_hosts)
    is_known = reference == np.arange(shared.num_hosts)
    middle_ns = _middles_ns(shared)[reference]
    has_news = True
    while has_news and not is_known.all():
        has_news = False
        for sets in shared.of_shape:
            at, unknown, known = _next_unknown(sets, is_known)
            if not at.size:
                continue
            host, known_host = sets.host[at, unknown], sets.host[at, known]
            end_ns = sets.end_ns[at, known]
            ahead_ns = sets.end_ns[at, unknown] - end_ns
            first_ns = ahead_ns[:, 0]
            ahead_ns = ahead_ns - first_ns[:, None]
            slope = _slopes(end_ns, ahead_ns)
            time_ns = end_ns - (offset_ns[known_host] + middle_ns[known_host])[:, None]
            bias_ns = medians_of_known(ahead_ns - slope[:, None] * time_ns)
            drift[host] = drift[known_host] + slope
            offset_ns[host] = offset_ns[known_host] + first_ns + np.rint(bias_ns).astype(np.int64)
            is_known[host] = has_news = True
    return FirstGuess(offset_ns, drift, reference)


def _next_unknown(sets: Sets, is_known: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Each unknown host in a set with a known one: the first such set, and the places of both."""
    known = is_known[sets.host]
    at, place = np.nonzero(~known & known.any(axis=1, keepdims=True))
    first = np.unique(sets.host[at, place], return_index=True)[1]
    return at[first], place[first], known[at[first]].argmax(axis=1)


def _references(group: Ints, num_shared: Ints) -> Ints:
    """[hosts], reference of each host's group: the host in most sets, the first if equal."""
    best = np.lexsort((np.arange(group.size), -num_shared, group))
    first = np.unique(group[best], return_index=True)[1]
    of_group = np.zeros(group.size, np.int64)
    of_group[group[best[first]]] = best[first]
    return of_group[group]


def _connected(shared: SharedEnds) -> Ints:
    """[hosts], the lowest number among the hosts connected to each."""
    group, before = np.arange(shared.num_hosts), np.full(shared.num_hosts, -1)
    while (group != before).any():
        before = group.copy()
        for sets in shared.of_shape:
            lowest = group[sets.host].min(axis=1, keepdims=True)
            np.minimum.at(group, sets.host, np.broadcast_to(lowest, sets.host.shape))
        group = group[group]
    return group


def _middles_ns(shared: SharedEnds) -> Ints:
    """[hosts], midpoint between the first and last end by each host's clock."""
    first_ns = np.full(shared.num_hosts, np.iinfo(np.int64).max)
    last_ns = np.full(shared.num_hosts, np.iinfo(np.int64).min)
    for sets in shared.of_shape:
        np.minimum.at(first_ns, sets.host, sets.end_ns[:, :, 0])  # in order of time
        np.maximum.at(last_ns, sets.host, sets.end_ns[:, :, -1])
    # Of steps whose origins go back in time, the first end may be later than the last one.
    is_shared = first_ns < np.iinfo(np.int64).max
    first_ns, last_ns = np.where(is_shared, first_ns, 0), np.where(is_shared, last_ns, 0)
    return np.asarray(first_ns + (last_ns - first_ns) // 2)


def _slopes(time_ns: Ints, ahead_ns: Ints) -> Floats:
    """[series], median over all times of the median slope to distant times (after Siegel).

    In a window with a gap, slopes between near times would outvote the more exact ones across it.
    Both are [series, times].
    """
    stride = 1 + (time_ns.shape[1] - 1) // _SLOPE_OF
    least_ns = _FAR_APART * (time_ns[:, -1] - time_ns[:, 0])
    time_ns, ahead_ns = time_ns[:, ::stride], ahead_ns[:, ::stride]
    between_ns = time_ns[:, None, :] - time_ns[:, :, None]
    is_far = (between_ns != 0) & (np.abs(between_ns) >= least_ns[:, None, None])
    slopes = np.full(between_ns.shape, np.nan)
    np.divide(ahead_ns[:, None, :] - ahead_ns[:, :, None], between_ns, out=slopes, where=is_far)
    return np.nan_to_num(medians_of_known(medians_of_known(slopes)))
