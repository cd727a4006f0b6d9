"""cpu-contention: something else uses a host's CPUs, which holds up all of its workers.

Launches come late now and then and computations take longer, forward and backward, on every worker
of the host. The memory allocator stops single workers, and only computations; a busy CPU delays
sends, collectives and the optimizer step as well.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, finding_sentence, plural
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.interruptions import ComputationEvents, Stalls, stalls
from app.diagnosis.evidence.outliers import LaunchDelays, launch_delays_s
from app.diagnosis.evidence.stalled_workers import (
    HOST_SIZES,
    held_up,
    launched_late,
    rank_blocks,
)
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Worker
from app.diagnosis.repair import BlamedByGroup, BlamedOps, delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.diagnosis.statistics.robust import CHANCE_MARGIN, MIN_CHANCE, log_binomial_tail
from app.engine.graph import ALL_DP_RANKS, NO_PEERS
from app.engine.what_if import Replayer
from app.result.finding import Culprit, RuledOut
from app.result.sentence import ARE, IS, verb
from app.trace.ops import OpKind
from app.trace.window import Floats, Ints

# Stops in fewer steps may be a single event.
MIN_STEPS = 2
MIN_WORKERS = 2
# More workers than this share have no peers left to be compared with.
MAX_SHARE_OF_WORKERS = 0.5
# Another operation starts late from so many times the usual delay, and this share of a forward.
MIN_TIMES_USUAL_OF_OTHERS = 20.0
MIN_SHARE_OF_FORWARD = 0.1
# Probability of so many late starts of other operations by chance.
MAX_CHANCE = 1e-6
# Probability that the other workers of a host, some of which clearly stop, do so by chance.
MAX_CHANCE_OF_OTHERS = 1e-3
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
        found = case.cached(stalls)
        stopped = found.is_frequent & ~launched_late(case, found)
        named = _workers_by_host(case)
        hosts = named or _ranks_of_hosts(case, found, stopped)
        if len(hosts) < MIN_WORKERS and (named or not hosts):
            known = "only one host is known" if hosts else "the hosts of the workers are not known"
            return RuledOut(
                self.cause, f"{known}, so that no host has another to compare with", True
            )
        filled = _held_up(case, found, hosts, stopped)
        workers = [worker for name in filled for worker in hosts[name]]
        if not filled or len(workers) > MAX_SHARE_OF_WORKERS * case.num_workers:
            return RuledOut(self.cause, "no host has irregular stops on all of its workers")
        others = _others_late(case)
        sure = {name: any(others[worker] for worker in hosts[name]) for name in filled}
        filled = [name for name in filled if sure[name] or len(hosts[name]) >= MIN_WORKERS]
        if not filled:
            return RuledOut(
                self.cause,
                "the only worker of a host stops irregularly, but only in and before computations: "
                "its memory allocator does the same",
                insufficient=True,
            )
        blamed = _Blamed({name: hosts[name] for name in filled}, sure, are_named=bool(named))
        stops = found.stops.where(_is_one_of(case, blamed.workers)[_places(found.stops)])
        if np.unique(stops.step).size < MIN_STEPS:
            return RuledOut(
                self.cause, "a host's workers were held up in one step only", insufficient=True
            )
        return _suspicion(case, found, stops, blamed)


@dataclass(frozen=True, slots=True)
class _Blamed:
    """Hosts with their workers, or blocks of ranks; `sure` where other operations are late too."""

    hosts: dict[str, list[Worker]]
    sure: dict[str, bool]
    are_named: bool

    @property
    def workers(self) -> list[Worker]:
        return [worker for workers in self.hosts.values() for worker in workers]

    @property
    def are_sure(self) -> bool:
        return all(self.sure[name] for name in self.hosts)


def _is_one_of(case: Case, workers: list[Worker]) -> NDArray[np.bool_]:
    """[dp, pp]"""
    found = np.zeros((case.parallelism.dp_size, case.parallelism.pp_size), np.bool_)
    for worker in workers:
        found[worker] = True
    return found


def _places(events: ComputationEvents) -> tuple[Ints, Ints]:
    return events.dp_rank, events.stage


def _workers_by_host(case: Case) -> dict[str, list[Worker]]:
    found: dict[str, list[Worker]] = defaultdict(list)
    for worker, host in sorted(case.replay.window.hosts.items()):
        found[host].append(worker)
    return dict(found)


def _ranks_of_hosts(
    case: Case, found: Stalls, stopped: NDArray[np.bool_]
) -> dict[str, list[Worker]]:
    """Without hosts' names: workers with successive ranks that fill hosts, all of them held up."""
    for size in HOST_SIZES:
        hosts = rank_blocks(case, stopped, size)
        num_inside = sum(bool(stopped[each]) for workers in hosts.values() for each in workers)
        is_all = num_inside == int(stopped.sum())
        if hosts and is_all and len(_held_up(case, found, hosts, stopped)) == len(hosts):
            return hosts
    return {}


