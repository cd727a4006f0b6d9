"""Small formulas that those need who join results, and who make them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.trace.window import Floats

# A window whose simulated mean step time is further from the recorded one is "low fidelity".
MAX_DISCREPANCY = 0.05

# Step times this near to each other, as a share, differ by rounding only: a nanosecond a second.
EQUAL_TIMES = 1e-9


def as_tuples(values: Floats) -> Any:
    """The values as nested tuples, None where they are not finite."""
    if np.isfinite(values).all():
        return _nested(values.tolist(), values.ndim)
    known = values.astype(object)
    known[~np.isfinite(values)] = None
    return _nested(known.tolist(), values.ndim)


def _nested(values: list[Any], depth: int) -> tuple[Any, ...]:
    return tuple(values if depth == 1 else (_nested(row, depth - 1) for row in values))


def gpu_time_wasted(slowdown: float) -> float:
    """Share of GPU time lost to stragglers, 1 - 1/S (Eq. 3)."""
    return 1 - 1 / slowdown


def num_slowest_workers(num_workers: int) -> int:
    """How many workers are the slowest 3 %: rounded up, so at least one (Eq. 5)."""
    return (3 * num_workers + 99) // 100


def loss_shares(optype_slowdown: Mapping[str, float | None]) -> dict[str, float | None]:
    """Each type's share of the loss: max(0, S_t - 1) over the sum of all types; None if unknown."""
    losses = {
        name: None if slowdown is None else max(0.0, slowdown - 1.0)
        for name, slowdown in optype_slowdown.items()
    }
    total = sum(loss or 0.0 for loss in losses.values())
    return {
        name: None if loss is None else loss / total if total > 0 else 0.0
        for name, loss in losses.items()
    }
