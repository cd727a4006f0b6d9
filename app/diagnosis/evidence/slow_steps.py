"""In which steps is each of several slow workers slow: at once, or in turn?"""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.evidence.slowness import Slowness
from app.trace.window import Ints

# Workers that are slow in turn: fewer than so many are slow in the typical slow step.
MAX_AT_ONCE = 1.5


def slow_in_turn(case: Case, found: Slowness, workers: list[int]) -> Ints:
    """[usual steps], which culprit is slow in each, -1 for none; empty where several are at once.

    Where several workers are slow at once, those of one host are one culprit.
    """
    places = [divmod(each, found.ratio.shape[2]) for each in workers]
    dp_ranks, stages = zip(*places, strict=True)
    ratio = found.ratio[found.usual][:, dp_ranks, stages]
    is_slow = ratio - 1 >= (found.stretches.mean[workers] - 1) / 2
    hosts = case.replay.window.hosts
    for of_worker in (places, [hosts.get(each, each) for each in places]):
        named = list(dict.fromkeys(of_worker))
        culprit = np.array([named.index(each) for each in of_worker], np.int64)
        at_once = np.stack(
            [is_slow[:, culprit == each].any(axis=1) for each in range(len(named))]
        ).sum(axis=0)
        if at_once.any() and at_once[at_once > 0].mean() <= MAX_AT_ONCE:
            worst = culprit[np.where(is_slow, ratio, 0.0).argmax(axis=1)]
            return np.where(at_once > 0, worst, -1)
    return np.empty(0, np.int64)
