"""The figures of the paper and shared statistics, one function each; needs NumPy only."""

from math import exp, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

from app.result.figures import EQUAL_TIMES, num_slowest_workers
from app.trace.window import Floats, Ints

# Standard deviations of a normal variable in its median absolute deviation.
MAD_TO_DEVIATION = 1.4826


def slowdown(actual_s: Floats, ideal_s: Floats) -> Floats:
    """S = T / T_ideal, of the means over the last axis, the steps (Eq. 1 and 2)."""
    return np.asarray(actual_s.mean(axis=-1) / ideal_s.mean())


def known_slowdown(actual_s: Floats, ideal_s: Floats, is_known: NDArray[np.bool_]) -> Floats:
    """[...], S over the steps that are known of each, NaN without any.

    Shapes: `actual_s` and `is_known` [..., steps], `ideal_s` [steps].
    """
    total_s = np.where(is_known, actual_s, 0.0).sum(axis=-1)
    least_s = np.where(is_known, ideal_s, 0.0).sum(axis=-1)
    unknown: Floats = np.full(total_s.shape, np.nan)
    return np.asarray(np.divide(total_s, least_s, out=unknown, where=least_s > 0))


def recovered_share(actual_s: Floats, repaired_s: Floats, ideal_s: Floats) -> float | None:
    """Share of the lost time won back by giving some operations their ideal duration.

        M = (T - T_fix) / (T - T_ideal)                                     (Eq. 5)

    None where T = T_ideal. Below 0 or above 1 where the ideal of one mean over all stages makes
    others slower.
    """
    lost_s = actual_s.mean() - ideal_s.mean()
    if abs(lost_s) <= EQUAL_TIMES * ideal_s.mean():
        return None
    return float((actual_s.mean() - repaired_s.mean()) / lost_s)


def discrepancy(simulated_s: Floats, recorded_s: Floats) -> float:
    """|simulated - recorded| / recorded, of the mean step times (docs/glossary.md)."""
    return float(abs(simulated_s.mean() - recorded_s.mean()) / recorded_s.mean())


def slowest_workers(slowdown: Floats, rank: Ints) -> NDArray[np.bool_]:
    """[dp, pp], the slowest 3 % of workers, at least one; ties go to the lowest rank (Eq. 5)."""
    order = np.lexsort((rank.ravel(), -slowdown.ravel()))
    chosen = np.zeros(slowdown.size, np.bool_)
    chosen[order[: num_slowest_workers(slowdown.size)]] = True
    return chosen.reshape(slowdown.shape)


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """P(X >= hits) of a binomial, summed until a term is below 1e-12 of the sum."""
    if hits <= 0:
        return 1.0
    if chance <= 0.0 or hits > trials:
        return 0.0
    if chance >= 1.0:
        return 1.0
    total, all_ways = 0.0, lgamma(trials + 1)
    for count in range(hits, trials + 1):
        ways = all_ways - lgamma(count + 1) - lgamma(trials - count + 1)
        term = exp(ways + count * log(chance) + (trials - count) * log1p(-chance))
        total += term
        if term < 1e-12 * total:
            break
    return min(total, 1.0)
