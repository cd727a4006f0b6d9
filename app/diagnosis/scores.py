"""How sure is sure? From how far a figure is beyond its limit to a score and a confidence."""

import numpy as np

from app.diagnosis.finding import MIN_SCORE
from app.trace.window import Floats


def score(figure: float, limit: float, certain: float) -> float:
    """0..1, 0.5 at the limit, 1 from `certain` on; figures are ratios, 1 = nothing at all."""
    return float(scores(np.array([figure]), limit, certain)[0])


def scores(figures: Floats, limit: float, certain: float) -> Floats:
    """The same of each of many figures."""
    below = MIN_SCORE * np.maximum(figures - 1, 0.0) / (limit - 1)
    beyond = np.log(np.maximum(figures, limit) / limit) / np.log(certain / limit)
    above = np.minimum(1.0, MIN_SCORE + (1 - MIN_SCORE) * beyond)
    return np.where(figures < limit, below, above)


def confidence(deviations: float, needed: float) -> float:
    """0.5..0.99, from how many standard errors a figure is away, of those that it needs."""
    beyond = max(0.0, deviations / needed - 1)
    return float(0.99 - 0.49 * np.exp(-1.5 * beyond))
