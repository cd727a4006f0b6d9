"""The collectives of all ranks' profiles in one table, as `app.engine.arrivals` reads it.

The process groups in the files give the ranks of each collective and their positions.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.errors import InvalidTrace
from app.trace.collectives import RECEIVE, SEND, Collectives, GroupAxis, RankGroup, RankPlace
from app.trace.readers.kineto.process_groups import (
    DistributedInfo,
    ParallelPosition,
    axis_of,
    position_of,
)
from app.trace.readers.kineto.profile import RankCollective, RankProfile
from app.trace.readers.kineto.trace_file import Collective

# Axes as `RankGroup` has them; others join several axes or none.
_AXIS: dict[str, GroupAxis] = {
    "dp": "dp",
    "partial dp": "dp",
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "expert": "ep",
}
_DEFAULT_GROUP = "default_pg"
_MAX_LISTED = 8
# Kernels of one collective end together; clocks of hosts differ by a constant within a profile.
_ENDS_AGREE_NS = 1_000_000
UNKNOWN_KIND = "communication"


def group_of(call: Collective, info: DistributedInfo | None) -> RankGroup | None:
    """The group of one collective, with all its ranks; None if the file does not list them."""
    is_default = _is_default(call, info)
    ranks = call.ranks or _listed_ranks(call, info, is_default=is_default)
    if not ranks:
        return None
    title = _DEFAULT_GROUP
    if not is_default:
        title = "" if call.description == "undefined" else call.description[:64]
    axis = _AXIS.get(axis_of(call.description), "")
    if not axis and is_data_parallel(info):
        axis = "dp"
    return RankGroup(f"{title or 'group'} {ranks_text(ranks)}", axis, ranks)


def _listed_ranks(
    call: Collective, info: DistributedInfo | None, *, is_default: bool
) -> tuple[int, ...]:
    """The ranks that `distributedInfo` lists for the group of that name."""
    if is_default and info is not None and info.world_size:
        return tuple(range(info.world_size))
    for group in (info and info.pg_config) or []:
        if group.pg_name == call.group and len(group.ranks) == group.pg_size > 0:
            return tuple(sorted(group.ranks))
    return ()


def _is_default(call: Collective, info: DistributedInfo | None) -> bool:
    if call.description:
        return call.description == _DEFAULT_GROUP
    return call.group == "0" and call.group_size == (info.world_size if info else None)


def is_data_parallel(info: DistributedInfo | None) -> bool:
    """Whether the only known group is that of all ranks: plain data parallelism."""
    groups = (info and info.pg_config) or ()
    return all(group.pg_size == (info and info.world_size) for group in groups)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in brackets: "[0-3]", "[0, 2]", "[0, 16, ... 112]"."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 2 and last - first == len(ranks) - 1:
        return f"[{first}-{last}]"
    if len(ranks) <= _MAX_LISTED:
        return str(list(ranks))
    return f"[{first}, {ranks[1]}, ... {last}]"


def _position(profile: RankProfile) -> ParallelPosition | None:
    """The rank's position by its groups; None where they do not say it."""
    if profile.info is None or not profile.info.pg_config or profile.rank is None:
        return None
    try:
        return position_of(profile.file, profile.rank, profile.info, {})
    except InvalidTrace:
        return None


def job_sizes(profile: RankProfile, world_size: int) -> dict[str, int]:
    """The job's sizes by the groups of one rank; without groups, dp has all ranks."""
    plain = {"dp_size": world_size, "pp_size": 1, "tp_size": 1, "dsp_size": 1}
    position = _position(profile)
    return plain | dict(position.sizes) if position else plain


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


_InStep = tuple[int, RankCollective]  # a step's number, and a collective in it


