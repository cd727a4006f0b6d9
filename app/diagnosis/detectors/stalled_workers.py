"""allocator-stall and cpu-contention: few workers stop irregularly, forward and backward.

The memory allocator, or a false dependency, stops single workers, and only computations. Where
something else uses a host's CPUs, launches come late now and then and computations take longer on
every worker of the host; sends, collectives and the optimizer step are delayed as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, is_plural, names_of
from app.diagnosis.evidence.interruptions import (
    Interruptions,
    Stalls,
    is_one_of,
    joined,
    stalls,
    workers_where,
)
from app.diagnosis.evidence.late_workers import late_hosts
from app.diagnosis.evidence.stalled_workers import (
    HOST_SIZES,
    chance_of_one_host,
    held_up,
    held_up_by,
    launched_late,
    other_launches,
    others_late,
    rank_blocks,
    workers_by_host,
)
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Worker
from app.diagnosis.statistics.persistence import onset_of_losses
from app.diagnosis.statistics.robust import LIMITS as ROBUST_LIMITS
from app.diagnosis.statistics.robust import log_binomial_tail
from app.formatting import plural
from app.result.finding import Culprit, RuledOut
from app.result.words import ARE, IS, STOP, STOPS, verb
from app.trace.window import Ints


@dataclass(frozen=True, slots=True)
class StalledLimits:
    """Thresholds of allocator-stall and cpu-contention. All were chosen on made jobs."""

    # Stops in fewer steps may be a single event; fewer workers or hosts have no peer. Both by
    # reason.
    min_steps: int = 2
    min_workers: int = 2
    # A late host whose stops are late launches by this share has no other stops.
    min_share_of_launches: float = 0.9
    # Several workers of one host, by such a chance, are stopped by their host.
    max_chance_of_one_host: float = 0.05
    # A stop of an allocator: the score is 1 less its chance to this power, and the confidence so
    # much of the score.
    power_of_chance: float = 0.25
    confidence_of_score: float = 0.95
    # From here on contention. More workers than this share have no peers left.
    max_share_of_workers: float = 0.5
    # Probability that the other workers of a host, some of which clearly stop, do so by chance.
    max_chance_of_others: float = 1e-3
    # Probability that a worker of a host stops so rarely although its host stops it as often as the
    # others: below this it is not its host that stops them.
    max_chance_spared: float = 1e-2
    # Confidence with late starts of other operations,
    confidence: float = 0.9
    # without,
    confidence_of_computations: float = 0.75
    # and without on a host that holds one stage and nothing else.
    confidence_of_stage: float = 0.6


LIMITS = StalledLimits()


def _suspicion(
    case: Case,
    cause: str,
    workers: Sequence[Worker],
    culprits: tuple[Culprit, ...],
    fact: str,
    confidence: float,
    also_late: Interruptions | None = None,
) -> Suspicion:
    """What both causes say of workers that stop; `also_late` are launches beside computations."""
    of_all, chosen = stalls(case), is_one_of(case, workers)
    stops, lost = of_all.stops.of_workers(chosen), held_up(case, chosen)
    is_hit = stops.in_steps(case)
    return Suspicion(
        cause=cause,
        score=confidence,
        confidence=confidence,
        culprits=culprits,
        fact=fact,
        repair=lost.repair(case),
        delays=joined([lost, *([] if also_late is None else [also_late])]).delays(case),
        onset=onset_of_losses(case.steps, stops.seconds(case).sum(axis=(1, 2))),
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "interrupted": stops.size,
            "share_interrupted": stops.size / max(1, int(of_all.trials[chosen].sum())),
            "usual_share": of_all.usual_share,
            "mean_stop_s": float(stops.excess_s.mean()),
            "seconds_lost": float(lost.excess_s.sum()),
        },
    )


class AllocatorStall(Detector):
    """Irregular stops in forward and backward of few workers, whatever the sequence lengths."""

    cause = "allocator-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.num_workers < LIMITS.min_workers:
            return self.cannot_tell("the only worker has no peer to be compared with")
        of_all = stalls(case)
        late, stopped = of_all.late.counts(case), of_all.stops.counts(case)
        hosts = is_one_of(case, (host.worker for host in late_hosts(case)))
        is_late = hosts & (late >= LIMITS.min_share_of_launches * stopped)
        stalled = _stalled(case, of_all) & ~is_late
        if is_late.any() and not stalled.any():
            return self.denied(
                "the workers that stop are launched late before their computations, hardly any of "
                "which takes longer: that is work of their hosts"
            )
        if not stalled.any():
            return self.denied(
                "no worker has far more interrupted computations than the others have",
                usual_share=of_all.usual_share,
            )
        stops = of_all.stops.of_workers(stalled)
        num_steps = np.unique(stops.step).size
        if num_steps < LIMITS.min_steps:
            return self.cannot_tell(
                "computations of few workers were interrupted, all of them in one step",
                steps=num_steps,
            )
        workers = workers_where(stalled)
        chance = chance_of_one_host(case, workers) if len(workers) > 1 else 1.0
        if chance < LIMITS.max_chance_of_one_host:
            return self.cannot_tell(
                f"{len(workers):,} workers of one host stop irregularly, and none elsewhere: their "
                "memory allocators do so, or something else that uses the CPUs of the host",
                workers=len(workers),
            )
        culprits = case.culprits(workers)
        stop, its = (STOP, "their") if is_plural(culprits) else (STOPS, "its")
        log_chance = LIMITS.power_of_chance * of_all.log_chance[stalled].max()
        score = float(1 - np.exp(max(log_chance, -50.0)))
        fact = (
            f"{names_of(culprits)} {stop} for a while in {stops.size:,} of {its} computations, "
            "forward and backward, whatever their length"
        )
        suspicion = _suspicion(case, self.cause, workers, culprits, fact, score)
        return replace(suspicion, confidence=LIMITS.confidence_of_score * score)


def _stalled(case: Case, of_all: Stalls) -> NDArray[np.bool_]:
    """[dp, pp], few workers; or more of one stage, where others of it are spared."""
    frequent = workers_where(of_all.is_frequent)
    is_half = len(frequent) <= LIMITS.max_share_of_workers * case.num_workers
    if of_all.is_stalled.any() or not is_half or len({stage for _, stage in frequent}) != 1:
        return of_all.is_stalled
    stage = frequent[0][1]
    spared = np.flatnonzero(~of_all.is_frequent[:, stage]).tolist()
    others = [(dp_rank, stage) for dp_rank in spared]
    is_one_spared = _is_any_spared(of_all, of_all.stops.counts(case), frequent, others)
    return of_all.is_frequent if is_one_spared else of_all.is_stalled


class CpuContention(Detector):
    """Irregular stops of all workers of few hosts; of a lone worker with all its operations."""

    cause = "cpu-contention"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        of_all = stalls(case)
        stopped = of_all.is_frequent & ~launched_late(case, of_all)
        named = workers_by_host(case)
        hosts = named or _ranks_of_hosts(case, of_all, stopped)
        if len(hosts) < LIMITS.min_workers and (named or not hosts):
            known = "only one host is known" if hosts else "the hosts of the workers are not known"
            return self.cannot_tell(f"{known}, so that no host has another to compare with")
        blamed = {name: hosts[name] for name in _held_up(case, of_all, hosts, stopped)}
        num_workers = sum(map(len, blamed.values()))
        if not blamed or num_workers > LIMITS.max_share_of_workers * case.num_workers:
            return self.denied("no host has irregular stops on all of its workers")
        others = others_late(case)
        sure = {name for name in blamed if any(others[worker] for worker in blamed[name])}
        blamed = {
            name: workers
            for name, workers in blamed.items()
            if name in sure or len(workers) >= LIMITS.min_workers
        }
        if not blamed:
            return self.cannot_tell(
                "the only worker of a host stops irregularly, but only in and before computations: "
                "its memory allocator does the same"
            )
        workers = [worker for of_host in blamed.values() for worker in of_host]
        stops = of_all.stops.of_workers(is_one_of(case, workers))
        if np.unique(stops.step).size < LIMITS.min_steps:
            return self.cannot_tell("a host's workers were held up in one step only")
        return _contention(case, blamed, sure, stops.size, are_named=bool(named))


def _contention(
    case: Case, blamed: dict[str, list[Worker]], sure: set[str], num_stops: int, *, are_named: bool
) -> Suspicion:
    """Hosts, or blocks of ranks, with their workers; on `sure` ones other operations are late."""
    workers = [worker for of_host in blamed.values() for worker in of_host]
    are_sure = sure >= {*blamed}
    or_memory = any(name not in sure and _is_stage(case, blamed[name]) for name in blamed)
    confidence = LIMITS.confidence if are_sure else LIMITS.confidence_of_computations
    if or_memory:
        confidence = LIMITS.confidence_of_stage
    # A block of ranks may be no host; of a host that has one worker, that is named.
    culprits = (
        tuple(
            case.with_rank(Culprit(host=name) if len(of_host) > 1 else Culprit(*of_host[0], name))
            for name, of_host in blamed.items()
        )
        if are_named
        else case.culprits(workers)
    )
    fact = _fact(blamed, num_stops, are_sure=are_sure, are_named=are_named)
    launches = other_launches(case).of_workers(is_one_of(case, workers))
    suspicion = _suspicion(
        case,
        CpuContention.cause,
        workers,
        culprits,
        f"{fact}, or its stage has too little memory" if or_memory else fact,
        confidence,
        also_late=held_up_by(case, launches),
    )
    return replace(
        suspicion,
        max_confidence=confidence if or_memory or not are_named else 1.0,
        evidence={**suspicion.evidence, "other_operations_late": are_sure},
    )


def _ranks_of_hosts(
    case: Case, stalled: Stalls, stopped: NDArray[np.bool_]
) -> dict[str, list[Worker]]:
    """Without hosts' names: workers with successive ranks that fill hosts, all of them held up."""
    for size in HOST_SIZES:
        hosts = rank_blocks(case, stopped, size)
        num_inside = sum(bool(stopped[worker]) for of_host in hosts.values() for worker in of_host)
        is_all = num_inside == int(stopped.sum())
        if hosts and is_all and len(_held_up(case, stalled, hosts, stopped)) == len(hosts):
            return hosts
    return {}


