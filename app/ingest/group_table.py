"""The collectives of whole steps as the members of groups recorded them, in canonical order."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ingest.group_rows import GroupRows
from app.ingest.op_table import NS
from app.trace.collectives import Collectives, RankGroup, RankPlace
from app.trace.window import Ints

TABLE_COLUMNS = (
    *("step", "group", "kind", "sequence", "rank"),
    *("start_ns", "duration_ns", "num_bytes"),
)
_KEY = ("step", "group", "kind", "sequence", "rank")
_MAX_NAMED_RANKS = 8


class GroupPart(NamedTuple):
    """What one batch holds of one step, and where its rank is."""

    place: RankPlace
    rows: GroupRows


@dataclass(frozen=True, slots=True, eq=False)
class GroupTable:
    """Rows in the order of step, group, kind, sequence and rank, each of which is there once.

    Shapes: all columns [rows] int64; `group` indexes `groups`, `kind` indexes `kinds`. Times are
    nanoseconds of the rank's own clock; `start_ns` and `num_bytes` are -1 where not known.
    """

    groups: tuple[RankGroup, ...]
    kinds: tuple[str, ...]
    step: Ints
    group: Ints
    kind: Ints
    sequence: Ints
    rank: Ints
    start_ns: Ints
    duration_ns: Ints
    num_bytes: Ints
    places: Mapping[int, RankPlace]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def columns(self) -> dict[str, Ints]:
        """The columns by name."""
        return {name: getattr(self, name) for name in TABLE_COLUMNS}

    def collectives(self, steps: Sequence[int], origins_ns: Sequence[int]) -> Collectives | None:
        """The rows of these steps, as the engine wants them; None where there are none.

        Starts count from the step's `origins_ns` [steps], as those of its operations do. Groups of
        one name are told apart by their ranks, and occurrences numbered from 0, however their ranks
        number them. `steps` are ascending.
        """
        known = np.array(steps, np.int64)
        taken = np.isin(self.step, known)
        if not taken.any():
            return None
        named = {name: values[taken] for name, values in self.columns().items()}
        origin_ns = np.array(origins_ns, np.int64)[np.searchsorted(known, named["step"])]
        start_s = (named["start_ns"] - origin_ns).astype(np.float64) * NS
        return Collectives(
            groups=_distinct_names(self.groups),
            kinds=self.kinds,
            group=named["group"],
            kind=named["kind"],
            step=named["step"],
            sequence=_from_zero(named),
            rank=named["rank"],
            start_s=np.where(named["start_ns"] < 0, np.nan, start_s),
            stay_s=named["duration_ns"].astype(np.float64) * NS,
            num_bytes=named["num_bytes"],
            places={
                rank: self.places[rank]
                for rank in np.unique(named["rank"]).tolist()
                if rank in self.places
            },
        )


def of_parts(parts: Sequence[GroupPart], before: GroupTable | None = None) -> GroupTable:
    """One table out of batches in any order, and of a table that was made earlier.

    Of a row that came twice one is taken; what came twice and says different things cannot be
    told apart, and is left out.
    """
    groups: dict[RankGroup, int] = {}
    kinds: dict[str, int] = {}
    columns: dict[str, list[Ints]] = {name: [] for name in TABLE_COLUMNS}
    places: dict[int, RankPlace] = {}
    if before is not None:
        groups = {group: at for at, group in enumerate(before.groups)}
        kinds = {kind: at for at, kind in enumerate(before.kinds)}
        places = dict(before.places)
        for name in TABLE_COLUMNS:
            columns[name].append(getattr(before, name))
    known: dict[int, int] = {}  # by the identity of a group, which hashing thousands of ranks saves
    for place, rows in parts:
        for group in rows.groups:
            if id(group) not in known:
                known[id(group)] = groups.setdefault(group, len(groups))
        group_at = np.array([known[id(group)] for group in rows.groups], np.int64)
        kind_at = np.array([kinds.setdefault(kind, len(kinds)) for kind in rows.kinds], np.int64)
        places[place.rank] = place
        columns["group"].append(group_at[rows.group])
        columns["kind"].append(kind_at[rows.kind])
        columns["rank"].append(np.full(rows.num_rows, place.rank, np.int64))
        for name in ("step", "sequence", "start_ns", "duration_ns", "num_bytes"):
            columns[name].append(getattr(rows, name))
    joined = {name: np.concatenate([np.empty(0, np.int64), *columns[name]]) for name in columns}
    return _canonical(tuple(groups), tuple(kinds), joined, places)


def runs_at(steps: Ints) -> Iterable[tuple[int, slice]]:
    """Each stretch of equal steps, and its rows."""
    if not steps.size:
        return
    firsts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), steps.size]
    for first, end in pairwise(firsts):
        yield int(steps[first]), slice(first, end)


def _canonical(
    groups: tuple[RankGroup, ...],
    kinds: tuple[str, ...],
    columns: dict[str, Ints],
    places: Mapping[int, RankPlace],
) -> GroupTable:
    # In the order of their names, so that the order in which batches come changes nothing.
    group_order = sorted(range(len(groups)), key=lambda at: _group_key(groups[at]))
    kind_order = sorted(range(len(kinds)), key=kinds.__getitem__)
    columns["group"] = _inverse(group_order)[columns["group"]]
    columns["kind"] = _inverse(kind_order)[columns["kind"]]
    order = np.lexsort([columns[name] for name in reversed(TABLE_COLUMNS)])
    columns = {name: values[order] for name, values in columns.items()}
    keep = _once(columns)
    if not keep.all():
        columns = {name: values[keep] for name, values in columns.items()}
    return GroupTable(
        groups=tuple(groups[at] for at in group_order),
        kinds=tuple(kinds[at] for at in kind_order),
        places=places,
        **columns,
    )


def _once(columns: Mapping[str, Ints]) -> NDArray[np.bool_]:
    """[rows], the first of rows that are equal; none of those that contradict each other."""
    size = columns["step"].size
    is_same_key = np.ones(max(size - 1, 0), np.bool_)
    for name in _KEY:
        is_same_key &= columns[name][1:] == columns[name][:-1]
    is_same = is_same_key.copy()
    for name in ("start_ns", "duration_ns", "num_bytes"):
        is_same &= columns[name][1:] == columns[name][:-1]
    first = np.concatenate(([True], ~is_same_key))[:size]
    occurrence = np.cumsum(first) - 1
    contradicted = np.zeros(int(first.sum()), np.bool_)
    contradicted[occurrence[1:][is_same_key & ~is_same]] = True
    kept: NDArray[np.bool_] = first & ~contradicted[occurrence]
    return kept


def _inverse(order: Sequence[int]) -> Ints:
    inverse = np.empty(len(order), np.int64)
    inverse[np.array(order, np.int64)] = np.arange(len(order))
    return inverse


def _group_key(group: RankGroup) -> Any:
    return group.name, group.axis, group.ranks


def _distinct_names(groups: Sequence[RankGroup]) -> tuple[RankGroup, ...]:
    """The groups, with their ranks behind names that several have."""
    times = Counter(group.name for group in groups)
    found: list[RankGroup] = []
    taken: set[str] = set()
    for group in groups:
        name = group.name if times[group.name] == 1 else f"{group.name} ({_ranks(group)})"
        while name in taken:
            name += "'"
        taken.add(name)
        found.append(RankGroup(name, group.axis, group.ranks))
    return tuple(found)


def _ranks(group: RankGroup) -> str:
    shown = ", ".join(map(str, group.ranks[:_MAX_NAMED_RANKS]))
    return f"ranks {shown}, ..." if len(group.ranks) > _MAX_NAMED_RANKS else f"ranks {shown}"


def _from_zero(columns: Mapping[str, Ints]) -> Ints:
    """[rows], numbers of occurrences that follow on each other; the rows are in order."""
    is_next = np.ones(columns["step"].size, np.bool_)
    is_other = np.ones(columns["step"].size, np.bool_)
    same = np.ones(columns["step"].size - 1, np.bool_)
    for name in ("step", "group", "kind"):
        same &= columns[name][1:] == columns[name][:-1]
    is_other[1:] = ~same
    is_next[1:] = is_other[1:] | (columns["sequence"][1:] != columns["sequence"][:-1])
    count = np.cumsum(is_next) - 1
    first = np.maximum.accumulate(np.where(is_other, np.arange(count.size), 0))
    numbers: Ints = count - count[first]
    return numbers
