"""The Inspector's records as the table of collectives: every communicator, every rank."""

from collections.abc import Mapping

import numpy as np

from app.trace.collectives import Collectives, RankGroup, RankPlace
from app.trace.readers.nccl_lines import Collective, Process
from app.trace.window import Ints

MAX_ROWS = 4_000_000  # some 300 MB while they are read
KINDS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "all-to-all",
}
_Row = tuple[int, int, int, int, float, float, int]  # comm, kind, sn, rank, start, stay, bytes


class CollectiveTable:
    """Rows as they are read; those of communicators whose members are not all known are left out.

    `ranks` are the global ranks of processes. The logs have no steps: all is of step 0.
    """

    def __init__(self, ranks: Mapping[Process, int], *, max_rows: int = MAX_ROWS) -> None:
        self._ranks = ranks
        self._max_rows = max_rows
        self._comms: dict[tuple[str, int], int] = {}
        self._kinds: dict[str, int] = {}
        self._members: list[dict[int, int]] = []  # global rank by rank in it, by communicator
        self._rows: list[_Row] = []
        self.num_left_out = 0

    def add(self, each: Collective) -> None:
        """One rank's part of one collective."""
        place = each.place
        rank = self._ranks.get(place.process)
        if rank is None or len(self._rows) >= self._max_rows:
            self.num_left_out += 1
            return
        comm = self._comms.setdefault((place.comm, place.num_ranks), len(self._comms))
        if comm == len(self._members):
            self._members.append({})
        self._members[comm].setdefault(place.rank, rank)
        kind = self._kinds.setdefault(KINDS.get(each.kind, each.kind), len(self._kinds))
        start_s = np.nan if each.start_us is None else each.start_us / 1e6
        row = (comm, kind, each.sn, rank, start_s, each.stay_us / 1e6, each.num_bytes)
        self._rows.append(row)

    def collectives(self) -> Collectives | None:
        """The table; None where nothing in it is of several ranks."""
        groups: list[RankGroup] = []
        number = np.full(len(self._members), -1, np.int64)
        for (name, num_ranks), at in self._comms.items():
            ranks = sorted(self._members[at].values())
            if num_ranks > 1 and len(set(ranks)) == num_ranks:
                number[at] = len(groups)
                groups.append(RankGroup(name, "", tuple(ranks)))
        if not groups:
            return None
        comm, kind, sn, rank, num_bytes = (self._ints(at) for at in (0, 1, 2, 3, 6))
        chosen = (number[comm] >= 0) & _once(comm, kind, sn, rank)
        starts_s, stays_s = (np.array([row[at] for row in self._rows]) for at in (4, 5))
        known_s = starts_s[np.isfinite(starts_s)]
        return Collectives(
            groups=tuple(groups),
            kinds=tuple(self._kinds),
            group=number[comm][chosen],
            kind=kind[chosen],
            step=np.zeros(int(chosen.sum()), np.int64),
            sequence=sn[chosen],
            rank=rank[chosen],
            start_s=starts_s[chosen] - (known_s.min() if known_s.size else 0.0),
            stay_s=stays_s[chosen],
            num_bytes=num_bytes[chosen],
            places={
                number: RankPlace(number, host=process.host)
                for process, number in self._ranks.items()
            },
            is_continuous=True,
        )

    def _ints(self, at: int) -> Ints:
        return np.array([row[at] for row in self._rows], np.int64)


def _once(
    comm: Ints, kind: Ints, sn: Ints, rank: Ints
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[rows], those that no other row is the same collective as, on the same rank.

    A communicator's name may be used again after a restart: these are two collectives.
    """
    order = np.lexsort((rank, sn, kind, comm))
    same = np.ones(max(order.size - 1, 0), np.bool_)
    for column in (comm, kind, sn, rank):
        same &= np.diff(column[order]) == 0
    alone = np.ones(order.size, np.bool_)
    alone[order[1:][same]] = False
    alone[order[:-1][same]] = False
    return alone