def _held_up(
    case: Case, stalled: Stalls, hosts: dict[str, list[Worker]], stopped: NDArray[np.bool_]
) -> list[str]:
    """Hosts nearly all of whose workers stop, or some clearly and the others together.

    None of which some worker is spared: something else stops the others, such as their memory.
    """
    hits, held_up = stalled.stops.counts(case), []
    for name, workers in hosts.items():
        least = MIN_SHARE_OF_HOST * len(workers)
        others = [worker for worker in workers if not stopped[worker]]
        if _is_any_spared(stalled, hits, [worker for worker in workers if stopped[worker]], others):
            continue
        num_stopped = len(workers) - len(others)
        num_hit = num_stopped + sum(bool(hits[worker]) for worker in others)
        if num_stopped >= least or (
            num_stopped and num_hit >= least and _stop_often(stalled, hits, others)
        ):
            held_up.append(name)
    return held_up


def _is_any_spared(
    stalled: Stalls, hits: Ints, stopped: list[Worker], others: list[Worker]
) -> bool:
    """Whether one of the others stops too rarely, beyond chance, to be stopped as these are."""
    total, trials = (
        sum(int(counts[worker]) for worker in stopped) for counts in (hits, stalled.trials)
    )
    tried = [worker for worker in others if stalled.trials[worker]]
    if not 0 < total < trials or not tried:
        return False
    num = np.array([stalled.trials[worker] for worker in tried])
    goes_on = num - np.array([hits[worker] for worker in tried])
    log_chance = log_binomial_tail(goes_on, num, 1 - total / trials)
    return bool(log_chance.min() < np.log(LIMITS.max_chance_spared))


