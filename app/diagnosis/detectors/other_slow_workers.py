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
from functools import partial

import numpy as np
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    ENOUGH_STEPS,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    is_plural,
    names_of,
    percent,
    workers_evidence,
)
from app.diagnosis.evidence.late_workers import (
    MIN_SHARE,
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_workers,
)
from app.diagnosis.evidence.slow_operations import once_times
from app.diagnosis.evidence.slow_steps import MIN_DEVIATIONS, Turns, workers_in_turn
from app.diagnosis.evidence.slowness import Slowness
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.finding import confidence, score, worker_culprit
from app.diagnosis.repair import ShortenedComputations, ShortenedTypes
from app.result.finding import RuledOut
from app.result.sentence import ARE, IS, TAKE, TAKES, WAIT
from app.trace.window import Floats

# So many times the other stages' time for what the stage computes; embeddings of small models
# reach five times at either end.
MIN_RATIO = 3.0
MIN_RATIO_AT_ENDS = 6.0
_CERTAIN_RATIO = 12.0
# In a quarter of the steps it may be less.
_LOW_QUANTILE = 0.25
# Two explanations look alike.
_CONFIDENCE_OF_STAGE = 0.6


@dataclass(frozen=True, slots=True)
class _SlowStage:
    """A stage that is slow in one type; `ratio` to the others for what it computes."""

    optype: str
    stage: int
    ratio: float
    compute_ratio: float


def slow_optimizer(case: Case) -> Suspicion | None:
    """The worker with the highest ratio, if that is beyond what parameters explain."""
    if case.forward is None or case.backward is None or usual_steps(case).size < ENOUGH_STEPS:
        return None
    if case.parallelism.dp_size > 1 or case.parallelism.pp_size < 2:
        return None
    compute_s = (case.forward.mean_s + case.backward.mean_s)[usual_steps(case), 0]
    found = [
        _slowest(optype, took_s[usual_steps(case), 0], compute_s)
        for optype, took_s in once_times(case).items()
    ]
    slow = [stage for stage in found if stage is not None]
    return _suspicion_of_stage(case, max(slow, key=lambda stage: stage.ratio)) if slow else None


def _slowest(optype: str, took_s: Floats, compute_s: Floats) -> _SlowStage | None:
    """Of one type; arguments [usual steps, pp] in seconds."""
    share = np.divide(took_s, compute_s, out=np.zeros_like(took_s), where=compute_s > 0)
    stage = int(np.median(share, axis=0).argmax())
    others = np.median(np.delete(share, stage, axis=1), axis=1)
    if not (others > 0).all():
        return None
    ratios = share[:, stage] / others
    is_end = stage in (0, share.shape[1] - 1)
    if np.quantile(ratios, _LOW_QUANTILE) < (MIN_RATIO_AT_ENDS if is_end else MIN_RATIO):
        return None
    of_others_s = np.median(np.delete(compute_s, stage, axis=1), axis=1)
    return _SlowStage(
        optype,
        stage,
        float(np.median(ratios)),
        float(np.median(compute_s[:, stage] / of_others_s)),
    )


def _suspicion_of_stage(case: Case, slow: _SlowStage) -> Suspicion:
    workers = [(0, slow.stage)]
    culprits = tuple(map(case.with_rank, case.culprits(workers)))
    sizes = (case.steps.size, 1, case.parallelism.pp_size)
    factors = np.ones(sizes)
    factors[:, 0, slow.stage] = slow.ratio
    fact = (
        f"{names_of(culprits)} {TAKE if is_plural(culprits) else TAKES} {as_ratio(slow.ratio)} as "
        f"long as the other stages in the "
        f"{slow.optype} for what it computes: its GPU or host, or a far larger share of the "
        "parameters, which with one dp rank look alike"
    )
    return Suspicion(
        cause="slow-worker",
        score=score(slow.ratio, MIN_RATIO, _CERTAIN_RATIO),
        confidence=_CONFIDENCE_OF_STAGE,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=ShortenedTypes(case, {slow.optype: factors}),
        persistence="chronic",
        max_confidence=_CONFIDENCE_OF_STAGE,
        is_at_step_end=True,
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": [slow.optype],
            "steps": case.steps[usual_steps(case)].tolist(),
            "slowdown_for_computations": slow.ratio,
            "slowdown_in_computations": slow.compute_ratio,
        },
    )


