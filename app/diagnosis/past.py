"""How bad something was in each step, also before the window: read from the job's signals."""

from collections.abc import Sequence

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.grouping import Worker
from app.trace.window import Floats

# Launch delays are counted in this share of a step, so that what matters is far above chance.
_DELAY_UNIT = 0.02


def against_others(case: Case, signal: str, workers: Sequence[Worker]) -> Floats | None:
    """[n], the mean of a signal over some workers, by the median over all others.

    By its own lowest level where there are no others. None where the job has no such signal.
    """
    values = case.course.signals.get(signal)
    if values is None or not workers:
        return None
    is_mine = np.zeros(values.shape[1:], np.bool_)
    is_mine[tuple(np.transpose(workers))] = True
    own = values[:, is_mine].mean(axis=1)
    usual = own if is_mine.all() else np.median(values[:, ~is_mine], axis=1)
    if is_mine.all():
        known = own[np.isfinite(own)]
        usual = np.full(own.size, known.min() if known.size else np.nan)
    ratio: Floats = np.divide(own, usual, out=np.full(own.size, np.nan), where=usual > 0)
    return ratio


def launched_late(case: Case, workers: Sequence[Worker]) -> Floats | None:
    """[n], 1 and the mean launch delay of some workers, in units of 2 % of a usual step."""
    values = case.course.signals.get("launch_s")
    if values is None or not workers:
        return None
    late_s = values[(slice(None), *np.transpose(workers))].mean(axis=1)
    return np.asarray(1 + late_s / (_DELAY_UNIT * np.median(case.course.step_s)))