def _stop_often(stalled: Stalls, hits: Ints, workers: list[Worker]) -> bool:
    """Whether these workers together stop more often than the typical one, beyond chance."""
    total, trials = (
        sum(int(counts[worker]) for worker in workers) for counts in (hits, stalled.trials)
    )
    chance = min(
        0.5, max(ROBUST_LIMITS.chance_margin * stalled.usual_share, ROBUST_LIMITS.min_chance / 10)
    )
    log_chance = log_binomial_tail(np.array([total]), np.array([trials]), chance)
    return bool(log_chance[0] < np.log(LIMITS.max_chance_of_others))


def _is_stage(case: Case, workers: list[Worker]) -> bool:
    """Whether a host holds one stage and nothing else: the same memory to allocate on each."""
    stages = {stage for _, stage in workers}
    is_one = len(stages) == 1 and len(workers) == case.parallelism.dp_size
    return is_one and case.parallelism.pp_size > 1


_USES = verb("uses", "used")


def _fact(
    blamed: dict[str, list[Worker]], num_stops: int, *, are_sure: bool, are_named: bool
) -> str:
    names, num_workers = list(blamed), sum(map(len, blamed.values()))
    shown = ", ".join(names[:3])
    if len(names) > 3:
        shown += f" and {len(names) - 3} more hosts"
    every = "both workers" if num_workers == 2 else f"all {plural(num_workers, 'worker')}"
    if not are_named:
        one = "one host" if len(names) == 1 else "a host each"
        subject = f"{shown}, which would fill {one}, {ARE}"
    elif num_workers > len(names):
        subject = f"{every} of {shown} {ARE}"
    elif num_workers == 1:
        subject = f"the only worker of {shown} {IS}"
    else:
        subject = f"the only workers of {shown} {ARE}"
    as_well = ", other operations too" if are_sure else ""
    return (
        f"{subject} held up irregularly, in {num_stops:,} computations{as_well}: something else "
        f"{_USES} the CPUs of {'this host' if len(names) == 1 else 'these hosts'}"
    )
