"""How large collectives are and how fast they went, once all members were there."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.profile.exposed import occurrence
from app.trace.collectives import RECEIVE, SEND, Collectives
from app.trace.window import Ints


@dataclass(frozen=True, slots=True)
class Transfers:
    """Collectives of one group, kind and size; `num_bytes` is -1 where it is not known.

    `stay_s` is the median of a member's stay. `transfer_s`, the median of the shortest stay of an
    occurrence, and `bandwidth_bytes_s`, bytes by transfer, are None where members were not read:
    then the shortest stay may hold a wait.
    """

    group: str
    axis: str
    kind: str
    num_members: int
    num_read: int
    num_bytes: int
    num_occurrences: int
    total_s: float
    stay_s: float
    transfer_s: float | None
    bandwidth_bytes_s: float | None


def transfers(table: Collectives, num_members: Mapping[str, int]) -> list[Transfers]:
    """Every group, kind and size, those in which ranks were longest first."""
    keys = np.stack([table.group, table.kind, table.num_bytes])
    if not table.num_rows:
        return []
    found, number = np.unique(keys, axis=1, return_inverse=True)
    number = np.asarray(number).ravel()
    occurrences = occurrence(table)
    rows = [_one(table, number == at, occurrences, num_members) for at in range(found.shape[1])]
    return sorted(rows, key=lambda each: -each.total_s)


def _one(
    table: Collectives,
    mine: NDArray[np.bool_],
    occurrences: Ints,
    num_members: Mapping[str, int],
) -> Transfers:
    first = int(np.flatnonzero(mine)[0])
    group, kind = table.groups[int(table.group[first])], table.kinds[int(table.kind[first])]
    num_bytes = int(table.num_bytes[first])
    is_pair = kind in (RECEIVE, SEND)
    num_read = int(np.unique(table.rank[mine]).size)
    is_complete = num_members.get(group.name) == num_read > 1
    stay_s = table.stay_s[mine]
    _, place = np.unique(occurrences[mine], return_inverse=True)
    shortest_s = np.full(int(place.max()) + 1, np.inf)
    np.minimum.at(shortest_s, place, stay_s)
    transfer_s = float(np.median(shortest_s)) if is_complete or kind == RECEIVE else None
    total_s = float(shortest_s.sum())
    return Transfers(
        group=group.name,
        axis=group.axis,
        kind=kind,
        num_members=num_members.get(group.name, len(group.ranks)),
        num_read=num_read,
        num_bytes=num_bytes,
        num_occurrences=int(stay_s.size if is_pair else shortest_s.size),
        total_s=float(stay_s.sum()),
        stay_s=float(np.median(stay_s)),
        transfer_s=transfer_s,
        bandwidth_bytes_s=num_bytes * shortest_s.size / total_s
        if transfer_s is not None and num_bytes > 0 and total_s > 0
        else None,
    )
