"""In which steps is a slow worker slow: always, now and then, or in turn with others?"""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.evidence.slowness import Slowness
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.episodes import episodes_of
from app.trace.window import Ints

# Workers that are slow in turn: fewer than so many are slow in the typical slow step.
MAX_AT_ONCE = 1.5


def slow_parts(found: Slowness, worker: int) -> Ints | None:
    """Positions of the steps in which a worker that comes and goes is slow; None for all others.

    `worker` is its position in `found.stretches`.
    """
    dp_rank, stage = divmod(worker, found.ratio.shape[2])
    episodes = episodes_of(found.ratio[found.usual, dp_rank, stage])
    if episodes is None or len(episodes.parts) < 2:
        return None
    return found.usual[episodes.positions]


def slow_in_turn(case: Case, found: Slowness, workers: list[int]) -> Ints:
    """[usual steps], which culprit is slow in each, -1 for none; empty where several are at once.

    Workers of one host are one culprit.
    """
    dp_ranks, stages = zip(*(divmod(each, found.ratio.shape[2]) for each in workers), strict=True)
    ratio = found.ratio[found.usual][:, dp_ranks, stages]
    is_slow = ratio - 1 >= (found.stretches.mean[workers] - 1) / 2
    culprit_of = _culprits(case, list(zip(dp_ranks, stages, strict=True)))
    of_culprit = np.stack(
        [is_slow[:, culprit_of == each].any(axis=1) for each in np.unique(culprit_of)], axis=1
    )
    at_once = of_culprit.sum(axis=1)
    if not at_once.any() or at_once[at_once > 0].mean() > MAX_AT_ONCE:
        return np.empty(0, np.int64)
    worst = culprit_of[np.where(is_slow, ratio, 0.0).argmax(axis=1)]
    return np.where(at_once > 0, worst, -1)


def _culprits(case: Case, workers: list[Worker]) -> Ints:
    """[workers], the same number for workers of one host."""
    hosts = case.replay.window.hosts
    named: dict[object, int] = {}
    return np.array(
        [named.setdefault(hosts.get(each, each), len(named)) for each in workers], np.int64
    )
