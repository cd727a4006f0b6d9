"""Facts about a window that blame nobody, such as time in which all ranks are idle."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.evidence.idle_time import idle_share, idle_time
from app.diagnosis.first_steps import KIND as FIRST_STEPS
from app.formatting import percent, plural, ratio, seconds, upper_first
from app.result.finding import ObservationRecord
from app.result.words import WAITS_NOT_RECORDED
from app.trace.uneven_counts import uneven_counts
from app.trace.window import Floats, Ints, Window

Observer = Callable[[Case], ObservationRecord | None]
WindowObserver = Callable[[Window], ObservationRecord | None]


@dataclass(frozen=True, slots=True)
class ObservationLimits:
    """From when on facts are worth a sentence. All were chosen."""

    # A share of the GPU time: as for causes (fidelity.MIN_COST).
    min_share: float = 0.02
    # Idle times shorter than this share of the longest one are what every step has.
    min_share_of_longest: float = 0.5
    # As of checkpoints, so many show an interval of so many steps (checkpoint_stall.py).
    min_stops: int = 3
    min_every: int = 2


LIMITS = ObservationLimits()


def observations_of(case: Case) -> tuple[ObservationRecord, ...]:
    """What can be stated of the window without a cause."""
    facts = (observer(case) for observer in OBSERVERS)
    of_window = observations_without_steps(case.replay.window)
    return (*(fact for fact in facts if fact is not None), *of_window)


def observations_without_steps(window: Window) -> tuple[ObservationRecord, ...]:
    """The same of a window of which no step can be replayed."""
    facts = (observer(window) for observer in WINDOW_OBSERVERS)
    return tuple(fact for fact in facts if fact is not None)


def idle_between_steps(case: Case) -> ObservationRecord | None:
    """Idle time of all ranks before the steps' first computations that no row explains."""
    idle_s, share = idle_time(case).unreported_s, idle_share(case)
    if share < LIMITS.min_share:
        return None
    return ObservationRecord(
        kind="idle-between-steps",
        share=share,
        sentence=f"All ranks are idle for {percent(share)} of the GPU time between steps, "
        f"{_when(case.steps, idle_s)}; the cause is not recorded",
    )


def _when(steps: Ints, idle_s: Floats) -> str:
    """How long, and in which of the steps [steps]."""
    at = np.flatnonzero(idle_s >= LIMITS.min_share_of_longest * idle_s.max())
    mean = seconds(float(idle_s[at].mean()))
    if at.size == 1:
        return f"{mean} before step {steps[at[0]]}"
    every = int(np.gcd.reduce(np.diff(steps[at])))
    in_range = steps[(steps >= steps[at[0]]) & (steps <= steps[at[-1]])]
    is_due = (in_range - steps[at[0]]) % every == 0
    if at.size >= LIMITS.min_stops and every >= LIMITS.min_every and is_due.sum() == at.size:
        return f"{mean} every {every} steps"
    # Before the first step of a window it may not be known.
    if at.size >= steps.size - 1:
        return f"{mean} a step"
    return f"{mean} in {at.size:,} of {steps.size:,} steps"


def uneven_microbatches(window: Window) -> ObservationRecord | None:
    """Dp ranks with different numbers of micro-batches, of which no step is replayed."""
    uneven = uneven_counts(window)
    if uneven is None:
        return None
    num_steps = len({*window.steps, *(skip.step for skip in window.skipped)})
    in_steps = f"in {len(uneven.steps):,} of {plural(num_steps, 'step')} "
    where = in_steps if len(uneven.steps) < num_steps else ""
    return ObservationRecord(
        kind="uneven-microbatches",
        share=None,
        sentence=f"{upper_first(where + uneven.fact)}, by design as far as the record shows: such "
        "steps cannot be replayed, so that most causes are not examined in them",
    )


def waits_not_recorded(case: Case) -> ObservationRecord | None:
    """That dp ranks wait for each other in no recorded collective."""
    if not case.replay.lacks_waits:
        return None
    return ObservationRecord(
        kind="waits-not-recorded", share=None, sentence=upper_first(WAITS_NOT_RECORDED)
    )


def first_steps_fact(case: Case) -> ObservationRecord | None:
    """What the first steps of the run took, which are left out of all causes."""
    first = case.first_steps
    if first is None:
        return None
    subject = "first step" if first.number == 1 else f"first {first.number} steps"
    sentence = (
        f"The {subject} of the run took {ratio(first.ratio)} as long as the later ones on all "
        f"ranks, {percent(first.share)} of the time recorded: compilation and warm-up, left out "
        "of the causes"
    )
    return ObservationRecord(kind=FIRST_STEPS, share=first.share, sentence=sentence)


OBSERVERS: tuple[Observer, ...] = (idle_between_steps, first_steps_fact, waits_not_recorded)
# They need no replay.
WINDOW_OBSERVERS: tuple[WindowObserver, ...] = (uneven_microbatches,)
