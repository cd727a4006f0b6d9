"""Late workers: what delayed them, and what waiting for them costs.

Arrivals tell which ranks were late without being held up themselves (docs/arrivals.md). Their
computations, garbage collection, data waits and launch delays are compared with their peers'.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.interruptions import InterruptionKind, annotated_s, interruptions_of
from app.diagnosis.evidence.launch_lags import sets_pace as host_sets_pace
from app.diagnosis.evidence.slow_operations import BACKWARD, FORWARD
from app.diagnosis.evidence.standstill import Standstill, standstill
from app.diagnosis.finding import Worker
from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.blame import LateRank
from app.engine.medians import medians_of_known
from app.result.finding import Culprit
from app.trace.collectives import RankPlace
from app.trace.window import Floats

DelayKind = Literal["compute", "gc", "data-wait", "host", "unknown"]

# Delays of the host, not of the GPU.
HOST_DELAYS: tuple[DelayKind, ...] = ("host", "gc", "data-wait")
# Groups inside a worker.
INSIDE_AXES = ("tp", "cp", "ep")
# Peers whose waits are sampled, as in arrivals.
_MAX_PEERS = 33


@dataclass(frozen=True, slots=True)
class LatenessLimits:
    """When a late rank is named, and by what its delay is explained. All were chosen."""

    # The others wait for it for this share of the step: less is noise of healthy ranks, of which
    # one is always last.
    min_share: float = 0.05
    # A part explains a delay from this share of what the others waited.
    min_part: float = 0.1
    # A GPU is late inside its worker if members of its groups there wait for this share of all
    # waiting for it.
    min_inside: float = 0.5


LIMITS = LatenessLimits()


@dataclass(frozen=True, slots=True)
class LateWorker:
    """A late rank of the arrivals, and the worker (dp rank, stage) that it belongs to.

    `parts_s` are mean seconds a step above the peers' median: computing without garbage collection,
    garbage collection, data waits, other launch delays. `is_inside`: it was late in a group inside
    its worker, where only collectives are recorded. `sets_pace`: recorded launches show that the
    host is behind in its longer computations, so that these are part of the host's delay.
    """

    late: LateRank
    place: RankPlace
    worker: Worker
    kind: DelayKind
    parts_s: dict[DelayKind, float]
    is_inside: bool
    sets_pace: bool = False

    def is_due_to(self, kind: DelayKind) -> bool:
        """Whether this part explains the delay: it is not far less than the others waited."""
        return self.parts_s[kind] >= LIMITS.min_part * self.late.waited_for_s


@evidence
def late_workers(case: Case) -> list[LateWorker]:
    """Late ranks in the order of the arrivals' culprits; empty without arrivals."""
    arrivals = case.replay.arrivals
    if arrivals is None:
        return []
    late, sizes = list[tuple[LateRank, Worker]](), case.parallelism
    for rank in arrivals.culprits:
        place = arrivals.places[rank.place]
        dp_rank, stage = place.dp_rank, place.stage or 0
        if dp_rank is not None and dp_rank < sizes.dp_size and stage < sizes.pp_size:
            late.append((rank, (dp_rank, stage)))
    excess_s = _excess_s(case, [worker for _, worker in late]) if late else {}
    return [_late_worker(case, arrivals, rank, worker, excess_s) for rank, worker in late]


def _is_inside(arrivals: Arrivals, late: LateRank) -> bool:
    """Whether the ranks of its own worker wait for it, too."""
    occurrences = arrivals.occurrences
    members = np.flatnonzero(occurrences.member_rank == late.place)
    axes = [occurrences.groups[at].axis for at in occurrences.member_group[members].tolist()]
    inside = members[np.isin(axes, INSIDE_AXES)]
    waited_s = arrivals.lateness.waited_for_s[inside].mean(axis=1)
    return bool((waited_s >= LIMITS.min_inside * late.waited_for_s).any())


def late_hosts(case: Case) -> list[LateWorker]:
    """Late workers whose host is the reason, from `min_share` of the step on."""
    least_s = LIMITS.min_share * float(case.report.recorded_s.mean())
    return [
        worker
        for worker in late_workers(case)
        if worker.kind in HOST_DELAYS and worker.late.waited_for_s >= least_s
    ]


