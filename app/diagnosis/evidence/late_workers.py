"""Late workers: what delayed them, and what waiting for them costs.

Arrivals tell which ranks were late without being held up themselves (docs/arrivals.md). Their
computations, garbage collection, data waits and launch delays are compared with their peers'.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.interruptions import InterruptionKind, annotated_s, interruptions_of
from app.diagnosis.finding import Worker
from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.blame import LateRank
from app.engine.arrivals.hidden_waits import recorded_waits
from app.engine.arrivals.waits import WaitIntervals, merged_intervals
from app.engine.medians import medians_of_known
from app.engine.what_if import Replayer
from app.result.finding import Culprit
from app.trace.collectives import RankPlace
from app.trace.ops import OpKind
from app.trace.window import Floats

DelayKind = Literal["compute", "gc", "data-wait", "host", "unknown"]

# Delays of the host, not of the GPU.
HOST_DELAYS: tuple[DelayKind, ...] = ("host", "gc", "data-wait")
# Groups inside a worker.
INSIDE_AXES = ("tp", "cp", "ep")
# Peers whose waits are sampled.
_MAX_PEERS = 16


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
    its worker, where only collectives are recorded.
    """

    late: LateRank
    place: RankPlace
    worker: Worker
    kind: DelayKind
    parts_s: dict[DelayKind, float]
    is_inside: bool


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
    kind = max(parts_s, key=parts_s.__getitem__)
    if parts_s[kind] < LIMITS.min_part * late.waited_for_s:
        # Inside a worker only collectives are recorded, and peers' computations that hide waits
        # look as long as slow ones. Otherwise the GPU is not slower, so it is the host.
        kind = "unknown" if is_inside or _hides_waits(case, arrivals, late) else "host"
    return LateWorker(late, arrivals.places[late.place], worker, kind, parts_s, is_inside)


def _hides_waits(case: Case, arrivals: Arrivals, late: LateRank) -> bool:
    """Whether its peers' recorded computations may hide much of their waiting for it."""
    peers = _peers(arrivals, late.group, [late.place])
    unseen_s = [_worked_meanwhile_s(case, (late.group, place))[2] for place in peers]
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
    """Joint cost of several culprits, by the waits of the group that waits longest for them."""
    arrivals = case.replay.arrivals
    if arrivals is None or not late:
        return None
    group = max(late, key=lambda worker: worker.late.waited_for_s).late.group
    of_group = [worker.late.place for worker in late if worker.late.group == group]
    # Mean seconds a step that the group waited for any of them.
    all_s, others_s = arrivals.lateness.lost_s[group], arrivals.lost_without_s(of_group)[group]
    high_s = float(all_s.mean() - others_s.mean())
    worked = [
        _worked_meanwhile_s(case, (group, place))
        for place in _peers(arrivals, group, [worker.late.place for worker in late])
    ]
    waited_s, free_s, unknown_s = (
        np.median(worked, axis=0).tolist() if worked else (high_s, 0.0, 0.0)
    )
    total_s = float(case.report.recorded_s.mean())
    # Waits for overlapping collectives coincide.
    high_s = max(0.0, min(high_s, waited_s) - free_s)
    return WaitCost(max(0.0, high_s - unknown_s) / total_s, high_s / total_s)


def _peers(arrivals: Arrivals, group: int, culprits: list[int]) -> list[int]:
    occurrences = arrivals.occurrences
    first, size = int(occurrences.first_member[group]), int(occurrences.group_size[group])
    places = np.setdiff1d(occurrences.member_rank[first : first + size], culprits)
    if not places.size:
        return []
    chosen = np.linspace(0, places.size - 1, min(_MAX_PEERS, places.size)).astype(np.int64)
    peers: list[int] = places[chosen].tolist()
    return peers


@evidence
def _worked_meanwhile_s(case: Case, member: tuple[int, int]) -> tuple[float, float, float]:
    """Mean seconds a step that a worker waited, surely computed and maybe computed meanwhile.

    `member` is a group and one of its places.
    """
    (group, place), arrivals = member, case.replay.arrivals
    if arrivals is None:
        return np.inf, 0.0, 0.0
    where, sizes = arrivals.places[place], case.parallelism
    waiting = arrivals.waits.of(place)
    # Starts are unknown, or known of sampled steps only.
    if not waiting.start_s.size or group in arrivals.occurrences.sampled:
        return np.inf, 0.0, 0.0
    num_steps = case.steps.size
    waited_s = float((waiting.end_s - waiting.start_s).sum()) / num_steps
    if where.dp_rank is None or where.stage is None or where.dp_rank >= sizes.dp_size:
        return waited_s, 0.0, 0.0
    if arrivals.occurrences.groups[group].axis not in ("dp", "pp"):
        return waited_s, 0.0, 0.0
    free_s = unknown_s = 0.0
    for number, replayer in enumerate(case.replay.groups):
        held_up = case.replay.held_up[number] if case.replay.held_up else None
        both_s = _overlap_s(case, arrivals, replayer, waiting, (where.dp_rank, where.stage))
        for code, overlap_s in both_s.items():
            verdict = 0
            if held_up is not None:
                of_type = replayer.template.optype == code
                verdict = int(held_up[of_type & (replayer.template.stage == where.stage)][0])
            if verdict < 0:
                free_s += overlap_s
            elif verdict == 0:
                unknown_s += overlap_s
    return waited_s, free_s / num_steps, unknown_s / num_steps


def _overlap_s(
    case: Case, arrivals: Arrivals, replayer: Replayer, waiting: WaitIntervals, worker: Worker
) -> dict[int, float]:
    """By op type, seconds that a worker's computations overlap its waits.

    Waits that the client recorded inside the computations do not count.
    """
    template, grid = replayer.template, replayer.grid
    dp_rank, stage = worker
    computes = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
    lanes = slice(dp_rank * grid.num_steps, (dp_rank + 1) * grid.num_steps)
    offset_s = arrivals.waits.offsets_s(replayer)
    recorded = recorded_waits(case.replay.window, grid, worker, offset_s)
    either = merged_intervals(
        np.append(waiting.start_s, recorded.start_s), np.append(waiting.end_s, recorded.end_s)
    )
    rows = np.flatnonzero(computes[template.optype] & (template.stage == stage))
    start_s = grid.start_s[rows, lanes] + offset_s
    end_s = start_s + grid.duration_s[rows, lanes]
    spent_s = either.until(end_s) - either.until(start_s)
    spent_s -= recorded.until(end_s) - recorded.until(start_s)
    code = template.optype[rows]
    return {kind: float(spent_s[code == kind].sum()) for kind in dict.fromkeys(code.tolist())}
