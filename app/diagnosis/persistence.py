"""Does it last: a few steps, most of them, another culprit each time, or more and more?"""

import numpy as np

from app.diagnosis.finding import Persistence
from app.trace.window import Floats, Ints

# A step counts as bad from this on at least, and from half of what is usual among the bad ones.
LEAST_EXCESS = 0.05
MOST_STEPS = 0.5
# Growing: of all pairs of steps so many more grow than shrink, by 10 % from first to last.
MIN_AGREEMENT = 0.6
MIN_GROWTH = 0.1
MIN_STEPS = 6
GROWTH_STEPS = 64  # further back it does not matter whether it grew
# Rotating: no culprit has more than half of the bad steps, and there are at least three.
MOST_OF_ONE = 0.5
MIN_CULPRITS = 3


def persistence(badness: Floats, num_before: int = 0) -> Persistence | None:
    """How a window's badness lasts; [n], of which the first `num_before` are before the window.

    1.0 = not bad at all, NaN = not known; None where no step of the window is bad.
    """
    is_bad = bad_steps(badness)
    is_known = np.isfinite(badness[num_before:])
    num_bad = int(is_bad[num_before:].sum())
    if not num_bad:
        return None
    if _is_growing(badness, is_bad):
        return "progressive"
    return "chronic" if num_bad >= MOST_STEPS * is_known.sum() else "transient"


def rotation(culprits: Ints) -> Persistence | None:
    """ "rotating" where the worst one, [n] with -1 for nobody, changes from step to step."""
    named = culprits[culprits >= 0]
    if not named.size:
        return None
    counts = np.unique(named, return_counts=True)[1]
    is_rotating = counts.size >= MIN_CULPRITS and counts.max() <= MOST_OF_ONE * named.size
    return "rotating" if is_rotating else None


def bad_steps(badness: Floats) -> np.ndarray:
    """[n], the steps that are bad."""
    excess = np.nan_to_num(badness - 1.0, nan=0.0)
    some = excess[excess >= LEAST_EXCESS]
    if not some.size:
        return np.zeros(badness.size, np.bool_)
    return np.asarray(excess >= max(LEAST_EXCESS, float(np.median(some)) / 2))


def _is_growing(badness: Floats, is_bad: np.ndarray) -> bool:
    """Whether the present stretch of bad steps gets worse: Kendall's tau, and by how much."""
    grown = _present(badness, is_bad)
    if grown.size < MIN_STEPS:
        return False
    pairs = np.sign(grown[None, :] - grown[:, None])
    agreement = np.triu(pairs, 1).sum() / (grown.size * (grown.size - 1) / 2)
    third = max(2, grown.size // 3)
    growth = np.median(grown[-third:]) / np.median(grown[:third]) - 1
    return bool(agreement >= MIN_AGREEMENT and growth >= MIN_GROWTH)


def _present(badness: Floats, is_bad: np.ndarray) -> Floats:
    """The last stretch of bad steps, one good or unknown one within it allowed."""
    at = np.flatnonzero(is_bad)
    if not at.size or at[-1] < badness.size - 2:
        return np.empty(0)
    breaks = np.flatnonzero(np.diff(at) > 2)
    first = at[breaks[-1] + 1] if breaks.size else at[0]
    recent = badness[max(first, badness.size - GROWTH_STEPS) :]
    return recent[np.isfinite(recent)]
