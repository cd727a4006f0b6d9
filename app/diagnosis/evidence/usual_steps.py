"""Which steps are usual? The first ones, evaluations and checkpoints are not."""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.reported_delays import late_by_s
from app.diagnosis.statistics.episodes import runs_of
from app.engine.medians import medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class OddStepLimits:
    """From when on a step is odd. Chosen, unless a comment says otherwise."""

    # Difference from the usual step, as a share of it; papers call that a straggler.
    min_difference: float = 0.10
    # Standard deviations that it differs by, for jobs whose steps vary by nature.
    min_deviations: float = 6.0
    # Warm-up takes fewer steps than this: compilers and caches are warm after two or three.
    warm_up_steps: int = 4
    # Fewer steps do not show what is usual, and if more than this share differ, none is odd.
    min_steps: int = 4
    max_share: float = 1 / 3
    # Steps of one new level differ by less than this share of the change; an evaluation and a
    # checkpoint in a row differ by more.
    max_level_difference: float = 0.25
    # Odd steps in a row: an evaluation and a checkpoint.
    max_adjacent: int = 2


LIMITS = OddStepLimits()
# Steps of the running median: three odd ones do not move it, and it follows a new level.
_NEARBY_STEPS = 7


@evidence
def is_usual(case: Case) -> NDArray[np.bool_]:
    """[steps], False for odd steps: the first ones, evaluations, checkpoints (`odd_steps`)."""
    step_s, launch_s = case.report.recorded_s, case.signals.get("launch_s")
    begins = case.extended_history.num_before == 0
    if launch_s is None:
        return ~odd_steps(case.work_s, step_s, begins=begins)
    # A step that waits for data is no evaluation.
    launch_s = np.maximum(0.0, launch_s - late_by_s(case, "data-wait"))
    odd = odd_steps(case.work_s + launch_s, step_s, begins=begins)
    # Frequent planned pauses can hide rare evaluations in the sum: look at delays alone, too.
    return ~(odd | odd_steps(launch_s, step_s, begins=begins))


@evidence
def usual_steps(case: Case) -> Ints:
    """Positions in `case.steps` of the usual steps, by which workers are judged."""
    return np.flatnonzero(is_usual(case))


def odd_steps(own_s: Floats, step_s: Floats, *, begins: bool) -> NDArray[np.bool_]:
    """[steps], steps in which the typical worker of some stage took far more or less than usual.

    The job's first steps, an evaluation, a checkpoint: one or two steps between usual ones. A
    change that lasts makes no step odd, and neither does a fault of a few workers.

    Args:
        own_s: [steps, dp, pp], seconds that each worker computed, and its launch delays.
        step_s: [steps], seconds each step took.
        begins: no earlier step is known, so the job may be warming up.
    """
    num_steps = step_s.size
    odd = np.zeros(num_steps, np.bool_)
    if num_steps < LIMITS.min_steps:
        return odd
    above_s = _typical(own_s)
    away_s = np.abs(above_s)
    deviation_s = MAD_TO_DEVIATION * medians_of_known(away_s.T)
    least_s = LIMITS.min_difference * medians_of_known(step_s)
    limit_s = np.maximum(least_s, LIMITS.min_deviations * deviation_s)
    far = np.asarray((away_s > limit_s).any(axis=1))
    if not far.any():
        return odd
    for first, end in runs_of(far):
        may_go_on = end == num_steps and _alike(above_s[first], above_s[end - 1])
        odd[first:end] = end - first <= (1 if may_go_on else LIMITS.max_adjacent)
    is_slow = np.asarray((above_s > limit_s).any(axis=1))
    warms_up = begins and not is_slow[: LIMITS.warm_up_steps].all()
    warm_up = int(np.argmin(is_slow)) if warms_up else 0
    if odd[warm_up:].sum() > LIMITS.max_share * num_steps:
        odd[:] = False
    odd[:warm_up] = True
    return odd if not odd.all() else np.zeros(num_steps, np.bool_)


def _typical(own_s: Floats) -> Floats:
    """[steps, pp], seconds of each stage's typical worker above the running median over steps.

    By stage, as a delay may be on the first one only. The lower median over dp ranks: one slow rank
    of two makes no step odd.
    """
    low = (own_s.shape[1] - 1) // 2
    typical_s = np.partition(own_s, low, axis=1)[:, low]
    size = min(_NEARBY_STEPS, typical_s.shape[0])
    medians_s = medians_of_known(sliding_window_view(typical_s, size, axis=0))
    nearest = np.clip(np.arange(typical_s.shape[0]) - size // 2, 0, len(medians_s) - 1)
    return np.asarray(typical_s - medians_s[nearest])


def _alike(one_s: Floats, other_s: Floats) -> bool:
    """Whether two steps differ from usual by about the same on all stages."""
    apart_s, size_s = np.abs(one_s - other_s).max(), np.abs(one_s).max()
    return bool(apart_s <= LIMITS.max_level_difference * size_s)
