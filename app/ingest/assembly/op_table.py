"""Tables of the operations of whole steps and of collectives inside groups, in canonical order.

Collectives are held by step in bounded memory until their window closes.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ingest.batch import GroupColumns, GroupRows, OpBatch
from app.trace.collectives import Collectives, RankGroup, RankPlace
from app.trace.window import S_PER_NS, Floats, Ints, PlacedOps, Trace


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpTable(PlacedOps):
    """Operations in canonical order: step, dp_rank, stage, optype, seq_id.

    Shapes: all [ops], of `TABLE_DTYPES`. Operations of skipped steps are among them.
    """

    @property
    def run_firsts(self) -> Ints:
        """[runs], the first row of each worker's step."""
        is_first = np.diff(self.step, prepend=-1) != 0
        for column in (self.dp_rank, self.stage):
            is_first |= np.diff(column, prepend=-1) != 0
        return np.flatnonzero(is_first)

    def of_step(self, step: int) -> "OpTable":
        """The rows of one step, without copying them."""
        first, end = np.searchsorted(self.step, [step, step + 1]).tolist()
        return self.select(slice(first, end))

    def pieces(self, max_rows: int) -> "Iterator[OpTable]":
        """Tables of at most so many rows; one that holds all of its columns stays whole."""
        yield self

    def trace(self, steps: Sequence[int]) -> Trace:
        """The operations of these steps (a window's complete ones), as the engine wants them."""
        is_wanted = np.isin(self.step, np.array(steps, dtype=np.int64))
        table = self if is_wanted.all() else self.select(is_wanted)
        columns = table.columns()
        start_ns, duration_ns = columns.pop("start_ns"), columns.pop("duration_ns")
        firsts = np.flatnonzero(np.diff(table.step, prepend=-1))
        return Trace(
            **columns,
            start_s=seconds_in_step(firsts, start_ns),
            duration_s=duration_ns * S_PER_NS,
        )

    def origins_ns(self, steps: Sequence[int]) -> tuple[int, ...]:
        """[steps], the first start of each by the workers' own clocks: what `trace` counts from."""
        starts_ns = (self.of_step(step).start_ns for step in steps)
        return tuple(int(start_ns.min()) if start_ns.size else 0 for start_ns in starts_ns)


def seconds_in_step(firsts: Ints, start_ns: Ints) -> Floats:
    """[ops] seconds after the step's first start; subtracted as integers, which lose nothing.

    `firsts` [steps] are the first rows of each step.
    """
    if not firsts.size:
        return np.empty(0)
    began_ns = np.minimum.reduceat(start_ns, firsts)
    seconds = np.empty(start_ns.size)
    ends = np.append(firsts[1:], start_ns.size)
    for first, end, origin_ns in zip(firsts.tolist(), ends.tolist(), began_ns, strict=True):
        np.multiply(start_ns[first:end] - origin_ns, S_PER_NS, out=seconds[first:end])
    return seconds


_KEY_COLUMNS = ("step", "group", "kind", "sequence", "rank")
_FIGURE_COLUMNS = ("start_ns", "duration_ns", "num_bytes")
GROUP_TABLE_COLUMNS = (*_KEY_COLUMNS, *_FIGURE_COLUMNS)
_MAX_NAMED_RANKS = 8


class GroupSlice(NamedTuple):
    """The collectives of one step in one batch, and the place of its rank."""

    place: RankPlace
    rows: GroupRows


@dataclass(frozen=True, slots=True, eq=False)
class GroupTable(GroupColumns):
    """Rows in the order of step, group, kind, sequence and rank, each of which is there once."""

    rank: Ints
    places: Mapping[int, RankPlace]

    def columns(self) -> dict[str, Ints]:
        """The columns by name."""
        return {name: getattr(self, name) for name in GROUP_TABLE_COLUMNS}

    def collectives(self, steps: Sequence[int], origins_ns: Sequence[int]) -> Collectives | None:
        """The rows of these steps, as the engine wants them; None where there are none.

        Starts count from the step's `origins_ns` [steps], as those of its operations do. Groups of
        one name are told apart by their ranks, and occurrences numbered from 0, however their ranks
        number them. `steps` are ascending.
        """
        numbers = np.array(steps, np.int64)
        taken = np.isin(self.step, numbers)
        if not taken.any():
            return None
        columns = {name: values[taken] for name, values in self.columns().items()}
        origin_ns = np.array(origins_ns, np.int64)[np.searchsorted(numbers, columns["step"])]
        start_s = (columns["start_ns"] - origin_ns).astype(np.float64) * S_PER_NS
        return Collectives(
            groups=_distinct_names(self.groups),
            kinds=self.kinds,
            group=columns["group"],
            kind=columns["kind"],
            step=columns["step"],
            sequence=_numbered_from_zero(columns),
            rank=columns["rank"],
            start_s=np.where(columns["start_ns"] < 0, np.nan, start_s),
            stay_s=columns["duration_ns"].astype(np.float64) * S_PER_NS,
            num_bytes=columns["num_bytes"],
            places={
                rank: self.places[rank]
                for rank in np.unique(columns["rank"]).tolist()
                if rank in self.places
            },
        )


