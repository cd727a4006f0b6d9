"""When did a series change its level, and since when is it as high as now?

Bayesian online change-point detection (Adams and MacKay, 2007) for a normal series of unknown mean
and variance: each value multiplies the weight of every run (every position at which the current
level may have begun) by its predictive density, a Student t; a share of the weight goes to a new
run. A detected change counts if both levels are known from enough steps and differ by 10 %, as in
Greyhound (Wu et al., USENIX ATC 2025); it is placed at the most likely step. Several jumps in one
direction may be replaced by a ramp.

Call `level_changes` or `latest_onset`. Kernels work on the logarithms of one series.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import lgamma, log, pi
from typing import NamedTuple

import numpy as np

from app.engine.kernels import kernel
from app.engine.medians import median
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

# The prior. Expected steps between changes; the logarithm enters, so a wrong guess costs little.
STEPS_PER_CHANGE = 250.0
# Weight of the prior of the variance, in values.
PRIOR_VALUES = 4.0
# Standard deviation between levels, in logarithms.
LEVEL_SPREAD = 0.5
# Runs less likely than this are dropped.
FORGET_BELOW = 1e-12
# On either side of a value whose running median is taken.
NEIGHBOURS = 2


class ChangeCriteria(NamedTuple):
    """What a change must show, as kernels take it.

    `before` and `after` are the values needed on either side, `difference` the least one of the
    logarithms of the levels; the rest are fields of `ChangeLimits`. Three standard errors are added
    to the measured difference: otherwise half of all changes of exactly that size would be missed.
    """

    before: int
    after: int
    difference: float
    min_evidence: float
    min_deviations: float
    extra_deviations: float
    max_chance: float
    outlier_deviations: float
    min_scale: float


@dataclass(frozen=True, slots=True)
class ChangeLimits:
    """From when on a level of a series has changed. Chosen, unless a comment names a source.

    With these, 95 of 100 changes of 10 % and more are placed within two steps, and no healthy
    series has one (tests/diagnosis/statistics/test_change_points.py).
    """

    # Steps with known values before and after a change: fewer do not give a level.
    min_before: int = 4
    min_after: int = 3
    # Ratio of the levels: a change of 10 % (Greyhound, Wu et al., USENIX ATC 2025).
    min_ratio: float = 1.10
    # Posterior probability that a change has taken place (Greyhound).
    min_evidence: float = 0.9
    # Standard errors between the levels, and more of them where few values give the error: the
    # second one is divided by the degrees of freedom.
    min_deviations: float = 5.0
    extra_deviations: float = 20.0
    # Probability that a heavy-tailed series has such a stretch by chance: 1 of 200 series.
    max_chance: float = 0.005
    # Values are clipped at so many standard deviations from their neighbours' median: a normal
    # series has 3 of 1,000 beyond.
    outlier_deviations: float = 3.0
    # Least standard deviation of a series, in logarithms, so that one without noise has no change
    # by rounding.
    min_scale: float = 0.005
    # Information criterion (twice the log likelihood) that a ramp gains over the jumps: from 6 on
    # evidence counts as strong (Kass and Raftery, 1995).
    min_ramp_gain: float = 6.0
    # Steps of a ramp: fewer are a jump within a step.
    min_ramp_steps: int = 4
    # Changes in one direction at most so many steps apart may be one ramp.
    max_between_stairs: int = 16

    def criteria(self, before: int, after: int, ratio: float) -> ChangeCriteria:
        """What a change by this ratio must show, with so many values on either side."""
        of_limits = (getattr(self, name) for name in ChangeCriteria._fields[3:])
        return ChangeCriteria(before, after, float(np.log(ratio)), *of_limits)

    @property
    def usual(self) -> ChangeCriteria:
        """What a change of any series must show, unless its reader asks for more."""
        return self.criteria(self.min_before, self.min_after, self.min_ratio)


LIMITS = ChangeLimits()


@cache
def predictive_table(size: int) -> Floats:
    """[size + 1], logarithms of the t density's constant after each number of values."""
    freedom = PRIOR_VALUES + np.arange(size + 1)
    return np.array([lgamma((n + 1) / 2) - lgamma(n / 2) - log(pi * n) / 2 for n in freedom])


