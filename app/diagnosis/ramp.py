"""Did a series jump, or rise bit by bit? The two are compared by what they leave unexplained."""

from typing import NamedTuple

import numpy as np

from app.diagnosis.splits import MIN_SCALE, USUAL
from app.engine.compiled import kernel
from app.trace.window import Floats

# A ramp has to explain this much more than the jumps do (in twice the log likelihood).
MARGIN = 6.0
_FIRST = USUAL.before
SHORTEST = 4  # steps on the way; less is a jump that began within a step
_LEFT_BY_CHANCE = (MIN_SCALE / 5) ** 2  # of squares, a step: nothing is ever explained wholly


class Ramp(NamedTuple):
    """`begin` is the first value above (or below) the old level, `until` the first on the new."""

    begin: int
    until: int
    before: float
    after: float


def ramp(logs: Floats, jumps: list[int]) -> Ramp | None:
    """The one ramp that explains [n] better than levels with jumps between; None: it does not."""
    if logs.size < USUAL.before + USUAL.after + SHORTEST:
        return None
    begin, until, left, before, after = best_ramp(np.ascontiguousarray(logs))
    parts = np.split(logs, jumps)
    left_by_jumps = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    by_jumps = _badness(left_by_jumps, logs.size, 2 * len(jumps))
    if until - begin + 1 < SHORTEST or _badness(left, logs.size, 3) + MARGIN > by_jumps:
        return None
    return Ramp(begin, until, before, after)


def _badness(left: float, size: int, num_parameters: int) -> float:
    """The Bayesian information criterion, but for a constant."""
    mean_square = left / size + _LEFT_BY_CHANCE
    return size * float(np.log(mean_square)) + num_parameters * float(np.log(size))


@kernel
def best_ramp(logs):  # type: ignore[no-untyped-def]
    """Beginning, end, squares left, and the levels before and after of the best ramp."""
    size = logs.size
    mean = logs.mean()
    # Sums of the values before each position, and of the values times their positions.
    sums, moments = np.zeros(size + 1), np.zeros(size + 1)
    for at in range(size):
        sums[at + 1] = sums[at] + logs[at] - mean
        moments[at + 1] = moments[at] + at * (logs[at] - mean)
    total = ((logs - mean) ** 2).sum()
    best, best_begin, best_until, slope, offset = -1.0, _FIRST, _FIRST, 0.0, 0.0
    for begin in range(_FIRST, size - 1):
        for until in range(begin, size):
            length = until - begin + 1
            later = size - 1 - until
            # Of the share of the way that is done: 0 before, 1/length at `begin`, 1 from `until`.
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
