"""Complete occurrences of collectives, as one array of stays, occurrence by occurrence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import EP_BLOCK, NO_PEERS
from app.engine.what_if import Replayer, ReplayGroups
from app.trace.collectives import RECEIVE, SEND, Collectives, GroupAxis, RankGroup, RankPlace
from app.trace.ops import OpKind
from app.trace.window import Floats, Ints

Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True)
class Occurrences:
    """Every occurrence that all members of its group recorded.

    A member is one rank in one group: `member_group` and `member_rank` (an index into `places`)
    [members], contiguous per group, in the order of its ranks. Occurrence o has the rows
    `first_row[o]` to `first_row[o] + group size`, one per member in that order.

    Shapes: `stay_s` and `start_s` [rows] seconds, `start_s` by the rank's own clock (since the
    step's origin, or one origin for all if `is_continuous`; NaN if unknown); `num_bytes` [rows],
    NaN if unknown; `group`, `step` (position in `steps`) and `order` (position in the group's
    sequence within the step) [occurrences]. `sampled` are groups that may be recorded in some of
    the steps only.
    """

    steps: tuple[int, ...]
    places: tuple[RankPlace, ...]
    groups: tuple[RankGroup, ...]
    member_group: Ints
    member_rank: Ints
    stay_s: Floats
    start_s: Floats
    first_row: Ints
    group: Ints
    step: Ints
    order: Ints
    num_bytes: Floats
    sampled: frozenset[int] = frozenset()

    @cached_property
    def group_size(self) -> Ints:
        """[groups], number of members."""
        return np.array([len(group.ranks) for group in self.groups], np.int64)

    @cached_property
    def first_member(self) -> Ints:
        """[groups], each group's first member."""
        return np.cumsum(self.group_size) - self.group_size

    @cached_property
    def is_judged(self) -> NDArray[np.bool_]:
        """[groups], whether lateness counts in the group.

        Not across pipeline stages: their schedule decides when they arrive.
        """
        return np.array([group.axis != "pp" for group in self.groups], np.bool_)

    @cached_property
    def has_starts(self) -> NDArray[np.bool_]:
        """[groups], whether any occurrence has starts; True for groups without occurrences."""
        known = np.logical_or.reduceat(np.isfinite(self.start_s), self.first_row)
        has_starts: NDArray[np.bool_] = np.bincount(self.group, minlength=len(self.groups)) == 0
        np.logical_or.at(has_starts, self.group, known)
        return has_starts

    @cached_property
    def has_bytes(self) -> bool:
        """Whether the bytes of any member are known."""
        return bool(np.isfinite(self.num_bytes).any())

    @property
    def num_occurrences(self) -> int:
        """Number of occurrences."""
        return int(self.group.size)


@dataclass(frozen=True, slots=True)
class _Part:
    """Occurrences of some groups of one source, members contiguous."""

    groups: list[RankGroup]
    members: list[Ints]  # of each group, positions in `places`
    group: Ints
    step: Ints
    order: Ints
    stay_s: Floats
    start_s: Floats
    num_bytes: Floats
    is_sampled: bool = False


def occurrences_of_replay(replay: ReplayGroups) -> Occurrences | None:
    """Collectives that workers recorded, and those inside groups if there are any.

    None if nothing synchronises: one worker, or no collectives.
    """
    steps, workers = replay.steps, _workers(replay)
    position = {step: at for at, step in enumerate(steps)}
    parts = [
        part
        for group in replay.groups
        for part in _of_group(group, np.array([position[step] for step in group.steps]), workers)
    ]
    places, inside = workers, replay.window.collectives
    if inside is not None and inside.num_rows:
        part, places = _of_table(_by_one_clock(inside, replay), steps, workers)
        parts.append(replace(part, is_sampled=True))
    return _join_parts(steps, places, parts)


