"""Puts the collectives of all ranks' profiles into one table, for `app.engine.arrivals`.

The process groups in the files give the members of a collective and their positions in the job.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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

# The axes of `process_groups` that are those of `RankGroup`.
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
# How far apart the kernels of one collective may end, after correction by a constant offset between
# the hosts' clocks.
_ENDS_AGREE_NS = 1_000_000
UNKNOWN_KIND = "communication"


def group_of(call: Collective, info: DistributedInfo | None) -> RankGroup | None:
    """The group of a collective with all of its ranks; None if the file does not list them."""
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
    """The ranks that `distributedInfo` lists for the collective's group."""
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
    """Whether all known groups are of all ranks, so that the job is purely data-parallel."""
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
    """The rank's position by its groups; None if they do not determine it."""
    if profile.info is None or not profile.info.pg_config or profile.rank is None:
        return None
    try:
        return position_of(profile.file, profile.rank, profile.info, {})
    except InvalidTrace:
        return None


def job_sizes(profile: RankProfile, world_size: int) -> dict[str, int]:
    """The job's sizes by the groups of one rank; without groups, `dp_size` is that of the world."""
    plain = {"dp_size": world_size, "pp_size": 1, "tp_size": 1, "dsp_size": 1}
    position = _position(profile)
    return plain | dict(position.sizes) if position else plain


@dataclass(frozen=True, slots=True)
class ProfileTable:
    """All ranks' collectives in the steps that every rank has.

    In `collectives`, groups have the members whose profiles were read; `num_members` are their true
    sizes, by name. `notes` describe the collectives that were left out, with the reason.
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
    """The table of the chosen steps of some ranks' profiles, all with a known rank."""
    return _TableBuilder(profiles, steps, world_size).built()


class _Occurrence(NamedTuple):
    rank: int
    step: int
    collective: RankCollective


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
        self._unmatched: dict[int, dict[int, list[_Occurrence]]] = defaultdict(
            lambda: {rank: [] for rank in sorted(self._profiles)}
        )
        self._num_several_sources = 0
        self._notes: list[str] = []

    def built(self) -> ProfileTable:
        for rank, profile in self._profiles.items():
            for collective in profile.collectives:
                step = profile.steps[collective.step]
                if step in self._steps:
                    self._take(_Occurrence(rank, step, collective), profile.info)
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

    def _take(self, occurrence: _Occurrence, info: DistributedInfo | None) -> None:
        calls = occurrence.collective.calls
        if {call.kind for call in calls} <= {SEND, RECEIVE}:
            self._take_transfer(occurrence)
        elif group := group_of(calls[0], info):
            self._add(group, calls[0].kind, occurrence)
        else:
            self._unmatched[occurrence.collective.stream][occurrence.rank].append(occurrence)

    def _take_transfer(self, occurrence: _Occurrence) -> None:
        rank, calls = occurrence.rank, occurrence.collective.calls
        sources = {call.source for call in calls if call.kind == RECEIVE}
        targets = {call.target for call in calls if call.kind == SEND}
        if len(sources) > 1:
            self._num_several_sources += 1
            return
        pair, kind = None, RECEIVE
        if sources and min(sources) >= 0:
            pair = sources.pop(), rank
        elif len(targets) == 1 and min(targets) >= 0:
            pair, kind = (rank, targets.pop()), SEND
        if pair is not None:
            self._add(RankGroup("{} to {}".format(*pair), "pp", pair), kind, occurrence)

    def _add(self, group: RankGroup, kind: str, occurrence: _Occurrence) -> None:
        self._groups.setdefault(group.name, group)
        rank, step, collective = occurrence
        is_transfer = kind in (SEND, RECEIVE)
        calls = [call for call in collective.calls if not is_transfer or call.kind == kind]
        sizes = [call.num_bytes for call in calls]
        num_bytes = -1 if not sizes or min(sizes) < 0 else sum(sizes)
        times = collective.start_ns, collective.end_ns
        self._rows.append(_CollectiveRow(group.name, kind, step, rank, *times, num_bytes))

    def _match_by_order(self, stream: int, by_rank: Mapping[int, list[_Occurrence]]) -> None:
        """Match collectives without a group by stream and order, if all ranks agree.

        Without a match, every rank gets a group of its own, for the rank's own figures.
        """
        lists = list(by_rank.values())
        unnamed = f"{sum(map(len, lists)):,} collectives name no group"
        is_matched = False
        if len(by_rank) < 2:
            note = f"{unnamed}, and one rank was read"
        elif not _same_order(lists):
            note = (
                f"stream {stream}: {unnamed}, and ranks do not have the same ones in the same "
                "order: who was late there is unknown"
            )
        elif not _ends_agree(lists):
            note = (
                f"stream {stream}: {unnamed}, and those of the same place in the order do not end "
                "together: the files may lack some, and who was late there is unknown"
            )
        else:
            is_matched = True
            note = (
                f"stream {stream}: {unnamed}: matched between ranks by their order, as of all ranks"
            )
        self._notes.append(note)
        world = tuple(range(max(self._world_size, max(by_rank) + 1)))
        for rank, occurrences in by_rank.items():
            group = RankGroup(f"stream {stream} of rank {rank}", "", (rank,))
            if is_matched:
                group = RankGroup(f"stream {stream}", "", world)
            for occurrence in occurrences:
                kind = occurrence.collective.calls[0].kind or UNKNOWN_KIND
                self._add(group, kind, occurrence)

    def _drop_uneven(self) -> None:
        """Drop the collectives of a group, kind and step if members have different numbers."""
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
        group, kind, step, sequence, rank, starts_ns, stays_ns, num_bytes = columns
        return Collectives(
            tuple(self._read(self._groups[name]) for name in groups),
            tuple(kinds),
            *(group, kind, step, sequence, rank),
            starts_ns / 1e9,
            stays_ns / 1e9,
            num_bytes,
            self._places(),
            is_continuous=True,
        )

    def _read_members(self, group: RankGroup) -> tuple[int, ...]:
        return tuple(rank for rank in group.ranks if rank in self._profiles)

    def _read(self, group: RankGroup) -> RankGroup:
        """The group with the members that were read; a pair keeps both."""
        is_pair = " to " in group.name and len(group.ranks) == 2
        return group if is_pair else replace(group, ranks=self._read_members(group))

    def _places(self) -> dict[int, RankPlace]:
        # Ranks that send to each other are stages of a pipeline, whose order groups do not show.
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
            # Several ranks of a host with the same device number: each sees only its own GPU.
            is_shared = num_of_device[device_of[rank]] > 1
            places[rank] = RankPlace(
                rank,
                None if is_unknown else dp_rank,
                None if is_unknown else stage,
                profile.host,
                None if is_shared else profile.device,
            )
        return places


def _same_order(lists: Sequence[list[_Occurrence]]) -> bool:
    """Whether all ranks have the same kinds of collectives in the same order in every step."""
    orders = {
        tuple((one.step, one.collective.calls[0].kind) for one in by_order) for by_order in lists
    }
    return len(orders) == 1 and orders != {()}


def _ends_agree(lists: Sequence[list[_Occurrence]]) -> bool:
    """Whether collectives of the same position end together, up to a constant clock offset."""
    ends = np.array([[one.collective.end_ns for one in by_order] for by_order in lists])
    offset = ends - ends[0]
    residual = np.abs(offset - np.median(offset, axis=1, keepdims=True))
    return bool((residual <= _ENDS_AGREE_NS).mean() >= 0.9)
