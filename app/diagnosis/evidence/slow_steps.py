"""In which steps is each of several slow workers slow: at once, or in turn?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence import turns_of_few
from app.diagnosis.evidence.slowness import Slowness, slowness
from app.diagnosis.finding import Worker
from app.diagnosis.statistics import change_points
from app.diagnosis.statistics.persistence import rotation
from app.engine.medians import median_of
from app.engine.metrics import MAD_TO_DEVIATION
from app.result.finding import Persistence


@dataclass(frozen=True, slots=True)
class SlowStepLimits:
    """When workers are slow in turn, beside `turns_of_few.LIMITS`. All were chosen on made jobs."""

    # Mean number of slow workers of a step with any: otherwise several are slow at once.
    max_at_once: float = 1.5
    # Usual steps, and micro-batches where there is one stage: of fewer, noise looks like turns.
    min_steps: int = 8
    min_microbatches: int = 4
    # A worker is named from so many turns, or from one that has this share of the usual excess and
    # so many robust deviations, twice those of a slow step.
    min_turns: int = 2
    single_of_usual: float = 0.7
    single_deviations: float = 12.0


LIMITS = SlowStepLimits()


def rotation_of(case: Case, peers: Slowness, workers: list[int]) -> Persistence | None:
    """Whether these workers, or the hosts of those that are slow at once, are slow in turn."""
    places = [divmod(worker, peers.ratio.shape[2]) for worker in workers]
    dp_ranks, stages = zip(*places, strict=True)
    ratio = peers.ratio[peers.usual][:, dp_ranks, stages]
    is_slow = ratio - 1 >= (peers.stretches.mean[workers] - 1) / 2
    hosts = case.replay.window.hosts
    for of_worker in (places, [hosts.get(place, place) for place in places]):
        named = list(dict.fromkeys(of_worker))
        culprit = np.array([named.index(name) for name in of_worker], np.int64)
        at_once = np.stack(
            [is_slow[:, culprit == number].any(axis=1) for number in range(len(named))]
        ).sum(axis=0)
        if at_once.any() and at_once[at_once > 0].mean() <= LIMITS.max_at_once:
            lost = np.where(is_slow, ratio - 1, 0.0)
            worst = np.where(at_once > 0, culprit[lost.argmax(axis=1)], -1)
            return rotation(worst, lost.max(axis=1))
    return None


@dataclass(frozen=True, slots=True)
class Turns:
    """Workers that are slow in turn, every one of them in steps of its own.

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
    peers, of_step = slowness(case), turns_of_few.LIMITS
    if peers is None or peers.has_no_peers or peers.lengths_vary:
        return None
    if peers.usual.size < LIMITS.min_steps:
        return None
    if case.parallelism.pp_size == 1 and _num_microbatches(case) < LIMITS.min_microbatches:
        return None
    sides = np.stack([side[peers.usual] for side in (peers.forward, peers.backward, peers.least)])
    deviations = [MAD_TO_DEVIATION * median_of(np.abs(side - 1)) for side in sides]
    scale = max(change_points.LIMITS.min_scale, *deviations)
    excess = sides.min(axis=0) - 1
    is_slow = excess >= max(of_step.min_excess, of_step.min_deviations * scale)
    if is_slow.shape[2] > 1:
        is_slow &= is_slow.sum(axis=2, keepdims=True) == 1
    at_once = is_slow.sum(axis=(1, 2))
    if (at_once > 0).sum() < max(of_step.min_share_of_steps * at_once.size, 1):
        return None
    if at_once[at_once > 0].mean() > LIMITS.max_at_once:
        return None
    flat = np.where(is_slow, excess, 0.0).reshape(at_once.size, -1)
    worst = np.where(at_once > 0, flat.argmax(axis=1), -1)
    if rotation(worst, flat.max(axis=1)) is None:
        return None
    # A single turn may be chance, unless it is as slow as the others' and far beyond the noise.
    usual = float(np.median(excess[is_slow]))
    least = max(LIMITS.single_of_usual * usual, LIMITS.single_deviations * scale)
    is_far = is_slow & (excess >= least)
    named = is_slow & ((is_slow.sum(axis=0) >= LIMITS.min_turns) | is_far.any(axis=0))
    if not named.any():
        return None
    flat = np.where(named, excess, 0.0).reshape(at_once.size, -1)
    order = np.argsort(-flat.sum(axis=0), kind="stable").tolist()
    workers = [divmod(worker, is_slow.shape[2]) for worker in order if flat[:, worker].any()]
    ratio = float(peers.ratio[peers.usual][named].mean())
    return Turns(tuple(workers), is_slow, ratio, float(np.median(excess[named])) / scale)


def _num_microbatches(case: Case) -> int:
    """Fewest forward computations of a worker in a step."""
    return min(0 if group.forward is None else group.forward.rows.shape[1] for group in case.groups)
