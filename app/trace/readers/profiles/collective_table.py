"""The collectives of all ranks' profiles in one table, as `app.engine.arrivals` reads it.

The process groups in the files give the ranks of each collective and their positions.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.errors import InvalidTrace
from app.trace.collectives import RECEIVE, SEND, Collectives, GroupAxis, RankGroup, RankPlace
from app.trace.readers.kineto.process_groups import (
    DistributedInfo,
    ProcessGroup,
    axis_of,
    position_of,
)
from app.trace.readers.profiles.events import CollectiveArgs
from app.trace.readers.profiles.profile import RankProfile
from app.trace.readers.profiles.rank_collectives import RankCollective

# Axes as `RankGroup` has them; others join several axes or none.
_AXIS: dict[str, GroupAxis] = {
    **{"dp": "dp", "partial dp": "dp", "tp": "tp", "cp": "cp", "pp": "pp", "expert": "ep"}
}
_DEFAULT_GROUP = "default_pg"
_MAX_LISTED = 8


def group_of(call: CollectiveArgs, info: DistributedInfo | None) -> RankGroup | None:
    """The group of one collective, with all its ranks; None if the file does not list them."""
    ranks = call.ranks
    if not ranks:
        ranks = _listed_ranks(call, info)
    if not ranks:
        return None
    description = "" if call.description == "undefined" else call.description
    if not description:
        description = call.group if _is_default(call, info) else ""
    axis = _AXIS.get(axis_of(call.description), "")
    if not axis and is_data_parallel(info):
        axis = "dp"
    title = _DEFAULT_GROUP if _is_default(call, info) else description[:64] or "group"
    return RankGroup(f"{title} {ranks_text(ranks)}", axis, ranks)


def _listed_ranks(call: CollectiveArgs, info: DistributedInfo | None) -> tuple[int, ...]:
    """The ranks that `distributedInfo` lists for the group of that name."""
    if _is_default(call, info) and info is not None and info.world_size:
        return tuple(range(info.world_size))
    for group in (info and info.pg_config) or []:
        if group.pg_name == call.group and len(group.ranks) == group.pg_size > 0:
            return tuple(sorted(group.ranks))
    return ()


def _is_default(call: CollectiveArgs, info: DistributedInfo | None) -> bool:
    if call.description:
        return call.description == _DEFAULT_GROUP
    world = info.world_size if info else None
    return call.group == "0" and call.group_size == world


def is_data_parallel(info: DistributedInfo | None) -> bool:
    """Whether the only known group is that of all ranks: plain data parallelism."""
    groups: Sequence[ProcessGroup] = (info and info.pg_config) or ()
    return all(group.pg_size == (info and info.world_size) for group in groups)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in brackets: "[0-3]", "[0, 2]", "[0, 16, ... 112]"."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 2 and last - first == len(ranks) - 1:
        return f"[{first}-{last}]"
    if len(ranks) <= _MAX_LISTED:
        return str(list(ranks))
    return f"[{first}, {ranks[1]}, ... {last}]"


def rank_place(profile: RankProfile, rank: int, *, has_transfers: bool) -> RankPlace:
    """The rank's position: by its groups, else its rank in plain data parallelism.

    `has_transfers` says whether ranks send to each other, as stages of a pipeline do.
    """
    info = profile.info
    dp_rank: int | None = rank
    stage: int | None = 0
    if info is not None and info.pg_config:
        try:
            found = position_of(profile.file, rank, info, {})
            dp_rank, stage = found.dp_rank, found.stage
        except InvalidTrace:
            dp_rank, stage = rank, 0
    if has_transfers and is_data_parallel(info):
        dp_rank, stage = None, None
    return RankPlace(rank, dp_rank, stage, profile.host, profile.device)


def job_sizes(profile: RankProfile, world_size: int) -> dict[str, int]:
    """The job's sizes by the groups of one rank; without groups, dp has all ranks."""
    plain = {"dp_size": world_size, "pp_size": 1, "tp_size": 1, "dsp_size": 1}
    if profile.info is None or not profile.info.pg_config or profile.rank is None:
        return plain
    try:
        return plain | dict(position_of(profile.file, profile.rank, profile.info, {}).sizes)
    except InvalidTrace:
        return plain


# Kernels of one collective end together; clocks of hosts differ by a constant within a profile.
_ENDS_AGREE_NS = 1_000_000
UNKNOWN_KIND = "communication"


@dataclass(frozen=True, slots=True)
class ProfileTable:
    """All ranks' collectives in the steps that every rank has.

    In `collectives` a group has the members whose profiles were read; `num_members` is, by group
    name, how many it really has. `notes` name the collectives left out, with the reason.
    """

    collectives: Collectives
    num_members: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _CollectiveRow:
    group: str
    kind: str
    step: int
    rank: int
    start_ns: int
    end_ns: int
    num_bytes: int


