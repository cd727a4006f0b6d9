"""How likely is it by chance?"""

from math import exp, lgamma, log, log1p

import numpy as np

from app.trace.window import Floats, Ints


def at_least(hits: int, trials: int, chance: float) -> float:
    """P(X >= hits) of a binomial, summed term by term."""
    if hits <= 0:
        return 1.0
    if chance <= 0.0 or hits > trials:
        return 0.0
    if chance >= 1.0:
        return 1.0
    of_all = lgamma(trials + 1)
    terms = (
        exp(
            of_all
            - lgamma(k + 1)
            - lgamma(trials - k + 1)
            + k * log(chance)
            + (trials - k) * log1p(-chance)
        )
        for k in range(hits, min(trials, hits + _TERMS) + 1)
    )
    return min(1.0, sum(terms))


# Terms beyond fall off too fast to matter, wherever a tail is small enough to be asked for.
_TERMS = 10_000


def log_at_least(hits: Ints, trials: Ints, chance: float) -> Floats:
    """Upper bound of log P(X >= hits) of many binomials (Chernoff); 0 up to the mean.

        log P <= -trials * KL(hits / trials, chance)

    Args:
        hits: at most as many as trials.
        trials: 1 or more each.
        chance: above 0, below 1.
    """
    share = hits / trials
    found, beyond = np.zeros(share.shape), share > chance
    if not beyond.any():
        return found
    share, trials = share[beyond], trials[beyond]
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - chance)), 0.0)
    found[beyond] = -trials * (share * np.log(share / chance) + missed)
    return found
