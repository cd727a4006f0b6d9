"""slow-worker by arrivals alone, where durations of computations do not show it.

Computations may hide waits (docs/arrivals.md), and inside a worker only collectives are recorded:
then nothing but what the others waited for says who is slow.
"""

from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.finding import RuledOut
from app.diagnosis.late_workers import (
    MIN_SHARE,
    LateWorker,
    arrivals_evidence,
    gpu,
    late_workers,
)
from app.diagnosis.wording import percent, sentence, who

# Durations would leave less doubt.
_CONFIDENCE = 0.9
_MOST_LISTED = 64


class WaitedFor(Detector):
    """Ranks that the others wait for by their own doing, and whose computations are longer."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        step_s = float(case.report.recorded_s.mean())
        late = [
            each
            for each in case.ask(late_workers)
            if each.kind in ("compute", "unknown") and each.late.waited_for_s >= MIN_SHARE * step_s
        ]
        if not late:
            return RuledOut(self.cause, "the others wait for no rank that computes longer")
        return _suspicion(case, late, step_s)


def _suspicion(case: Case, late: list[LateWorker], step_s: float) -> Suspicion:
    worst = late[0]
    workers = list(dict.fromkeys(each.worker for each in late))
    named = [gpu(each) if each.is_inside else case.culprits([each.worker])[0] for each in late]
    # GPUs of one worker are different culprits.
    blamed = tuple({each.rank: each for each in named}.values())
    is_, its, them = ("is", "its", "it") if len(blamed) == 1 else ("are", "their", "them")
    fact = (
        f"{who(blamed)} {is_} late to {percent(worst.late.late_share)} of {its} collectives by "
        f"{its} own doing: the others wait {1e3 * worst.late.waited_for_s:.3g} ms for {them} in "
        "each step"
    )

    def wording(costed: Costed) -> str:
        return sentence(fact, costed)

    return Suspicion(
        WaitedFor.cause,
        _CONFIDENCE,
        _CONFIDENCE,
        blamed,
        wording,
        persistence="chronic",
        evidence={
            "workers": [list(worker) for worker in workers[:_MOST_LISTED]],
            "num_workers": len(workers),
            "optypes": [],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, worst.late.waited_for_s / step_s),
        },
    )