def _late_worker(
    case: Case, arrivals: Arrivals, late: LateRank, worker: Worker, excess_s: dict[str, Floats]
) -> LateWorker:
    is_inside = _is_inside(arrivals, late)
    of_worker = {name: float(values[worker]) for name, values in excess_s.items()}
    gc_s, data_s = max(0.0, of_worker["gc"]), max(0.0, of_worker["data"])
    launch_s, inside_s = max(0.0, of_worker["launch"]), max(0.0, of_worker["gc_inside"])
    parts_s: dict[DelayKind, float] = {
        # A pause stops the host, within a computation or before a launch.
        "compute": max(0.0, of_worker["work"] - inside_s),
        "gc": gc_s,
        "data-wait": min(data_s, launch_s) if launch_s > 0 else data_s,
        "host": max(0.0, launch_s - data_s - max(0.0, gc_s - inside_s)),
    }
    sets_pace = parts_s["compute"] > 0 and bool(
        host_sets_pace(case, worker, _longest(case, worker))
    )
    if sets_pace:
        parts_s["host"], parts_s["compute"] = parts_s["host"] + parts_s["compute"], 0.0
    kind = max(parts_s, key=parts_s.__getitem__)
    if parts_s[kind] < LIMITS.min_part * late.waited_for_s:
        # Inside a worker only collectives are recorded, and peers' computations that hide waits
        # look as long as slow ones. Otherwise the GPU is not slower, so it is the host.
        kind = "unknown" if is_inside or _hides_waits(case, arrivals, late) else "host"
    place = arrivals.places[late.place]
    return LateWorker(late, place, worker, kind, parts_s, is_inside, sets_pace)


def _longest(case: Case, worker: Worker) -> list[str]:
    """The direction in which the worker computes longer than its peers by most."""
    excess_s = {
        optype: float(
            (pace.mean_s[:, *worker] - np.median(pace.mean_s[..., worker[1]], axis=1)).mean()
        )
        for optype, pace in ((FORWARD, case.forward), (BACKWARD, case.backward))
        if pace is not None
    }
    return sorted(excess_s, key=excess_s.__getitem__)[-1:]


def _hides_waits(case: Case, arrivals: Arrivals, late: LateRank) -> bool:
    """Whether its peers' recorded computations may hide much of their waiting for it."""
    peers = _peers(arrivals, late.group, [late.place])
    of_peers = [_standstill(case, late.group, place) for place in peers]
    unseen_s = [still.maybe_s.mean() for still in of_peers if still is not None]
    return bool(unseen_s) and float(np.median(unseen_s)) >= LIMITS.min_part * late.waited_for_s


def _excess_s(case: Case, culprits: list[Worker]) -> dict[str, Floats]:
    """{figure: [dp, pp]}, mean seconds a step above the median of the stage's other workers."""
    figures = {
        "work": case.work_s,
        "gc": annotated_s(case, "gc-pause"),
        "gc_inside": interruptions_of(case, InterruptionKind.LONG_BY_GC).seconds(case),
        "data": annotated_s(case, "data-wait"),
        "launch": case.signals.get("launch_s", np.zeros((case.steps.size, 1, 1))),
    }
    sizes = case.parallelism
    is_peer = np.ones((sizes.dp_size, sizes.pp_size), np.bool_)
    is_peer[tuple(np.transpose(culprits))] = False
    is_peer[:, ~is_peer.any(axis=0)] = True
    excess_s = {}
    for name, by_step_s in figures.items():
        mean_s = np.broadcast_to(by_step_s.mean(axis=0), is_peer.shape)
        excess_s[name] = mean_s - medians_of_known(np.where(is_peer, mean_s, np.nan).T)
    return excess_s


