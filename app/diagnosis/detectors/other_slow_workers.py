"""slow-worker where `SlowWorker` does not name one by its computations.

- Of the only dp rank: one stage takes far longer outside its micro-batches. Its forward and
  backward take what the others' do, so its share of the layers is no larger. The optimizer goes
  with the parameters, which embeddings add to the first and last stage only; one that takes many
  times as long for what its stage computes runs on a slow host or in slow memory. A stage with far
  more parameters looks alike, so the finding keeps that doubt.
- Workers that are slow in turn, for a step or a few each: another one each time.
- By arrivals: ranks that the others wait for, and that were not held up themselves. For jobs whose
  computations hide waits, or for a GPU inside of a worker, where durations show nothing.
"""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    as_ratio,
    is_plural,
    names_of,
    workers_evidence,
)
from app.diagnosis.detectors.late_host import one_by_one
from app.diagnosis.evidence.late_workers import LIMITS as LATENESS
from app.diagnosis.evidence.late_workers import LateWorker, arrivals_evidence, late_workers
from app.diagnosis.evidence.long_microbatches import has_longer_sequences
from app.diagnosis.evidence.slow_steps import Turns, workers_in_turn
from app.diagnosis.evidence.slowness import Slowness
from app.diagnosis.evidence.stage_operations import slow_stage_operation
from app.diagnosis.evidence.turns_of_few import LIMITS as TURN_LIMITS
from app.diagnosis.finding import confidence, worker_culprit
from app.diagnosis.repair import ShortenedComputations
from app.diagnosis.statistics.persistence import Onset
from app.formatting import percent, seconds
from app.result.finding import RuledOut
from app.result.words import ARE, IS, TAKE, TAKES, WAIT
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class OtherSlowLimits:
    """Thresholds of slow workers by their optimizer, in turn and by arrivals. All were chosen."""

    # Confidence in a slow optimizer: a larger share of the parameters looks alike,
    confidence_of_stage: float = 0.6
    # unless it was not slow before.
    confidence_to_past: float = 0.95
    # Score of workers that are slow in turn, and their confidence at most.
    score_in_turn: float = 0.9
    # Score and confidence by arrivals: lower than by durations, which show the computation itself.
    confidence_by_arrivals: float = 0.9


LIMITS = OtherSlowLimits()


def slow_optimizer(case: Case) -> Suspicion | None:
    """The stage of the only dp rank that is slow outside its micro-batches, if there is one."""
    if case.parallelism.dp_size > 1:
        return None
    slow = slow_stage_operation(case)
    if slow is None or slow.may_be_embeddings:
        return None
    culprits = case.culprits([(0, slow.stage)])
    takes = f"{names_of(culprits)} {TAKE if is_plural(culprits) else TAKES} {as_ratio(slow.ratio)}"
    doubt = 1.0 if slow.is_to_past else LIMITS.confidence_of_stage
    fact = (
        f"{takes} as long as before in the {slow.optype}"
        if slow.is_to_past
        else f"{takes} as long as the other stages in the {slow.optype} for what it computes: its "
        "GPU or host, or a far larger share of the parameters, which with one dp rank look alike"
    )
    return Suspicion(
        cause="slow-worker",
        score=slow.score,
        confidence=min(LIMITS.confidence_to_past, doubt),
        culprits=culprits,
        fact=fact,
        repair=slow.repair(case),
        badness=slow.badness,
        max_confidence=doubt,
        is_at_step_end=True,
        evidence={"workers": [[0, slow.stage]], **slow.evidence(case)},
    )


# How the facts of such findings begin.
IN_TURN = f"Another worker {IS} slow each time: in turn "


def rotating_suspicion(case: Case, slowness: Slowness, turns: Turns, earlier: Floats) -> Suspicion:
    """The suspicion of workers that are slow in turn.

    Args:
        case: the window.
        slowness: every worker against its peers.
        turns: those that are slow in turn.
        earlier: [earlier steps, dp, pp], ratios before the window; NaN where unknown.
    """
    dp_ranks, stages = zip(*turns.workers, strict=True)
    ratio = np.concatenate([earlier, slowness.ratio])[:, dp_ranks, stages]
    # One by one: a host or stage of which most workers had a turn has innocent ones, too.
    hosts = case.replay.window.hosts
    culprits = tuple(case.with_rank(worker_culprit(worker, hosts)) for worker in turns.workers)
    slow_steps = slowness.usual[turns.is_slow.any(axis=(1, 2))]
    fact = (
        f"{IN_TURN}{names_of(culprits)} {ARE} {as_ratio(turns.ratio)} slower than their peers in "
        "forward and backward"
    )
    return Suspicion(
        "slow-worker",
        LIMITS.score_in_turn,
        min(LIMITS.score_in_turn, confidence(turns.deviations, TURN_LIMITS.min_deviations)),
        culprits,
        fact,
        repair=_repair(case, slowness, turns),
        badness=ratio.max(axis=1),
        onset=Onset(None, "rotating"),
        evidence={
            **workers_evidence(turns.workers),
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[slow_steps].tolist(),
            "slowdown_against_peers": turns.ratio,
            "standard_errors": turns.deviations,
            "m_w": case.report.m_w,
        },
    )


def _repair(case: Case, slowness: Slowness, turns: Turns) -> ShortenedComputations:
    """Each slow step of a worker at its peers' speed."""
    is_slow = np.zeros(slowness.ratio.shape, np.bool_)
    is_slow[slowness.usual] = turns.is_slow
    forward, backward = (
        np.where(is_slow, side, 1.0) for side in (slowness.forward, slowness.backward)
    )
    return ShortenedComputations(case, forward, backward)


class SlowWorkerByArrivals(Detector):
    """Ranks that others wait for and that were not held up, with longer computations."""

    cause = "slow-worker"
    by_arrivals = True

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        step_s = float(case.report.recorded_s.mean())
        late = [
            worker
            for worker in late_workers(case)
            if worker.kind in ("compute", "unknown")
            # In the usual step: one long pause makes nobody slow.
            and float(np.median(worker.late.by_step_s)) >= LATENESS.min_share * step_s
            and not has_longer_sequences(case, worker.worker)
        ]
        if not late:
            return self.denied("the others wait for no rank that computes longer")
        if workers_in_turn(case) is not None:
            return self.denied("several workers are slow in turn, and some wait for others")
        return _suspicion_by_arrivals(case, late, step_s)


def _suspicion_by_arrivals(case: Case, late: list[LateWorker], step_s: float) -> Suspicion:
    worst, culprits = late[0], one_by_one(case, late)
    is_, its, them = (ARE, "their", "them") if is_plural(culprits) else (IS, "its", "it")
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} collectives "
        f"without waiting for another worker: the others {WAIT} "
        f"{seconds(worst.late.waited_for_s)} for {them} in each step"
    )
    return Suspicion(
        SlowWorkerByArrivals.cause,
        LIMITS.confidence_by_arrivals,
        LIMITS.confidence_by_arrivals,
        culprits,
        fact,
        onset=Onset(None, "chronic"),
        evidence={
            **workers_evidence(list(dict.fromkeys(worker.worker for worker in late))),
            "optypes": [],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, worst.late.waited_for_s / step_s),
        },
    )
