"""Since when has a series been as it is? Bayesian online change-point detection.

Adams and MacKay (2007), with a normal series of unknown mean and variance: at each value the
weights of all moments at which the present run may have begun are multiplied by how well that run
predicts the value (a Student t), and a share of them goes to a run that begins with it.
"""

from functools import cache
from math import lgamma, log, pi

import numpy as np

from app.engine.compiled import kernel
from app.trace.window import Floats

# A change in so many steps is expected; a wrong guess costs little, as it enters as a logarithm.
STEPS_A_CHANGE = 250.0
# How sure we are of a variance before the first value: as if by so many values.
PRIOR_VALUES = 4.0
# Levels of runs lie about so far from each other, in logarithms.
LEVEL_SPREAD = 0.5
# Runs less likely than this are forgotten; they never become likely again in a few steps.
FORGET_BELOW = 1e-12


def began_at(values: Floats, scale: float, forget_below: float = FORGET_BELOW) -> Floats:
    """How likely the present run began at each position, [positions now, positions of beginning].

    `values` [n] are finite logarithms, and `scale` is about their standard deviation within a run.
    """
    weights = np.zeros((values.size, values.size))
    began = np.empty(values.size + 1, np.int64)
    figures = np.empty((4, values.size + 1))
    table = predictive_table(values.size)
    centre = float(np.median(values))
    num_runs = 0
    for now, value in enumerate(values):
        num_runs = advance(value, now, num_runs, began, figures, centre, scale, table, forget_below)
        weights[now, began[:num_runs]] = figures[3, :num_runs]
    return weights


@cache
def predictive_table(size: int) -> Floats:
    """[size + 1], the logarithm of a t density's constant after so many values."""
    freedom = PRIOR_VALUES + np.arange(size + 1)
    return np.array([lgamma((n + 1) / 2) - lgamma(n / 2) - log(pi * n) / 2 for n in freedom])


@kernel
def advance(  # type: ignore[no-untyped-def]
    value, now, num_runs, began, figures, centre, scale, table, forget_below
):
    """Number of runs that are still likely, with one more value; `began` and `figures` are theirs.

    Rows of `figures`: number of values, their mean, sum of squares about it, weight of the run.
    """
    kappa_0 = (scale / LEVEL_SPREAD) ** 2
    half_0 = PRIOR_VALUES * scale * scale / 2
    hazard = 1.0 / STEPS_A_CHANGE
    figures[0, num_runs] = figures[1, num_runs] = figures[2, num_runs] = 0.0
    figures[3, num_runs] = 1.0 if num_runs == 0 else hazard
    began[num_runs] = now
    most = -np.inf
    for run in range(num_runs + 1):
        count, mean = figures[0, run], figures[1, run]
        kappa, freedom = kappa_0 + count, PRIOR_VALUES + count
        from_centre = mean - centre
        level = centre + count * from_centre / kappa
        half = half_0 + figures[2, run] / 2 + kappa_0 * count * from_centre**2 / (2 * kappa)
        spread = half * 2 / freedom * (kappa + 1) / kappa
        away = (value - level) ** 2 / (spread * freedom)
        log_density = table[int(count)] - np.log(spread) / 2 - (freedom + 1) / 2 * np.log1p(away)
        share = 1.0 if run == num_runs else 1.0 - hazard
        figures[3, run] = np.log(figures[3, run] * share) + log_density
        most = max(most, figures[3, run])
        figures[0, run] = count + 1
        figures[1, run] = mean + (value - mean) / (count + 1)
        figures[2, run] += (value - mean) * (value - figures[1, run])
    total = 0.0
    for run in range(num_runs + 1):
        figures[3, run] = np.exp(figures[3, run] - most)
        total += figures[3, run]
    kept = 0
    for run in range(num_runs + 1):
        weight = figures[3, run] / total
        if weight >= forget_below:
            began[kept] = began[run]
            figures[0, kept], figures[1, kept] = figures[0, run], figures[1, run]
            figures[2, kept], figures[3, kept] = figures[2, run], weight
            kept += 1
    return kept
