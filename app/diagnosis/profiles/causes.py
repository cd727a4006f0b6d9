"""Who held up the others, by profiles alone: a slow GPU, more work, or a host that launches late?

A profile has every kernel's own duration, so a rank that computes longer than its peers is known
without trusting any wait, and the kernels' grids say whether it had more to compute. What a late
rank did not compute, its host did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.diagnosis.profiles.held_up import held_up
from app.diagnosis.profiles.job import ProfiledJob, RankFigures
from app.diagnosis.profiles.late_sets import LateSets
from app.engine.arrivals.arrivals import Arrivals
from app.trace.window import Floats

COMPUTE, WORK, DATA_WAIT, HOST = "compute", "work", "data-wait", "host"
# A verdict needs GPUs that work for this share of the step.
MIN_COVERAGE = 0.6
# Of the step, for a rank that computes longer than its peers.
MIN_SHARE = 0.02
# Computing longer than peers by this share is more than GPUs of one kind differ.
MIN_LONGER = 0.03
# Of what others waited for it, as much has to be its own.
MIN_OWN_SHARE = 0.5
MIN_STEPS_LATE = 0.5
# The profiler itself slows hosts down, and not all alike: a late host has to cost this much.
MIN_HOST_SHARE = 0.10
# More than this may not be passed over.
MIN_SAID_SHARE = 0.05


@dataclass(frozen=True)
class ProfileCulprit:
    """A rank that the others waited for, with seconds a step.

    `alone_s` is what was waited for it while no slow GPU was late, too; `lost_s` is what every
    other member waited in the group at least. `computing_s` and `peers_s` are what it and its peers
    (median) compute, `more_work` by which share its kernels have more blocks, None where files do
    not say. `place` indexes the arrivals' places, `seat` their seats.
    """

    place: int
    seat: int
    rank: int
    group: str
    waited_for_s: float
    alone_s: float
    lost_s: float
    late_share: float
    steps_late: float
    kind: str = HOST
    computing_s: float = 0.0
    peers_s: float = 0.0
    more_work: float | None = None
    idle_s: float = 0.0
    peers_idle_s: float = 0.0
    data_wait_s: float = 0.0
    peers_data_wait_s: float = 0.0

    @property
    def longer_s(self) -> float:
        """Seconds a step that it computes longer than its peers."""
        return self.computing_s - self.peers_s


@dataclass(frozen=True)
class Causes:
    """Ranks to blame, most waited for first, and late hosts too small to blame.

    `held_up` are places of ranks that are late because they waited for one to blame. `reason` says
    why there is no verdict, "" where there is one; then the others are empty.
    """

    blamed: tuple[ProfileCulprit, ...]
    minor: tuple[ProfileCulprit, ...]
    held_up: tuple[int, ...]
    reason: str

    @property
    def explained(self) -> list[int]:
        """Places of the ranks to blame and of those that these held up."""
        return [*(each.place for each in self.blamed), *self.held_up]


def causes(job: ProfiledJob) -> Causes:
    """Who is to blame for waits in the job's steps."""
    if reason := _why_not(job):
        return Causes((), (), (), reason)
    arrivals = job.arrivals
    if arrivals is None:
        return Causes((), (), (), "")
    suspects = [_measured(job, arrivals, each) for each in _late(job, arrivals)]
    slow = _most_waited_for([each for each in suspects if each.kind in (COMPUTE, WORK)])
    slow_places = [each.place for each in slow]
    explained = [*slow_places, *held_up(job, slow_places)]
    hosts = _late_hosts(job, arrivals, suspects, explained)
    limit_s = MIN_HOST_SHARE * float(job.step_s.mean())
    blamed = (*slow, *(each for each in hosts if each.alone_s >= limit_s))
    minor = tuple(each for each in hosts if each.alone_s < limit_s)
    return Causes(blamed, minor, held_up(job, [each.place for each in blamed]), "")


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
    """Members of groups whose files were all read, for which the others wait 2 % of the step."""
    found, late = arrivals.occurrences, arrivals.lateness
    limit_s = MIN_SHARE * job.step_s
    suspects = []
    for seat in np.flatnonzero(late.waited_for_s.mean(axis=1) >= limit_s.mean()).tolist():
        group, place = int(found.seat_group[seat]), int(found.seat_rank[seat])
        first, size = int(found.first_seat[group]), int(found.group_size[group])
        name = found.groups[group].name
        waited_for_s = late.waited_for_s[seat]
        steps_late = float((waited_for_s >= limit_s / 2).mean())
        if job.table.num_members.get(name) != size or steps_late < MIN_STEPS_LATE:
            continue  # of members without a file, one may have come later still
        waited_s = late.waited_s[first : first + size].mean(axis=1)
        suspects.append(
            ProfileCulprit(
                place=place,
                seat=seat,
                rank=found.places[place].rank,
                group=name,
                waited_for_s=float(waited_for_s.mean()),
                alone_s=float(waited_for_s.mean()),
                lost_s=float(np.delete(waited_s, seat - first).min()),
                late_share=float(late.late[seat].sum() / late.num_occurrences[group].sum()),
                steps_late=steps_late,
            )
        )
    return suspects


