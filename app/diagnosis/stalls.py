"""Which few workers are stopped here and there, in both directions, when the others are not?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.at_once import at_once
from app.diagnosis.case import Case
from app.diagnosis.events import Events, joined, late_ones, long_ones
from app.diagnosis.tails import log_at_least
from app.trace.window import Floats, Ints

# A stop: the computation, or the delay before it, is longer than it should be by so much of what
# the computation should take.
STOPPED = 0.35
# A late one at least so many times the usual delay too.
TIMES_USUAL = 20.0
# Of all workers together, that chance should make any of them look stopped.
BY_CHANCE = 1e-6
# And of that worker in either direction alone, so that it is both.
BY_CHANCE_EITHER = 0.1
# The chance of a stop is taken to be so many times that of the typical worker, and no smaller, or
# up to ten times smaller where as many computations were seen.
MARGIN = 2.0
LEAST_CHANCE = 1e-3
# More than this share of the workers are not few.
FEW = 0.34


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stopped computations, and whose they are.

    `stops` are all of them, of all workers, and `late` those of them that were launched late;
    `trials` [dp, pp], how many computations each worker has in the usual steps; `is_stalled`
    [dp, pp]; `usual_share`, the typical worker's share of stopped computations; `log_chance`
    [dp, pp], how likely each worker's number is if it is like the typical one (natural logarithm).
    """

    stops: Events
    late: Events
    trials: Ints
    is_stalled: NDArray[np.bool_]
    usual_share: float
    log_chance: Floats


def stalls(case: Case) -> Stalls:
    """Workers with far more stopped computations than the typical one, forward and backward.

    A step's first forward may wait for data, so that only its length counts; and what stops
    everybody at once is none of theirs.
    """
    late = _in_usual_steps(case, _later(case))
    stops = joined([_in_usual_steps(case, _longer(case)), late])
    trials = _trials(case)
    hits = stops.counts(case)
    log_all = _log_chance(hits, 2 * trials, _typical(hits / (2 * trials)))
    often = log_all + np.log(trials.size) < np.log(BY_CHANCE)
    is_stalled = _both_ways(case, stops, late, trials, often)
    few = is_stalled.sum() <= max(1.0, FEW * trials.size)
    share = _typical(hits / (2 * trials))
    return Stalls(stops, late, 2 * trials, is_stalled & few, share, log_all)


def _both_ways(
    case: Case, stops: Events, late: Events, trials: Ints, often: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[dp, pp], those of the workers stopped `often` that are so in both directions.

    Beside such a one others that are launched late as well may show little of one direction.
    """
    if not often.any():
        return often
    surely, ever = often.copy(), often & (late.counts(case) > 0)
    for backward in (False, True):
        hits = stops.where(stops.is_backward == backward).counts(case)
        others = float(hits[~often].sum() / max(1, trials[~often].sum()))
        usual = max(_typical(hits / trials), others / MARGIN)
        surely &= _log_chance(hits, trials, usual) < np.log(BY_CHANCE_EITHER)
        ever &= hits > 0
    return np.asarray(surely | (ever & surely.any()))


def _longer(case: Case) -> Events:
    found = case.ask(long_ones)
    found = found.where(found.ratio >= 1 + STOPPED)
    return found.where(~at_once(case, found))


def _later(case: Case) -> Events:
    found = late_ones(
        case,
        lambda late: ~late.is_first,
        lambda late: np.full(late.rows.size, TIMES_USUAL * late.usual_s),
    )
    return found.where(found.ratio >= 1 + STOPPED)


def _in_usual_steps(case: Case, events: Events) -> Events:
    return events.where(case.is_usual[events.step])


def _trials(case: Case) -> Ints:
    """[dp, pp], computations of one direction in the usual steps, of each worker."""
    num_usual = [int(case.is_usual[case.at(group)].sum()) for group in case.groups]
    each = sum(
        found.num_ops.max(axis=0) * steps
        for found, steps in zip(case.outliers, num_usual, strict=True)
    )
    return np.broadcast_to(
        np.maximum(each, 1), (case.parallelism.dp_size, case.parallelism.pp_size)
    )


def _log_chance(hits: Ints, trials: Ints, usual: float) -> Floats:
    """[dp, pp], of so many hits, where the usual worker has this share."""
    least = min(LEAST_CHANCE, max(LEAST_CHANCE / 10, 1.0 / trials.sum()))
    chance = min(0.5, max(MARGIN * usual, least))
    return log_at_least(np.minimum(hits, trials), trials, chance)


def _typical(shares: Floats) -> float:
    """The lower median: of two workers, one that is stopped must not speak for both."""
    return float(np.sort(shares, axis=None)[(shares.size - 1) // 2])
