"""The figures of the paper, one function each."""

import numpy as np
from numpy.typing import NDArray

from app.trace.window import Floats, Ints

# A window whose simulated mean step time is further from the recorded one is "low fidelity".
MAX_DISCREPANCY = 0.05

# Step times this near to each other, as a share, differ by rounding only: a nanosecond a second.
EQUAL_TIMES = 1e-9


def slowdown(actual_s: Floats, ideal_s: Floats) -> Floats:
    """S = T / T_ideal, of the means over the last axis, the steps (Eq. 1 and 2)."""
    return np.asarray(actual_s.mean(axis=-1) / ideal_s.mean())


def gpu_time_wasted(slowdown: float) -> float:
    """Share of GPU time lost to stragglers, 1 - 1/S (Eq. 3)."""
    return 1 - 1 / slowdown


def recovered_share(actual_s: Floats, repaired_s: Floats, ideal_s: Floats) -> float | None:
    """Share of the lost time won back by giving some operations their ideal duration.

        M = (T - T_fix) / (T - T_ideal)                                     (Eq. 5)

    None where T = T_ideal. Below 0 or above 1 where the ideal of one mean over all stages makes
    others slower.
    """
    lost_s = actual_s.mean() - ideal_s.mean()
    if abs(lost_s) <= EQUAL_TIMES * ideal_s.mean():
        return None
    return float((actual_s.mean() - repaired_s.mean()) / lost_s)


def discrepancy(simulated_s: Floats, recorded_s: Floats) -> float:
    """|simulated - recorded| / recorded, of the mean step times (what-if model, section 4)."""
    return float(abs(simulated_s.mean() - recorded_s.mean()) / recorded_s.mean())


def slowest_workers(slowdown: Floats, rank: Ints) -> NDArray[np.bool_]:
    """[dp, pp], the slowest 3 % of workers, at least one; ties go to the lowest rank (Eq. 5)."""
    num_slowest = (3 * slowdown.size + 99) // 100
    order = np.lexsort((rank.ravel(), -slowdown.ravel()))
    chosen = np.zeros(slowdown.size, np.bool_)
    chosen[order[:num_slowest]] = True
    return chosen.reshape(slowdown.shape)
