"""Forwards of one micro-batch that are longer on nearly all workers at once.

No tails are so, and neither are long sequences, which are long backwards too: collections of
garbage are that everybody plans for the same moment.
"""

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.events import Events

# Shorter forwards are no pauses.
LEAST_RATIO = 1.25
# Everybody at once: so many of the workers.
NEARLY_ALL = 0.9
# One worker alone is not everybody.
MIN_WORKERS = 2
# A pause that was seen once is planned if steps were as much longer so often before, in turn.
TIMES_BEFORE = 2
# In steps right after each other it is no pause now and then.
MIN_APART = 2
# As long: by so much of what this one is longer.
AS_MUCH = 0.5


def at_once(case: Case, found: Events) -> NDArray[np.bool_]:
    """[events], those that nearly all workers have in the same forward of the same step."""
    num_workers = case.parallelism.num_workers
    if num_workers < MIN_WORKERS or not found.size:
        return np.zeros(found.size, np.bool_)
    key = found.step * (int(found.item.max()) + 2) + found.item + 1
    is_pause = ~found.is_backward & (found.item >= 0) & (found.ratio >= LEAST_RATIO)
    counts = np.bincount(key[is_pause], minlength=int(key.max()) + 1)
    is_shared = np.asarray(counts >= NEARLY_ALL * num_workers)
    return np.asarray(is_shared[key] & is_pause)


def period_before(case: Case, position: int) -> int | None:
    """Every how many steps, up to that at `position` of the window, one was longer by as much.

    None where that was not seen before, or not in equal distances.
    """
    course = case.course
    end = course.num_before + position + 1
    longer_s = course.step_s[:end] - np.median(course.step_s[:end])
    if longer_s[-1] <= 0:
        return None
    steps = course.steps[:end][longer_s >= AS_MUCH * longer_s[-1]]
    apart = np.diff(steps)[-TIMES_BEFORE:]
    if apart.size < TIMES_BEFORE or (apart != apart[-1]).any() or apart[-1] < MIN_APART:
        return None
    return int(apart[-1])