class _TableBuilder:
    def __init__(
        self, profiles: Sequence[RankProfile], steps: Sequence[int], world_size: int
    ) -> None:
        self._profiles = {profile.rank: profile for profile in profiles if profile.rank is not None}
        self._steps = set(steps)
        self._world_size = world_size
        self._groups: dict[str, RankGroup] = {}
        self._rows: list[_CollectiveRow] = []
        # Collectives without a group, by stream and rank.
        self._unmatched: dict[int, dict[int, list[_InStep]]] = defaultdict(
            lambda: {rank: [] for rank in sorted(self._profiles)}
        )
        self._num_several_sources = 0
        self._notes: list[str] = []

    def built(self) -> ProfileTable:
        for rank, profile in self._profiles.items():
            for collective in profile.collectives:
                step = profile.steps[collective.step]
                if step in self._steps:
                    self._take(rank, profile.info, step, collective)
        for stream, by_rank in sorted(self._unmatched.items()):
            self._match_by_order(stream, by_rank)
        self._drop_uneven()
        if self._num_several_sources:
            self._notes.append(
                f"{self._num_several_sources:,} batches of receives are from several ranks at "
                "once: which of them was late is unknown"
            )
        members = {name: len(group.ranks) for name, group in self._groups.items()}
        return ProfileTable(self._columns(), members, tuple(self._notes))

    def _take(
        self, rank: int, info: DistributedInfo | None, step: int, collective: RankCollective
    ) -> None:
        calls = collective.calls
        if {call.kind for call in calls} <= {SEND, RECEIVE}:
            self._take_transfer(rank, step, collective)
        elif group := group_of(calls[0], info):
            self._add(group, calls[0].kind, rank, step, collective)
        else:
            self._unmatched[collective.stream][rank].append((step, collective))

    def _take_transfer(self, rank: int, step: int, collective: RankCollective) -> None:
        sources = {call.source for call in collective.calls if call.kind == RECEIVE}
        targets = {call.target for call in collective.calls if call.kind == SEND}
        if len(sources) > 1:
            self._num_several_sources += 1
            return
        pair, kind = None, RECEIVE
        if sources and min(sources) >= 0:
            pair = sources.pop(), rank
        elif len(targets) == 1 and min(targets) >= 0:
            pair, kind = (rank, targets.pop()), SEND
        if pair is not None:
            group = RankGroup("{} to {}".format(*pair), "pp", pair)
            self._add(group, kind, rank, step, collective)

    def _add(
        self, group: RankGroup, kind: str, rank: int, step: int, collective: RankCollective
    ) -> None:
        self._groups.setdefault(group.name, group)
        sizes = [
            call.num_bytes
            for call in collective.calls
            if kind not in (SEND, RECEIVE) or call.kind == kind
        ]
        num_bytes = -1 if not sizes or min(sizes) < 0 else sum(sizes)
        times = collective.start_ns, collective.end_ns
        self._rows.append(_CollectiveRow(group.name, kind, step, rank, *times, num_bytes))

    def _match_by_order(self, stream: int, by_rank: Mapping[int, list[_InStep]]) -> None:
        """Match collectives without a group by stream and order, where all ranks agree."""
        lists = list(by_rank.values())
        unnamed = f"{sum(map(len, lists)):,} collectives name no group"
        why_not = ""
        if len(by_rank) < 2:
            self._notes.append(f"{unnamed}, and one rank was read")
        elif not _same_order(lists):
            why_not = (
                "and ranks do not have the same ones in the same order: who was late there is "
                "unknown"
            )
        elif not _ends_agree(lists):
            why_not = (
                "and those of the same place in the order do not end together: the files may lack "
                "some, and who was late there is unknown"
            )
        else:
            self._notes.append(
                f"stream {stream}: {unnamed}: matched between ranks by their order, as of all ranks"
            )
            world = tuple(range(max(self._world_size, max(by_rank) + 1)))
            self._add_ordered(RankGroup(f"stream {stream}", "", world), by_rank)
            return
        if why_not:
            self._notes.append(f"stream {stream}: {unnamed}, {why_not}")
        for rank, of_rank in by_rank.items():  # for the rank's own figures
            alone = RankGroup(f"stream {stream} of rank {rank}", "", (rank,))
            self._add_ordered(alone, {rank: of_rank})

    def _add_ordered(self, group: RankGroup, by_rank: Mapping[int, list[_InStep]]) -> None:
        for rank, of_rank in by_rank.items():
            for step, collective in of_rank:
                kind = collective.calls[0].kind or UNKNOWN_KIND
                self._add(group, kind, rank, step, collective)

    def _drop_uneven(self) -> None:
        """Drop collectives of a step whose count differs between members."""
        counts: dict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)
        for row in self._rows:
            if row.kind not in (SEND, RECEIVE):
                counts[row.group, row.kind, row.step][row.rank] += 1
        uneven = {
            key
            for key, by_rank in counts.items()
            if len({by_rank[rank] for rank in self._read_members(self._groups[key[0]])}) > 1
        }
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
        groups = {name: at for at, name in enumerate(dict.fromkeys(row.group for row in rows))}
        kinds = {name: at for at, name in enumerate(dict.fromkeys(row.kind for row in rows))}
        origin_ns = {rank: int(profile.bounds_ns[0]) for rank, profile in self._profiles.items()}
        next_number: Counter[tuple[str, str, int, int]] = Counter()
        values = []
        for row in rows:
            key = (row.group, row.kind, row.step, row.rank)
            start_ns, stay_ns = row.start_ns - origin_ns[row.rank], row.end_ns - row.start_ns
            numbers = groups[row.group], kinds[row.kind], row.step, next_number[key], row.rank
            values.append((*numbers, start_ns, stay_ns, row.num_bytes))
            next_number[key] += 1
        columns = np.array(values, np.int64).reshape(-1, 8).T.copy()
        group, kind, step, sequence, of_rank, starts_ns, stays_ns, num_bytes = columns
        return Collectives(
            tuple(self._read(self._groups[name]) for name in groups),
            tuple(kinds),
            *(group, kind, step, sequence, of_rank),
            starts_ns / 1e9,
            stays_ns / 1e9,
            num_bytes,
            self._places(),
            is_continuous=True,
        )

    def _read_members(self, group: RankGroup) -> tuple[int, ...]:
        return tuple(rank for rank in group.ranks if rank in self._profiles)

    def _read(self, group: RankGroup) -> RankGroup:
        """The group of its members that were read; of a pair both."""
        is_pair = " to " in group.name and len(group.ranks) == 2
        return group if is_pair else replace(group, ranks=self._read_members(group))

    def _places(self) -> dict[int, RankPlace]:
        # Ranks that send to each other are stages of a pipeline, of which plain groups say nothing.
        has_transfers = any(row.kind in (SEND, RECEIVE) for row in self._rows)
        device_of = {
            rank: (profile.host, profile.device) for rank, profile in self._profiles.items()
        }
        num_of_device = Counter(device_of.values())
        places = {}
        for rank, profile in self._profiles.items():
            dp_rank, stage = rank, 0
            if position := _position(profile):
                dp_rank, stage = position.dp_rank, position.stage
            is_unknown = has_transfers and is_data_parallel(profile.info)
            # Ranks that show one GPU number on one host see one GPU each: no number of the host.
            is_shared = num_of_device[device_of[rank]] > 1
            places[rank] = RankPlace(
                rank,
                None if is_unknown else dp_rank,
                None if is_unknown else stage,
                profile.host,
                None if is_shared else profile.device,
            )
        return places


def _same_order(lists: Sequence[list[_InStep]]) -> bool:
    """Whether all ranks have the same kinds of collectives in the same order in every step."""
    orders = {
        tuple((step, collective.calls[0].kind) for step, collective in of_rank) for of_rank in lists
    }
    return len(orders) == 1 and bool(next(iter(orders)))


def _ends_agree(lists: Sequence[list[_InStep]]) -> bool:
    """Whether collectives of the same position end together, up to a constant clock offset."""
    ends = np.array([[collective.end_ns for _, collective in of_rank] for of_rank in lists])
    apart = ends - ends[0]
    residual = np.abs(apart - np.median(apart, axis=1, keepdims=True))
    return bool((residual <= _ENDS_AGREE_NS).mean() >= 0.9)
