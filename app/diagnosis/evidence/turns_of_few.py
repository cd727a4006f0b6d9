"""Workers of few dp ranks that are slow in turn, or every so many steps: which one in each step?

Among two or three peers a slow worker moves the median that it is compared with: of two it is half
of it. So each step's faster peers are the reference. The slower one of two always differs from it,
and is slow itself only if no other worker of the job is slow in that step: long sequences slow down
all stages of their dp rank, so one stage alone tells nothing, unless one worker is slow every so
many steps: lengths come at no interval.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.features import Pace
from app.diagnosis.statistics.persistence import period
from app.engine.medians import median_of
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """From when on workers of few dp ranks are slow in turn. All were chosen on made jobs."""

    # Of more peers, a slow one hardly moves the median.
    max_peers: int = 3
    # Excess (a share) of a slow worker in both directions and the shortest computation, and robust
    # deviations of all workers. The same for workers with many peers (slow_steps.py).
    min_excess: float = 0.1
    min_deviations: float = 6.0
    # Share of the steps in which some worker is slow, and the largest share of these that one has.
    min_share_of_steps: float = 0.5
    max_share_of_one: float = 0.7


LIMITS = TurnLimits()


def slow_in_turn_of_few(forward: Pace, backward: Pace, usual: Ints) -> NDArray[np.bool_] | None:
    """[steps, dp, pp], the one worker that is slow in each step; None where none are told.

    Args:
        forward: of all workers.
        backward: of all workers.
        usual: positions of the usual steps; none is slow in the others.
    """
    num_steps, dp_size, pp_size = forward.mean_s.shape
    if not 1 < dp_size <= LIMITS.max_peers:
        return None
    sides = (forward.mean_s, backward.mean_s, forward.least_s + backward.least_s)
    excess = np.stack([_excess(side[usual]) for side in sides])
    noise = MAD_TO_DEVIATION * median_of(excess.max(axis=0))
    is_slow = excess.min(axis=0) >= max(LIMITS.min_excess, LIMITS.min_deviations * noise)
    of_step, of_worker = is_slow.sum(axis=(1, 2)), is_slow.sum(axis=0)
    num_slow, least = of_step.sum(), max(1.0, LIMITS.min_share_of_steps * usual.size)
    if of_step.max(initial=0) > 1:
        return None
    is_of_one = of_worker.max() > LIMITS.max_share_of_one * num_slow
    if pp_size < 2:
        if not is_of_one or period(usual, of_step.astype(np.float64)) is None:
            return None
    elif is_of_one or num_slow < least:
        return None
    takes_turn = np.zeros((num_steps, dp_size, pp_size), np.bool_)
    takes_turn[usual] = is_slow
    return takes_turn


def _excess(took_s: Floats) -> Floats:
    """[steps, dp, pp], seconds over the lower median of the stage's dp ranks in that step, less 1.

    At least 0: what is faster than the reference shows no slowness.
    """
    low = (took_s.shape[1] - 1) // 2
    fast_s = np.partition(took_s, low, axis=1)[:, low, None]
    ratio = np.divide(took_s, fast_s, out=np.ones(took_s.shape), where=fast_s > 0)
    return np.asarray(np.maximum(ratio - 1, 0.0))
