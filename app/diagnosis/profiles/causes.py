"""Who held up the others, by profiles alone: a slow GPU, or a host that launches late?

A profile has every kernel's own duration, so a rank that computes longer than its peers is known
without trusting any wait. What a late rank did not compute, its host did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.diagnosis.profiles.job import ProfiledJob
from app.engine.profile.exposed import receive_waits_s
from app.trace.window import Floats

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
# Two figures of the cost that are further apart are given both.
MAX_COST_APART = 0.03


@dataclass(frozen=True)
class Blamed:
    """A rank that the others waited for, with seconds a step.

    `lost_s` is what every other member waited in the group at least. `computing_s` and `peers_s`
    are what it and its peers (median) compute; `kind` is "compute", "data-wait" or "host". `place`
    indexes the arrivals' places.
    """

    place: int
    rank: int
    group: str
    kind: str
    waited_for_s: float
    lost_s: float
    late_share: float
    steps_late: float
    computing_s: float = 0.0
    peers_s: float = 0.0
    own_delay_s: float | None = None
    data_wait_s: float = 0.0
    peers_data_wait_s: float = 0.0

    @property
    def longer_s(self) -> float:
        """Seconds a step that it computes longer than its peers."""
        return self.computing_s - self.peers_s


@dataclass(frozen=True)
class Causes:
    """Ranks to blame, most waited for first, and late hosts too small to blame.

    `held_up` are places of ranks that are late because they waited for what one to blame sends.
    `reason` says why nothing can be told, "" where it can; then the others are empty.
    """

    blamed: tuple[Blamed, ...]
    minor: tuple[Blamed, ...]
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
    suspects = _suspects(job)
    step_s = float(job.step_s.mean())
    is_minor = [
        each.kind != "compute" and each.waited_for_s < MIN_HOST_SHARE * step_s for each in suspects
    ]
    pairs = list(zip(suspects, is_minor, strict=True))
    blamed = tuple(each for each, minor in pairs if not minor)
    minor = tuple(each for each, minor in pairs if minor)
    return Causes(blamed, minor, held_up(job, [each.rank for each in blamed]), "")


def _why_not(job: ProfiledJob) -> str:
    if job.coverage < MIN_COVERAGE:
        return f"the GPUs work for {job.coverage:.0%} of the step only".replace("%", " %")
    if job.world_size == 1:
        return "the job has one rank"
    if len(job.ranks) == 1:
        return "one rank's file does not tell waiting from transferring: give the other ranks' too"
    if job.arrivals is None:
        return "no collective is in the files of several ranks"
    return ""


def _suspects(job: ProfiledJob) -> list[Blamed]:
    arrivals = job.arrivals
    if arrivals is None:
        return []
    found, late = arrivals.occurrences, arrivals.lateness
    step_s = job.step_s
    by_engine = {(each.place, each.group): each for each in arrivals.culprits}
    best: dict[int, Blamed] = {}
    for seat in range(found.seat_rank.size):
        group, place = int(found.seat_group[seat]), int(found.seat_rank[seat])
        name = found.groups[group].name
        first, size = int(found.first_seat[group]), int(found.group_size[group])
        if job.table.num_members.get(name) != size:
            continue  # of members without a file, one may have come later still
        waited_for_s = late.waited_for_s[seat]
        if waited_for_s.mean() < MIN_SHARE * step_s.mean():
            continue
        steps_late = float((waited_for_s >= MIN_SHARE / 2 * step_s).mean())
        members = [found.places[int(each)].rank for each in found.seat_rank[first : first + size]]
        waited_s = late.waited_s[first : first + size].mean(axis=1)
        num = float(late.num_occurrences[group].sum())
        culprit = by_engine.get((place, group))
        blamed = _judged(
            job,
            Blamed(
                place=place,
                rank=found.places[place].rank,
                group=name,
                kind="host",
                waited_for_s=float(waited_for_s.mean()),
                lost_s=float(np.delete(waited_s, seat - first).min(initial=np.inf)),
                late_share=float(late.late[seat].sum()) / num,
                steps_late=steps_late,
                own_delay_s=culprit.own_delay_s if culprit else None,
            ),
            members,
            is_culprit=culprit is not None,
        )
        known = best.get(place)
        if blamed and (known is None or blamed.waited_for_s > known.waited_for_s):
            best[place] = blamed
    return sorted(best.values(), key=lambda each: (each.kind != "compute", -each.waited_for_s))


def _judged(
    job: ProfiledJob, late: Blamed, members: Sequence[int], *, is_culprit: bool
) -> Blamed | None:
    """The same with its figures and kind; None where it is not to blame."""
    by_rank = {each.profile.rank: each for each in job.ranks}
    mine = by_rank[late.rank]
    peers = [by_rank[rank] for rank in members if rank != late.rank]
    peers_s = _typical([each.time.computing_s for each in peers])
    found = replace(
        late,
        computing_s=float(mine.time.computing_s.mean()),
        peers_s=float(peers_s.mean()),
        data_wait_s=float(mine.data_wait_s.mean()),
        peers_data_wait_s=float(_typical([each.data_wait_s for each in peers]).mean()),
    )
    longer_s = mine.time.computing_s - peers_s
    is_longer = bool((longer_s >= MIN_LONGER * peers_s).mean() > MIN_STEPS_LATE)
    if (
        is_longer
        and late.steps_late >= MIN_STEPS_LATE
        and found.longer_s >= MIN_OWN_SHARE * late.waited_for_s
    ):
        return replace(found, kind="compute")
    if not is_culprit:
        return None
    more_data_s = found.data_wait_s - found.peers_data_wait_s
    is_data = more_data_s >= MIN_OWN_SHARE * late.waited_for_s
    return replace(found, kind="data-wait" if is_data else "host")


def _typical(columns: Sequence[Floats]) -> Floats:
    """[steps], the median; the lower one of two, which is the less disturbed."""
    return np.quantile(np.array(columns), 0.5, axis=0, method="lower")


def held_up(job: ProfiledJob, blamed: Sequence[int]) -> tuple[int, ...]:
    """Places that are late because they waited for these ranks to send, or for ones held up so.

    A rank was held up where it waits longer for receives from them than its peers wait for theirs,
    by half of what the others wait for it.
    """
    arrivals = job.arrivals
    if arrivals is None or not blamed:
        return ()
    found, late = arrivals.occurrences, arrivals.lateness
    waits_s = receive_waits_s(job.waits)
    senders, reached = set(blamed), dict[int, int]()
    while True:
        before = len(senders)
        for seat in range(found.seat_rank.size):
            place, group = int(found.seat_rank[seat]), int(found.seat_group[seat])
            rank = found.places[place].rank
            waited_for_s = float(late.waited_for_s[seat].sum())
            if rank in senders or waited_for_s <= 0:
                continue
            first, size = int(found.first_seat[group]), int(found.group_size[group])
            members = [found.places[int(at)].rank for at in found.seat_rank[first : first + size]]
            mine_s = sum(waits_s.get((sender, rank), 0.0) for sender in senders)
            others_s = [
                sum(each_s for (_, receiver), each_s in waits_s.items() if receiver == peer)
                for peer in members
                if peer != rank
            ]
            if mine_s - float(np.median(others_s)) >= MIN_OWN_SHARE * waited_for_s:
                senders.add(rank)
                reached[place] = rank
        if len(senders) == before:
            return tuple(reached)