@kernel
def advance(  # type: ignore[no-untyped-def]
    value, now, num_runs, began, figures, centre, scale, table, forget_below
):
    """Update the runs by one value and return how many remain; `began` and `figures` are theirs.

    Rows of `figures`: number of values, their mean, sum of squares about it, weight of the run.
    """
    kappa_0 = (scale / LEVEL_SPREAD) ** 2
    half_0 = PRIOR_VALUES * scale * scale / 2
    hazard = 1.0 / STEPS_PER_CHANGE
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


@kernel
def scale_of(logs, min_scale):  # type: ignore[no-untyped-def]
    """Standard deviation within a level, by differences: a change adds one outlier only."""
    away = np.empty(logs.size - 1)
    for at in range(away.size):
        away[at] = abs(logs[at + 1] - logs[at])
    return max(min_scale, MAD_TO_DEVIATION * median(away, away.size) / np.sqrt(2.0))


@kernel
def clip_outliers(logs, reach, near, smooth, clipped):  # type: ignore[no-untyped-def]
    """Fills in running medians, and the logarithms clipped at `reach` around them."""
    for at in range(logs.size):
        # At either end the window of five is not shortened: two outliers are no new level.
        first = min(max(0, at - NEIGHBOURS), max(0, logs.size - 2 * NEIGHBOURS - 1))
        end = max(min(logs.size, at + NEIGHBOURS + 1), min(logs.size, 2 * NEIGHBOURS + 1))
        for place in range(first, end):
            near[place - first] = logs[place]
        smooth[at] = median(near, end - first)
        clipped[at] = min(max(logs[at], smooth[at] - reach), smooth[at] + reach)


def without_outliers(logs: Floats) -> Floats:
    """[n], logarithms clipped around their running medians; a copy."""
    if logs.size < 2:
        return logs.copy()
    near, smooth, clipped = np.empty(2 * NEIGHBOURS + 1), np.empty(logs.size), np.empty(logs.size)
    reach = LIMITS.outlier_deviations * scale_of(logs, LIMITS.min_scale)
    clip_outliers(logs, reach, near, smooth, clipped)
    return clipped


@kernel
def may_change(logs, scale, criteria):  # type: ignore[no-untyped-def]
    """Whether `is_change` may hold for any split; a quick check before the search.

    Levels are means of at least `shortest` values, so some stretch of less than twice as many has
    a mean at least as high, and another one as low.
    """
    size = logs.size
    sums = np.zeros(size + 1)
    for at in range(size):
        sums[at + 1] = sums[at] + logs[at]
    shortest = min(criteria.before, criteria.after)
    low, high = np.inf, -np.inf
    for length in range(shortest, min(size, 2 * shortest - 1) + 1):
        for end in range(length, size + 1):
            mean = (sums[end] - sums[end - length]) / length
            low, high = min(low, mean), max(high, mean)
    # The standard error is at least that of two halves, at most the difference / `enough`.
    enough = criteria.min_deviations + criteria.extra_deviations / (size - 2)
    least = criteria.difference / (1 + 3 / criteria.min_deviations)
    return high - low >= 0.999 * max(least, enough * 2 * scale / np.sqrt(size))


@kernel
def best_split(logs, first, end, criteria):  # type: ignore[no-untyped-def]
    """The split with the least sum of squares, which is the most likely one."""
    total, before, best, at = 0.0, 0.0, -1.0, first + criteria.before
    for position in range(first, end):
        total += logs[position]
    mean = total / (end - first)
    for position in range(first, end - criteria.after):
        before += logs[position] - mean
        count = position + 1 - first
        if count >= criteria.before:
            between = before * before * (1.0 / count + 1.0 / (end - first - count))
            if between > best:
                best, at = between, position + 1
    return at


