"""In which stretch of steps was a worker slow, and by how much?"""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.trace.window import Floats, Ints

_MAD_TO_DEVIATION = 1.4826
# Series hardly vary by less; a smaller figure would make much of rounding.
_LEAST_SPREAD = 0.002


@dataclass(frozen=True, slots=True)
class Stretches:
    """Of each series the stretch [first, end) of positions in which it is furthest above 1.

    `mean` of the series in it, and `deviations` of that from 1, in standard errors; all [series].
    """

    first: Ints
    end: Ints
    mean: Floats
    deviations: Floats


def stretches(ratio: Floats, spread: float, least: float) -> Stretches:
    """Stretches of each series.

    Args:
        ratio: [steps, series], 1.0 where a worker is as fast as its peers.
        spread: standard deviation of single ratios.
        least: a ratio so far above 1 is worth a spell.
    """
    num_series = ratio.shape[1]
    first, end = np.zeros(num_series, np.int64), np.zeros(num_series, np.int64)
    mean = np.ones(num_series)
    _stretches(np.ascontiguousarray(ratio.T), max(least, spread) / 2, first, end, mean)
    return Stretches(first, end, mean, (mean - 1) * np.sqrt(end - first) / spread)


def spread_of_steps(ratio: Floats, level: Floats | None = None) -> float:
    """Standard deviation of ratios [steps, series] about their series' level; changes left out.

    `level` [series] of series that should be alike, by default their means, tells it where there
    is but one step.
    """
    if not ratio.size:
        return _LEAST_SPREAD
    if ratio.shape[0] < 2:
        level = ratio.mean(axis=0) if level is None else level
        away = np.abs(level - np.median(level))
        return max(_LEAST_SPREAD, _MAD_TO_DEVIATION * float(np.median(away)))
    # A change of level is in one difference only. No median: lengths of sequences have long tails.
    steps = ratio[1:] - ratio[:-1]
    return max(_LEAST_SPREAD, float(np.sqrt((steps * steps).mean() / 2)))


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
