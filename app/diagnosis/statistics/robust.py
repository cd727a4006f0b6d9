"""Robust statistics: medians by selection, slow stretches of a series, and binomial tails."""

import math
from dataclasses import dataclass

import numpy as np

from app.engine.kernels import kernel
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints


@kernel
def kth_smallest(values, count, k):  # type: ignore[no-untyped-def]
    """The k-th smallest, from 0, of the first `count` values, which it reorders.

    Hoare's selection with the median of three as pivot.
    """
    first, last = 0, count - 1
    while last - first > 8:
        pivot = _median_of_three(values[first], values[(first + last) // 2], values[last])
        low, high = first, last
        while low <= high:
            while values[low] < pivot:
                low += 1
            while pivot < values[high]:
                high -= 1
            if low <= high:
                values[low], values[high] = values[high], values[low]
                low += 1
                high -= 1
        if k <= high:
            last = high
        elif k >= low:
            first = low
        else:
            return values[k]
    sort_few(values, first, last + 1)
    return values[k]


@kernel
def _median_of_three(one, other, third):  # type: ignore[no-untyped-def]
    return max(min(one, other), min(max(one, other), third))


@kernel
def sort_few(values, first, end):  # type: ignore[no-untyped-def]
    """Sort a few values in place."""
    for at in range(first + 1, end):
        value, to = values[at], at
        while to > first and values[to - 1] > value:
            values[to] = values[to - 1]
            to -= 1
        values[to] = value


@kernel
def median(values, count):  # type: ignore[no-untyped-def]
    """The median of the first `count` values, at least one, which it reorders."""
    upper = kth_smallest(values, count, count // 2)
    if count % 2:
        return upper
    # Values before the selected one are no larger.
    lower = values[0]
    for at in range(1, count // 2):
        lower = max(lower, values[at])
    return (lower + upper) / 2


def medians(values: Floats) -> Floats:
    """[...], medians of short rows [..., n] without NaN; faster than NumPy's."""
    rows = np.ascontiguousarray(values, np.float64).reshape(-1, values.shape[-1])
    found = np.empty(rows.shape[0])
    _medians(rows, found)
    return found.reshape(values.shape[:-1])


@kernel
def _medians(rows, found):  # type: ignore[no-untyped-def]
    values = np.empty(rows.shape[1])
    for row in range(found.size):
        values[:] = rows[row]
        found[row] = median(values, values.size)


def median_of(values: Floats) -> float:
    """The median of all values [...], NaN if one is NaN or there is none; faster than NumPy's."""
    return float(_median_of(np.asarray(values, np.float64).ravel()))


@kernel
def _median_of(values):  # type: ignore[no-untyped-def]
    if values.size == 0 or np.isnan(values).any():
        return np.nan
    return median(values.copy(), values.size)


def medians_of_known(values: Floats) -> Floats:
    """[...], medians of rows [..., n] without their NaN; NaN where all of a row are."""
    rows = np.ascontiguousarray(values, np.float64).reshape(-1, values.shape[-1])
    found = np.full(rows.shape[0], np.nan)
    _medians_of_known(rows, found)
    return found.reshape(values.shape[:-1])


@kernel
def _medians_of_known(rows, found):  # type: ignore[no-untyped-def]
    values = np.empty(rows.shape[1])
    for row in range(found.size):
        count = 0
        for value in rows[row]:
            if not np.isnan(value):
                values[count] = value
                count += 1
        if count:
            found[row] = median(values, count)


def lower_quantile(values: Floats, share: float) -> float:
    """The quantile of all values [...], at least one; the lower one of two values."""
    return float(np.sort(values, axis=None)[int(share * (values.size - 1))])


def quantile_of(values: Floats, share: float) -> float:
    """The quantile of all values [...] without NaN, as NumPy's by interpolation; faster."""
    return float(_quantile_of(np.asarray(values, np.float64).ravel(), share))


def quantiles(values: Floats, share: float) -> Floats:
    """[...], the same of each row [..., n]."""
    rows = np.ascontiguousarray(values, np.float64).reshape(-1, values.shape[-1])
    found = np.empty(rows.shape[0])
    _quantiles(rows, share, found)
    return found.reshape(values.shape[:-1])


@kernel
def _quantiles(rows, share, found):  # type: ignore[no-untyped-def]
    for row in range(found.size):
        found[row] = _quantile_of(rows[row], share)


@kernel
def _quantile_of(values, share):  # type: ignore[no-untyped-def]
    in_order = np.sort(values)
    place = share * (values.size - 1)
    lower = int(place)
    upper, after = min(lower + 1, values.size - 1), place - lower
    apart = in_order[upper] - in_order[lower]
    # As NumPy has it, exact at both ends.
    return in_order[lower] + apart * after if after < 0.5 else in_order[upper] - apart * (1 - after)


# Least spread, so that rounding is not significant.
MIN_SPREAD = 0.002


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
        """[series], the mean of a figure [steps, series] in each stretch; 1 where there is none."""
        means = np.ones(figure.shape[1])
        _means_in(figure, self.first, self.end, means)
        return means


@kernel
def _means_in(figure, first, end, means):  # type: ignore[no-untyped-def]
    for series in range(means.size):
        if end[series] > first[series]:
            total = 0.0
            for step in range(first[series], end[series]):
                total += figure[step, series]
            means[series] = total / (end[series] - first[series])


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
        return MIN_SPREAD
    ratio = ratio.reshape(ratio.shape[0], -1)
    if ratio.shape[0] < 2:
        level = ratio.mean(axis=0) if level is None else level
        away = np.abs(level - median_of(level))
        return max(MIN_SPREAD, MAD_TO_DEVIATION * median_of(away))
    # A change of level is in one difference only. No median, as sequence lengths have long tails.
    squares = squares_of_steps(ratio)
    return max(MIN_SPREAD, math.sqrt(float(squares.sum()) / squares.size / 2))


def squares_of_steps(series: Floats) -> Floats:
    """[series], mean squares of the differences between steps, of [steps, series], 2 steps or more.

    Half of it is the variance within a level.
    """
    found = np.zeros(series.shape[1])
    _squares_of_steps(np.ascontiguousarray(series), found)
    return found


@kernel
def _squares_of_steps(series, found):  # type: ignore[no-untyped-def]
    num_steps = series.shape[0]
    for step in range(1, num_steps):
        for at in range(found.size):
            found[at] += (series[step, at] - series[step - 1, at]) ** 2
    for at in range(found.size):
        found[at] /= num_steps - 1


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


# A hit by chance has so many times the typical share as probability, and at least MIN_CHANCE.
CHANCE_MARGIN = 2.0
MIN_CHANCE = 1e-3


def log_binomial_tail(hits: Ints, trials: Ints, chance: float) -> Floats:
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
