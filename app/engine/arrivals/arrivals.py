"""Arrivals of one window: lateness of every occurrence, waits of every rank, and the culprits.

Start with `arrivals_of_replay` (a replayed window) or `arrivals_of_table` (a table alone). They run
occurrences.py, lateness.py, waits.py and blame.py in this order.
`arrivals_record` gives that part of a result; docs/arrivals.md has the meaning of each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from app.engine.arrivals.blame import LateRank, late_ranks
from app.engine.arrivals.lateness import Lateness, fill_missing_steps, lateness_of
from app.engine.arrivals.occurrences import Occurrences, occurrences_of_replay, occurrences_of_table
from app.engine.arrivals.waits import RankWaitTimes, step_clock, table_clock
from app.engine.what_if import ReplayGroups
from app.result.arrivals import (
    MAX_GROUPS,
    MAX_RANKS,
    ArrivalsByStep,
    ArrivalsRecord,
    DelayKind,
    GroupMember,
    LateRankRecord,
    RankGroupRecord,
)
from app.result.figures import as_tuples
from app.trace.collectives import Collectives, RankPlace
from app.trace.window import Floats, Ints


@dataclass(frozen=True)
class Arrivals:
    """Lateness and waits of a window's collectives; `step_s` [steps] are its step times, seconds.

    `late` has every rank that is late far more often than by chance and by much, culprits first.
    """

    occurrences: Occurrences
    lateness: Lateness
    waits: RankWaitTimes
    late: tuple[LateRank, ...]
    step_s: Floats

    @property
    def culprits(self) -> list[LateRank]:
        """Ranks that meet all conditions of blame, longest wait first."""
        return [each for each in self.late if each.is_culprit]

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Every rank that is a member of some group."""
        return self.occurrences.places

    @cached_property
    def waited_for_s(self) -> Floats:
        """[places, steps], the others' wait for a rank, in the group where it is longest."""
        return self._largest(self.lateness.waited_for_s)

    @cached_property
    def waited_s(self) -> Floats:
        """[places, steps], a rank's wait for others, in the group where it is longest."""
        return self._largest(self.lateness.waited_s)

    @cached_property
    def lost_s(self) -> Floats:
        """[steps], the wait for late sets, in the group where it is longest."""
        return np.asarray(self.lateness.lost_s.max(axis=0))

    @property
    def waiting_share(self) -> float:
        """Share of the ranks' time spent waiting for later ranks."""
        return float(self.waited_s[self._in_groups].mean() / self.step_s.mean())

    @property
    def largest_share(self) -> float:
        """Share of the step spent waiting for the rank with the longest wait for it."""
        return float(self.waited_for_s.mean(axis=1).max(initial=0.0) / self.step_s.mean())

    @cached_property
    def late_share(self) -> Floats:
        """[places], share of a rank's occurrences in which it was in the late set."""
        of_member = np.bincount(
            self.occurrences.member_rank, self.lateness.late.sum(axis=1), len(self.places)
        )
        num = self.lateness.num_occurrences.sum(axis=1)[self.occurrences.member_group]
        total = np.bincount(self.occurrences.member_rank, num, len(self.places))
        return np.asarray(of_member / np.maximum(total, 1))

    def lost_without_s(self, explained: Sequence[int]) -> Floats:
        """[groups, steps], the wait for late sets without any of these places."""
        found = self.occurrences
        is_explained = np.zeros(len(self.places), np.bool_)
        is_explained[list(explained)] = True
        size = found.group_size[found.group]
        member = np.repeat(found.first_member[found.group] - found.first_row, size)
        mine = is_explained[found.member_rank[member + np.arange(found.stay_s.size)]]
        ours = np.add.reduceat(mine & self.lateness.is_late, found.first_row) > 0
        shape = self.lateness.lost_s.shape
        place, left_s = found.group * shape[1] + found.step, self.lateness.late_wait_s
        lost_s = np.bincount(place, np.where(ours, 0.0, left_s), shape[0] * shape[1])
        by_step_s = np.asarray(lost_s, np.float64).reshape(shape)
        return fill_missing_steps(by_step_s, self.lateness.is_recorded(found))

    @cached_property
    def _in_groups(self) -> Ints:
        return np.flatnonzero(np.bincount(self.occurrences.member_rank))

    def _largest(self, of_members: Floats) -> Floats:
        largest = np.zeros((len(self.places), of_members.shape[1]))
        order = np.argsort(self.occurrences.member_rank, kind="stable")
        rows = self.occurrences.member_rank[order]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        largest[rows[first]] = np.maximum.reduceat(of_members[order], first, axis=0)
        return largest


