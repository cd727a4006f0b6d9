"""With one dp rank a worker has no peers: has it become slower than it was, and its stage alone?

A stage's share of the model does not change while a job runs, so a stage that became slower beside
the others is a slow worker. One that was slow from the beginning may have more work.
"""

import numpy as np

from app.diagnosis.course import Course
from app.diagnosis.onset import latest_onset_of_each
from app.trace.window import Floats, Ints

# Steps before the change, within the window, that tell each direction's own level.
_MIN_BEFORE = 2
_AT_ITS_BEST = 0.1


def against_itself(course: Course) -> Floats:
    """[steps of the course, 1, pp], how much longer each stage took than before its change.

    1.0 for a stage that did not become slower, and in steps of the window that do not tell; NaN
    in earlier ones. What all stages have in common, as lengths of sequences or a slowdown of
    everybody, is divided out.
    """
    took_s = course.signals["compute_s"][:, 0]
    ratio = np.ones((took_s.shape[0], 1, took_s.shape[1]))
    if took_s.shape[1] < 2:
        return ratio
    relative = _relative(took_s)
    for stage, change in enumerate(latest_onset_of_each(np.ascontiguousarray(relative.T))):
        if change is not None:
            ratio[:, 0, stage] = relative[:, stage] / change.before
    window = ratio[course.num_before :]
    window[np.isnan(window)] = 1.0
    return ratio


def of_direction(took_s: Floats, ratio: Floats, usual: Ints) -> Floats:
    """[steps, 1, pp] of the window, one direction against itself.

    As both directions together, `ratio`, where the window does not show how it was before.

    Args:
        took_s: [steps, 1, pp], seconds.
        ratio: [steps, 1, pp], the same of both directions together.
        usual: positions of steps to be judged by.
    """
    if took_s.shape[2] < 2:
        return ratio
    found, relative = ratio.copy(), _relative(took_s[:, 0])
    for stage in np.flatnonzero((ratio != 1.0).any(axis=(0, 1))):
        middle = (1.0 + ratio[usual, 0, stage].max()) / 2
        tells = relative[:, stage] > 0
        before = usual[(ratio[usual, 0, stage] < middle) & tells[usual]]
        if before.size >= _MIN_BEFORE:
            level = np.median(relative[before, stage])
            found[tells, 0, stage] = relative[tells, stage] / level
    return found


def _relative(took_s: Floats) -> Floats:
    """[steps, pp], each stage by what it took at its best, and by what all have in common.

    NaN where that is not known, or where it took no time at all.
    """
    known = np.isfinite(took_s).all(axis=1)
    # Not the median: a stage that is slow in most steps would count as usual then.
    if not known.any():
        return np.full(took_s.shape, np.nan)
    by_stage = _by(took_s, np.quantile(took_s[known], _AT_ITS_BEST, axis=0))
    low = (took_s.shape[1] - 1) // 4
    return _by(by_stage, np.partition(by_stage, low, axis=1)[:, low, None])


def _by(took: Floats, other: Floats) -> Floats:
    can_tell = (took > 0) & (other > 0)
    return np.asarray(np.divide(took, other, out=np.full(took.shape, np.nan), where=can_tell))
