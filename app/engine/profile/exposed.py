"""Waits that cost time: those in which the rank has nothing to compute.

A collective may wait while its rank computes on, as DDP's buckets and FSDP2's prefetched gathers
do. What is computed meanwhile is not lost, so it is taken out of the wait, and the rank counts as
having arrived that much later:

    transfer = min(stay)       of the occurrence's members, or of all receives of a pair
    hidden   = what the rank computes within [start, end - transfer]
    start    = start + hidden
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.waiting import Waiting, merged
from app.trace.collectives import RECEIVE, SEND, Collectives
from app.trace.window import Floats, Ints


def exposed(table: Collectives, computing: Mapping[int, Waiting]) -> Collectives:
    """The table with waits shortened by what each rank computed; by the table's own clocks."""
    end_s = table.start_s + table.stay_s
    until_s = end_s - transfer_s(table)
    hidden_s = np.zeros(table.num_rows)
    for rank, intervals in computing.items():
        mine = table.rank == rank
        hidden_s[mine] = intervals.until(until_s[mine]) - intervals.until(table.start_s[mine])
    hidden_s = np.maximum(hidden_s, 0.0)
    return replace(table, start_s=table.start_s + hidden_s, stay_s=table.stay_s - hidden_s)


def transfer_s(table: Collectives) -> Floats:
    """[rows], what the row's occurrence itself took, by its members' stays."""
    keys = occurrence(table)
    shortest_s = np.full(int(keys.max(initial=-1)) + 1, np.inf)
    np.minimum.at(shortest_s, keys, table.stay_s)
    return shortest_s[keys]


def receives(table: Collectives) -> dict[int, tuple[Floats, Floats]]:
    """By rank, the intervals (start, end) in which it waited for what it received."""
    is_receive = _is_kind(table, RECEIVE)
    end_s = table.start_s + table.stay_s - transfer_s(table)
    return {
        int(rank): (table.start_s[mine], end_s[mine])
        for rank in np.unique(table.rank[is_receive]).tolist()
        for mine in (is_receive & (table.rank == rank),)
    }


def receive_waits_s(table: Collectives) -> dict[tuple[int, int], float]:
    """By (sender, receiver), total seconds that the receiver waited."""
    found: dict[tuple[int, int], float] = {}
    is_receive = _is_kind(table, RECEIVE)
    waits_s = table.stay_s - transfer_s(table)
    for group in np.unique(table.group[is_receive]).tolist():
        sender, receiver = table.groups[group].ranks
        mine = is_receive & (table.group == group)
        found[sender, receiver] = float(waits_s[mine].sum())
    return found


def waiting(table: Collectives) -> dict[int, Waiting]:
    """By rank, merged intervals in which it waited for others in collectives and receives."""
    is_evidence = ~_is_kind(table, SEND)
    end_s = table.start_s + table.stay_s - transfer_s(table)
    return {
        int(rank): merged(table.start_s[mine], end_s[mine])
        for rank in np.unique(table.rank).tolist()
        for mine in (is_evidence & (table.rank == rank),)
    }


def occurrence(table: Collectives) -> Ints:
    """[rows] one number for each occurrence; all transfers of a pair and kind have the same."""
    is_pair = _is_kind(table, RECEIVE) | _is_kind(table, SEND)
    step, sequence = np.where(is_pair, 0, table.step), np.where(is_pair, 0, table.sequence)
    columns = np.stack([table.group, table.kind, step, sequence])
    if not table.num_rows:
        return np.empty(0, np.int64)
    _, numbers = np.unique(columns, axis=1, return_inverse=True)
    return np.asarray(numbers, np.int64).ravel()


def _is_kind(table: Collectives, kind: str) -> NDArray[np.bool_]:
    return np.isin(table.kind, [at for at, name in enumerate(table.kinds) if name == kind])
