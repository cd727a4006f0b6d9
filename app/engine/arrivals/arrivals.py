"""Arrivals of one window: lateness of every occurrence, waits of every rank, and the culprits.

Start with `arrivals_of_replay` (a replayed window) or `arrivals_of_table` (a table alone). They run
occurrences.py, lateness.py, waits.py and blame.py in this order.
`arrivals_record` gives that part of a result; docs/arrivals.md has the meaning of each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

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
        return [late_rank for late_rank in self.late if late_rank.is_culprit]

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
        in_groups = np.flatnonzero(np.bincount(self.occurrences.member_rank))
        return float(self.waited_s[in_groups].mean() / self.step_s.mean())

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
        occurrences, lateness = self.occurrences, self.lateness
        is_explained = np.zeros(len(self.places), np.bool_)
        is_explained[list(explained)] = True
        group, first_row = occurrences.group, occurrences.first_row
        size = occurrences.group_size[group]
        member = np.repeat(occurrences.first_member[group] - first_row, size)
        rank = occurrences.member_rank[member + np.arange(occurrences.stay_s.size)]
        leave_out = np.add.reduceat(is_explained[rank] & lateness.is_late, first_row) > 0
        shape, wait_s = lateness.lost_s.shape, np.where(leave_out, 0.0, lateness.late_wait_s)
        lost_s = np.bincount(group * shape[1] + occurrences.step, wait_s, lateness.lost_s.size)
        by_step_s = np.asarray(lost_s, np.float64).reshape(shape)
        return fill_missing_steps(by_step_s, lateness.is_recorded(occurrences))

    def _largest(self, of_members: Floats) -> Floats:
        largest = np.zeros((len(self.places), of_members.shape[1]))
        order = np.argsort(self.occurrences.member_rank, kind="stable")
        rows = self.occurrences.member_rank[order]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        largest[rows[first]] = np.maximum.reduceat(of_members[order], first, axis=0)
        return largest


def arrivals_of_replay(replay: ReplayGroups, step_s: Floats) -> Arrivals | None:
    """Arrivals of a window's steps; None where no collective has several members."""
    occurrences = occurrences_of_replay(replay)
    if occurrences is None or not step_s.mean() > 0:
        return None
    lateness = lateness_of(occurrences).in_all_steps(occurrences)
    clock = step_clock(replay)
    waits = RankWaitTimes(occurrences, lateness, clock, replay.groups)
    late = late_ranks(occurrences, lateness, waits, clock, step_s)
    return Arrivals(occurrences, lateness, waits, late, step_s)


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
    occurrences = occurrences_of_table(table, steps)
    if occurrences is None or not step_s.mean() > 0:
        return None
    lateness = lateness_of(occurrences)
    clock = table_clock(occurrences, is_continuous=table.is_continuous)
    received = receives or {}
    by_place = {
        at: received[place.rank]
        for at, place in enumerate(occurrences.places)
        if place.rank in received
    }
    waits = RankWaitTimes(occurrences, lateness, clock, receives=by_place)
    late = late_ranks(occurrences, lateness, waits, clock, step_s)
    return Arrivals(occurrences, lateness, waits, late, step_s)


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
            _late_rank_record(arrivals, late, (kinds or {}).get(late.place, "unknown"))
            for late in arrivals.culprits
        ),
        per_step=ArrivalsByStep(waited_for_s=as_tuples(arrivals.waited_for_s[chosen].T)),
    )


def _late_rank_record(arrivals: Arrivals, late: LateRank, kind: DelayKind) -> LateRankRecord:
    """One culprit of the part `arrivals`."""
    place, group = arrivals.places[late.place], arrivals.occurrences.groups[late.group]
    return LateRankRecord(
        **asdict(place),
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
    groups = arrivals.occurrences.groups
    most_members = MAX_MEMBERS if name is None else None
    longest_first = np.argsort(-arrivals.lateness.lost_s.mean(axis=1), kind="stable")
    chosen = longest_first[:MAX_GROUPS].tolist()
    if name is not None:
        chosen = [at for at, group in enumerate(groups) if group.name == name]
    # In order of their groups and then transfers.
    by_group = np.lexsort((arrivals.lateness.transfer_s, arrivals.occurrences.group))
    bounds = np.searchsorted(arrivals.occurrences.group[by_group], np.arange(len(groups) + 1))
    return tuple(
        _group_record(arrivals, at, by_group[bounds[at] : bounds[at + 1]], most_members)
        for at in chosen
    )


def _group_record(
    arrivals: Arrivals, at: int, ascending: Ints, most_members: int | None
) -> RankGroupRecord:
    """The group at a position; `ascending` are its occurrences by transfer."""
    occurrences, lateness = arrivals.occurrences, arrivals.lateness
    group, transfer_s = occurrences.groups[at], lateness.transfer_s[ascending]
    first, size = int(occurrences.first_member[at]), int(occurrences.group_size[at])
    of_group = slice(first, first + size)
    waited_for_s = lateness.waited_for_s[of_group].mean(axis=1)
    waited_s = lateness.waited_s[of_group].mean(axis=1)
    num = float(lateness.num_occurrences[at].sum())
    late_share = lateness.late[of_group].sum(axis=1) / max(num, 1.0)
    members = np.argsort(-waited_for_s, kind="stable")[:most_members]
    places = [arrivals.places[rank] for rank in occurrences.member_rank[of_group].tolist()]
    return RankGroupRecord(
        name=group.name,
        axis=group.axis,
        ranks=tuple(group.ranks[:MAX_RANKS_NAMED]),
        num_ranks=size,
        num_occurrences=int(num),
        transfer_s=_middle(transfer_s) if ascending.size else None,
        waited_s=float(waited_s.mean()),
        bandwidth_bytes_s=_bandwidth(occurrences, ascending, size, transfer_s),
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


def _bandwidth(
    occurrences: Occurrences, chosen: Ints, size: int, transfer_s: Floats
) -> float | None:
    """Bytes over transfer time of the chosen occurrences, of one size, with known bytes."""
    if not occurrences.has_bytes:
        return None
    rows = occurrences.first_row[chosen][:, None] + np.arange(size)
    num_bytes = occurrences.num_bytes[rows].mean(axis=1)  # NaN where one member's are unknown
    known = np.isfinite(num_bytes) & (transfer_s > 0)
    if not known.any():
        return None
    return float(num_bytes[known].sum() / transfer_s[known].sum())