@kernel
def is_change(logs, first, at, end, scale, criteria):  # type: ignore[no-untyped-def]
    """Whether the levels before and after a split differ enough, beyond chance.

    Chance is an upper bound of the probability that the longer part holds a stretch like the
    shorter one, for any distribution: Chernoff's bound on so many values on the other side of the
    middle, by the share of such values in the longer part.
    """
    num_before, num_after = at - first, end - at
    if num_before < criteria.before or num_after < criteria.after:
        return False
    before = after = left = 0.0
    for place in range(first, at):
        before += logs[place] / num_before
    for place in range(at, end):
        after += logs[place] / num_after
    for place in range(first, end):
        left += (logs[place] - (before if place < at else after)) ** 2
    difference = abs(after - before)
    deviation = max(scale, np.sqrt(left / (end - first - 2)))
    error = deviation * np.sqrt(1.0 / num_before + 1.0 / num_after)
    enough = criteria.min_deviations + criteria.extra_deviations / (end - first - 2)
    if difference + 3 * error < criteria.difference or difference < enough * error:
        return False
    # Values beyond the middle, of the longer part and of the shorter one.
    is_longer_before, middle = num_before >= num_after, (before + after) / 2
    sign = 1.0 if (after > before) == is_longer_before else -1.0
    count = num_beyond = 0
    for place in range(first, end):
        if sign * (logs[place] - middle) > 0:
            if (place < at) == is_longer_before:
                count += 1
            else:
                num_beyond += 1
    num_long, num_short = max(num_before, num_after), min(num_before, num_after)
    # Two standard deviations above the observed share.
    usual = (count + 2 * np.sqrt(count) + 0.5) / (num_long + 1.0)
    share = num_beyond / num_short
    if share <= usual:
        return False
    exponent = share * np.log(share / usual)
    if share < 1.0:
        exponent += (1 - share) * np.log((1 - share) / (1 - usual))
    return (end - first) * np.exp(-num_short * exponent) < criteria.max_chance


@kernel
def find_splits(logs, scale, criteria, table, began, figures, splits):  # type: ignore[no-untyped-def]
    """Number of changes; fills in `splits`, where new levels begin, ascending."""
    last, num_runs, num_splits = 0, 0, 0
    centre = median(logs.copy(), logs.size)
    for now in range(logs.size):
        num_runs = advance(
            logs[now], now, num_runs, began, figures, centre, scale, table, FORGET_BELOW
        )
        evidence = 0.0
        for run in range(num_runs):
            if last + criteria.before <= began[run] <= now + 1 - criteria.after:
                evidence += figures[3, run]
        if evidence > criteria.min_evidence:
            at = best_split(logs, last, now + 1, criteria)
            if is_change(logs, last, at, now + 1, scale, criteria):
                splits[num_splits] = last = at
                num_splits += 1
    # Move each split to its best place between its neighbours; drop those that no longer hold.
    again = True
    while again:
        again = False
        for index in range(num_splits):
            first = splits[index - 1] if index else 0
            end = splits[index + 1] if index + 1 < num_splits else logs.size
            splits[index] = best_split(logs, first, end, criteria)
        for index in range(num_splits):
            first = splits[index - 1] if index else 0
            end = splits[index + 1] if index + 1 < num_splits else logs.size
            if not is_change(logs, first, splits[index], end, scale, criteria):
                for later in range(index, num_splits - 1):
                    splits[later] = splits[later + 1]
                num_splits -= 1
                again = True
                break
    return num_splits


