"""The first steps of a run: compilation, allocation and warm-up make them long on all ranks.

That is known, and no fault: causes are judged by the later steps. `first_steps` finds them,
`judged_replay` leaves them out, and what they took is said (observations.py).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.features import Features, busy_s
from app.diagnosis.statistics import change_points
from app.diagnosis.statistics.change_points import scale_of
from app.diagnosis.statistics.episodes import runs_of
from app.engine.medians import median_of
from app.engine.replays import WindowReplay, prepare
from app.result.finding import ObservationKind
from app.result.window_result import WindowResult
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class FirstStepsLimits:
    """Which steps are the first ones of a run. Chosen, unless a comment says otherwise."""

    # A run warms up for at most so many steps: compilers, caches, allocators and autotuning are
    # done after two or three, a learning rate's or a batch's ramp is none of it.
    max_steps: int = 10
    # Fewer later steps do not show what a step takes (the same for slow workers).
    min_later: int = 3
    # Later steps whose level counts: what happens long after says nothing about the beginning.
    num_later: int = 16
    # A first step is longer by this share, and by so many standard deviations of the later ones
    # (both as for odd steps, usual_steps.py).
    min_difference: float = 0.10
    min_deviations: float = 6.0
    # Steps in between may be as later ones are: at least this share is longer.
    min_share_long: float = 0.5
    # The typical ranks of all stages are busy longer by this share of what the step is longer.
    min_share_of_all: float = 0.5
    # Later steps that are longer by this share of the shortest first one's excess are the same
    # event again: a checkpoint, an evaluation or a collection at an interval.
    min_share_again: float = 0.5


LIMITS = FirstStepsLimits()
KIND: ObservationKind = "first-steps"


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Steps that were left out: how many, how long against later ones, and what they cost.

    `ratio` is their mean over the level of the later ones; `share` is what they took longer, of the
    recorded time of the window.
    """

    number: int
    ratio: float
    share: float


def begins_run(replay: WindowReplay, *, has_history: bool) -> bool:
    """Whether the window holds the first steps of its run.

    No earlier step of the run is known, and either its steps are counted from 0, or it follows
    another run of the job: after a restart steps go on from a checkpoint.
    """
    return not has_history and (replay.window.epoch > 1 or replay.steps[0] < LIMITS.max_steps)


def was_left_out(result: WindowResult) -> bool:
    """Whether a result was judged without the first steps of the run."""
    return any(fact.kind == KIND for fact in result.observations or ())


def judged_replay(replay: WindowReplay) -> tuple[WindowReplay, FirstSteps | None]:
    """A replay without the first steps of a run, with which it begins, and what these took."""
    first = first_steps(replay)
    if first is None:
        return replay, None
    later = replay.window.only(replay.steps[first.number :])
    return prepare(replace(later, skipped=replay.window.skipped)), first


def first_steps(replay: WindowReplay) -> FirstSteps | None:
    """The first steps of a run with which a replay begins; None where all are as later ones.

    They last up to the last long step among the first ten, the ranks are busy longer in all of
    them, and nothing like it comes again.
    """
    step_s = replay.recorded_s
    most = min(LIMITS.max_steps, step_s.size - LIMITS.min_later)
    if most < 1 or not (step_s > 0).all():
        return None
    # Of a short window the first half may be first steps.
    begin = min(most, step_s.size // 2)
    usual = slice(begin, begin + LIMITS.num_later)
    scale = float(scale_of(np.log(step_s[usual]), change_points.LIMITS.min_scale))
    longer = step_s / median_of(step_s[usual]) - 1
    least = max(LIMITS.min_difference, float(np.expm1(LIMITS.min_deviations * scale)))
    number = _number(longer[:most] > least)
    if not number or longer[number] > least:  # none, or they go on
        return None
    at = np.flatnonzero(longer[:number] > least)
    is_again = longer[number:] >= max(least, LIMITS.min_share_again * longer[at].min())
    if any(end - first >= at.size for first, end in runs_of(is_again)):
        return None
    # Only now, as it takes longer.
    excess_s = step_s[at] - median_of(step_s[usual])
    if not _are_all_busy(_busy_longer_s(replay, usual)[at], excess_s):
        return None
    # It may fade: what is longer than all that follows is still a part of it.
    while number < most and longer[number] > longer[number + 1 :].max():
        number += 1
    level_s = median_of(step_s[number:][: LIMITS.num_later])
    lost_s = float((step_s[:number] - level_s).sum())
    took = float(step_s[:number].mean()) / level_s
    return FirstSteps(number, took, max(0.0, lost_s) / float(step_s.sum()))


def _number(is_long: NDArray[np.bool_]) -> int:
    """Steps up to the last long one, if most are long from the first one on; else 0."""
    if not is_long[0]:
        return 0
    share = np.cumsum(is_long) / np.arange(1, is_long.size + 1)
    return int(np.flatnonzero(is_long & (share >= LIMITS.min_share_long))[-1]) + 1


def _busy_longer_s(replay: WindowReplay, usual: slice) -> Floats:
    """[steps, pp], seconds that the typical rank of each stage is busy longer than usual."""
    groups = [Features(group) for group in replay.groups]
    order = np.argsort(np.concatenate([group.steps for group in groups]))
    all_s = np.concatenate([busy_s(group) for group in groups])[order]
    longer_s = np.maximum(all_s - np.median(all_s[usual], axis=0), 0.0)
    # The lower median: one long rank of two is not all.
    low = (longer_s.shape[1] - 1) // 2
    return np.asarray(np.partition(longer_s, low, axis=1)[:, low])


def _are_all_busy(longer_s: Floats, excess_s: Floats) -> bool:
    """Whether ranks of most stages [steps, pp] are busy for what the steps take longer.

    A stage that compiles keeps the next ones waiting, so that a step may be longer by the sum.
    """
    least_s = LIMITS.min_share_of_all * excess_s
    low = (longer_s.shape[1] - 1) // 2
    of_most_s = np.partition(longer_s, low, axis=1)[:, low] * longer_s.shape[1]
    return bool(((longer_s.sum(axis=1) >= least_s) & (of_most_s >= least_s)).all())