def arrivals_evidence(worst: LateWorker, share: float) -> dict[str, Any]:
    """The arrivals' figures of a culprit, as evidence."""
    return {
        "arrivals": {
            "rank": worst.place.rank,
            "waited_for_s": worst.late.waited_for_s,
            "share": share,
            "late_share": worst.late.late_share,
            "steps_late": worst.late.steps_late,
            "own_delay_s": worst.late.own_delay_s,
            "parts_s": dict(worst.parts_s),
        }
    }


def gpu_culprit(late: LateWorker) -> Culprit:
    """The rank itself; a worker may have several."""
    place = late.place
    return Culprit(*late.worker, place.host, place.rank, place.local_rank, (place.rank,))


@dataclass(frozen=True, slots=True)
class WaitCost:
    """Waiting for some culprits, as shares of the steps' time.

    `low` leaves out waits during which the waiting rank may have computed, `high` includes them.
    """

    low: float
    high: float


def wait_cost(case: Case, late: list[LateWorker]) -> WaitCost | None:
    """Joint cost of several culprits, by the group that waits longest for them.

    It is how much longer all others stand still in collectives than the culprits do, at most what
    they waited for them: transfers that all begin after the late computation are its cost, those
    that nothing hides in any case are not.
    """
    arrivals = case.replay.arrivals
    if arrivals is None or not late:
        return None
    group = max(late, key=lambda worker: worker.late.waited_for_s).late.group
    of_group = [worker.late.place for worker in late if worker.late.group == group]
    # Mean seconds a step that the group waited for any of them.
    all_s, others_s = arrivals.lateness.lost_s[group], arrivals.lost_without_s(of_group)[group]
    most_s = max(0.0, float(all_s.mean() - others_s.mean()))
    total_s = float(case.report.recorded_s.mean())
    peers = _peers(arrivals, group, [worker.late.place for worker in late])
    own, of_peers = (
        [_standstill(case, group, place) for place in places] for places in (of_group, peers)
    )
    if not peers or None in (*own, *of_peers):
        low_s = high_s = min([most_s, *_waited_s(case, arrivals, group, peers)])
    else:
        # Repaired, the others still wait for the one of them that stood still for the shortest.
        own_s = np.median([still.sure_s for still in own if still], axis=0)
        low_s, high_s = (
            min(most_s, float(np.maximum(0.0, np.min(stood_s, axis=0) - own_s).mean()))
            for stood_s in (
                [still.sure_s for still in of_peers if still],
                [still.sure_s + still.maybe_s for still in of_peers if still],
            )
        )
    return WaitCost(low_s / total_s, high_s / total_s)


def _waited_s(case: Case, arrivals: Arrivals, group: int, peers: list[int]) -> list[float]:
    """The median of what peers waited, mean seconds a step, if it is known.

    Waits for overlapping collectives coincide, so that it may be less than their sum.
    """
    waits = [arrivals.waits.of(place) for place in peers]
    # Starts are unknown, or known of sampled steps only.
    if not waits or group in arrivals.occurrences.sampled or not all(w.start_s.size for w in waits):
        return []
    waited_s = [float((wait.end_s - wait.start_s).sum()) for wait in waits]
    return [float(np.median(waited_s)) / case.steps.size]


def _standstill(case: Case, group: int, place: int) -> Standstill | None:
    """Standstill of a member of a group, None where its computations are not recorded beside it."""
    arrivals = case.replay.arrivals
    if arrivals is None or group in arrivals.occurrences.sampled:
        return None
    where, sizes = arrivals.places[place], case.parallelism
    if where.dp_rank is None or where.stage is None or where.dp_rank >= sizes.dp_size:
        return None
    is_of_workers = arrivals.occurrences.groups[group].axis == "dp"
    return standstill(case, (where.dp_rank, where.stage)) if is_of_workers else None


def _peers(arrivals: Arrivals, group: int, culprits: list[int]) -> list[int]:
    occurrences = arrivals.occurrences
    first, size = int(occurrences.first_member[group]), int(occurrences.group_size[group])
    places = np.setdiff1d(occurrences.member_rank[first : first + size], culprits)
    if not places.size:
        return []
    chosen = np.linspace(0, places.size - 1, min(_MAX_PEERS, places.size)).astype(np.int64)
    peers: list[int] = places[chosen].tolist()
    return peers
