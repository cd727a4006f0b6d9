"""Workers of few dp ranks that are slow in turn: which one is slow in each step?

Among two or three peers a slow worker moves the median that it is compared with: of two it is half
of it. So each step's faster peers are the reference. The slower one of two always differs from it,
and is slow itself only if no other worker of the job is slow in that step: long sequences slow down
all stages of their dp rank, so one stage alone tells nothing.
"""

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.features import Pace
from app.engine.medians import median_of
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

MAX_PEERS = 3
# Slow by this excess in both directions and the shortest computation, and by so many robust
# deviations of all workers.
MIN_EXCESS = 0.1
MIN_DEVIATIONS = 6.0
# In at least this share of the steps, of which no worker has more than that share.
MIN_SHARE_OF_STEPS = 0.5
MAX_SHARE_OF_ONE = 0.7


def slow_in_turn_of_few(forward: Pace, backward: Pace, usual: Ints) -> NDArray[np.bool_] | None:
    """[steps, dp, pp], the one worker that is slow in each step; None where workers take no turns.

    Args:
        forward: of all workers.
        backward: of all workers.
        usual: positions of the usual steps; none is slow in the others.
    """
    num_steps, dp_size, pp_size = forward.mean_s.shape
    if not 1 < dp_size <= MAX_PEERS or pp_size < 2:
        return None
    sides = (forward.mean_s, backward.mean_s, forward.least_s + backward.least_s)
    excess = np.stack([_excess(side[usual]) for side in sides])
    noise = MAD_TO_DEVIATION * median_of(excess.max(axis=0))
    is_slow = excess.min(axis=0) >= max(MIN_EXCESS, MIN_DEVIATIONS * noise)
    of_step, of_worker = is_slow.sum(axis=(1, 2)), is_slow.sum(axis=0)
    if of_step.max(initial=0) > 1 or of_step.sum() < max(1.0, MIN_SHARE_OF_STEPS * usual.size):
        return None
    if of_worker.max() > MAX_SHARE_OF_ONE * of_step.sum():
        return None
    found = np.zeros((num_steps, dp_size, pp_size), np.bool_)
    found[usual] = is_slow
    return found


def _excess(took_s: Floats) -> Floats:
    """[steps, dp, pp], seconds over the lower median of the stage's dp ranks in that step, less 1.

    At least 0: what is faster than the reference shows no slowness.
    """
    low = (took_s.shape[1] - 1) // 2
    fast_s = np.partition(took_s, low, axis=1)[:, low, None]
    ratio = np.divide(took_s, fast_s, out=np.ones(took_s.shape), where=fast_s > 0)
    return np.asarray(np.maximum(ratio - 1, 0.0))