def group_table_of_slices(
    parts: Sequence[GroupSlice], before: GroupTable | None = None
) -> GroupTable:
    """One table out of batches in any order, and of a table that was made earlier.

    Of a row that came twice one is taken; what came twice and says different things cannot be
    told apart, and is left out.
    """
    groups: dict[RankGroup, int] = {}
    kinds: dict[str, int] = {}
    columns: dict[str, list[Ints]] = {name: [] for name in GROUP_TABLE_COLUMNS}
    places: dict[int, RankPlace] = {}
    if before is not None:
        groups = {group: at for at, group in enumerate(before.groups)}
        kinds = {kind: at for at, kind in enumerate(before.kinds)}
        places = dict(before.places)
        for name in GROUP_TABLE_COLUMNS:
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
        for name in ("step", "sequence", *_FIGURE_COLUMNS):
            columns[name].append(getattr(rows, name))
    joined = {name: np.concatenate([np.empty(0, np.int64), *columns[name]]) for name in columns}
    return _canonical_groups(tuple(groups), tuple(kinds), joined, places)


def _canonical_groups(
    groups: tuple[RankGroup, ...],
    kinds: tuple[str, ...],
    columns: dict[str, Ints],
    places: Mapping[int, RankPlace],
) -> GroupTable:
    # In the order of their names, so that the order in which batches come changes nothing.
    group_order = sorted(
        range(len(groups)), key=lambda at: (groups[at].name, groups[at].axis, groups[at].ranks)
    )
    kind_order = sorted(range(len(kinds)), key=kinds.__getitem__)
    columns["group"] = np.argsort(group_order)[columns["group"]]
    columns["kind"] = np.argsort(kind_order)[columns["kind"]]
    order = np.lexsort([columns[name] for name in reversed(GROUP_TABLE_COLUMNS)])
    columns = {name: values[order] for name, values in columns.items()}
    keep = _first_of_equal(columns)
    if not keep.all():
        columns = {name: values[keep] for name, values in columns.items()}
    return GroupTable(
        groups=tuple(groups[at] for at in group_order),
        kinds=tuple(kinds[at] for at in kind_order),
        places=places,
        **columns,
    )


def _first_of_equal(columns: Mapping[str, Ints]) -> NDArray[np.bool_]:
    """[rows], the first of rows that are equal; none of those that contradict each other."""
    is_first = _has_changed(columns, _KEY_COLUMNS)
    is_contradiction = ~is_first & _has_changed(columns, _FIGURE_COLUMNS)
    occurrence = np.cumsum(is_first) - 1
    contradicted = np.zeros(int(is_first.sum()), np.bool_)
    contradicted[occurrence[is_contradiction]] = True
    kept: NDArray[np.bool_] = is_first & ~contradicted[occurrence]
    return kept


def _has_changed(columns: Mapping[str, Ints], names: Sequence[str]) -> NDArray[np.bool_]:
    """[rows], whether one of these columns differs from the row before; no step is -1."""
    changes = [np.diff(columns[name], prepend=-1) != 0 for name in names]
    has_changed: NDArray[np.bool_] = np.logical_or.reduce(changes)
    return has_changed


def _distinct_names(groups: Sequence[RankGroup]) -> tuple[RankGroup, ...]:
    """The groups, with their ranks behind names that several have."""
    times = Counter(group.name for group in groups)
    distinct: list[RankGroup] = []
    taken: set[str] = set()
    for group in groups:
        name = group.name if times[group.name] == 1 else f"{group.name} ({_ranks(group)})"
        while name in taken:
            name += "'"
        taken.add(name)
        distinct.append(RankGroup(name, group.axis, group.ranks))
    return tuple(distinct)


def _ranks(group: RankGroup) -> str:
    shown = ", ".join(map(str, group.ranks[:_MAX_NAMED_RANKS]))
    return f"ranks {shown}, ..." if len(group.ranks) > _MAX_NAMED_RANKS else f"ranks {shown}"


