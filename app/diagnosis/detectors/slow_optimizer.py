"""slow-worker of a job with one dp rank: one stage takes far longer outside its micro-batches.

Its forward and backward take what the others' do, so its share of the layers is no larger. The
optimizer goes with the parameters, which embeddings add to the first and last stage only; one that
takes many times as long for what its stage computes runs on a slow host or in slow memory. A stage
with far more parameters looks alike, so the finding keeps that doubt.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    ENOUGH_STEPS,
    Suspicion,
    as_ratio,
    finding_sentence,
    is_plural,
    names_of,
)
from app.diagnosis.evidence.slow_operations import once_times
from app.diagnosis.finding import score
from app.diagnosis.repair import ShortenedTypes
from app.result.sentence import TAKE, TAKES
from app.trace.window import Floats

# So many times the other stages' time for what the stage computes; embeddings of small models
# reach five times at either end.
MIN_RATIO = 3.0
MIN_RATIO_AT_ENDS = 6.0
_CERTAIN_RATIO = 12.0
# In a quarter of the steps it may be less.
_LOW_QUANTILE = 0.25
# Two explanations look alike.
MAX_CONFIDENCE = 0.6


@dataclass(frozen=True, slots=True)
class _SlowStage:
    """A stage that is slow in one type; `ratio` to the others for what it computes."""

    optype: str
    stage: int
    ratio: float
    compute_ratio: float


def slow_optimizer(case: Case) -> Suspicion | None:
    """The worker with the highest ratio, if that is beyond what parameters explain."""
    if case.forward is None or case.backward is None or case.usual_steps.size < ENOUGH_STEPS:
        return None
    if case.parallelism.dp_size > 1 or case.parallelism.pp_size < 2:
        return None
    compute_s = (case.forward.mean_s + case.backward.mean_s)[case.usual_steps, 0]
    found = [
        _slowest(optype, took_s[case.usual_steps, 0], compute_s)
        for optype, took_s in once_times(case).items()
    ]
    slow = [each for each in found if each is not None]
    return _suspicion(case, max(slow, key=lambda each: each.ratio)) if slow else None


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


def _suspicion(case: Case, slow: _SlowStage) -> Suspicion:
    workers = [(0, slow.stage)]
    culprits = tuple(case.with_rank(each) for each in case.culprits(workers))
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
        confidence=MAX_CONFIDENCE,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=ShortenedTypes(case, {slow.optype: factors}),
        persistence="chronic",
        max_confidence=MAX_CONFIDENCE,
        is_at_step_end=True,
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": [slow.optype],
            "steps": case.steps[case.usual_steps].tolist(),
            "slowdown_for_computations": slow.ratio,
            "slowdown_in_computations": slow.compute_ratio,
        },
    )