def arrivals_of_replay(replay: ReplayGroups, step_s: Floats) -> Arrivals | None:
    """Arrivals of a window's steps; None where no collective has several members."""
    found = occurrences_of_replay(replay)
    if found is None or not step_s.mean() > 0:
        return None
    late, clock = lateness_of(found).in_all_steps(found), step_clock(replay)
    waits = RankWaitTimes(found, late, clock, replay)
    return Arrivals(found, late, waits, late_ranks(found, late, waits, clock, step_s), step_s)


def arrivals_of_table(
    table: Collectives,
    steps: Sequence[int],
    step_s: Floats,
    receives: Mapping[int, tuple[Floats, Floats]] | None = None,
) -> Arrivals | None:
    """Arrivals of a table alone.

    `receives` are wait intervals (start, end) of each rank's receives, by global rank and on the
    rank's clock. None if no occurrence is complete.
    """
    found = occurrences_of_table(table, steps)
    if found is None or not step_s.mean() > 0:
        return None
    late = lateness_of(found)
    clock = table_clock(found, is_continuous=table.is_continuous)
    index = {place.rank: at for at, place in enumerate(found.places)}
    by_place = {index[rank]: each for rank, each in (receives or {}).items() if rank in index}
    waits = RankWaitTimes(found, late, clock, receives=by_place)
    return Arrivals(found, late, waits, late_ranks(found, late, waits, clock, step_s), step_s)


MAX_MEMBERS = 16
MAX_RANKS_NAMED = 64


def arrivals_record(
    arrivals: Arrivals, kinds: Mapping[int, DelayKind] | None = None
) -> ArrivalsRecord:
    """The part `arrivals` of a result; `kinds` has the kind of each culprit's delay, by place."""
    own_s = {late.place: late.own_delay_s for late in arrivals.late}
    waited_for_s = arrivals.waited_for_s.mean(axis=1)
    chosen = np.sort(np.argsort(-waited_for_s, kind="stable")[:MAX_RANKS])
    places = [arrivals.places[at] for at in chosen.tolist()]
    return ArrivalsRecord(
        num_occurrences=arrivals.occurrences.num_occurrences,
        num_ranks=len(arrivals.places),
        waiting_share=arrivals.waiting_share,
        largest_share=arrivals.largest_share,
        rank=tuple(place.rank for place in places),
        dp_rank=tuple(place.dp_rank for place in places),
        stage=tuple(place.stage for place in places),
        host=tuple(place.host for place in places),
        local_rank=tuple(place.local_rank for place in places),
        waited_for_s=as_tuples(waited_for_s[chosen]),
        waited_s=as_tuples(arrivals.waited_s[chosen].mean(axis=1)),
        late_share=as_tuples(arrivals.late_share[chosen]),
        own_delay_s=tuple(own_s.get(at) for at in chosen.tolist()),
        groups=group_records(arrivals),
        culprits=tuple(
            late_rank_record(arrivals, late, (kinds or {}).get(late.place, "unknown"))
            for late in arrivals.culprits
        ),
        per_step=ArrivalsByStep(waited_for_s=as_tuples(arrivals.waited_for_s[chosen].T)),
    )


def late_rank_record(arrivals: Arrivals, late: LateRank, kind: DelayKind) -> LateRankRecord:
    """One culprit of the part `arrivals`."""
    place, group = arrivals.places[late.place], arrivals.occurrences.groups[late.group]
    return LateRankRecord(
        rank=place.rank,
        dp_rank=place.dp_rank,
        stage=place.stage,
        host=place.host,
        local_rank=place.local_rank,
        group=group.name,
        axis=group.axis,
        kind=kind,
        waited_for_s=late.waited_for_s,
        share=late.waited_for_s / float(arrivals.step_s.mean()),
        late_share=late.late_share,
        steps_late=late.steps_late,
        own_delay_s=late.own_delay_s,
    )


