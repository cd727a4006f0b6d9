"""What everybody does at once: how a signal went on the typical worker, and who does not follow."""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.onset import Change, latest_onset
from app.diagnosis.selecting import medians
from app.diagnosis.splits import MIN_DEVIATIONS, ODD, Demand
from app.trace.window import Floats

# Chance hits one worker more and another less: what all do is told from it more easily. Fewer
# steps before do not show what was usual.
EVERYBODY = Demand(5, 3, float(np.log(1.05)))
# The workers that rose least: a fault of some workers leaves these as they were.
LEAST_RISEN = 0.1
# What a few faulty workers, or fewer than half, do at another time does not move.
TYPICAL = 0.5
MOST_SAMPLED = 64
# They have risen by at least this share of what the median worker has (in logarithms).
ALIKE = 0.6
# Workers may differ so much more from each other than before (standard deviation of logarithms).
MORE_SPREAD = 0.02
# Where something else shows a change, at the very step, so many standard errors are no chance.
KNOWN_DEVIATIONS = 2.5
# Standard deviations of a normal variable, within which half of its values are.
HALF_WITHIN = 0.6745


@dataclass(frozen=True, slots=True)
class Rise:
    """A signal rose on every worker by about the same ratio, and has stayed up.

    `change` is that of the course; `badness` [n] is the typical worker's figure by what it was
    before; `deviations` says by how many standard errors it differs.
    """

    change: Change
    ratio: float
    badness: Floats
    deviations: float

    def factors(self, num_before: int) -> Floats:
        """[steps of the window], how many times too much everything took."""
        steps = np.arange(num_before, self.badness.size)
        begin, until = self.change.position, self.change.until
        share = np.clip((steps - begin + 1) / (until - begin + 1), 0.0, 1.0)
        return np.asarray(self.ratio**share)


def rise(signal: Floats, known: Change | None = None) -> Rise | None:
    """How everybody's figure [n, dp, pp] rose, if it did; NaN where not known.

    Where a change of something else is known, whether this rose with it: that takes less to show.
    """
    of_worker = signal.reshape(signal.shape[0], -1)
    of_worker = of_worker[:, (of_worker > 0).any(axis=0)]
    if of_worker.shape[1] < 2 or (
        known is None and latest_onset(_sample(of_worker), EVERYBODY) is None
    ):
        return None
    is_known = np.asarray((of_worker > 0).all(axis=1) & np.isfinite(of_worker).all(axis=1))
    if not is_known.any():
        return None
    shares = np.full(of_worker.shape, np.nan)
    shares[is_known] = of_worker[is_known] / np.median(of_worker[is_known], axis=0)
    if known is not None:
        return _of_everybody(known, shares, is_known, apart=True)
    ups = (_of_course(shares, is_known, share) for share in (TYPICAL, LEAST_RISEN))
    return next((up for up in ups if up is not None), None)


def _of_course(shares: Floats, is_known: np.ndarray, share: float) -> Rise | None:
    """The rise where the worker at this share of all, in the order of their figures, rose."""
    course = np.full(shares.shape[0], np.nan)
    course[is_known] = np.quantile(shares[is_known], share, axis=1, method="lower")
    change = latest_onset(course, EVERYBODY)
    return None if change is None else _of_everybody(change, shares, is_known)


def _sample(of_worker: Floats) -> Floats:
    """[n], the typical one of a few workers: what everybody does it does, and it is soon known."""
    some = of_worker[:, :: 1 + of_worker.shape[1] // MOST_SAMPLED]
    return np.asarray(np.median(some, axis=1)) if np.isnan(some).any() else medians(some)


def _of_everybody(
    change: Change, shares: Floats, is_known: np.ndarray, *, apart: bool = False
) -> Rise | None:
    """The rise at a change if nearly all rose alike.

    `apart`: something else shows the change, and workers may differ beside it as they like.
    """
    at = np.arange(shares.shape[0])
    before = shares[is_known & (at < change.position)]
    after = shares[is_known & (at >= change.until)]
    if len(before) < EVERYBODY.before or not len(after):
        return None
    level = np.median(before, axis=0)
    ratios = np.median(after, axis=0) / level
    ratio = float(np.median(ratios))
    lowest = float(np.quantile(ratios, LEAST_RISEN, method="lower"))
    chance = _error(before, after) if apart else 0.0
    if ratio <= 1 or lowest <= 1 or np.log(lowest) < ALIKE * np.log(ratio) - chance:
        return None
    if not apart and _spread(after / (level * ratio)) > 2 * _spread(before / level) + MORE_SPREAD:
        return None
    badness = np.median(shares / level, axis=1)
    deviations = _deviations(badness, change, is_known)
    enough = KNOWN_DEVIATIONS if apart else MIN_DEVIATIONS
    return Rise(change, ratio, badness, deviations) if deviations >= enough else None


def _error(before: Floats, after: Floats) -> float:
    """Standard error of the typical worker's ratio, in logarithms: its steps differ by nature."""
    return float(
        np.median(
            [
                np.sqrt(_variance(np.log(one)) / one.size + _variance(np.log(other)) / other.size)
                for one, other in zip(before.T, after.T, strict=True)
            ]
        )
    )


def _spread(shares: Floats) -> float:
    """How much workers differ from each other in a step, usually; a few faulty ones do not count.

    Half of the workers are no further from the median one than two thirds of a deviation.
    """
    logs = np.log(shares)
    away = np.abs(logs - np.median(logs, axis=1, keepdims=True))
    return float(np.median(np.median(away, axis=1) / HALF_WITHIN))


def _deviations(badness: Floats, change: Change, is_known: np.ndarray) -> float:
    logs, at = np.log(badness), np.arange(badness.size)
    parts = [logs[is_known & (at < change.position)], logs[is_known & (at >= change.until)]]
    error = np.sqrt(sum(_variance(part) / part.size for part in parts))
    return float((np.median(parts[1]) - np.median(parts[0])) / error)


def _variance(logs: Floats) -> float:
    """Of values that single odd steps, as a job's first one, do not count in."""
    middle = np.median(logs)
    reach = ODD * np.median(np.abs(logs - middle)) / HALF_WITHIN
    clipped = np.clip(logs, middle - reach, middle + reach)
    return max(float(clipped.var()), 1e-6)