def occurrences_of_table(table: Collectives, steps: Sequence[int]) -> Occurrences | None:
    """Occurrences of a table alone (plain profiles); None if no occurrence is complete."""
    part, places = _of_table(table, tuple(steps), [])
    return _join_parts(tuple(steps), places, [part])


def _by_one_clock(table: Collectives, replay: ReplayGroups) -> Collectives:
    """The table with starts on the replay's corrected clocks.

    A rank that is no worker has the clock of the worker of its (dp rank, stage), or of its host.
    """
    if all(group.grid.shift_s is None for group in replay.groups):
        return table
    workers, steps = _workers(replay), np.asarray(replay.steps)
    shift_s = np.zeros((len(workers) + 1, steps.size))  # the last row for ranks of no known clock
    for group in replay.groups:
        grid, sizes = group.grid, group.template.parallelism
        if grid.shift_s is not None:
            by_stage_s = grid.shift_s.reshape(sizes.pp_size, sizes.dp_size, grid.num_steps)
            at = np.searchsorted(steps, grid.steps)
            shift_s[:-1, at] = by_stage_s.swapaxes(0, 1).reshape(-1, grid.num_steps)
    by_rank = {place.rank: at for at, place in enumerate(workers)}
    by_place = {(place.dp_rank, place.stage): at for at, place in enumerate(workers)}
    by_host = {place.host: at for at, place in enumerate(workers)} | {None: -1}
    ranks, of_row = np.unique(table.rank, return_inverse=True)

    def worker_of(place: RankPlace) -> int:
        of_host = by_host.get(place.host, -1)
        return by_rank.get(place.rank, by_place.get((place.dp_rank, place.stage), of_host))

    worker = np.array([worker_of(table.place(rank)) for rank in ranks.tolist()], np.int64)
    step = np.minimum(np.searchsorted(steps, table.step), steps.size - 1)
    return replace(table, start_s=table.start_s + shift_s[worker[of_row], step])


def _workers(replay: ReplayGroups) -> list[RankPlace]:
    """Every (dp rank, stage), dp rank by dp rank."""
    rank, hosts = replay.groups[0].grid.rank, replay.window.hosts
    return [
        RankPlace(int(rank[dp_rank, stage]), dp_rank, stage, hosts.get((dp_rank, stage)))
        for dp_rank in range(rank.shape[0])
        for stage in range(rank.shape[1])
    ]


def _of_group(replayer: Replayer, step_at: Ints, workers: list[RankPlace]) -> list[_Part]:
    """One part per set of groups with occurrences of the same shape."""
    template, graph = replayer.template, replayer.graph
    kind_of = template.op_types.flags(lambda spec: spec.kind is OpKind.COLLECTIVE)
    by_stages: dict[tuple[tuple[int, ...], int], list[list[int]]] = {}
    for unit in graph.shared_units(kind_of[template.optype]).tolist():
        rows = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        rows = rows[np.argsort(template.stage[rows], kind="stable")]
        key = tuple(template.stage[rows].tolist()), int(graph.meets[unit])
        by_stages.setdefault(key, []).append(rows.tolist())
    return [
        part
        for (stages, meets), units in by_stages.items()
        if (part := _synchronised(replayer, step_at, stages, meets, units, workers)) is not None
    ]


