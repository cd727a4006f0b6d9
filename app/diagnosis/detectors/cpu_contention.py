"""cpu-contention: something else uses a host's CPUs, which holds up all of its workers.

Launches come late now and then and computations take longer, forward and backward, on every worker
of the host. The memory allocator stops single workers, and only computations; a busy CPU delays
sends, collectives and the optimizer step as well.
"""

from collections import defaultdict
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, finding_sentence, plural
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.interruptions import (
    ComputationEvents,
    Stalls,
    late_computations,
    long_computations,
    stalls,
)
from app.diagnosis.evidence.late_workers import late_hosts
from app.diagnosis.evidence.outliers import LaunchDelays, launch_delays_s
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Culprit, RuledOut, Worker
from app.diagnosis.repair import BlamedByGroup, BlamedOps, delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.diagnosis.statistics.robust import CHANCE_MARGIN, MIN_CHANCE, log_binomial_tail
from app.engine.what_if import Replayer
from app.trace.ops import OpKind
from app.trace.window import Floats, Ints

# Stops in fewer steps may be a single event.
MIN_STEPS = 2
MIN_WORKERS = 2
# More workers than this share have no peers left to be compared with.
MAX_SHARE_OF_WORKERS = 0.5
# Delays count from so many times the usual one, as those of stalled workers do.
MIN_TIMES_USUAL = 5.0
# Another operation starts late from so many times the usual delay, and this share of a forward.
MIN_TIMES_USUAL_OF_OTHERS = 20.0
MIN_SHARE_OF_FORWARD = 0.1
# Probability of so many late starts of other operations by chance.
MAX_CHANCE = 1e-6
# With late starts of other operations, and without.
CONFIDENCE = 0.9
CONFIDENCE_OF_COMPUTATIONS = 0.75
# Without, on a host that holds one stage and nothing else.
CONFIDENCE_OF_STAGE = 0.6
_OR_MEMORY = ", or its stage has too little memory"


class CpuContention(Detector):
    """Irregular stops of all workers of few hosts; of a lone worker with all its operations."""

    cause = "cpu-contention"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        hosts = _workers_by_host(case)
        if len(hosts) < MIN_WORKERS:
            known = "only one host is known" if hosts else "no host is known"
            return RuledOut(self.cause, f"{known}, so that none can be compared with others", True)
        found = case.cached(stalls)
        stopped = found.is_frequent & ~_launched_late(case, found)
        held_up = _held_up(hosts, stopped)
        workers = [worker for name in held_up for worker in hosts[name]]
        if not held_up or len(workers) > MAX_SHARE_OF_WORKERS * case.num_workers:
            return RuledOut(self.cause, "no host has irregular stops on all of its workers")
        others = _others_late(case)
        sure = {name: any(others[worker] for worker in hosts[name]) for name in held_up}
        held_up = [name for name in held_up if sure[name] or len(hosts[name]) >= MIN_WORKERS]
        if not held_up:
            return RuledOut(
                self.cause,
                "the only worker of a host stops irregularly, but only in and before computations: "
                "its memory allocator does the same",
                insufficient=True,
            )
        stops = _on_hosts(found.stops, hosts, held_up)
        if np.unique(stops.step).size < MIN_STEPS:
            return RuledOut(
                self.cause, "a host's workers were held up in one step only", insufficient=True
            )
        return _suspicion(case, found, stops, {name: hosts[name] for name in held_up}, sure)


def _workers_by_host(case: Case) -> dict[str, list[Worker]]:
    found: dict[str, list[Worker]] = defaultdict(list)
    for worker, host in sorted(case.replay.window.hosts.items()):
        found[host].append(worker)
    return dict(found)


def _launched_late(case: Case, found: Stalls) -> NDArray[np.bool_]:
    """[dp, pp], workers that are launched late before most computations: late hosts."""
    hosts = np.zeros(found.is_frequent.shape, np.bool_)
    for each in case.cached(late_hosts):
        hosts[each.worker] = True
    return np.asarray(hosts & (found.late.counts(case) >= 0.5 * found.trials))


def _held_up(hosts: dict[str, list[Worker]], stopped: NDArray[np.bool_]) -> list[str]:
    """Hosts nearly all of whose workers stop."""
    return [
        name
        for name, workers in hosts.items()
        if sum(bool(stopped[worker]) for worker in workers) >= MIN_SHARE_OF_HOST * len(workers)
    ]


def _is_stage(case: Case, workers: list[Worker]) -> bool:
    """Whether a host holds one stage and nothing else: the same memory to allocate on each."""
    stages = {stage for _, stage in workers}
    is_one = len(stages) == 1 and len(workers) == case.parallelism.dp_size
    return is_one and case.parallelism.pp_size > 1


