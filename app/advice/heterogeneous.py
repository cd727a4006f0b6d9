"""Heterogeneous load balance: how many micro-batches each replica should compute.

Replicas that take t_i seconds for a micro-batch, and a_i seconds besides, end soonest where
max_i (a_i + m_i t_i) is smallest, with sum m_i = M and m_i >= 1. Giving one micro-batch after the
other to the replica that would end it first is optimal, since no replica's time falls with its
count.
"""

import heapq
from collections.abc import Sequence

from app.errors import InvalidRequest


def balanced_counts(
    total: int, seconds_each: Sequence[float], seconds_besides: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Micro-batches of each replica, at least 1, with the smallest largest time.

    Args:
        total: M, micro-batches of all replicas in a step.
        seconds_each: t_i of each replica, above 0.
        seconds_besides: a_i of each replica; none where left out.

    Returns:
        m_i of each replica; of equal choices the first replica's.

    Raises:
        InvalidRequest: there are fewer micro-batches than replicas, or a time is not above 0.
    """
    if total < len(seconds_each) or not seconds_each:
        raise InvalidRequest(
            f"{total} micro-batches for {len(seconds_each)} replicas: give each at least 1"
        )
    if not all(each > 0 for each in seconds_each):
        raise InvalidRequest("a micro-batch takes no time on some replica: give more than 0 s")
    besides = seconds_besides or [0.0] * len(seconds_each)
    counts = [1] * len(seconds_each)
    ends = [(besides[i] + 2 * each_s, i) for i, each_s in enumerate(seconds_each)]
    heapq.heapify(ends)
    for _ in range(total - len(counts)):
        _, first = ends[0]
        counts[first] += 1
        next_s = besides[first] + (counts[first] + 1) * seconds_each[first]
        heapq.heapreplace(ends, (next_s, first))
    return tuple(counts)


def largest_time_s(
    counts: Sequence[int],
    seconds_each: Sequence[float],
    seconds_besides: Sequence[float] | None = None,
) -> float:
    """Seconds: max_i (a_i + m_i t_i)."""
    besides = seconds_besides or [0.0] * len(seconds_each)
    return max(
        a_s + count * each_s
        for a_s, count, each_s in zip(besides, counts, seconds_each, strict=True)
    )