def _synchronised(
    replayer: Replayer,
    step_at: Ints,
    stages: tuple[int, ...],
    meets: int,
    units: list[list[int]],
    workers: list[RankPlace],
) -> _Part | None:
    """Occurrences of one set of stages: of all dp ranks, of blocks of them, or of each replica."""
    sizes = replayer.template.parallelism
    block_size = {NO_PEERS: 1, EP_BLOCK: sizes.ep_size}.get(meets, sizes.dp_size)
    num_members, num_steps = len(stages) * block_size, step_at.size
    if num_members < 2:
        return None
    units = sorted(units, key=lambda rows: rows[0])
    rows = np.asarray(units, np.int64)  # [units, stages]
    num_blocks = sizes.dp_size // block_size

    def occurrence_by_occurrence(times_s: Floats) -> Floats:
        cells = times_s[rows].reshape(len(units), len(stages), num_blocks, block_size, num_steps)
        return np.ascontiguousarray(cells.transpose(2, 4, 0, 3, 1)).ravel()

    start_s = occurrence_by_occurrence(replayer.grid.start_s)
    block, step, _ = (axis.ravel() for axis in np.indices((num_blocks, num_steps, len(units))))
    # In the order of the first member's starts in this step.
    first_s = start_s[::num_members].reshape(num_blocks, num_steps, len(units))
    order = first_s.argsort(axis=2, kind="stable").argsort(axis=2, kind="stable").ravel()
    dp_ranks = np.arange(sizes.dp_size).reshape(num_blocks, block_size)
    members = [(ranks[:, None] * sizes.pp_size + np.asarray(stages)).ravel() for ranks in dp_ranks]
    axis: GroupAxis = "pp" if len(stages) > 1 else "ep" if meets == EP_BLOCK else "dp"
    groups = [
        RankGroup(
            _name(axis, stages, sizes.pp_size, number if num_blocks > 1 else None),
            axis,
            tuple(workers[at].rank for at in places.tolist()),
        )
        for number, places in enumerate(members)
    ]
    stay_s = occurrence_by_occurrence(replayer.grid.duration_s)
    num_bytes = np.full(start_s.size, np.nan)
    return _Part(groups, members, block, step_at[step], order, stay_s, start_s, num_bytes)


def _name(axis: str, stages: tuple[int, ...], num_stages: int, block: int | None) -> str:
    """Such as "dp, stage 3", "dp, all stages", "ep block 2, stage 0"."""
    where = f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]} to {stages[-1]}"
    if len(stages) == num_stages and num_stages > 1:
        where = "all stages"
    if block is None:
        return f"{axis}, {where}"
    return f"{axis} {'replica' if axis == 'pp' else 'block'} {block}, {where}"


def _of_table(
    table: Collectives, steps: tuple[int, ...], places: list[RankPlace]
) -> tuple[_Part, list[RankPlace]]:
    """Complete occurrences of a table; ranks that are not among `places` are added to them."""
    places = list(places)
    index = {place.rank: at for at, place in enumerate(places)}
    for rank in sorted({rank for group in table.groups for rank in group.ranks}):
        if rank not in index:
            index[rank] = len(places)
            places.append(table.place(rank))
        else:
            places[index[rank]] = _merged(places[index[rank]], table.place(rank))
    is_transfer = np.array([kind in (RECEIVE, SEND) for kind in table.kinds], np.bool_)
    rows = np.flatnonzero(~is_transfer[table.kind] & np.isin(table.step, steps))
    member = _member_positions(table, rows)
    rows, member = rows[member >= 0], member[member >= 0]
    keys = (member, table.sequence[rows], table.kind[rows], table.step[rows], table.group[rows])
    rows = rows[np.lexsort(keys)]
    is_new = np.ones(rows.size, np.bool_)
    columns = (table.group, table.step, table.kind, table.sequence)
    if rows.size:
        is_new[1:] = np.logical_or.reduce([np.diff(column[rows]) != 0 for column in columns])
    first = np.flatnonzero(is_new)
    count = np.diff(np.append(first, rows.size))
    sizes = np.array([len(group.ranks) for group in table.groups], np.int64)
    is_complete = (count == sizes[table.group[rows[first]]]) & (count > 1)
    chosen = rows[np.repeat(is_complete, count)]
    first_chosen = rows[first[is_complete]]
    num_bytes = np.where(table.num_bytes[chosen] >= 0, table.num_bytes[chosen], np.nan)
    step = np.searchsorted(np.asarray(steps), table.step[first_chosen])
    # Kinds of one group follow each other by time, where it is known, else by their numbers.
    begun_s = table.start_s[first_chosen]
    groups, group = list(table.groups), table.group[first_chosen]
    order = _order_in_step(group, step, begun_s, table.sequence[first_chosen])
    members = [np.array([index[rank] for rank in ranked.ranks], np.int64) for ranked in groups]
    stay_s, start_s = table.stay_s[chosen], table.start_s[chosen]
    return _Part(groups, members, group, step, order, stay_s, start_s, num_bytes), places


