"""Series that grow from step to step: the ramp that one ends on, and the rise of each series on it.

A ramp is linear in the logarithms. `find_ramp` (change_points.py) compares it with jumps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.diagnosis.statistics import change_points
from app.diagnosis.statistics.change_points import (
    ChangeCriteria,
    LevelChange,
    Ramp,
    best_split,
    find_ramp,
    level_change,
    level_changes,
    without_outliers,
)
from app.diagnosis.statistics.robust import quantile_of
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats


class RampFit(NamedTuple):
    """Logarithms of series on a level and a ramp; [series] each, `rise` from first to last."""

    level: Floats
    rise: Floats
    rise_error: Floats


def ramp_shape(size: int, begin: int, until: int) -> Floats:
    """[size], 0 before `begin`, 1 from `until` on, and linear in between."""
    return np.clip((np.arange(size) - begin + 1.0) / (until - begin + 1), 0.0, 1.0)


def fit_shape(logs: Floats, shape: Floats) -> RampFit:
    """Least squares of [n, series] on a level and a shape [n]; outliers are clipped once."""
    centred, limits = shape - shape.mean(), change_points.LIMITS
    squares = float(centred @ centred)
    for _ in range(2):
        rise = centred @ logs / squares
        level = logs.mean(axis=0) - rise * shape.mean()
        fitted = level + rise * shape[:, None]
        away = logs - fitted
        deviation = MAD_TO_DEVIATION * medians_of_known(np.abs(away).T)
        reach = limits.outlier_deviations * np.maximum(limits.min_scale, deviation)
        logs = fitted + np.clip(away, -reach, reach)
    deviation = np.sqrt(np.maximum(((logs - fitted) ** 2).sum(axis=0), 1e-12) / (shape.size - 2))
    return RampFit(level, rise, np.maximum(deviation, limits.min_scale / 5) / np.sqrt(squares))


# A quantile near the lowest level.
_LOW = 0.1


def rising_ramp(
    values: Floats, criteria: ChangeCriteria, changes: Sequence[LevelChange] | None = None
) -> LevelChange | None:
    """The ramp that a series [n] ends on or has stayed up from; NaN = unknown.

    None where the series did not rise by `criteria.difference`, or a single jump, or its jumps,
    explain it as well. The series begins after its last fall. `changes` are those of the series by
    these criteria, if they are known.
    """
    at = np.flatnonzero(np.isfinite(values) & (values > 0))
    known, min_steps = values[at], change_points.LIMITS.min_ramp_steps
    newest = known[-criteria.after - min_steps :]
    # A quick check: a series that has risen is higher at its end than where it was lowest.
    if (
        not known.size
        or np.log(median_of(newest) / quantile_of(known, _LOW)) < criteria.difference / 2
    ):
        return None
    if changes is None:
        changes = level_changes(values, criteria)
    falls = [change.until for change in changes if change.ratio < 1]
    at = at[at >= max(falls, default=0)]
    if at.size < criteria.before + criteria.after + min_steps:
        return None
    logs = without_outliers(np.log(values[at]))
    splits = [[], [int(best_split(logs, 0, logs.size, criteria))]]
    if falls:
        jumps = [change.position for change in level_changes(values[at], criteria)]
    else:
        jumps = np.searchsorted(at, [change.position for change in changes]).tolist()
    ramps = [find_ramp(logs, split) for split in (*splits, jumps)]
    ramp = ramps[0]
    if ramp is None or None in ramps or ramp.after - ramp.before < criteria.difference:
        return None
    begin = 0 if grows_from_the_first(logs, ramp) else ramp.begin
    return level_change(at, begin, ramp.until, ramp.before, ramp.after)


def grows_from_the_first(logs: Floats, ramp: Ramp) -> bool:
    """Whether the ramp explains the series better if it begins with it: no step shows an onset."""
    if ramp.begin > change_points.LIMITS.min_before:
        return False
    left = [
        ramp_residual(logs, ramp_shape(logs.size, begin, ramp.until)) for begin in (0, ramp.begin)
    ]
    return left[0] <= left[1]


def ramp_residual(logs: Floats, shape: Floats) -> float:
    """Residual squares of the values on a shape and a level."""
    centred, away = shape - shape.mean(), logs - logs.mean()
    squares = float(centred @ centred)
    slope = float(centred @ away) / squares if squares > 0 else 0.0
    return float(((away - slope * centred) ** 2).sum())
