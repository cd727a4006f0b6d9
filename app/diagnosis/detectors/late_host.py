"""late-host: a host launches late, though its GPU computes as fast as its peers.

Reasons are Python between operations, garbage collection, data waits or a busy CPU. It shows as
ranks that are late themselves (docs/arrivals.md) without longer computations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    is_plural,
    names_of,
    steps_of,
    workers_evidence,
)
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.idle_time import idle_in_steps_s
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    interruptions_of,
    is_one_of,
)
from app.diagnosis.evidence.job_changes import launch_lateness
from app.diagnosis.evidence.late_launches import (
    LAUNCHED_LATER_S,
    LateLaunchers,
    late_launchers,
    late_launches,
    steady_delay_s,
)
from app.diagnosis.evidence.late_workers import (
    DelayKind,
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_hosts,
)
from app.diagnosis.evidence.launch_lags import is_held_up_by_host
from app.diagnosis.evidence.slow_operations import BACKWARD, FORWARD
from app.diagnosis.evidence.slowness import slowness
from app.diagnosis.finding import Worker
from app.diagnosis.repair import Repair, ShortenedComputations
from app.diagnosis.statistics.persistence import Onset
from app.formatting import percent, seconds
from app.result.finding import Culprit, RuledOut
from app.result.words import ARE, BEGIN, BEGINS, IS, LAUNCH, LAUNCHES, TAKE, WAIT

# Reasons in `late_because`, and in the sentence.
_REASONS: dict[DelayKind, tuple[str, str]] = {
    "host": ("unknown host work", "work between operations that is not recorded"),
    "gc": ("gc", "garbage collection"),
    "data-wait": ("data-wait", "waits for data"),
}


@dataclass(frozen=True, slots=True)
class LateHostLimits:
    """Thresholds of late-host; who counts as late: evidence/late_workers.py."""

    # Score and confidence, chosen.
    confidence: float = 0.9
    # A worker begins its steps late if so much of the waiting for it is before its first forward.
    min_share_at_begin: float = 0.5
    # From this ratio on to its peers' computations are not said to take no longer: above that by
    # which healthy GPUs differ.
    longer: float = 1.04


LIMITS = LateHostLimits()


class LateHost(Detector):
    """Workers that others wait for, though they compute no longer than their peers."""

    cause = "late-host"
    by_arrivals = True

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        by_arrivals = self._by_arrivals(case)
        # Others wait through stages as well, which no collective shows.
        is_hidden = isinstance(by_arrivals, RuledOut) and case.parallelism.pp_size > 1
        late = late_launchers(case) if is_hidden else None
        return by_arrivals if late is None else _by_launches(case, late)

    def _by_arrivals(self, case: Case) -> Suspicion | RuledOut:
        if case.replay.arrivals is None:
            return self.cannot_tell(
                "no collective was recorded by several ranks, so that none can be seen to be late"
            )
        hosts = late_hosts(case)
        if not hosts:
            return self.denied(
                "no rank that computes as its peers do is late to collectives in most steps",
                largest_share=case.replay.arrivals.largest_share,
            )
        hosts = [host for host in hosts if not _varies_with_all(case, host)]
        if not hosts:
            return self.cannot_tell(
                "all workers begin their steps later than the others wait for the latest one: that "
                "one may be the last by chance"
            )
        # What data-loading and gc-pause name is left to them, if there are other late hosts.
        loading = data_waits(case).waits
        others = [
            host
            for host in hosts
            if host.kind != "gc" and not (host.kind == "data-wait" and loading[host.worker])
        ]
        return _suspicion(case, others or hosts)


def _varies_with_all(case: Case, host: LateWorker) -> bool:
    """Whether it only begins somewhat later than all do, who are idle for longer."""
    begins_late_s = float(data_waits(case).delay_s[:, *host.worker].mean())
    waited_s = host.late.waited_for_s
    is_at_begin = begins_late_s >= LIMITS.min_share_at_begin * waited_s
    return host.kind == "host" and is_at_begin and idle_in_steps_s(case).mean() >= waited_s


# Delays of which the client sends rows.
_RECORDED: set[DelayKind] = {"gc", "data-wait"}


def _suspicion(case: Case, hosts: list[LateWorker]) -> Suspicion:
    """One suspicion for all late hosts, most waited for first."""
    workers = list(dict.fromkeys(host.worker for host in hosts))
    culprits = (
        one_by_one(case, hosts)
        if any(host.is_inside for host in hosts)
        else case.culprits(host.worker for host in hosts)
    )
    worst, kinds = hosts[0], dict.fromkeys(host.kind for host in hosts)
    share = worst.late.waited_for_s / float(case.report.recorded_s.mean())
    is_, its = (ARE, "their") if is_plural(culprits) else (IS, "its")
    launches = f"{its} host {LAUNCHES}" if len(culprits) == 1 else f"their hosts {LAUNCH}"
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} "
        f"collectives{_of_computations(case, hosts, its)}: {launches} late, because of "
        f"{' and '.join(_REASONS[kind][1] for kind in kinds)}"
    )
    paused = [host.worker for host in hosts if host.kind == "gc"]
    pauses = interruptions_of(case, InterruptionKind.LONG_BY_GC).of_workers(is_one_of(case, paused))
    return Suspicion(
        cause=LateHost.cause,
        score=LIMITS.confidence,
        confidence=LIMITS.confidence,
        culprits=culprits,
        fact=fact,
        repair=pauses.repair(case) if paused else _at_peers_pace(case, hosts),
        delays=late_launches(case, workers).delays(case),
        badness=launch_lateness(case, workers),
        onset=Onset(None, "chronic"),
        basis="recorded"
        if all(host.sets_pace or host.kind in _RECORDED for host in hosts)
        else "concluded",
        evidence={
            **workers_evidence(workers),
            "late_because": _REASONS[worst.kind][0],
            "host_sets_pace": any(host.sets_pace for host in hosts),
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, share),
        },
    )


def _by_launches(case: Case, late: LateLaunchers) -> Suspicion:
    """Workers that launch every computation late, whoever waits for them."""
    culprits, num_steps = case.culprits(late.workers), case.steps.size
    often = "" if len(late.steps) == num_steps else f" {steps_of(len(late.steps), num_steps)}"
    begin, its, host = (BEGIN, "their", "hosts") if is_plural(culprits) else (BEGINS, "its", "host")
    return Suspicion(
        cause=LateHost.cause,
        score=LIMITS.confidence,
        confidence=LIMITS.confidence,
        culprits=culprits,
        fact=f"{names_of(culprits)} {begin} each of {its} computations {seconds(late.later_s)} "
        f"after {its} inputs {ARE} there{often}: {its} {host} "
        f"{LAUNCH if host == 'hosts' else LAUNCHES} late, because of {_REASONS['host'][1]}",
        delays=late_launches(case, late.workers).delays(case),
        badness=launch_lateness(case, late.workers),
        evidence={
            **workers_evidence(late.workers),
            "late_because": _REASONS["host"][0],
            "steps": late.steps,
            LAUNCHED_LATER_S: late.later_s,
        },
    )


def _of_computations(case: Case, hosts: list[LateWorker], its: str) -> str:
    """How long their computations take, as far as that says whether the host is late."""
    if any(host.sets_pace for host in hosts):
        return f", and {its} longer computations {WAIT} for launches, which were recorded"
    ratios = slowness(case)
    longest = 1.0
    if ratios is not None and not ratios.has_no_peers:
        usual = [side[ratios.usual].mean(axis=0) for side in (ratios.forward, ratios.backward)]
        longest = max(float(side[host.worker]) for side in usual for host in hosts)
    if longest >= LIMITS.longer:
        return ""
    return f", though {its} computations {TAKE} no longer than {its} peers'"


def _at_peers_pace(case: Case, hosts: list[LateWorker]) -> Repair | None:
    """The computations for which these hosts set the pace, at their peers' pace."""
    workers, ratios = [host.worker for host in hosts if host.sets_pace], slowness(case)
    if not workers or ratios is None:
        return None
    forward, backward = np.ones((2, *ratios.forward.shape))
    of_sides = (
        (FORWARD, forward, ratios.forward),
        (BACKWARD, backward, ratios.backward),
    )
    for optype, factor, side in of_sides:
        for dp_rank, stage in workers:
            if is_held_up_by_host(case, (dp_rank, stage), optype):
                factor[:, dp_rank, stage] = np.maximum(1.0, side[:, dp_rank, stage])
    return ShortenedComputations(case, forward, backward)


def one_by_one(case: Case, late: list[LateWorker]) -> tuple[Culprit, ...]:
    """Late workers as separate culprits; of one with several GPUs the late GPUs."""
    culprits = [
        gpu_culprit(worker) if worker.is_inside else case.culprits([worker.worker])[0]
        for worker in late
    ]
    return tuple({culprit.rank: culprit for culprit in culprits}.values())


def with_late_launches(case: Case, slow: Suspicion, workers: Sequence[Worker]) -> Suspicion:
    """Long computations with their late launches, where all launches of these workers are late.

    One fault of a host makes both late, and costs both.
    """
    later_s = steady_delay_s(case, workers, slow.evidence["steps"])
    if later_s is None:
        return slow
    its, host = ("their", "hosts") if is_plural(slow.culprits) else ("its", "host")
    return replace(
        slow,
        fact=f"{slow.fact}, and {its} {host} {LAUNCH if host == 'hosts' else LAUNCHES} each of "
        f"{its} computations {seconds(later_s)} late",
        delays=late_launches(case, workers).delays(case),
        evidence={**slow.evidence, LAUNCHED_LATER_S: later_s},
    )
