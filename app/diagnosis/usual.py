"""Which steps are none to judge workers by: the first one, evaluations, checkpoints?

A step is odd where the *typical* worker of some stage took far more or less time for its own work
than usual, and the steps beside it are not odd. A change that lasts makes no step odd, and neither
does a fault of a few workers.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from app.diagnosis.selecting import medians
from app.trace.window import Floats

# Of the usual step: as much as the trade calls straggling.
_FAR = 0.10
# Standard deviations, for jobs whose steps differ by their nature.
_MANY_DEVIATIONS = 6.0
_MAD_TO_DEVIATION = 1.4826
# A job may need one step less than this before it runs as it should.
_WARM_UP = 4
# Fewer steps do not show what is usual; if more of them are odd, they are not.
_MIN_STEPS = 4
_MAX_SHARE = 1 / 3
# Steps that say what is usual: enough that three odd ones do not, and few enough for a new level.
_AROUND = 7
# Steps of a new level differ by less than this share of what is new; an evaluation and a
# checkpoint by more.
_SAME = 0.25
# An evaluation may come right before a checkpoint.
_TOGETHER = 2


def odd_steps(own_s: Floats, step_s: Floats, *, begins: bool) -> NDArray[np.bool_]:
    """[steps], which steps stand alone, or two together; what lasts to the end may be a change.

    Args:
        own_s: [steps, dp, pp], seconds that each worker computed and was late with computing.
        step_s: [steps], seconds each step took.
        begins: nothing is known of the steps before, so that the job may be warming up.
    """
    num_steps = step_s.size
    odd = np.zeros(num_steps, np.bool_)
    if num_steps < _MIN_STEPS:
        return odd
    above_s = _typical(own_s)
    away_s = np.abs(above_s)
    deviation_s = _MAD_TO_DEVIATION * medians(away_s.T)
    limit_s = np.maximum(_FAR * medians(step_s), _MANY_DEVIATIONS * deviation_s)
    far = np.asarray((away_s > limit_s).any(axis=1))
    if not far.any():
        return odd
    for first, end in _runs(far):
        may_go_on = end == num_steps and _alike(above_s[first], above_s[end - 1])
        odd[first:end] = end - first <= (1 if may_go_on else _TOGETHER)
    is_slow = np.asarray((above_s > limit_s).any(axis=1))
    warm_up = int(np.argmin(is_slow)) if begins and not is_slow[:_WARM_UP].all() else 0
    if odd[warm_up:].sum() > _MAX_SHARE * num_steps:
        odd[:] = False
    odd[:warm_up] = True
    return odd if not odd.all() else np.zeros(num_steps, np.bool_)


def _typical(own_s: Floats) -> Floats:
    """[steps, pp], what the typical worker of each stage took, above what it took around then.

    Of each stage, since a delay may be on the first one only, and all others wait for it. The
    lower median, so that of two dp ranks one alone makes no step odd.
    """
    low = (own_s.shape[1] - 1) // 2
    typical_s = np.partition(own_s, low, axis=1)[:, low]
    size = min(_AROUND, typical_s.shape[0])
    medians_s = medians(sliding_window_view(typical_s, size, axis=0))
    nearest = np.clip(np.arange(typical_s.shape[0]) - size // 2, 0, len(medians_s) - 1)
    return np.asarray(typical_s - medians_s[nearest])


def _alike(one_s: Floats, other_s: Floats) -> bool:
    """Whether two steps are longer, or shorter, by about the same on all stages."""
    apart_s, size_s = np.abs(one_s - other_s).max(), np.abs(one_s).max()
    return bool(apart_s <= _SAME * size_s)


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each stretch that is True."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
