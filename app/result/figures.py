"""Small formulas that those need who join results, and who make them."""

from typing import Any

import numpy as np

from app.trace.window import Floats

# A window whose simulated mean step time is further from the recorded one is "low fidelity".
MAX_DISCREPANCY = 0.05

# Step times this near to each other, as a share, differ by rounding only: a nanosecond a second.
EQUAL_TIMES = 1e-9


def as_lists(values: Floats) -> Any:
    """The values as nested lists, None where they are not finite."""
    found = values.astype(object)
    found[~np.isfinite(values)] = None
    return found.tolist()


def gpu_time_wasted(slowdown: float) -> float:
    """Share of GPU time lost to stragglers, 1 - 1/S (Eq. 3)."""
    return 1 - 1 / slowdown
