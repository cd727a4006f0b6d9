"""Where does a series change? Kernels over the logarithms of one series."""

from typing import NamedTuple

import numpy as np

from app.diagnosis.run_lengths import FORGET_BELOW, advance
from app.diagnosis.selecting import median
from app.engine.compiled import kernel

# The posterior that a change has taken place [G].
MIN_EVIDENCE = 0.9
# Levels differ by so many standard errors, and by more where the error itself is known from few
# values.
MIN_DEVIATIONS = 5.0
MORE_DEVIATIONS = 20.0  # by the degrees of freedom
# Tails may be heavy: a few large values in a row that are usual for the series are no new level.
MOST_CHANCE = 0.005
# A single value this many deviations from its neighbours' median is odd, and counts as so far.
ODD = 3.0
# Series hardly vary by less; a smaller scale would make changes of what is chance.
MIN_SCALE = 0.005
NEIGHBOURS = 2  # on either side
_NORMAL = 1.4826  # standard deviations in the median deviation of a normal variable


class Demand(NamedTuple):
    """What a change has to show: so many values before and after it, fewer may be chance.

    Levels differ by `difference` (of logarithms) at least, three standard errors allowed for:
    otherwise half of all changes by just that much would be overlooked.
    """

    before: int
    after: int
    difference: float


# A change by 10 % [G]; a new level is told a step before an old one would be known.
USUAL = Demand(4, 3, float(np.log(1.10)))


@kernel
def known(values, logs, at):  # type: ignore[no-untyped-def]
    """Number of values that are known; of those the logarithms, and where they are."""
    count = 0
    for position in range(values.size):
        if np.isfinite(values[position]) and values[position] > 0:
            logs[count] = np.log(values[position])
            at[count] = position
            count += 1
    return count


@kernel
def scale_of(logs):  # type: ignore[no-untyped-def]
    """Standard deviation within a level, of differences: a change adds one odd value only."""
    return max(MIN_SCALE, _NORMAL * median(np.abs(np.diff(logs)), logs.size - 1) / np.sqrt(2.0))


@kernel
def clip(logs, scale, near, smooth, clipped):  # type: ignore[no-untyped-def]
    """The running medians, and the logarithms no further from them than odd values count."""
    for at in range(logs.size):
        # At either end the five values there: two odd ones in a row are no new level yet.
        first = min(max(0, at - NEIGHBOURS), max(0, logs.size - 2 * NEIGHBOURS - 1))
        end = max(min(logs.size, at + NEIGHBOURS + 1), min(logs.size, 2 * NEIGHBOURS + 1))
        near[: end - first] = logs[first:end]
        smooth[at] = median(near, end - first)
        least, most = smooth[at] - ODD * scale, smooth[at] + ODD * scale
        clipped[at] = min(max(logs[at], least), most)


@kernel
def may_change(logs, scale, demand):  # type: ignore[no-untyped-def]
    """Whether `is_real` could be so of any split at all: else there is no need to look for one.

    Levels that differ by enough are means of so many values each, and some stretch of at least as
    many and less than twice as many has a mean as high, or as low.
    """
    size = logs.size
    sums = np.zeros(size + 1)
    for at in range(size):
        sums[at + 1] = sums[at] + logs[at]
    shortest = min(demand.before, demand.after)
    low, high = np.inf, -np.inf
    for length in range(shortest, min(size, 2 * shortest - 1) + 1):
        for end in range(length, size + 1):
            mean = (sums[end] - sums[end - length]) / length
            low, high = min(low, mean), max(high, mean)
    # An error is at least that of two halves, and at most the difference by `enough`.
    enough = MIN_DEVIATIONS + MORE_DEVIATIONS / (size - 2)
    least = max(demand.difference / (1 + 3 / MIN_DEVIATIONS), enough * 2 * scale / np.sqrt(size))
    return high - low >= 0.999 * least


@kernel
def best_split(logs, first, end, demand):  # type: ignore[no-untyped-def]
    """Of all splits the one with the least squares left on both sides: the most likely."""
    total, before, best, at = 0.0, 0.0, -1.0, first + demand.before
    for position in range(first, end):
        total += logs[position]
    mean = total / (end - first)
    for position in range(first, end - demand.after):
        before += logs[position] - mean
        count = position + 1 - first
        if count >= demand.before:
            between = before * before * (1.0 / count + 1.0 / (end - first - count))
            if between > best:
                best, at = between, position + 1
    return at