def _merged(place: RankPlace, other: RankPlace) -> RankPlace:
    """A rank's place with unknown fields of one record filled from the other."""
    return RankPlace(
        place.rank,
        other.dp_rank if place.dp_rank is None else place.dp_rank,
        other.stage if place.stage is None else place.stage,
        place.host or other.host,
        other.local_rank if place.local_rank is None else place.local_rank,
    )


def _member_positions(table: Collectives, rows: Ints) -> Ints:
    """[rows], position of each rank among its group's members, -1 if it is no member."""
    members = np.full(rows.size, -1, np.int64)
    group_of_row = table.group[rows]
    by_group = np.argsort(group_of_row, kind="stable")
    bounds = np.searchsorted(group_of_row[by_group], np.arange(len(table.groups) + 1))
    for number, group in enumerate(table.groups):
        of_group = by_group[bounds[number] : bounds[number + 1]]
        if not of_group.size:
            continue
        ranks, rank = np.asarray(group.ranks, np.int64), table.rank[rows[of_group]]
        order = np.argsort(ranks)
        member = order[np.minimum(np.searchsorted(ranks[order], rank), ranks.size - 1)]
        members[of_group] = np.where(ranks[member] == rank, member, -1)
    return members


def _order_in_step(group: Ints, step: Ints, begun_s: Floats, sequence: Ints) -> Ints:
    """[occurrences], position in the group's sequence within the step, from 0."""
    order = np.lexsort((sequence, np.nan_to_num(begun_s, nan=0.0), step, group))
    placed = np.zeros(group.size, np.int64)
    if not group.size:
        return placed
    is_new = np.ones(group.size, np.bool_)
    is_new[1:] = (np.diff(group[order]) != 0) | (np.diff(step[order]) != 0)
    first = np.maximum.accumulate(np.where(is_new, np.arange(group.size), 0))
    placed[order] = np.arange(group.size) - first
    return placed


def _join_parts(
    steps: tuple[int, ...], places: list[RankPlace], parts: list[_Part]
) -> Occurrences | None:
    """All parts together; groups of the same name and members in several parts are one."""
    groups: dict[RankGroup, int] = {}
    members: list[Ints] = []
    numbers: list[Ints] = []
    sampled: set[int] = set()
    always: set[int] = set()
    for part in parts:
        part_numbers = []
        for rank_group, ranks in zip(part.groups, part.members, strict=True):
            if rank_group not in groups:
                groups[rank_group] = len(groups)
                members.append(ranks)
            part_numbers.append(groups[rank_group])
        (sampled if part.is_sampled else always).update(part_numbers)
        numbers.append(np.asarray(part_numbers, np.int64)[part.group])
    if not sum(part.group.size for part in parts):
        return None
    group = np.concatenate(numbers)
    sizes = np.array([ranks.size for ranks in members], np.int64)
    width = sizes[group]
    return Occurrences(
        steps=steps,
        places=tuple(places),
        groups=tuple(groups),
        member_group=np.repeat(np.arange(sizes.size), sizes),
        member_rank=np.concatenate(members),
        stay_s=_flat([part.stay_s for part in parts]),
        start_s=_flat([part.start_s for part in parts]),
        first_row=np.cumsum(width) - width,
        group=group,
        step=_flat([part.step for part in parts]),
        order=_flat([part.order for part in parts]),
        num_bytes=_flat([part.num_bytes for part in parts]),
        sampled=frozenset(sampled - always),
    )


def _flat(arrays: list[NDArray[Number]]) -> NDArray[Number]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