_SCORE_IN_TURN = 0.9
# How the facts of such findings begin.
IN_TURN = f"Another worker {IS} slow each time: in turn "


def rotating_suspicion(case: Case, found: Slowness, turns: Turns, earlier: Floats) -> Suspicion:
    """The suspicion of workers that are slow in turn.

    Args:
        case: the window.
        found: every worker against its peers.
        turns: those that are slow in turn.
        earlier: [earlier steps, dp, pp], ratios before the window; NaN where unknown.
    """
    dp_ranks, stages = zip(*turns.workers, strict=True)
    ratio = np.concatenate([earlier, found.ratio])[:, dp_ranks, stages]
    # One by one: a host or stage of which most workers had a turn has innocent ones, too.
    hosts = case.replay.window.hosts
    culprits = tuple(case.with_rank(worker_culprit(worker, hosts)) for worker in turns.workers)
    slow_steps = found.usual[turns.is_slow.any(axis=(1, 2))]
    fact = (
        f"{IN_TURN}{names_of(culprits)} {ARE} {as_ratio(turns.ratio)} slower than their peers in "
        "forward and backward"
    )
    return Suspicion(
        "slow-worker",
        _SCORE_IN_TURN,
        min(_SCORE_IN_TURN, confidence(turns.deviations, MIN_DEVIATIONS)),
        culprits,
        partial(finding_sentence, fact),
        repair=_repair(case, found, turns),
        badness=ratio.max(axis=1),
        persistence="rotating",
        evidence={
            **workers_evidence(turns.workers),
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[slow_steps].tolist(),
            "slowdown_against_peers": turns.ratio,
            "standard_errors": turns.deviations,
            "m_w": case.report.m_w,
        },
    )


def _repair(case: Case, found: Slowness, turns: Turns) -> ShortenedComputations:
    """Each slow step of a worker at its peers' speed."""
    is_slow = np.zeros(found.ratio.shape, np.bool_)
    is_slow[found.usual] = turns.is_slow
    forward, backward = (np.where(is_slow, side, 1.0) for side in (found.forward, found.backward))
    return ShortenedComputations(case, forward, backward)


# Lower than by durations.
_CONFIDENCE_BY_ARRIVALS = 0.9


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
            and worker.late.waited_for_s >= MIN_SHARE * step_s
        ]
        if not late:
            return self.denied("the others wait for no rank that computes longer")
        if workers_in_turn(case) is not None:
            return self.denied("several workers are slow in turn, and some wait for others")
        return _suspicion_by_arrivals(case, late, step_s)


def _suspicion_by_arrivals(case: Case, late: list[LateWorker], step_s: float) -> Suspicion:
    worst = late[0]
    workers = list(dict.fromkeys(rank.worker for rank in late))
    named = [
        gpu_culprit(rank) if rank.is_inside else case.culprits([rank.worker])[0] for rank in late
    ]
    # GPUs of one worker are separate culprits.
    culprits = tuple({culprit.rank: culprit for culprit in named}.values())
    is_, its, them = (ARE, "their", "them") if is_plural(culprits) else (IS, "its", "it")
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} collectives "
        f"without waiting for another worker: the others {WAIT} "
        f"{formatting.seconds(worst.late.waited_for_s)} for {them} in each step"
    )

    return Suspicion(
        SlowWorkerByArrivals.cause,
        _CONFIDENCE_BY_ARRIVALS,
        _CONFIDENCE_BY_ARRIVALS,
        culprits,
        partial(finding_sentence, fact),
        persistence="chronic",
        evidence={
            **workers_evidence(workers),
            "optypes": [],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, worst.late.waited_for_s / step_s),
        },
    )
