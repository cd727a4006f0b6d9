"""Least squares in which what is far off counts as if it were nearer (Huber)."""

import numpy as np

from app.engine.clocks.conjugate import solve
from app.engine.clocks.straighten import straightened
from app.engine.clocks.sums import pull
from app.engine.compiled import kernel

# Values further off than so many spreads count as if they were at them.
CLIP = 2.0
_LEAST_SPREAD_NS = 1000.0
_MAX_TURNS = 20
_NEAR_ENOUGH = 0.02  # of the spread
_SPREAD_OF = 1 << 13  # values; more make it no surer


@kernel
def without_outliers(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, weight, moments, diagonal,
    is_free, before, prior,
):  # fmt: skip
    """[hosts, 2], what is to be added to the coefficients before, and the spread of values.

    The matrix stays the same, and outliers are clipped in what it is multiplied with. Shapes and
    units are those of `sums`.
    """
    more, every = np.zeros_like(before), 1 + apart_ns.size // _SPREAD_OF
    # How far they are from the middle one of each slot: few that are far off do not show in it.
    spread_ns = _of(np.abs(apart_ns[::every]))
    more += straightened(
        first_member, host, first_slot, first_value, apart_ns, time, is_free, spread_ns
    )
    for _ in range(_MAX_TURNS):
        limit_ns = CLIP * spread_ns
        asked, spread = pull(
            first_member, host, first_slot, first_value, apart_ns, time, weight, more, limit_ns
        )
        asked[:, 1] -= prior * (more[:, 1] + before[:, 1])
        change = solve(
            first_member, host, moments, diagonal, asked, is_free, prior,
            0.1 * _NEAR_ENOUGH * spread_ns,
        )  # fmt: skip
        more += change
        is_near = np.max(np.abs(change)) < _NEAR_ENOUGH * spread_ns
        spread_ns = _of(spread[::every])
        if is_near:
            break
    return more, spread_ns


@kernel
def _of(spread):  # type: ignore[no-untyped-def]
    """Standard deviation of values if they are normal, whatever a few of them are."""
    return max(1.4826 * np.median(spread), _LEAST_SPREAD_NS)