def collective_table(
    profiles: Sequence[RankProfile], steps: Sequence[int], world_size: int
) -> ProfileTable:
    """The table of some ranks' profiles, in these steps; each profile has its rank."""
    return _TableBuilder(profiles, steps, world_size).built()


class _TableBuilder:
    def __init__(
        self, profiles: Sequence[RankProfile], steps: Sequence[int], world_size: int
    ) -> None:
        self._profiles = {each.rank: each for each in profiles if each.rank is not None}
        self._steps = set(steps)
        self._world_size = world_size
        self._groups: dict[str, RankGroup] = {}
        self._rows: list[_CollectiveRow] = []
        self._unmatched: dict[int, dict[int, list[tuple[int, RankCollective]]]] = {}
        self._num_several_sources = 0
        self._notes: list[str] = []

    def built(self) -> ProfileTable:
        for rank, profile in self._profiles.items():
            self._take(rank, profile)
        self._match_by_order()
        self._drop_uneven()
        if self._num_several_sources:
            self._notes.append(
                f"{self._num_several_sources:,} batches of receives are from several ranks at "
                "once: which of them was late is unknown"
            )
        members = {name: len(group.ranks) for name, group in self._groups.items()}
        return ProfileTable(self._columns(), members, tuple(self._notes))

    def _take(self, rank: int, profile: RankProfile) -> None:
        by_stream: dict[int, list[tuple[int, RankCollective]]] = defaultdict(list)
        for each in profile.collectives:
            step = profile.steps[each.step]
            if step not in self._steps:
                continue
            kinds = {call.kind for call in each.calls}
            if kinds <= {SEND, RECEIVE}:
                self._take_transfer(rank, step, each)
                continue
            group = group_of(each.calls[0], profile.info)
            if group is None:
                by_stream[each.stream].append((step, each))
            else:
                self._add(group, each.calls[0].kind, rank, step, each)
        self._unmatched[rank] = by_stream

    def _take_transfer(self, rank: int, step: int, each: RankCollective) -> None:
        sources = {call.source for call in each.calls if call.kind == RECEIVE}
        targets = {call.target for call in each.calls if call.kind == SEND}
        if len(sources) > 1:
            self._num_several_sources += 1
        elif sources and min(sources) >= 0:
            self._add_pair(sources.pop(), rank, RECEIVE, rank, step, each)
        elif len(targets) == 1 and min(targets) >= 0:
            self._add_pair(rank, targets.pop(), SEND, rank, step, each)

    def _add_pair(
        self, source: int, target: int, kind: str, rank: int, step: int, each: RankCollective
    ) -> None:
        group = RankGroup(f"{source} to {target}", "pp", (source, target))
        self._add(group, kind, rank, step, each)

    def _add(self, group: RankGroup, kind: str, rank: int, step: int, each: RankCollective) -> None:
        self._groups.setdefault(group.name, group)
        calls = [call for call in each.calls if kind not in (SEND, RECEIVE) or call.kind == kind]
        sizes = [call.num_bytes for call in calls]
        num_bytes = -1 if not sizes or min(sizes) < 0 else sum(sizes)
        self._rows.append(
            _CollectiveRow(group.name, kind, step, rank, each.start_ns, each.end_ns, num_bytes)
        )

    def _match_by_order(self) -> None:
        """Match collectives without a group by stream and order, where all ranks agree."""
        streams = sorted({stream for found in self._unmatched.values() for stream in found})
        ranks = sorted(self._unmatched)
        for stream in streams:
            lists = [self._unmatched[rank].get(stream, []) for rank in ranks]
            count = sum(map(len, lists))
            if len(ranks) < 2:
                self._notes.append(f"{count:,} collectives name no group, and one rank was read")
                self._add_alone(stream, ranks, lists)
            elif not _same_order(lists):
                self._notes.append(
                    f"stream {stream}: {count:,} collectives name no group, and ranks do not have "
                    "the same ones in the same order: who was late there is unknown"
                )
                self._add_alone(stream, ranks, lists)
            elif not _ends_agree(lists):
                self._notes.append(
                    f"stream {stream}: {count:,} collectives name no group, and those of the same "
                    "place in the order do not end together: the files may lack some, and who was "
                    "late there is unknown"
                )
                self._add_alone(stream, ranks, lists)
            else:
                self._notes.append(
                    f"stream {stream}: {count:,} collectives name no group: matched between ranks "
                    "by their order, as of all ranks"
                )
                world = tuple(range(max(self._world_size, max(ranks) + 1)))
                group = RankGroup(f"stream {stream}", "", world)
                self._add_ordered(group, ranks, lists)

    def _add_alone(
        self, stream: int, ranks: list[int], lists: list[list[tuple[int, RankCollective]]]
    ) -> None:
        """Rows of groups with one member each, for the rank's own figures."""
        for rank, found in zip(ranks, lists, strict=True):
            group = RankGroup(f"stream {stream} of rank {rank}", "", (rank,))
            self._add_ordered(group, [rank], [found])

    def _add_ordered(
        self,
        group: RankGroup,
        ranks: list[int],
        lists: list[list[tuple[int, RankCollective]]],
    ) -> None:
        for rank, found in zip(ranks, lists, strict=True):
            for step, each in found:
                self._add(group, each.calls[0].kind or UNKNOWN_KIND, rank, step, each)

    def _drop_uneven(self) -> None:
        """Drop collectives of a step whose count differs between members."""
        counts: dict[tuple[str, str, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for row in self._rows:
            if row.kind not in (SEND, RECEIVE):
                counts[row.group, row.kind, row.step][row.rank] += 1
        uneven = set()
        for key, by_rank in counts.items():
            read = [rank for rank in self._groups[key[0]].ranks if rank in self._profiles]
            if len({by_rank.get(rank, 0) for rank in read}) > 1:
                uneven.add(key)
        if not uneven:
            return
        num_steps = len({step for _, _, step in uneven})
        names = sorted({f"{kind} of {group}" for group, kind, _ in uneven})
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        self._notes.append(
            f"in {num_steps:,} of {len(self._steps):,} steps members do not have the same number "
            f"of collectives ({'; '.join(names[:3])}{more}): left out"
        )
        self._rows = [row for row in self._rows if (row.group, row.kind, row.step) not in uneven]

    def _columns(self) -> Collectives:
        rows = sorted(self._rows, key=lambda row: row.rank)  # stable: stays in order within a rank
        groups = list(dict.fromkeys(row.group for row in rows))
        kinds = list(dict.fromkeys(row.kind for row in rows))
        group_number = {name: number for number, name in enumerate(groups)}
        kind_number = {name: number for number, name in enumerate(kinds)}
        next_number: dict[tuple[str, str, int, int], int] = defaultdict(int)
        sequence = []
        for row in rows:
            key = (row.group, row.kind, row.step, row.rank)
            sequence.append(next_number[key])
            next_number[key] += 1
        origin = {rank: int(each.bounds_ns[0]) for rank, each in self._profiles.items()}

        def column(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(values, np.int64)

        start_ns = column([row.start_ns - origin[row.rank] for row in rows])
        stay_ns = column([row.end_ns - row.start_ns for row in rows])
        return Collectives(
            tuple(self._read_members(self._groups[name]) for name in groups),
            tuple(kinds),
            column([group_number[row.group] for row in rows]),
            column([kind_number[row.kind] for row in rows]),
            column([row.step for row in rows]),
            column(sequence),
            column([row.rank for row in rows]),
            start_ns / 1e9,
            stay_ns / 1e9,
            column([row.num_bytes for row in rows]),
            self._places(),
            is_continuous=True,
        )

    def _read_members(self, group: RankGroup) -> RankGroup:
        is_pair = " to " in group.name and len(group.ranks) == 2
        if is_pair:
            return group
        return replace(group, ranks=tuple(rank for rank in group.ranks if rank in self._profiles))

    def _places(self) -> dict[int, RankPlace]:
        kinds = {row.kind for row in self._rows}
        has_transfers = bool(kinds & {SEND, RECEIVE})
        places = {
            rank: rank_place(profile, rank, has_transfers=has_transfers)
            for rank, profile in self._profiles.items()
        }
        taken = [(each.host, each.local_rank) for each in places.values()]
        # Ranks that show the same GPU number on one host see one GPU each: no number of the host.
        return {
            rank: replace(each, local_rank=None)
            if taken.count((each.host, each.local_rank)) > 1
            else each
            for rank, each in places.items()
        }


def _same_order(lists: list[list[tuple[int, RankCollective]]]) -> bool:
    """Whether all ranks have the same kinds of collectives in the same order in every step."""
    orders = {tuple((step, each.calls[0].kind) for step, each in found) for found in lists}
    return len(orders) == 1 and bool(next(iter(orders)))


def _ends_agree(lists: list[list[tuple[int, RankCollective]]]) -> bool:
    """Whether collectives of the same position end together, up to a constant clock offset."""
    ends = np.array([[each.end_ns for _, each in found] for found in lists], np.int64)
    apart = ends - ends[0]
    residual = np.abs(apart - np.median(apart, axis=1, keepdims=True))
    return bool((residual <= _ENDS_AGREE_NS).mean() >= 0.9)