def _numbered_from_zero(columns: Mapping[str, Ints]) -> Ints:
    """[rows], numbers of occurrences that follow on each other; the rows are in order."""
    is_first = _has_changed(columns, ("step", "group", "kind"))
    count = np.cumsum(is_first | _has_changed(columns, ("sequence",))) - 1
    first = np.maximum.accumulate(np.where(is_first, np.arange(count.size), 0))
    numbers: Ints = count - count[first]
    return numbers


MAX_RUN_ROWS = 4_000_000  # of one run in memory, some 60 bytes each
MAX_RANK_ROWS = 10_000  # in one step
# Each revision of an open window analyses all of its rows: of more than these they are left for its
# close.
MAX_OPEN_ROWS = 500_000


class GroupCounts(NamedTuple):
    """Rows of a batch by outcome: taken into a window (open or closed), too late, or too many."""

    accepted: int = 0
    late: int = 0
    refused: int = 0


NO_GROUPS = GroupCounts()


class GroupRowCounts:
    """Numbers of rows by step and rank, up to `MAX_RANK_ROWS` of each and `MAX_RUN_ROWS` in all."""

    def __init__(self) -> None:
        self._of_rank: dict[tuple[int, int], int] = {}
        self._num_rows = 0

    def add(self, step: int, part: GroupSlice) -> bool:
        """Whether there is room for the rows; then they are counted."""
        key, num_rows = (step, part.place.rank), part.rows.num_rows
        of_rank = self._of_rank.get(key, 0) + num_rows
        if of_rank > MAX_RANK_ROWS or self._num_rows + num_rows > MAX_RUN_ROWS:
            return False
        self._of_rank[key] = of_rank
        self._num_rows += num_rows
        return True

    def remove_through(self, step: int) -> None:
        """Count nothing of this step and of all before it any more."""
        for key in [key for key in self._of_rank if key[0] <= step]:
            self._num_rows -= self._of_rank.pop(key)


class GroupRecords:
    """Rows by step. They complete no step, and no step waits for them."""

    def __init__(self) -> None:
        self._parts: dict[int, list[GroupSlice]] = {}
        self._counts = GroupRowCounts()
        self._table: GroupTable | None = None
        self._table_of: dict[int, int] = {}  # numbers of parts in `_table` by step
        self.were_seen = False  # whether any has come in this run

    def put(self, step: int, part: GroupSlice) -> bool:
        """Whether there is room for the rows of one rank and step; then they are kept."""
        if not self._counts.add(step, part):
            return False
        self._parts.setdefault(step, []).append(part)
        return True

    def table(self, steps: Collection[int]) -> GroupTable | None:
        """The rows of these steps; None where there are none."""
        of_steps = {step: self._parts[step] for step in steps if step in self._parts}
        if not of_steps:
            return None
        table_of = {step: len(parts) for step, parts in of_steps.items()}
        if self._table is None or table_of != self._table_of:
            self._table = group_table_of_slices(
                [part for parts in of_steps.values() for part in parts]
            )
            self._table_of = table_of
        return self._table

    def open_table(self, steps: Collection[int]) -> GroupTable | None:
        """The rows of an open window's steps; None where there are none, or very many."""
        parts = [part for step in steps for part in self._parts.get(step, ())]
        if sum(part.rows.num_rows for part in parts) > MAX_OPEN_ROWS:
            return None
        return self.table(steps)

    def remove_through(self, step: int) -> None:
        """Forget the rows of this step and of all before it."""
        if not self._parts:
            return
        self._counts.remove_through(step)
        self._table, self._table_of = None, {}
        for old in [number for number in self._parts if number <= step]:
            del self._parts[old]


def group_slices(batch: OpBatch) -> Iterator[tuple[int, GroupSlice]]:
    """The collectives of a batch by step, ascending."""
    rows = batch.collectives
    if rows is None or not rows.num_rows:
        return
    place = RankPlace(batch.rank, batch.dp_rank, batch.stage, batch.host or None, rows.local_rank)
    if (rows.step[1:] < rows.step[:-1]).any():
        rows = rows.select(np.argsort(rows.step, kind="stable"))
    firsts = np.flatnonzero(np.diff(rows.step, prepend=-1)).tolist()
    for first, end in pairwise([*firsts, rows.num_rows]):
        yield int(rows.step[first]), GroupSlice(place, rows.select(slice(first, end)))
