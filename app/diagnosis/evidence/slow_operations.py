"""Which workers are slow in one type of operation alone: the forward, the backward, the optimizer?

A slow GPU takes longer in everything. A worker that takes longer in one type alone has another
kernel, a library of another version, work of the host within it (logging of losses), or an
optimizer whose state lies in slow memory. Its other operations are its peers', so their mean hides
it, and a repair of both directions would take away what is not slow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.detector import LIMITS as FEW_STEPS
from app.diagnosis.evidence import slowness as slowness_evidence
from app.diagnosis.evidence.slowness import Slowness, slowness, slowness_of
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.features import Computations, Features, Pace, once_codes, type_s
from app.diagnosis.statistics.robust import quantile_of
from app.engine.medians import medians_of_known
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """From when on workers are slow in one type of operation. All were chosen on made jobs."""

    # Ratio to the peers in one direction: one type alone is a rarer fault than a slow GPU, and its
    # mean is over fewer operations.
    min_direction_ratio: float = 1.06
    # The optimizer runs once a step, so its share of the step is small and its noise large.
    min_once_ratio: float = 1.3
    # Where the other direction is faster than the peers' by this share, or by so many deviations of
    # healthy peers, the peers' computations hide waits that the worker has not.
    max_faster: float = 0.05
    faster_deviations: float = 4.0
    # Of fewer computations in a step a single pause raises all figures;
    min_computations: int = 3
    # then nearly all steps of the stretch, which has `min_stretch` of them as in slowness.py, have
    # this share of its excess.
    min_share_of_excess: float = 0.35


LIMITS = OperationLimits()
# Among more peers than this, one does not change the median.
_FEW_PEERS = 8
# Nearly all steps of a stretch: those above this quantile.
_LOW_QUANTILE = 0.25

FORWARD, BACKWARD = "forward-compute", "backward-compute"


@dataclass(frozen=True)
class SlowOperation:
    """Workers against their peers in one type of operation; `is_slow` [workers], dp x pp."""

    optype: str
    slowness: Slowness
    is_slow: NDArray[np.bool_]


@evidence
def slow_operations(case: Case) -> list[SlowOperation]:
    """Of every type of computation; empty where workers have no peers."""
    both, usual = slowness(case), usual_steps(case)
    if both is None or both.has_no_peers or case.forward is None or case.backward is None:
        return []
    operations = []
    for optype, pace, other, choose in (
        (FORWARD, case.forward, case.backward, lambda group: group.forward),
        (BACKWARD, case.backward, case.forward, lambda group: group.backward),
    ):
        alone = slowness_of(pace, usual, LIMITS.min_direction_ratio)
        slow = _is_slow(alone, is_single=_is_single(case, choose))
        if slow.any():
            slow &= _not_faster(alone, other.mean_s[usual])
        operations.append(SlowOperation(optype, alone, slow))
    for optype, took_s in once_times(case).items():
        alone = slowness_of(Pace(took_s, took_s), usual, LIMITS.min_once_ratio)
        operations.append(SlowOperation(optype, alone, _is_slow(alone, is_single=True)))
    return operations


def once_times(case: Case) -> dict[str, Floats]:
    """{op type: [steps, dp, pp]}, seconds of computations outside micro-batches."""
    codes = [set(once_codes(group.replayer.template)) for group in case.groups]
    by_code = case.replay.window.job.op_types.by_code
    return {
        by_code[code].name: case.joined(partial(type_s, code=code))
        for code in sorted(set.intersection(*codes))
    }


def _is_slow(alone: Slowness, *, is_single: bool) -> NDArray[np.bool_]:
    """[workers], slow beyond chance in this type."""
    mean = alone.stretches.mean
    slow = mean >= alone.threshold
    if not slow.any():
        return np.asarray(slow)
    slow &= alone.significance >= 1
    if alone.usual.size < FEW_STEPS.enough_steps:
        slow &= mean >= FEW_STEPS.min_clear_ratio
    return np.asarray(slow & _lasts(alone) if is_single else slow)


def _lasts(alone: Slowness) -> NDArray[np.bool_]:
    """[workers], slow in most steps of the stretch, not in those of some pauses alone."""
    stretches, num_usual = alone.stretches, alone.usual.size
    ratio = alone.ratio[alone.usual].reshape(num_usual, -1)
    lasts = np.zeros(ratio.shape[1], np.bool_)
    size = stretches.end - stretches.first
    min_stretch = slowness_evidence.LIMITS.min_stretch
    is_long = size >= min(num_usual, max(min_stretch, num_usual / 4))
    for worker in np.flatnonzero((alone.significance >= 1) & is_long):
        inside = ratio[stretches.first[worker] : stretches.end[worker], worker]
        least = 1 + LIMITS.min_share_of_excess * (stretches.mean[worker] - 1)
        lasts[worker] = quantile_of(inside, _LOW_QUANTILE) >= least
    return lasts


def _not_faster(alone: Slowness, other_s: Floats) -> NDArray[np.bool_]:
    """[workers], those whose other direction takes no less than that of the others.

    A rank for which others wait inside their computations seems fast there, and the waiting ones
    slow: which is which, these durations do not tell.

    Args:
        alone: the direction in which workers may be slow.
        other_s: [usual steps, dp, pp], seconds of the other direction.
    """
    level_s = other_s.mean(axis=0)
    theirs_s = medians_of_known(level_s.T)
    if len(level_s) <= _FEW_PEERS:  # of two, each is compared with the other
        is_self = np.eye(len(level_s), dtype=np.bool_)[:, :, None]
        others = np.where(is_self, np.nan, level_s)
        theirs_s = medians_of_known(others.transpose(0, 2, 1))
    usual = max(LIMITS.max_faster, LIMITS.faster_deviations * alone.peer_spread)
    least = 1 - np.minimum(usual, (alone.stretches.mean - 1) / 3)
    return np.asarray((level_s >= least.reshape(level_s.shape) * theirs_s).ravel())


def _is_single(case: Case, choose: Callable[[Features], Computations | None]) -> bool:
    """Whether a worker has so few computations in a step that a pause is in all of them."""
    sides = [choose(group) for group in case.groups]
    counts = [int((side.rows[:, :, 0] >= 0).sum(axis=1).min()) for side in sides if side]
    return not counts or min(counts) < LIMITS.min_computations
