"""In which steps is each of several slow workers slow: at once, or in turn?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.slowness import Slowness, slowness
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.change_points import MIN_SCALE
from app.diagnosis.statistics.persistence import rotation
from app.engine.medians import median_of
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Ints

# Workers that are slow in turn: fewer than so many are slow in the typical slow step.
MAX_AT_ONCE = 1.5


def slow_in_turn(case: Case, found: Slowness, workers: list[int]) -> Ints:
    """[usual steps], which culprit is slow in each, -1 for none; empty where several are at once.

    Where several workers are slow at once, those of one host are one culprit.
    """
    places = [divmod(worker, found.ratio.shape[2]) for worker in workers]
    dp_ranks, stages = zip(*places, strict=True)
    ratio = found.ratio[found.usual][:, dp_ranks, stages]
    is_slow = ratio - 1 >= (found.stretches.mean[workers] - 1) / 2
    hosts = case.replay.window.hosts
    for of_worker in (places, [hosts.get(place, place) for place in places]):
        named = list(dict.fromkeys(of_worker))
        culprit = np.array([named.index(name) for name in of_worker], np.int64)
        at_once = np.stack(
            [is_slow[:, culprit == number].any(axis=1) for number in range(len(named))]
        ).sum(axis=0)
        if at_once.any() and at_once[at_once > 0].mean() <= MAX_AT_ONCE:
            worst = culprit[np.where(is_slow, ratio, 0.0).argmax(axis=1)]
            return np.where(at_once > 0, worst, -1)
    return np.empty(0, np.int64)


# A worker is slow in a single step from this excess, and from so many robust deviations of all.
MIN_EXCESS = 0.1
MIN_DEVIATIONS = 6.0
# Workers slow in turn are slow in this share of the steps.
MIN_SHARE_OF_STEPS = 0.5
MIN_TURN_STEPS = 8
MIN_MICROBATCHES = 4
# A worker is named from so many turns, or from one that has this share of the usual excess and so
# many robust deviations.
MIN_TURNS = 2
SINGLE_OF_USUAL = 0.7
SINGLE_DEVIATIONS = 12.0


@dataclass(frozen=True, slots=True)
class Turns:
    """Workers that are slow in turn, each in steps of its own.

    `workers` by their share of the loss, without single turns that may be chance. `is_slow` [usual
    steps, dp, pp] has the turns of all, `ratio` is the mean slowdown in the turns of `workers`, and
    `deviations` how many robust ones the typical slow step shows.
    """

    workers: tuple[Worker, ...]
    is_slow: NDArray[np.bool_]
    ratio: float
    deviations: float


@evidence
def workers_in_turn(case: Case) -> Turns | None:
    """Workers that are slow in turn, a step or a few each; None where there are none.

    A slow step is one in which forward, backward and the shortest computation of one worker all are
    slower than its peers'. A stretch of such steps (`Slowness.stretches`) may be too short to tell
    a worker from chance; many of different workers are none. Long sequences slow down all stages
    of their dp rank and are left out, and where lengths vary nothing is concluded. With one stage
    that takes several micro-batches, which a few long sequences do not slow down all alike.
    """
    found = slowness(case)
    if found is None or found.has_no_peers or found.lengths_vary:
        return None
    if found.usual.size < MIN_TURN_STEPS:
        return None
    if case.parallelism.pp_size == 1 and _num_microbatches(case) < MIN_MICROBATCHES:
        return None
    sides = np.stack([side[found.usual] for side in (found.forward, found.backward, found.least)])
    scale = max(MIN_SCALE, *(MAD_TO_DEVIATION * median_of(np.abs(side - 1)) for side in sides))
    excess = sides.min(axis=0) - 1
    is_slow = excess >= max(MIN_EXCESS, MIN_DEVIATIONS * scale)
    if is_slow.shape[2] > 1:
        is_slow &= is_slow.sum(axis=2, keepdims=True) == 1
    at_once = is_slow.sum(axis=(1, 2))
    if (at_once > 0).sum() < max(MIN_SHARE_OF_STEPS * at_once.size, 1):
        return None
    if at_once[at_once > 0].mean() > MAX_AT_ONCE:
        return None
    flat = np.where(is_slow, excess, 0.0).reshape(at_once.size, -1)
    if rotation(np.where(at_once > 0, flat.argmax(axis=1), -1)) is None:
        return None
    # A single turn may be chance, unless it is as slow as the others' and far beyond the noise.
    usual = float(np.median(excess[is_slow]))
    is_far = is_slow & (excess >= max(SINGLE_OF_USUAL * usual, SINGLE_DEVIATIONS * scale))
    named = is_slow & ((is_slow.sum(axis=0) >= MIN_TURNS) | is_far.any(axis=0))
    if not named.any():
        return None
    flat = np.where(named, excess, 0.0).reshape(at_once.size, -1)
    order = np.argsort(-flat.sum(axis=0), kind="stable").tolist()
    workers = [divmod(worker, is_slow.shape[2]) for worker in order if flat[:, worker].any()]
    ratio = found.ratio[found.usual]
    return Turns(
        tuple(workers), is_slow, float(ratio[named].mean()), float(np.median(excess[named])) / scale
    )


def _num_microbatches(case: Case) -> int:
    """Fewest forward computations of a worker in a step."""
    return min(0 if group.forward is None else group.forward.rows.shape[1] for group in case.groups)
