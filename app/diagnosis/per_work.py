"""Computation times as they would be if all steps and workers had had equally much work."""

import numpy as np

from app.diagnosis import load
from app.diagnosis.course import Course
from app.trace.window import Floats

# Less than this share of the usual is no work to compare by.
MIN_WORK = 0.2


def per_work(course: Course) -> Floats | None:
    """[n, dp, pp], `compute_s` by the work that a worker had in a step, where that was sent.

    Work is what tokens and squares of lengths tell of a computation's time over the whole course.
    Where nothing was sent it is taken to be the usual one, or that of those who did send it.
    None where nothing is known of computations.
    """
    compute_s = course.signals.get("compute_s")
    if compute_s is None:
        return None
    sent = [course.signals[name] for name in load.NAMES if name in course.signals]
    work = _work(compute_s, sent) if sent else None
    return compute_s if work is None else compute_s / work


def _work(compute_s: Floats, sent: list[Floats]) -> Floats | None:
    """[n, dp, pp], 1 = the usual work; None where it cannot be told from what was sent."""
    known = np.isfinite(compute_s) & np.logical_and.reduce([np.isfinite(each) for each in sent])
    if not known.any() or any(not np.mean(each[known]) for each in sent):
        return None
    # Stages differ in their work: each worker counts by what is usual for it.
    shares = compute_s / np.nanmedian(compute_s, axis=0)
    terms = [np.ones(compute_s.shape), *(each / np.mean(each[known]) for each in sent)]
    found = np.stack([term[known] for term in terms], axis=-1)
    weights = np.linalg.lstsq(found, shares[known], rcond=None)[0]
    work = np.where(known, np.tensordot(weights, np.stack(terms), axes=1), np.nan)
    return _filled(work) if (work[known] > MIN_WORK).all() else None


def _filled(work: Floats) -> Floats:
    """Known everywhere: of the step's other workers where they have told theirs, or else 1."""
    known = np.isfinite(work)
    count = known.sum(axis=(1, 2))
    of_step = np.where(count > 0, np.nansum(work, axis=(1, 2)) / np.maximum(count, 1), 1.0)
    return np.where(known, work, of_step[:, None, None])
