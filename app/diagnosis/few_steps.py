"""What may be said of one or two steps: chance alone makes some worker slower than its peers."""

import numpy as np
from numpy.typing import NDArray

from app.trace.window import Floats

# So many steps tell a figure from chance.
ENOUGH = 3
# By so much nobody is slower by chance, not in a single step either.
LEAST_RATIO = 1.25
MOST_CONFIDENCE = 0.7
# Of the steps before the window, those that say whether it always was so.
_EARLIER = 8


def is_borne_out(num_usual: int, earlier: Floats, least: float) -> NDArray[np.bool_]:
    """[...], whether the steps of a window and those before it are enough, and say the same.

    Args:
        num_usual: steps of the window that something is judged by.
        earlier: [steps before the window, ...] ratios, 1.0 = nothing at all, NaN = not known.
        least: what the ratio must have been before, in the mean.
    """
    if num_usual >= ENOUGH:
        return np.ones(earlier.shape[1:], np.bool_)
    known = np.isfinite(earlier).all(axis=tuple(range(1, earlier.ndim)))
    latest = earlier[known][-_EARLIER:]
    if num_usual + len(latest) < ENOUGH:
        return np.zeros(earlier.shape[1:], np.bool_)
    return np.asarray(latest.mean(axis=0) >= least)


def reason(num_usual: int, who: str, ratio: str) -> str:
    """Why nothing is said of somebody who seems slow."""
    steps = "a single step" if num_usual == 1 else f"{num_usual} steps"
    return (
        f"{steps} cannot tell it from chance: {who} comes nearest and takes {ratio} as long, "
        f"where {LEAST_RATIO}x is needed of so few"
    )