@kernel
def find_splits_of_each(values, criteria, table, logs, at, splits, sizes):  # type: ignore[no-untyped-def]
    """`find_splits` for every row; fills in clipped logarithms and positions of known values.

    `sizes` are the numbers of known values and of splits of each row.
    """
    num_series, size = values.shape
    plain, smooth = np.empty(size), np.empty(size)
    began, figures = np.empty(size + 1, np.int64), np.empty((4, size + 1))
    near = np.empty(2 * NEIGHBOURS + 1)
    for row in range(num_series):
        count = 0
        for position in range(size):
            if np.isfinite(values[row, position]) and values[row, position] > 0:
                plain[count], at[row, count] = np.log(values[row, position]), position
                count += 1
        sizes[row, 0], sizes[row, 1] = count, 0
        if count < criteria.before + criteria.after:
            continue
        scale = scale_of(plain[:count], criteria.min_scale)
        clipped, reach = logs[row, :count], criteria.outlier_deviations * scale
        clip_outliers(plain[:count], reach, near, smooth[:count], clipped)
        # A quick check: levels are no further apart than running medians.
        lowest = highest = smooth[0]
        for place in range(count):
            lowest, highest = min(lowest, smooth[place]), max(highest, smooth[place])
        is_apart = highest - lowest >= criteria.difference / 2
        if is_apart and may_change(clipped, scale, criteria):
            sizes[row, 1] = find_splits(
                clipped, scale, criteria, table, began, figures, splits[row]
            )


class Ramp(NamedTuple):
    """`begin` is the first position off the old level, `until` the first on the new one."""

    begin: int
    until: int
    before: float
    after: float


def find_ramp(logs: Floats, jumps: list[int]) -> Ramp | None:
    """The ramp, if it explains [n] better than the jumps do; else None."""
    if logs.size < LIMITS.min_before + LIMITS.min_after + LIMITS.min_ramp_steps:
        return None
    logs = np.ascontiguousarray(logs)
    begin, until, left, before, after = best_ramp(logs, LIMITS.min_before)
    bounds = np.array([0, *jumps, logs.size], np.int64)
    levels = np.add.reduceat(logs, bounds[:-1]) / np.diff(bounds)
    left_by_jumps = float(((logs - np.repeat(levels, np.diff(bounds))) ** 2).sum())
    by_jumps = _badness(left_by_jumps, logs.size, 2 * len(jumps))
    is_long = until - begin + 1 >= LIMITS.min_ramp_steps
    is_better = _badness(left, logs.size, 3) + LIMITS.min_ramp_gain <= by_jumps
    return Ramp(begin, until, before, after) if is_long and is_better else None


def _badness(left: float, size: int, num_parameters: int) -> float:
    """The Bayesian information criterion without its constant."""
    # With a least mean square, so that the logarithm is finite.
    mean_square = left / size + (LIMITS.min_scale / 5) ** 2
    return size * float(np.log(mean_square)) + num_parameters * float(np.log(size))


