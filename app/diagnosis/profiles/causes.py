"""Culprits by profiles alone: a slow GPU, more work, or a host that launches late?

A profile has the duration of every kernel, so a rank that computes longer than its peers is known
without any wait, and the kernels' grids show whether it had more work. Otherwise its host was late.
Read `causes`. A late rank may have been held up by another one, in another group or as a receiver
(`held_up`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.profiles.gpu_time import receive_waits_s
from app.diagnosis.profiles.job import ProfiledJob, RankFigures
from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.occurrences import Occurrences
from app.trace.window import Floats, Ints


class LateSets:
    """Late sets of all occurrences, by member (of a group) and place (of a rank)."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._occurrences = arrivals.occurrences
        self._late = arrivals.lateness

    def waited_for_alone_s(self, member: int, others: Sequence[int]) -> Floats:
        """[steps], waiting for late sets with this member and none of these places."""
        is_alone = self._has_late(self._member_of_row == member) & ~self._with(others)
        total_s = np.zeros(len(self._occurrences.steps))
        np.add.at(total_s, self._occurrences.step[is_alone], self._late.late_wait_s[is_alone])
        return total_s

    def waited_on_s(self, places: Sequence[int]) -> Floats:
        """[members], waiting of each, over all steps, while one of these places was late."""
        occurrences, of_row = self._occurrences, self._occurrence_of_row
        is_waiting = self._with(places)[of_row] & ~self._late.is_late
        waited_s = (occurrences.stay_s - self._late.transfer_s[of_row])[is_waiting]
        member = self._member_of_row[is_waiting]
        return np.bincount(member, waited_s, occurrences.member_rank.size).astype(np.float64)

    def _with(self, places: Sequence[int]) -> NDArray[np.bool_]:
        """[occurrences], whether one of these places is in the late set."""
        is_named = np.zeros(len(self._occurrences.places), np.bool_)
        is_named[list(places)] = True
        return self._has_late(is_named[self._occurrences.member_rank[self._member_of_row]])

    def _has_late(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[occurrences], whether one of these rows is in the late set."""
        first_row = self._occurrences.first_row
        return np.asarray(np.logical_or.reduceat(rows & self._late.is_late, first_row))

    @cached_property
    def _occurrence_of_row(self) -> Ints:
        sizes = self._occurrences.group_size[self._occurrences.group]
        return np.repeat(np.arange(sizes.size), sizes)

    @cached_property
    def _member_of_row(self) -> Ints:
        occurrences, at = self._occurrences, self._occurrence_of_row
        member = np.arange(at.size) - occurrences.first_row[at]
        return occurrences.first_member[occurrences.group[at]] + member


# A rank was held up if it waited for this share of what the others wait for it.
_MIN_SHARE = 0.5


def held_up(job: ProfiledJob, culprits: Sequence[int]) -> tuple[int, ...]:
    """Places held up by these places, directly or through others.

    A rank was held up if it waits for them, in other groups and as a receiver, longer than its
    peers do, by half of what the others wait for it.
    """
    arrivals = job.arrivals
    if arrivals is None or not culprits:
        return ()
    occurrences, sets = arrivals.occurrences, LateSets(arrivals)
    waited_for_s = arrivals.lateness.waited_for_s.sum(axis=1)
    sent_s = receive_waits_s(job.waits)
    place_of = occurrences.member_rank.tolist()
    reached = list(culprits)
    while True:
        on_them_s = _elsewhere_s(occurrences, sets.waited_on_s(reached))
        on_them_s += _received_s(occurrences, sent_s, reached)
        new = {
            place_of[member]
            for member in np.flatnonzero(waited_for_s > 0).tolist()
            if place_of[member] not in reached
            and on_them_s[member] - _peers_median(occurrences, on_them_s, member)
            >= _MIN_SHARE * waited_for_s[member]
        }
        if not new:
            return tuple(reached[len(culprits) :])
        reached += sorted(new)


def _elsewhere_s(occurrences: Occurrences, waited_s: Floats) -> Floats:
    """[members], the longest waiting of the member's rank in one of its other groups."""
    rank = occurrences.member_rank
    most_s = np.zeros(waited_s.size)
    for place in np.unique(rank).tolist():
        members = np.flatnonzero(rank == place)
        for member in members.tolist():
            most_s[member] = waited_s[members[members != member]].max(initial=0.0)
    return most_s


def _received_s(
    occurrences: Occurrences, sent_s: dict[tuple[int, int], float], senders: Sequence[int]
) -> Floats:
    """[members], waiting of the member's rank to receive from these places."""
    rank_of = [place.rank for place in occurrences.places]
    ranks = {rank_of[place] for place in senders}
    by_rank: dict[int, float] = {}
    for (sender, receiver), waited_s in sent_s.items():
        if sender in ranks:
            by_rank[receiver] = by_rank.get(receiver, 0.0) + waited_s
    return np.array([by_rank.get(rank_of[place], 0.0) for place in occurrences.member_rank])


def _peers_median(occurrences: Occurrences, of_members: Floats, member: int) -> float:
    """The median of the group's other members."""
    group = int(occurrences.member_group[member])
    first, size = int(occurrences.first_member[group]), int(occurrences.group_size[group])
    return float(np.median(np.delete(of_members[first : first + size], member - first)))


COMPUTE: Final = "compute"
WORK: Final = "work"
DATA_WAIT: Final = "data-wait"
HOST: Final = "host"
CulpritKind = Literal["compute", "work", "data-wait", "host"]
# A verdict needs GPUs that work for this share of the step.
MIN_COVERAGE = 0.6
# A rank is late if the others wait for it for this share of the step.
MIN_SHARE = 0.02
# GPUs of one kind differ by less than this share.
MIN_LONGER = 0.03
# Its own excess is this share of what the others waited for it.
MIN_OWN_SHARE = 0.5
MIN_STEPS_LATE = 0.5
# The profiler delays hosts unequally, so a late host must cost this share of the step.
MIN_HOST_SHARE = 0.10
# Waiting from this share of the step is mentioned.
MIN_MENTIONED_SHARE = 0.05


@dataclass(frozen=True)
class ProfileCulprit:
    """A rank that the others waited for; seconds are per step.

    `alone_s` is waiting for it while no slow GPU was late as well, `lost_s` the least waiting of
    any other member. `computing_s` and `peers_s` are the computing of the rank and of its peers
    (median), `more_work` the share of additional blocks of its kernels, None if unknown. `place`
    and `member` are positions in the arrivals' places and members.
    """

    place: int
    member: int
    rank: int
    group: str
    waited_for_s: float
    alone_s: float
    lost_s: float
    late_share: float
    steps_late: float
    kind: CulpritKind = HOST
    computing_s: float = 0.0
    peers_s: float = 0.0
    more_work: float | None = None
    data_wait_s: float = 0.0
    peers_data_wait_s: float = 0.0

    @property
    def longer_s(self) -> float:
        """Computing above its peers', seconds a step."""
        return self.computing_s - self.peers_s


@dataclass(frozen=True)
class Causes:
    """Culprits, most waited for first, and late hosts below the minimum cost.

    `held_up` are places of ranks that a culprit delayed. `reason` says why there is no verdict and
    all else is empty; otherwise it is "".
    """

    culprits: tuple[ProfileCulprit, ...]
    minor: tuple[ProfileCulprit, ...]
    held_up: tuple[int, ...]
    reason: str

    @property
    def explained(self) -> list[int]:
        """Places of the culprits and of the ranks that they held up."""
        return [*(culprit.place for culprit in self.culprits), *self.held_up]


def causes(job: ProfiledJob) -> Causes:
    """The culprits of waiting in the job's steps."""
    if reason := _why_not(job):
        return Causes((), (), (), reason)
    arrivals = job.arrivals
    if arrivals is None:
        return Causes((), (), (), "")
    suspects = [_measured(job, arrivals, late) for late in _late(job, arrivals)]
    slow = _most_waited_for([late for late in suspects if late.kind in (COMPUTE, WORK)])
    slow_places = [culprit.place for culprit in slow]
    explained = [*slow_places, *held_up(job, slow_places)]
    hosts = _late_hosts(job, arrivals, suspects, explained)
    limit_s = MIN_HOST_SHARE * float(job.step_s.mean())
    culprits = (*slow, *(host for host in hosts if host.alone_s >= limit_s))
    minor = tuple(host for host in hosts if host.alone_s < limit_s)
    return Causes(culprits, minor, held_up(job, [culprit.place for culprit in culprits]), "")


def _why_not(job: ProfiledJob) -> str:
    if job.coverage < MIN_COVERAGE:
        return f"the GPUs work for {100 * job.coverage:.0f} % of the step only"
    if job.world_size == 1:
        return "the job has one rank"
    if len(job.ranks) == 1:
        return (
            "in one rank's file a wait looks like a slow transfer: give the other ranks' files, too"
        )
    if job.arrivals is None:
        return "no collective is in the files of several ranks"
    return ""


def _late(job: ProfiledJob, arrivals: Arrivals) -> list[ProfileCulprit]:
    """Late members of complete groups, which others wait for from MIN_SHARE of the step."""
    occurrences, late = arrivals.occurrences, arrivals.lateness
    limit_s = MIN_SHARE * job.step_s
    suspects = []
    for member in np.flatnonzero(late.waited_for_s.mean(axis=1) >= limit_s.mean()).tolist():
        group, place = int(occurrences.member_group[member]), int(occurrences.member_rank[member])
        first, size = int(occurrences.first_member[group]), int(occurrences.group_size[group])
        name = occurrences.groups[group].name
        waited_for_s = late.waited_for_s[member]
        steps_late = float((waited_for_s >= limit_s / 2).mean())
        if job.table.num_members.get(name) != size or steps_late < MIN_STEPS_LATE:
            continue  # a member without a file may have come later
        waited_s = late.waited_s[first : first + size].mean(axis=1)
        suspects.append(
            ProfileCulprit(
                place=place,
                member=member,
                rank=occurrences.places[place].rank,
                group=name,
                waited_for_s=float(waited_for_s.mean()),
                alone_s=float(waited_for_s.mean()),
                lost_s=float(np.delete(waited_s, member - first).min()),
                late_share=float(late.late[member].sum() / late.num_occurrences[group].sum()),
                steps_late=steps_late,
            )
        )
    return suspects


def _measured(job: ProfiledJob, arrivals: Arrivals, late: ProfileCulprit) -> ProfileCulprit:
    """The culprit with figures of the rank and its peers; its kind where it computes longer."""
    own, peers = _with_peers(job, arrivals, late)
    peers_s = _typical([peer.time.computing_s for peer in peers])
    measured = replace(
        late,
        computing_s=float(own.time.computing_s.mean()),
        peers_s=float(peers_s.mean()),
        more_work=_more_work(own, peers),
        data_wait_s=float(own.data_wait_s.mean()),
        peers_data_wait_s=float(_typical([peer.data_wait_s for peer in peers]).mean()),
    )
    is_longer = (own.time.computing_s - peers_s >= MIN_LONGER * peers_s).mean() > MIN_STEPS_LATE
    if not is_longer or measured.longer_s < MIN_OWN_SHARE * late.waited_for_s:
        return measured
    longer = measured.longer_s / max(measured.peers_s, 1e-9)
    has_more = measured.more_work is not None and measured.more_work >= MIN_OWN_SHARE * longer
    return replace(measured, kind=WORK if has_more else COMPUTE)


def _more_work(own: RankFigures, peers: Sequence[RankFigures]) -> float | None:
    typical = _typical([peer.blocks for peer in peers]).mean()
    blocks = own.blocks.mean()
    return float(blocks / typical - 1.0) if np.isfinite(blocks) and typical > 0 else None


def _most_waited_for(suspects: Sequence[ProfileCulprit]) -> list[ProfileCulprit]:
    """One entry a rank, of the group that waits longest for it; longest first."""
    longest: dict[int, ProfileCulprit] = {}
    for suspect in sorted(suspects, key=lambda suspect: -suspect.waited_for_s):
        longest.setdefault(suspect.place, suspect)
    return list(longest.values())


def _late_hosts(
    job: ProfiledJob,
    arrivals: Arrivals,
    suspects: Sequence[ProfileCulprit],
    explained: Sequence[int],
) -> list[ProfileCulprit]:
    """Late ranks that compute as their peers do and were not held up, longest waited for first.

    Arrivals name them, or their GPU idles longer than their peers' by half of the waiting in every
    step, as a few steps have too few collectives for arrivals.
    """
    sets = LateSets(arrivals)
    by_arrivals = {(culprit.place, culprit.group) for culprit in arrivals.culprits}
    limit_s = MIN_SHARE * float(job.step_s.mean())
    hosts = []
    for suspect in suspects:
        group = int(arrivals.occurrences.member_group[suspect.member])
        is_blamed = (suspect.place, group) in by_arrivals
        if suspect.place in explained or suspect.kind != HOST:
            continue
        if not is_blamed and not _idles(job, arrivals, suspect):
            continue
        alone_s = float(sets.waited_for_alone_s(suspect.member, explained).mean())
        if alone_s < limit_s:
            continue
        more_data_s = suspect.data_wait_s - suspect.peers_data_wait_s
        kind: CulpritKind = DATA_WAIT if more_data_s >= MIN_OWN_SHARE * alone_s else HOST
        hosts.append(replace(suspect, alone_s=alone_s, kind=kind))
    return _most_waited_for(hosts)


def _idles(job: ProfiledJob, arrivals: Arrivals, late: ProfileCulprit) -> bool:
    own, peers = _with_peers(job, arrivals, late)
    more_s = own.time.idle_s - _typical([peer.time.idle_s for peer in peers])
    waited_for_s = arrivals.lateness.waited_for_s[late.member]
    return bool((more_s >= MIN_OWN_SHARE * waited_for_s).all() and late.steps_late == 1.0)


def _with_peers(
    job: ProfiledJob, arrivals: Arrivals, late: ProfileCulprit
) -> tuple[RankFigures, list[RankFigures]]:
    """Figures of the rank and of its group's other members."""
    occurrences = arrivals.occurrences
    members = occurrences.groups[int(occurrences.member_group[late.member])].ranks
    by_rank = {figures.rank: figures for figures in job.ranks}
    return by_rank[late.rank], [by_rank[rank] for rank in members if rank != late.rank]


def _typical(columns: Sequence[Floats]) -> Floats:
    """[steps], the median; the lower one of two, which is the less disturbed."""
    return np.asarray(np.quantile(np.array(columns), 0.5, axis=0, method="lower"))
