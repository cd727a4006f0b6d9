"""Which suspicions cannot be held where workers are absent (app.trace.imputation)?

An absent worker's computations are its peers' medians, so that it is never suspected by its own
times. Three readings of the others need it, and are withheld:

- a stage is long because its only recorded dp rank is slow, or its only dp rank is slow because the
  stage is long: these look alike;
- collectives of its dp group may take long because all wait for it;
- a suspicion that blames only absent workers.
"""

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.suspicions import deny
from app.formatting import plural
from app.result import causes
from app.result.finding import RuledOut


def absent_from_most(case: Case) -> NDArray[np.bool_]:
    """[dp, pp], workers that are absent from most of the window's steps: they count as unknown."""
    return np.asarray(case.report.is_absent.mean(axis=2) > 0.5)


def doubted_by_absence(case: Case, suspicion: Suspicion) -> RuledOut | None:
    """The reason against a suspicion that absent workers may explain; None where they do not."""
    if case.replay.window.imputed is None or suspicion.cause == causes.SILENT_WORKER:
        return None
    workers = suspicion.workers
    absent = absent_from_most(case)
    if workers and all(absent[worker] for worker in workers):
        reason = f"it blames only {_named(case, absent)}, of which nothing was recorded"
        return deny(suspicion, reason, insufficient=True)
    if (stage := _lone_stage(case, suspicion, absent)) is not None:
        reason = (
            f"of stage {stage} only one dp rank was recorded, as {_named(case, absent)} "
            f"{_is(absent)} missing: a long stage and a slow GPU there look alike"
        )
        return deny(suspicion, reason, insufficient=True)
    if suspicion.evidence.get("only_collectives"):
        ever = np.asarray(case.report.is_absent.any(axis=2))
        stages = sorted({stage for _, stage in workers})
        absent = np.zeros_like(ever)
        absent[:, stages] = ever[:, stages]
        if absent.any():
            reason = f"all ranks of the group may be waiting for {_named(case, absent)}, which "
            return deny(suspicion, f"{reason}{_is(absent)} missing", insufficient=True)
    return None


def _lone_stage(case: Case, suspicion: Suspicion, absent: NDArray[np.bool_]) -> int | None:
    """A suspected stage, or one of a suspected worker, of which one dp rank only is known."""
    if case.parallelism.dp_size == 1 or suspicion.cause not in (
        causes.STAGE_IMBALANCE,
        causes.SLOW_WORKER,
    ):
        return None
    num_known = (~absent).sum(axis=0)
    stages = {culprit.stage for culprit in suspicion.culprits if culprit.stage is not None}
    return next((stage for stage in sorted(stages) if num_known[stage] < 2), None)


def _named(case: Case, absent: NDArray[np.bool_]) -> str:
    rank = case.replay.groups[0].grid.rank
    ranks = sorted(int(rank[tuple(worker)]) for worker in np.argwhere(absent))
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= 3:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"{plural(len(ranks), 'rank')}, the first of which is {ranks[0]},"


def _is(absent: NDArray[np.bool_]) -> str:
    return "is" if absent.sum() == 1 else "are"