def _held_up(
    case: Case, found: Stalls, hosts: dict[str, list[Worker]], stopped: NDArray[np.bool_]
) -> list[str]:
    """Hosts nearly all of whose workers stop, or some clearly and the others together."""
    hits, held_up = found.stops.counts(case), []
    for name, workers in hosts.items():
        num_stopped = sum(bool(stopped[worker]) for worker in workers)
        if num_stopped >= MIN_SHARE_OF_HOST * len(workers):
            held_up.append(name)
        elif num_stopped:
            others = [worker for worker in workers if not stopped[worker]]
            num_hit = num_stopped + sum(bool(hits[worker]) for worker in others)
            if num_hit >= MIN_SHARE_OF_HOST * len(workers) and _stop_often(found, hits, others):
                held_up.append(name)
    return held_up


def _stop_often(found: Stalls, hits: Ints, workers: list[Worker]) -> bool:
    """Whether these workers together stop more often than the typical one, beyond chance."""
    total, trials = (sum(int(each[worker]) for worker in workers) for each in (hits, found.trials))
    chance = min(0.5, max(CHANCE_MARGIN * found.usual_share, MIN_CHANCE / 10))
    log_chance = log_binomial_tail(np.array([total]), np.array([trials]), chance)
    return bool(log_chance[0] < np.log(MAX_CHANCE_OF_OTHERS))


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
            of_step = _meeting(replayer, int(graph.meets[unit]), dp_rank) * num_steps + step
            seconds = float(late_s[mine[at], lane])
            keys = [(int(m), int(each)) for m in members for each in of_step]
            others_s = [grid.start_s[key] for key in keys if key != (row, lane)]
            if others_s:
                seconds = min(seconds, float(grid.start_s[row, lane]) - max(others_s))
            for key in keys if seconds > 0 else ():
                found[key] = max(found.get(key, 0.0), seconds)
    places = np.array(list(found), np.int64).reshape(-1, 2)
    return BlamedOps(places[:, 0], places[:, 1], np.array(list(found.values()), np.float64))


def _meeting(replayer: Replayer, meets: int, dp_rank: int) -> Ints:
    """The dp ranks that meet this one: all, those of its expert-parallel block, or it alone."""
    if meets == NO_PEERS:
        return np.array([dp_rank])
    block = replayer.peers.block
    return np.flatnonzero((block == block[dp_rank]) | (meets == ALL_DP_RANKS))


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


def _suspicion(case: Case, found: Stalls, stops: ComputationEvents, blamed: _Blamed) -> Suspicion:
    workers = blamed.workers
    lost = held_up(case, _is_one_of(case, workers))
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[stops.step] = True
    onset = onset_of_hits(case.steps, is_hit)
    or_memory = any(
        not blamed.sure[name] and _is_stage(case, of_host) for name, of_host in blamed.hosts.items()
    )
    confidence = CONFIDENCE if blamed.are_sure else CONFIDENCE_OF_COMPUTATIONS
    confidence = CONFIDENCE_OF_STAGE if or_memory else confidence
    trials = sum(int(found.trials[worker]) for worker in workers)
    fact = _fact(blamed, stops.size) + _OR_MEMORY * or_memory
    return Suspicion(
        cause=CpuContention.cause,
        score=confidence,
        confidence=confidence,
        max_confidence=confidence if or_memory or not blamed.are_named else 1.0,
        culprits=_culprits(case, blamed),
        wording=partial(finding_sentence, fact),
        repair=durations_repair(lost.longer.blamed_ops(case, lost.longer.least_s)),
        delays=delays_repair(
            _joined(lost.later.blamed_ops(case, lost.later.excess_s), _other_delays(case, workers))
        ),
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence=onset.persistence,
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "interrupted": stops.size,
            "share_interrupted": stops.size / max(1, trials),
            "usual_share": found.usual_share,
            "mean_stop_s": float(stops.excess_s.mean()) if stops.size else 0.0,
            "seconds_lost": lost.seconds_lost,
            "other_operations_late": blamed.are_sure,
        },
    )


def _culprits(case: Case, blamed: _Blamed) -> tuple[Culprit, ...]:
    """The hosts; the only worker of one that has one, and workers where no host is known."""
    if not blamed.are_named:
        return case.culprits(blamed.workers)
    return tuple(
        case.with_rank(Culprit(host=name) if len(workers) > 1 else Culprit(*workers[0], name))
        for name, workers in blamed.hosts.items()
    )


_USES = verb("uses", "used")


def _fact(blamed: _Blamed, num_stops: int) -> str:
    names = list(blamed.hosts)
    shown = (
        names[0]
        if len(names) == 1
        else f"{', '.join(names[:3])}"
        + (f" and {len(names) - 3} more hosts" if len(names) > 3 else "")
    )
    num_workers = len(blamed.workers)
    every = "both workers" if num_workers == 2 else f"all {plural(num_workers, 'worker')}"
    if not blamed.are_named:
        who = f"{shown}, which would fill {'one host' if len(names) == 1 else 'a host each'}, {ARE}"
    elif num_workers > len(names):
        who = f"{every} of {shown} {ARE}"
    elif num_workers == 1:
        who = f"the only worker of {shown} {IS}"
    else:
        who = f"the only workers of {shown} {ARE}"
    as_well = ", other operations too" if blamed.are_sure else ""
    return (
        f"{who} held up irregularly, in {num_stops:,} computations{as_well}: something else "
        f"{_USES} the CPUs of {'this host' if len(names) == 1 else 'these hosts'}"
    )
