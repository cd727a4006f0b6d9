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
from app.diagnosis.detector import ENOUGH_STEPS, MIN_CLEAR_RATIO
from app.diagnosis.evidence.slowness import Slowness, slowness, slowness_of
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.features import Computations, Features, Pace, once_codes, type_s
from app.diagnosis.statistics.robust import quantile_of
from app.engine.medians import medians_of_known
from app.trace.window import Floats

# One type alone is a rarer fault than a slow GPU, and its mean is over fewer operations.
MIN_DIRECTION_RATIO = 1.06
# The optimizer runs once a step, so its share of the step is small and its noise large.
MIN_ONCE_RATIO = 1.3
# In another direction that is so much faster than the peers', these hide waits that it has not.
MAX_FASTER = 0.05
# Or by so many deviations of healthy peers.
FASTER_DEVIATIONS = 4.0
# Among more, one does not change the median.
_FEW_PEERS = 8
# Of fewer computations in a step a single pause raises all figures; then most steps must be slow.
_MIN_COMPUTATIONS = 3
_LOW_QUANTILE = 0.25
_MIN_STRETCH = 4
_MIN_SHARE_OF_EXCESS = 0.35

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
    both = slowness(case)
    if both is None or both.has_no_peers or case.forward is None or case.backward is None:
        return []
    found = []
    for optype, mine, other, choose in (
        (FORWARD, case.forward, case.backward, lambda group: group.forward),
        (BACKWARD, case.backward, case.forward, lambda group: group.backward),
    ):
        alone = slowness_of(mine, usual_steps(case), MIN_DIRECTION_RATIO)
        slow = _is_slow(alone, is_single=_is_single(case, choose))
        if slow.any():
            slow &= _not_faster(alone, other.mean_s[usual_steps(case)])
        found.append(SlowOperation(optype, alone, slow))
    for optype, took_s in once_times(case).items():
        alone = slowness_of(Pace(took_s, took_s), usual_steps(case), MIN_ONCE_RATIO)
        found.append(SlowOperation(optype, alone, _is_slow(alone, is_single=True)))
    return found


def once_times(case: Case) -> dict[str, Floats]:
    """{op type: [steps, dp, pp]}, seconds of computations outside micro-batches."""
    codes = [set(once_codes(group.replayer.template)) for group in case.groups]
    by_code = case.replay.window.job.op_types.by_code
    return {
        by_code[code].name: case.joined(partial(type_s, code=code))
        for code in sorted(set.intersection(*codes))
    }


def _is_slow(found: Slowness, *, is_single: bool) -> NDArray[np.bool_]:
    """[workers], slow beyond chance in this type."""
    stretches, num_usual = found.stretches, found.usual.size
    slow = stretches.mean >= found.threshold
    if not slow.any():
        return np.asarray(slow)
    slow &= found.significance >= 1
    if num_usual < ENOUGH_STEPS:
        slow &= stretches.mean >= MIN_CLEAR_RATIO
    if is_single:
        slow &= _lasts(found)
    return np.asarray(slow)


def _lasts(found: Slowness) -> NDArray[np.bool_]:
    """[workers], slow in most steps of the stretch, not in those of some pauses alone."""
    series, stretches = found.ratio[found.usual], found.stretches
    series = series.reshape(found.usual.size, -1)
    lasts = np.zeros(series.shape[1], np.bool_)
    size = stretches.end - stretches.first
    is_long = size >= min(found.usual.size, max(_MIN_STRETCH, found.usual.size / 4))
    for at in np.flatnonzero((found.significance >= 1) & is_long):
        mine = series[stretches.first[at] : stretches.end[at], at]
        least = 1 + _MIN_SHARE_OF_EXCESS * (stretches.mean[at] - 1)
        lasts[at] = quantile_of(mine, _LOW_QUANTILE) >= least
    return lasts


def _not_faster(found: Slowness, other_s: Floats) -> NDArray[np.bool_]:
    """[workers], those whose other direction takes no less than that of the others.

    A rank for which others wait inside their computations seems fast there, and the waiting ones
    slow: which is which, these durations do not tell.

    Args:
        found: the direction in which workers may be slow.
        other_s: [usual steps, dp, pp], seconds of the other direction.
    """
    level_s = other_s.mean(axis=0)
    theirs_s = medians_of_known(level_s.T)
    if len(level_s) <= _FEW_PEERS:  # of two, each is compared with the other
        is_self = np.eye(len(level_s), dtype=np.bool_)[:, :, None]
        others = np.where(is_self, np.nan, level_s)
        theirs_s = medians_of_known(others.transpose(0, 2, 1))
    usual = max(MAX_FASTER, FASTER_DEVIATIONS * found.peer_spread)
    least = 1 - np.minimum(usual, (found.stretches.mean - 1) / 3)
    return np.asarray((level_s >= least.reshape(level_s.shape) * theirs_s).ravel())


def _is_single(case: Case, choose: Callable[[Features], Computations | None]) -> bool:
    """Whether a worker has so few computations in a step that a pause is in all of them."""
    chosen = [choose(group) for group in case.groups]
    counts = [int((each.rows[:, :, 0] >= 0).sum(axis=1).min()) for each in chosen if each]
    return not counts or min(counts) < _MIN_COMPUTATIONS