@kernel
def best_ramp(logs, first):  # type: ignore[no-untyped-def]
    """The best ramp from `first` on: its begin, end, residual squares, and both levels."""
    size, mean, total = logs.size, 0.0, 0.0
    for at in range(size):
        mean += logs[at] / size
    # Sums of the values before each position, and of the values times their positions.
    sums, moments = np.zeros(size + 1), np.zeros(size + 1)
    for at in range(size):
        sums[at + 1] = sums[at] + logs[at] - mean
        moments[at + 1] = moments[at] + at * (logs[at] - mean)
        total += (logs[at] - mean) ** 2
    best, best_begin, best_until, slope, offset = -1.0, first, first, 0.0, 0.0
    for begin in range(first, size - 1):
        for until in range(begin, size):
            length = until - begin + 1
            later = size - 1 - until
            # Sums over the ramp's shape: 0 before, 1/length at `begin`, 1 from `until`.
            share = (length + 1) / 2 + later
            squares = (length + 1) * (2 * length + 1) / (6 * length) + later
            climb = moments[until + 1] - moments[begin]
            climb -= (begin - 1) * (sums[until + 1] - sums[begin])
            product = climb / length + sums[size] - sums[until + 1]
            variance = squares - share * share / size
            explained = product * product / variance
            if explained > best:
                best, best_begin, best_until = explained, begin, until
                slope = product / variance
                offset = mean - slope * share / size
    return best_begin, best_until, total - best, offset, offset + slope


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level; levels are geometric means.

    `position` is the first off the old level, `until` the first on the new one: the same for a
    jump, later for a ramp.
    """

    position: int
    before: float
    after: float
    until: int

    @property
    def ratio(self) -> float:
        """New level over old level."""
        return self.after / self.before


def level_changes(values: Floats, criteria: ChangeCriteria | None = None) -> list[LevelChange]:
    """The changes of one series [n], ascending, by the usual criteria or others; NaN = unknown."""
    return level_changes_of_each(values[None], criteria)[0]


def level_changes_of_each(
    values: Floats, criteria: ChangeCriteria | None = None
) -> list[list[LevelChange]]:
    """The changes of each series, [series, n]; only values above 0 are known."""
    values = np.ascontiguousarray(values, np.float64)
    logs, (at, splits) = np.empty(values.shape), np.empty((2, *values.shape), np.int64)
    sizes = np.zeros((values.shape[0], 2), np.int64)
    table = predictive_table(values.shape[1])
    find_splits_of_each(values, criteria or LIMITS.usual, table, logs, at, splits, sizes)
    return [
        _level_changes(logs[row, :size], at[row, :size], splits[row, :num_splits].tolist())
        if num_splits
        else []
        for row, (size, num_splits) in enumerate(sizes.tolist())
    ]


def latest_onset(values: Floats) -> LevelChange | None:
    """The rise to the current level of a series [n]; None where it never rose or fell again."""
    return latest_onset_of_each(values[None])[0]


def latest_onset_of_each(values: Floats) -> list[LevelChange | None]:
    """The same of each series, [series, n]."""
    criteria = LIMITS.usual
    return [still_up(changes, criteria) for changes in level_changes_of_each(values, criteria)]


def still_up(changes: list[LevelChange], criteria: ChangeCriteria) -> LevelChange | None:
    """The last rise through the middle between the lowest and the current level.

    Of the changes of a series; None where it never rose or fell again.
    """
    if not changes:
        return None
    now = changes[-1].after
    low = min(min(change.before, change.after) for change in changes)
    if np.log(now / low) < criteria.difference / 2:
        return None
    middle = float(np.sqrt(now * low))
    return next(change for change in reversed(changes) if change.before < middle)


def _level_changes(logs: Floats, at: Ints, jumps: list[int]) -> list[LevelChange]:
    """Changes of one series; `logs` and `at` are values and positions of its known values."""
    bounds = [0, *jumps, logs.size]
    level = [float(logs[first:end].mean()) for first, end in pairwise(bounds)]
    changes: list[LevelChange] = []
    for first, end in _staircases(jumps, level):
        begin = bounds[first]
        inner = [jump - begin for jump in jumps[first:end]]
        gradual = find_ramp(logs[begin : bounds[end + 1]], inner)
        if gradual is None:
            changes += [level_change(at, jump, jump, *level[i : i + 2])
                        for i, jump in enumerate(jumps[first:end], first)]  # fmt: skip
        else:
            steps = begin + gradual.begin, begin + gradual.until
            changes.append(level_change(at, *steps, gradual.before, gradual.after))
    return changes


def _staircases(jumps: list[int], level: list[float]) -> Iterator[tuple[int, int]]:
    """First and end index of jumps in one direction near each other."""
    first = 0
    for index in range(1, len(jumps) + 1):
        if index < len(jumps):
            is_up = [level[i + 1] > level[i] for i in (index - 1, index)]
            is_near = jumps[index] - jumps[index - 1] <= LIMITS.max_between_stairs
            if is_near and is_up[0] == is_up[1]:
                continue
        yield first, index
        first = index


def level_change(at: Ints, begin: int, until: int, before: float, after: float) -> LevelChange:
    """The change at known positions `at`; levels are logarithms."""
    return LevelChange(int(at[begin]), float(np.exp(before)), float(np.exp(after)), int(at[until]))