def _others_late(case: Case) -> NDArray[np.bool_]:
    """[dp, pp], workers that start other operations than computations late, beyond chance."""
    sizes = case.parallelism
    hits, trials = (np.zeros((sizes.dp_size, sizes.pp_size), np.int64) for _ in range(2))
    for group, late in zip(case.groups, case.delays, strict=True):
        rows = _other_rows(group)
        if not rows.size:
            continue
        is_late = _late_others_s(case, group, late) > 0
        num_late = is_late.reshape(rows.size, sizes.dp_size, -1).sum(axis=2)
        num_steps = int(case.is_usual[group.positions].sum())
        for stage in range(sizes.pp_size):
            mine = group.replayer.template.stage[rows] == stage
            hits[:, stage] += num_late[mine].sum(axis=0)
            trials[:, stage] += int(mine.sum()) * num_steps
    shares = np.sort(hits / np.maximum(trials, 1), axis=None)
    usual = float(shares[(shares.size - 1) // 2])
    chance = min(0.5, max(CHANCE_MARGIN * usual, MIN_CHANCE))
    log_chance = log_binomial_tail(hits, np.maximum(trials, 1), chance)
    return np.asarray(log_chance + np.log(shares.size) < np.log(MAX_CHANCE))


def _late_others_s(case: Case, group: Features, late: LaunchDelays) -> Floats:
    """[other rows, lanes], seconds of late launches in usual steps; 0 where not late."""
    delay_s = launch_delays_s(group.replayer, _other_rows(group))
    least_s = max(
        MIN_TIMES_USUAL_OF_OTHERS * max(float(np.median(delay_s)), late.usual_s),
        MIN_SHARE_OF_FORWARD * _forward_s(group),
    )
    is_usual = np.tile(case.is_usual[group.positions], group.replayer.dp_size)
    return np.where((delay_s > least_s) & is_usual, delay_s, 0.0)


def _other_delays(case: Case, workers: list[Worker]) -> BlamedByGroup:
    """What late launches of these workers' other operations hold up.

    An operation that meets others delays all of them, by as much as it comes after the last other.
    """
    found: dict[tuple[int, ...], BlamedOps] = {}
    for group, late in zip(case.groups, case.delays, strict=True):
        rows, seconds = _other_rows(group), _late_others_s(case, group, late)
        if rows.size:
            found[group.steps] = _held_up_by(group.replayer, rows, seconds, workers)
    return found


def _held_up_by(replayer: Replayer, rows: Ints, late_s: Floats, workers: list[Worker]) -> BlamedOps:
    graph, grid = replayer.graph, replayer.grid
    unit_of = np.empty(graph.num_rows, np.int64)
    unit_of[graph.unit_ops] = np.repeat(np.arange(graph.meets.size), np.diff(graph.unit_ptr))
    num_steps, found = grid.num_steps, dict[tuple[int, int], float]()
    stages = replayer.template.stage[rows]
    for dp_rank, stage in workers:
        mine = np.flatnonzero(stages == stage)
        lanes = slice(dp_rank * num_steps, (dp_rank + 1) * num_steps)
        for at, step in np.argwhere(late_s[mine, lanes] > 0).tolist():
            row, lane = int(rows[mine[at]]), dp_rank * num_steps + step
            unit = int(unit_of[row])
            members = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
            of_step = (
                np.arange(step, grid.start_s.shape[1], num_steps)
                if graph.meets[unit]
                else np.array([lane])
            )
            seconds = float(late_s[mine[at], lane])
            keys = [(int(m), int(each)) for m in members for each in of_step]
            others_s = [grid.start_s[key] for key in keys if key != (row, lane)]
            if others_s:
                seconds = min(seconds, float(grid.start_s[row, lane]) - max(others_s))
            for key in keys if seconds > 0 else ():
                found[key] = max(found.get(key, 0.0), seconds)
    places = np.array(list(found), np.int64).reshape(-1, 2)
    return BlamedOps(places[:, 0], places[:, 1], np.array(list(found.values()), np.float64))


def _joined(one: BlamedByGroup, other: BlamedByGroup) -> BlamedByGroup:
    """Operations of both; they have none in common."""
    return {
        steps: BlamedOps(
            *(
                np.concatenate(
                    [getattr(each[steps], name) for each in (one, other) if steps in each]
                )
                for name in ("row", "lane", "seconds")
            )
        )
        for steps in {*one, *other}
    }


def _other_rows(group: Features) -> Ints:
    """Operations that are neither computations of micro-batches nor receives.

    Those with which a step begins are left out: what they wait for is the step before.
    """
    template, graph = group.replayer.template, group.replayer.graph
    follows = np.diff(graph.pred_ptr)[: template.num_ops] > 0
    specs = template.op_types.by_code
    is_pass = np.isin(np.arange(template.num_ops), group.item_rows)
    is_receive = template.op_types.is_receive[template.optype]
    annotated = np.array([specs[code].kind is OpKind.ANNOTATION for code in template.optype])
    return np.flatnonzero(~is_pass & ~is_receive & ~annotated & follows)


def _forward_s(group: Features) -> float:
    """The usual time of a forward computation; 0 where there is none."""
    return 0.0 if group.forward is None else float(np.median(group.forward.pace.mean_s))


def _on_hosts(
    events: ComputationEvents, hosts: dict[str, list[Worker]], names: list[str]
) -> ComputationEvents:
    chosen = np.zeros(events.size, np.bool_)
    for name in names:
        for dp_rank, stage in hosts[name]:
            chosen |= (events.dp_rank == dp_rank) & (events.stage == stage)
    return events.where(chosen)


def _suspicion(
    case: Case,
    found: Stalls,
    stops: ComputationEvents,
    hosts: dict[str, list[Worker]],
    sure: dict[str, bool],
) -> Suspicion:
    names = list(hosts)
    workers = [worker for name in names for worker in hosts[name]]
    culprits = tuple(_culprit(case, name, hosts[name]) for name in names)
    longer = _on_hosts(case.cached(long_computations), hosts, names)
    # A first forward that is late repeatedly waits for data.
    loads = case.cached(data_waits).waits.any()
    later = late_computations(
        case,
        lambda late: ~(late.is_first & loads),
        lambda late: np.full(late.rows.size, MIN_TIMES_USUAL * late.usual_s),
    )
    later = _on_hosts(later, hosts, names)
    later = later.where(case.is_usual[later.step])
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[stops.step] = True
    onset = onset_of_hits(case.steps, is_hit)
    confidence = CONFIDENCE if all(sure[name] for name in names) else CONFIDENCE_OF_COMPUTATIONS
    or_memory = any(not sure[name] and _is_stage(case, hosts[name]) for name in names)
    confidence = CONFIDENCE_OF_STAGE if or_memory else confidence
    trials = sum(int(found.trials[worker]) for worker in workers)

    return Suspicion(
        cause=CpuContention.cause,
        score=confidence,
        confidence=confidence,
        culprits=culprits,
        wording=partial(finding_sentence, _fact(hosts, stops.size, sure) + _OR_MEMORY * or_memory),
        repair=durations_repair(longer.blamed_ops(case, longer.least_s)),
        delays=delays_repair(
            _joined(later.blamed_ops(case, later.excess_s), _other_delays(case, workers))
        ),
        onset_step=onset.onset_step,
        persistence=onset.persistence,
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "interrupted": stops.size,
            "share_interrupted": stops.size / max(1, trials),
            "usual_share": found.usual_share,
            "mean_stop_s": float(_mean(stops.excess_s)),
            "seconds_lost": float(longer.excess_s.sum() + later.excess_s.sum()),
            "other_operations_late": all(sure[name] for name in names),
        },
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0


def _culprit(case: Case, name: str, workers: list[Worker]) -> Culprit:
    """The host; its only worker where it has one."""
    if len(workers) > 1:
        return Culprit(host=name)
    return case.with_rank(Culprit(*workers[0], name))


def _fact(hosts: dict[str, list[Worker]], num_stops: int, sure: dict[str, bool]) -> str:
    names = list(hosts)
    shown = (
        names[0]
        if len(names) == 1
        else f"{', '.join(names[:3])}"
        + (f" and {len(names) - 3} more hosts" if len(names) > 3 else "")
    )
    num_workers = sum(len(workers) for workers in hosts.values())
    every = "both workers" if num_workers == 2 else f"all {plural(num_workers, 'worker')}"
    who = (
        f"{every} of {shown} are"
        if num_workers > len(names)
        else f"the only {'worker' if num_workers == 1 else 'workers'} of {shown} "
        f"{'is' if num_workers == 1 else 'are'}"
    )
    as_well = ", other operations too" if all(sure.values()) else ""
    return (
        f"{who} held up irregularly, in {num_stops:,} computations{as_well}: something else uses "
        f"the CPUs of {'this host' if len(names) == 1 else 'these hosts'}"
    )
