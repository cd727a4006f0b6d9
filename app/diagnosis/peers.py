"""How much longer than its peers, the same stage of the other dp ranks, does a worker take?"""

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.selecting import median
from app.engine.compiled import kernel
from app.trace.window import Floats

# Where at least this share of the dp ranks, and two of four and more, is clearly faster than the
# others, they are the measure: a median would lie between two generations of GPUs, or in the
# slower one. A single fast one makes no others slow.
FAST_SHARE = 0.2
# How clearly: so much, and so many times what the fast ones differ among themselves.
CLEAR_GAP = 0.02
GAP_TO_SPREAD = 1.5


def references(took_s: Floats) -> NDArray[np.bool_]:
    """[dp, pp], by whom workers are measured: everybody, or the faster of two clear groups.

    Args:
        took_s: [steps, dp, pp], any figure in seconds that should be equal within a stage.
    """
    _, dp_size, pp_size = took_s.shape
    found = np.ones((dp_size, pp_size), np.bool_)
    if dp_size > 1 and took_s.shape[0]:
        _references(np.ascontiguousarray(took_s), found)
    return found


def ratios(took_s: Floats, measure: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], each worker's figure by the median of the stage's `measure` [dp, pp]."""
    found = np.ones(took_s.shape)
    _ratios(np.ascontiguousarray(took_s), measure, found)
    return found


@kernel
def _references(took_s, found):  # type: ignore[no-untyped-def]
    num_steps, dp_size, pp_size = took_s.shape
    took = np.empty(dp_size)
    for stage in range(pp_size):
        level = np.zeros(dp_size)
        for step in range(num_steps):
            took[:] = took_s[step, :, stage]
            typical_s = median(took, dp_size)
            if typical_s > 0:
                for dp_rank in range(dp_size):
                    level[dp_rank] += took_s[step, dp_rank, stage] / typical_s / num_steps
        order = np.sort(level)
        best, split = 0.0, 0
        fewest = max(1 if dp_size < 4 else 2, int(np.ceil(FAST_SHARE * dp_size)))
        for count in range(fewest, dp_size):
            gap = order[count] - order[count - 1]
            if gap > best:
                best, split = gap, count
        if split == 0:
            continue
        spread = order[split - 1] - order[0]
        if best >= CLEAR_GAP * order[split - 1] and best >= GAP_TO_SPREAD * spread:
            for dp_rank in range(dp_size):
                found[dp_rank, stage] = level[dp_rank] <= order[split - 1]


@kernel
def _ratios(took_s, measure, found):  # type: ignore[no-untyped-def]
    num_steps, dp_size, pp_size = took_s.shape
    chosen = np.empty(dp_size)
    for step in range(num_steps):
        for stage in range(pp_size):
            count = 0
            for dp_rank in range(dp_size):
                if measure[dp_rank, stage]:
                    chosen[count] = took_s[step, dp_rank, stage]
                    count += 1
            typical_s = median(chosen, count)
            if typical_s > 0:
                for dp_rank in range(dp_size):
                    found[step, dp_rank, stage] = took_s[step, dp_rank, stage] / typical_s
