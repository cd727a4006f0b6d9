"""late-host: a host launches late, though its GPU computes as fast as its peers.

Reasons are Python between operations, garbage collection, data waits or a busy CPU. It shows as
ranks that are late themselves (docs/arrivals.md) without longer computations.
"""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, is_plural, names_of, workers_evidence
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    Interruptions,
    interruptions_of,
    is_one_of,
    joined,
    no_rows,
    rows_of_group,
)
from app.diagnosis.evidence.job_changes import launch_lateness
from app.diagnosis.evidence.late_workers import (
    DelayKind,
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_hosts,
)
from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.persistence import Onset
from app.formatting import percent
from app.result.finding import Culprit, RuledOut
from app.result.words import ARE, IS, TAKE, verb

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


LIMITS = LateHostLimits()


class LateHost(Detector):
    """Workers that others wait for, though they compute no longer than their peers."""

    cause = "late-host"
    by_arrivals = True

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
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
        # What data-loading and gc-pause name is left to them, if there are other late hosts.
        loading = data_waits(case).waits
        others = [
            host
            for host in hosts
            if host.kind != "gc" and not (host.kind == "data-wait" and loading[host.worker])
        ]
        return _suspicion(case, others or hosts)


_LAUNCHES, _LAUNCH = verb("launches", "launched"), verb("launch", "launched")


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
    launches = f"{its} host {_LAUNCHES}" if len(culprits) == 1 else f"their hosts {_LAUNCH}"
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} "
        f"collectives, though {its} computations {TAKE} no longer than {its} peers': {launches} "
        f"late, because of {' and '.join(_REASONS[kind][1] for kind in kinds)}"
    )
    paused = [host.worker for host in hosts if host.kind == "gc"]
    pauses = interruptions_of(case, InterruptionKind.LONG_BY_GC).of_workers(is_one_of(case, paused))
    return Suspicion(
        cause=LateHost.cause,
        score=LIMITS.confidence,
        confidence=LIMITS.confidence,
        culprits=culprits,
        fact=fact,
        repair=pauses.repair(case) if paused else None,
        delays=_late_launches(case, workers).delays(case),
        badness=launch_lateness(case, workers),
        onset=Onset(None, "chronic"),
        evidence={
            **workers_evidence(workers),
            "late_because": _REASONS[worst.kind][0],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, share),
        },
    )


def one_by_one(case: Case, late: list[LateWorker]) -> tuple[Culprit, ...]:
    """Late workers as separate culprits; of one with several GPUs the late GPUs."""
    culprits = [
        gpu_culprit(worker) if worker.is_inside else case.culprits([worker.worker])[0]
        for worker in late
    ]
    return tuple({culprit.rank: culprit for culprit in culprits}.values())


def _late_launches(case: Case, workers: list[Worker]) -> Interruptions:
    """Launch delays of their computations above their peers' median, without known pauses."""
    parts, paused = [no_rows(case)], interruptions_of(case, InterruptionKind.LATE_BY_GC)
    is_peer = ~is_one_of(case, workers)
    for number, group in enumerate(case.groups):
        num_steps, computes = len(group.steps), group.compute_rows
        late_s = launch_delays_s(group.replayer, computes)
        here = paused.where(paused.group == number)
        late_s[np.searchsorted(computes, here.row), here.lane] -= here.excess_s
        late_s = late_s.reshape(computes.size, -1, num_steps)
        for dp_rank, stage in workers:
            at = np.flatnonzero(group.replayer.template.stage[computes] == stage)
            peers = is_peer[:, stage]
            usual_s = np.median(late_s[at][:, peers], axis=1) if peers.any() else 0.0
            own_s = np.maximum(0.0, late_s[at, dp_rank] - usual_s).ravel()
            lane = np.tile(dp_rank * num_steps + np.arange(num_steps), at.size)
            of_ops = (np.repeat(computes[at], num_steps), lane, own_s, 0.0)
            parts.append(rows_of_group(case, number, InterruptionKind.LATE, *of_ops))
    return joined(parts)