def _measured(job: ProfiledJob, arrivals: Arrivals, late: ProfileCulprit) -> ProfileCulprit:
    """The same with its figures and its peers', and its kind where it computes longer."""
    mine, peers = _with_peers(job, arrivals, late)
    peers_s = _typical([each.time.computing_s for each in peers])
    measured = replace(
        late,
        computing_s=float(mine.time.computing_s.mean()),
        peers_s=float(peers_s.mean()),
        more_work=_more_work(mine, peers),
        idle_s=float(mine.time.idle_s.mean()),
        peers_idle_s=float(_typical([each.time.idle_s for each in peers]).mean()),
        data_wait_s=float(mine.data_wait_s.mean()),
        peers_data_wait_s=float(_typical([each.data_wait_s for each in peers]).mean()),
    )
    is_longer = mine.time.computing_s - peers_s >= MIN_LONGER * peers_s
    if is_longer.mean() <= MIN_STEPS_LATE:
        return measured
    if measured.longer_s < MIN_OWN_SHARE * late.waited_for_s:
        return measured
    longer = measured.longer_s / max(measured.peers_s, 1e-9)
    has_more = measured.more_work is not None and measured.more_work >= MIN_OWN_SHARE * longer
    return replace(measured, kind=WORK if has_more else COMPUTE)


def _more_work(mine: RankFigures, peers: Sequence[RankFigures]) -> float | None:
    typical = _typical([each.blocks for each in peers]).mean()
    own = mine.blocks.mean()
    return float(own / typical - 1.0) if np.isfinite(own) and typical > 0 else None


def _most_waited_for(suspects: Sequence[ProfileCulprit]) -> list[ProfileCulprit]:
    """One entry a rank, in the group where most is waited for it; most waited for first."""
    best: dict[int, ProfileCulprit] = {}
    for each in suspects:
        known = best.get(each.place)
        if known is None or each.waited_for_s > known.waited_for_s:
            best[each.place] = each
    return sorted(best.values(), key=lambda each: -each.waited_for_s)


def _late_hosts(
    job: ProfiledJob,
    arrivals: Arrivals,
    suspects: Sequence[ProfileCulprit],
    explained: Sequence[int],
) -> list[ProfileCulprit]:
    """Ranks that compute as their peers do and are late by themselves, most waited for first.

    Arrivals blame them, or their GPU idles longer than their peers' by half of the wait in every
    step: a few steps have too few collectives to rule chance out.
    """
    sets = LateSets(arrivals)
    by_arrivals = {(each.place, each.group) for each in arrivals.culprits}
    limit_s = MIN_SHARE * float(job.step_s.mean())
    hosts = []
    for each in suspects:
        group = int(arrivals.occurrences.seat_group[each.seat])
        if each.place in explained or each.kind != HOST:
            continue
        is_blamed = (each.place, group) in by_arrivals
        if not is_blamed and not _idles(job, arrivals, each):
            continue
        alone_s = float(sets.waited_for_alone_s(each.seat, explained).mean())
        if alone_s < limit_s:
            continue
        more_data_s = each.data_wait_s - each.peers_data_wait_s
        kind = DATA_WAIT if more_data_s >= MIN_OWN_SHARE * alone_s else HOST
        hosts.append(replace(each, alone_s=alone_s, kind=kind))
    return _most_waited_for(hosts)


def _idles(job: ProfiledJob, arrivals: Arrivals, late: ProfileCulprit) -> bool:
    mine, peers = _with_peers(job, arrivals, late)
    more_s = mine.time.idle_s - _typical([each.time.idle_s for each in peers])
    waited_for_s = arrivals.lateness.waited_for_s[late.seat]
    return bool((more_s >= MIN_OWN_SHARE * waited_for_s).all() and late.steps_late == 1.0)


def _with_peers(
    job: ProfiledJob, arrivals: Arrivals, late: ProfileCulprit
) -> tuple[RankFigures, list[RankFigures]]:
    """The rank's own figures, and those of its group's other members."""
    found = arrivals.occurrences
    group = int(found.seat_group[late.seat])
    members = found.groups[group].ranks
    by_rank = {each.profile.rank: each for each in job.ranks}
    return by_rank[late.rank], [by_rank[rank] for rank in members if rank != late.rank]


def _typical(columns: Sequence[Floats]) -> Floats:
    """[steps], the median; the lower one of two, which is the less disturbed."""
    return np.asarray(np.quantile(np.array(columns), 0.5, axis=0, method="lower"))