def group_records(arrivals: Arrivals, name: str | None = None) -> tuple[RankGroupRecord, ...]:
    """Groups, longest wait first; with `name`, only that group, with all of its members."""
    means = _GroupMeans.of(arrivals)
    if name is not None:
        return tuple(
            _group(arrivals, means, at, len(group.ranks))
            for at, group in enumerate(arrivals.occurrences.groups)
            if group.name == name
        )
    order = np.argsort(-arrivals.lateness.lost_s.mean(axis=1), kind="stable")[:MAX_GROUPS]
    return tuple(_group(arrivals, means, int(at), MAX_MEMBERS) for at in order)


@dataclass(frozen=True, slots=True)
class _GroupMeans:
    """Figures of all groups, in seconds a step.

    Shapes: [members] for `waited_for_s`, `waited_s` and `num_late`; [groups] for `num`, the number
    of occurrences; `by_group` [occurrences] has the occurrences in order of their groups and then
    transfers, of which group g has those from `bounds[g]` to `bounds[g + 1]`. `has_bytes`: some
    bytes are known.
    """

    waited_for_s: Floats
    waited_s: Floats
    num_late: Floats
    num: Floats
    by_group: Ints
    bounds: Ints
    has_bytes: bool

    @classmethod
    def of(cls, arrivals: Arrivals) -> _GroupMeans:
        """The figures of these arrivals."""
        occurrences, late = arrivals.occurrences, arrivals.lateness
        by_group = np.lexsort((late.transfer_s, occurrences.group))
        groups = np.arange(len(occurrences.groups) + 1)
        return cls(
            late.waited_for_s.mean(axis=1),
            late.waited_s.mean(axis=1),
            late.late.sum(axis=1),
            late.num_occurrences.sum(axis=1),
            by_group,
            np.searchsorted(occurrences.group[by_group], groups),
            bool(np.isfinite(occurrences.num_bytes).any()),
        )


def _group(arrivals: Arrivals, means: _GroupMeans, at: int, most_members: int) -> RankGroupRecord:
    occurrences, group = arrivals.occurrences, arrivals.occurrences.groups[at]
    mine = means.by_group[means.bounds[at] : means.bounds[at + 1]]
    transfer_s = arrivals.lateness.transfer_s[mine]
    first, size = int(occurrences.first_member[at]), int(occurrences.group_size[at])
    of_group = slice(first, first + size)
    waited_for_s, waited_s = means.waited_for_s[of_group], means.waited_s[of_group]
    num = float(means.num[at])
    late_share = means.num_late[of_group] / max(num, 1.0)
    members = np.argsort(-waited_for_s, kind="stable")[:most_members]
    places = [arrivals.places[rank] for rank in occurrences.member_rank[of_group].tolist()]
    return RankGroupRecord(
        name=group.name,
        axis=group.axis,
        ranks=tuple(group.ranks[:MAX_RANKS_NAMED]),
        num_ranks=size,
        num_occurrences=int(num),
        transfer_s=_middle(transfer_s) if mine.size else None,
        waited_s=float(waited_s.mean()),
        bandwidth_bytes_s=(
            _bandwidth(_mean_bytes(occurrences, mine, size), transfer_s)
            if means.has_bytes
            else None
        ),
        members=tuple(
            GroupMember(
                rank=places[member].rank,
                local_rank=places[member].local_rank,
                host=places[member].host,
                waited_for_s=float(waited_for_s[member]),
                waited_s=float(waited_s[member]),
                late_share=float(late_share[member]),
            )
            for member in members.tolist()
        ),
    )


def _middle(ascending: Floats) -> float:
    """The median of ascending values, at least one."""
    size = ascending.size
    return float((ascending[(size - 1) // 2] + ascending[size // 2]) / 2)


def _mean_bytes(occurrences: Occurrences, mine: Ints, size: int) -> Floats:
    """[occurrences of a group of this size], mean over members, NaN where one is unknown."""
    rows = occurrences.first_row[mine][:, None] + np.arange(size)
    return np.asarray(occurrences.num_bytes[rows].mean(axis=1))


def _bandwidth(num_bytes: Any, transfer_s: Any) -> float | None:
    """Bytes over transfer time of all occurrences with known bytes."""
    known = np.isfinite(num_bytes) & (transfer_s > 0)
    if not known.any():
        return None
    return float(num_bytes[known].sum() / transfer_s[known].sum())
