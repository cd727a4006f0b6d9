"""slow-worker, another one each time: workers that are slow in turn, for a step or a few each.

`SlowWorker` names workers that are slow for longer; this is for turns too short for that.
"""

from functools import partial

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion, as_ratio, finding_sentence, names_of
from app.diagnosis.evidence.slow_steps import MIN_DEVIATIONS, Turns
from app.diagnosis.evidence.slowness import Slowness
from app.diagnosis.finding import confidence, worker_culprit
from app.diagnosis.repair import ShortenedComputations
from app.result.sentence import ARE, IS
from app.trace.window import Floats

_MAX_LISTED = 64
_SCORE = 0.9
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
    culprits = tuple(case.with_rank(worker_culprit(each, hosts)) for each in turns.workers)
    slow_steps = found.usual[turns.is_slow.any(axis=(1, 2))]
    fact = (
        f"{IN_TURN}{names_of(culprits)} {ARE} {as_ratio(turns.ratio)} slower than their peers in "
        "forward and backward"
    )
    return Suspicion(
        "slow-worker",
        _SCORE,
        min(_SCORE, confidence(turns.deviations, MIN_DEVIATIONS)),
        culprits,
        partial(finding_sentence, fact),
        repair=_repair(case, found, turns),
        badness=ratio.max(axis=1),
        persistence="rotating",
        evidence={
            "workers": [list(worker) for worker in turns.workers[:_MAX_LISTED]],
            "num_workers": len(turns.workers),
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[slow_steps].tolist(),
            "slowdown_against_peers": turns.ratio,
            "standard_errors": turns.deviations,
            "m_w": case.report.m_w,
        },
    )


def _repair(case: Case, found: Slowness, turns: Turns) -> ShortenedComputations:
    """Each slow step of a worker at its peers' speed."""
    factors = []
    for side in (found.forward, found.backward):
        factor = np.ones(found.ratio.shape)
        factor[found.usual] = np.where(turns.is_slow, side[found.usual], 1.0)
        factors.append(factor)
    return ShortenedComputations(case, *factors)
