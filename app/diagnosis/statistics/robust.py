"""Robust statistics: medians by selection, slow stretches of a series, and binomial tails."""

import math
from dataclasses import dataclass

import numpy as np

from app.engine.kernels import kernel
from app.engine.medians import median_of
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class RobustLimits:
    """Least spreads and chances, which no series shows by itself. All were chosen."""

    # Standard deviation of a ratio, so that rounding is not significant.
    min_spread: float = 0.002
    # A hit by chance has so many times the typical share as probability, as a healthy series may
    # have twice as many hits as the typical one, and at least `min_chance`: 1 of 1,000 trials.
    chance_margin: float = 2.0
    min_chance: float = 1e-3


LIMITS = RobustLimits()


def lower_quantile(values: Floats, share: float) -> float:
    """The quantile of all values [...], at least one; the lower one of two values."""
    return float(np.sort(values, axis=None)[int(share * (values.size - 1))])


def quantile_of(values: Floats, share: float) -> float:
    """The quantile of all values [...] without NaN, as NumPy's by interpolation; faster."""
    return float(quantiles(values.reshape(1, -1), share)[0])


def quantiles(values: Floats, share: float) -> Floats:
    """[...], the same of each row [..., n]."""
    in_order = np.sort(values, axis=-1)
    place = share * (values.shape[-1] - 1)
    lower, after = int(place), place - int(place)
    low, high = in_order[..., lower], in_order[..., min(lower + 1, values.shape[-1] - 1)]
    # As NumPy has it, exact at both ends.
    between = low + (high - low) * after if after < 0.5 else high - (high - low) * (1 - after)
    return np.asarray(between)


@dataclass(frozen=True, slots=True)
class Stretches:
    """The stretch [first, end) of each series with the largest excess above 1.

    `mean` of the series in it, and how many `standard_errors` that is above 1; all [series].
    """

    first: Ints
    end: Ints
    mean: Floats
    standard_errors: Floats

    def means_of(self, figure: Floats) -> Floats:
        """[..., series], means of a figure [..., steps, series] in each stretch; 1 without one."""
        at = np.arange(figure.shape[-2])[:, None]
        inside = (at >= self.first) & (at < self.end)
        sums = np.where(inside, figure, 0.0).sum(axis=-2)
        is_some = self.end > self.first
        return np.where(is_some, sums / np.where(is_some, self.end - self.first, 1), 1.0)


def stretches(ratio: Floats, spread: float, least: float) -> Stretches:
    """The slowest stretch of each series.

    Args:
        ratio: [steps, series], 1.0 where a worker is as fast as its peers.
        spread: standard deviation of single ratios.
        least: the smallest excess above 1 that counts.
    """
    num_series = ratio.shape[1]
    first, end = np.zeros(num_series, np.int64), np.zeros(num_series, np.int64)
    mean = np.ones(num_series)
    _stretches(np.ascontiguousarray(ratio.T), max(least, spread) / 2, first, end, mean)
    return Stretches(first, end, mean, (mean - 1) * np.sqrt(end - first) / spread)


def spread_of_steps(ratio: Floats, level: Floats | None = None) -> float:
    """Standard deviation of ratios [steps, ...series] within a series, without changes of level.

    With a single step it is the spread of `level` [series] instead, by default the series' means.
    """
    if not ratio.size:
        return LIMITS.min_spread
    ratio = ratio.reshape(ratio.shape[0], -1)
    if ratio.shape[0] < 2:
        level = ratio.mean(axis=0) if level is None else level
        away = np.abs(level - median_of(level))
        return max(LIMITS.min_spread, MAD_TO_DEVIATION * median_of(away))
    # A change of level is in one difference only. No median, as sequence lengths have long tails.
    squares = squares_of_steps(ratio)
    return max(LIMITS.min_spread, math.sqrt(float(squares.sum()) / squares.size / 2))


def squares_of_steps(series: Floats) -> Floats:
    """[series], mean squares of the differences between steps, of [steps, series], 2 steps or more.

    Half of it is the variance within a level.
    """
    apart = series[1:] - series[:-1]
    return np.asarray((apart * apart).sum(axis=0) / len(apart))


@kernel
def _stretches(ratio, drift, first, end, mean):  # type: ignore[no-untyped-def]
    num_series, num_steps = ratio.shape
    for series in range(num_series):
        total, best, began = 0.0, 0.0, 0
        for step in range(num_steps):
            if total <= 0.0:
                total, began = 0.0, step
            total += ratio[series, step] - 1.0 - drift
            if total > best:
                best, first[series], end[series] = total, began, step + 1
        if end[series] > first[series]:
            mean[series] = ratio[series, first[series] : end[series]].mean()


def hit_chance(typical_share: float, least: float | None = None) -> float:
    """Probability of a hit by chance where the typical series has this share of hits, at most 1/2.

    At least `min_chance`, or `least` where this is given.
    """
    least = LIMITS.min_chance if least is None else least
    return min(0.5, max(LIMITS.chance_margin * typical_share, least))


def log_binomial_tail(hits: Ints, trials: Ints, chance: float) -> Floats:
    """Upper bound of log P(X >= hits) of many binomials (Chernoff); 0 up to the mean.

        log P <= -trials * KL(hits / trials, chance)

    Args:
        hits: at most as many as trials.
        trials: 1 or more each.
        chance: above 0, below 1.
    """
    share = hits / trials
    log_chance, beyond = np.zeros(share.shape), share > chance
    share, trials = share[beyond], trials[beyond]
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - chance)), 0.0)
    log_chance[beyond] = -trials * (share * np.log(share / chance) + missed)
    return log_chance