@kernel
def is_real(logs, first, at, end, scale, demand):  # type: ignore[no-untyped-def]
    """Whether the levels before and after a split differ by enough, and not by chance."""
    if at - first < demand.before or end - at < demand.after:
        return False
    before, after = logs[first:at], logs[at:end]
    difference = abs(after.mean() - before.mean())
    left = ((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()
    deviation = max(scale, np.sqrt(left / (end - first - 2)))
    error = deviation * np.sqrt(1.0 / before.size + 1.0 / after.size)
    is_large = difference + 3 * error >= demand.difference
    enough = MIN_DEVIATIONS + MORE_DEVIATIONS / (end - first - 2)
    is_clear = difference >= enough * error
    return is_large and is_clear and chance(before, after) < MOST_CHANCE


@kernel
def chance(before, after):  # type: ignore[no-untyped-def]
    """At most so likely does the longer part have such a stretch as the shorter somewhere.

    Whatever the distribution: by the share of values that lie on the other part's side of the
    middle, and Chernoff's bound on so many of them in a row of draws.
    """
    long, short = (before, after) if before.size >= after.size else (after, before)
    middle = (before.mean() + after.mean()) / 2
    sign = 1.0 if short.mean() > long.mean() else -1.0
    count = (sign * (long - middle) > 0).sum()
    # It may be two standard deviations more often than it was.
    usual = (count + 2 * np.sqrt(count) + 0.5) / (long.size + 1.0)
    share = (sign * (short - middle) > 0).mean()
    if share <= usual:
        return 1.0
    exponent = share * np.log(share / usual)
    if share < 1.0:
        exponent += (1 - share) * np.log((1 - share) / (1 - usual))
    return (long.size + short.size) * np.exp(-short.size * exponent)


@kernel
def find(logs, scale, demand, table, began, figures, splits):  # type: ignore[no-untyped-def]
    """Number of changes; `splits` are where each new level begins, ascending."""
    centre, last, num_runs, num_splits = np.median(logs), 0, 0, 0
    for now in range(logs.size):
        num_runs = advance(
            logs[now], now, num_runs, began, figures, centre, scale, table, FORGET_BELOW
        )
        evidence = 0.0
        for run in range(num_runs):
            if last + demand.before <= began[run] <= now + 1 - demand.after:
                evidence += figures[3, run]
        if evidence > MIN_EVIDENCE:
            at = best_split(logs, last, now + 1, demand)
            if is_real(logs, last, at, now + 1, scale, demand):
                splits[num_splits] = last = at
                num_splits += 1
    return settle(logs, scale, demand, splits, num_splits)


@kernel
def settle(logs, scale, demand, splits, num_splits):  # type: ignore[no-untyped-def]
    """Place each split by all that is known now, and drop those that do not stand then."""
    again = True
    while again:
        again = False
        for index in range(num_splits):
            first = splits[index - 1] if index else 0
            end = splits[index + 1] if index + 1 < num_splits else logs.size
            splits[index] = best_split(logs, first, end, demand)
        for index in range(num_splits):
            first = splits[index - 1] if index else 0
            end = splits[index + 1] if index + 1 < num_splits else logs.size
            if not is_real(logs, first, splits[index], end, scale, demand):
                for later in range(index, num_splits - 1):
                    splits[later] = splits[later + 1]
                num_splits -= 1
                again = True
                break
    return num_splits


@kernel
def find_each(values, demand, table, logs, at, splits, sizes):  # type: ignore[no-untyped-def]
    """`find` for every row; of its known values the clipped logarithms and where they are.

    `sizes` are the number of known values and of splits of each row.
    """
    num_series, size = values.shape
    plain, smooth = np.empty(size), np.empty(size)
    began, figures = np.empty(size + 1, np.int64), np.empty((4, size + 1))
    near = np.empty(2 * NEIGHBOURS + 1)
    for row in range(num_series):
        count = known(values[row], plain, at[row])
        sizes[row, 0], sizes[row, 1] = count, 0
        if count < demand.before + demand.after:
            continue
        scale = scale_of(plain[:count])
        clipped = logs[row, :count]
        clip(plain[:count], scale, near, smooth[:count], clipped)
        # Most series hardly change: levels lie no further apart than running medians do.
        apart = smooth[:count].max() - smooth[:count].min()
        if apart >= demand.difference / 2 and may_change(clipped, scale, demand):
            sizes[row, 1] = find(clipped, scale, demand, table, began, figures, splits[row])
