"""How a job went: what is remembered of its earlier steps, and the window at hand, in one."""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.finding import Persistence
from app.diagnosis.history import History
from app.diagnosis.onset import Change, latest_onset
from app.diagnosis.persistence import persistence
from app.trace.window import Floats


@dataclass(frozen=True)
class Course(History):
    """Steps before the window and those in it; the first `num_before` are before it."""

    num_before: int = 0


@dataclass(frozen=True, slots=True)
class Lasting:
    """Since when something is as bad as it is, and does it last?

    `onset_step` is None where it is older than what is known of the job, or no one step began it.
    """

    onset_step: int | None
    persistence: Persistence | None
    change: Change | None = None


def course_of(history: History, window: History) -> Course:
    """The history up to the window, and the window."""
    if not window.num_steps:
        return Course(history.steps, history.step_s, history.signals, history.num_steps)
    before = history.before(int(window.steps[0]))
    both = before.with_steps(window)
    num_before = both.num_steps - window.num_steps
    return Course(both.steps, both.step_s, both.signals, num_before)


def lasting(course: Course, badness: Floats) -> Lasting:
    """When did it begin, and how does it last, for how bad it was in each step of the course.

    `badness` [n], 1.0 = not at all, NaN = not known.
    """
    change = latest_onset(badness)
    lasts = persistence(badness, course.num_before)
    step = None if change is None else int(course.steps[change.position])
    return Lasting(step, lasts, change)


def median_over_workers(signal: Floats) -> Floats:
    """[n], what is usual among the workers in each step, of a signal [n, dp, pp]."""
    flat = signal.reshape(signal.shape[0], -1)
    is_known = np.isfinite(flat).any(axis=1)
    usual = np.full(flat.shape[0], np.nan)
    usual[is_known] = np.nanmedian(flat[is_known], axis=1)
    return usual
