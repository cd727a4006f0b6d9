"""slow-worker by arrivals: ranks that the others wait for, and that were not held up themselves.

For jobs whose computations hide waits, or for a GPU inside of a worker, where durations show
nothing (slow_worker.py).
"""

from functools import partial

from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    finding_sentence,
    is_plural,
    names_of,
    percent,
)
from app.diagnosis.evidence.late_workers import (
    MIN_SHARE,
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_workers,
)
from app.diagnosis.evidence.slow_steps import workers_in_turn
from app.result.finding import RuledOut
from app.result.sentence import ARE, IS, WAIT

_MAX_LISTED = 64
# Lower than by durations.
_CONFIDENCE = 0.9


class SlowWorkerByArrivals(Detector):
    """Ranks that others wait for and that were not held up, with longer computations."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        step_s = float(case.report.recorded_s.mean())
        late = [
            each
            for each in case.cached(late_workers)
            if each.kind in ("compute", "unknown") and each.late.waited_for_s >= MIN_SHARE * step_s
        ]
        if not late:
            return RuledOut(self.cause, "the others wait for no rank that computes longer")
        if case.cached(workers_in_turn) is not None:
            return RuledOut(
                self.cause, "several workers are slow in turn, and some wait for others"
            )
        return _suspicion_by_arrivals(case, late, step_s)


def _suspicion_by_arrivals(case: Case, late: list[LateWorker], step_s: float) -> Suspicion:
    worst = late[0]
    workers = list(dict.fromkeys(each.worker for each in late))
    named = [
        gpu_culprit(each) if each.is_inside else case.culprits([each.worker])[0] for each in late
    ]
    # GPUs of one worker are separate culprits.
    culprits = tuple({each.rank: each for each in named}.values())
    is_, its, them = (ARE, "their", "them") if is_plural(culprits) else (IS, "its", "it")
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} collectives "
        f"without waiting for another worker: the others {WAIT} "
        f"{formatting.seconds(worst.late.waited_for_s)} for {them} in each step"
    )

    return Suspicion(
        SlowWorkerByArrivals.cause,
        _CONFIDENCE,
        _CONFIDENCE,
        culprits,
        partial(finding_sentence, fact),
        persistence="chronic",
        evidence={
            "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
            "num_workers": len(workers),
            "optypes": [],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, worst.late.waited_for_s / step_s),
        },
    )
