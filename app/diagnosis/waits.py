"""Which workers begin a step late, since their first forward computation waits for samples?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.comings import HALF, stretch
from app.diagnosis.noted import noted_s
from app.diagnosis.stalls import stalls
from app.trace.window import Floats

# A wait for data is at least so much of the step; less is nothing to wake anybody for.
LEAST_SHARE = 0.01
# And so many times the usual launch delay.
TIMES_USUAL = 20.0
# In fewer steps it may be an evaluation, or what comes after a checkpoint.
MIN_STEPS = 3
# Between its first and its last step: a few workers may wait now and then, but all of them at
# once do so for an evaluation too.
RATE_OF_FEW = 0.25
RATE_OF_ALL = 0.6
RATE_OF_STALLED = 0.9
# As often as this beyond how often its other computations are that late.
BEYOND_OTHERS = 0.2
# Longer waits are something else.
MOST_OF_USUAL = 2.5
# Of the late steps, for them to be one stretch.
NEARLY_ALL = 0.75
TIMES_OTHERS = 3.0
# Of the longest wait: workers that wait less wait as everybody does.
SHARE_OF_LONGEST = 0.4
# Of the step, where all workers wait and their clients tell so: less is any loader's.
LEAST_SHARE_OF_ALL = 0.1
# Of a delay, what its client has to tell as a wait for data to explain it.
MOST_OF_DELAY = 0.5


@dataclass(frozen=True, slots=True)
class Waits:
    """First forwards that waited for data.

    Shapes: [steps, dp, pp] for `delay_s`, how late they were, `wait_s`, what of that was waiting
    for data, and `is_late`, whether any was; [steps] for `least_s`, from where on a delay counts.
    `waits` [dp, pp]: the worker does so again and again; `of_everybody`: all dp ranks of the
    first stage do. `tells` [dp, pp]: the worker's client says that it waits.
    """

    delay_s: Floats
    wait_s: Floats
    is_late: NDArray[np.bool_]
    least_s: Floats
    waits: NDArray[np.bool_]
    of_everybody: bool
    tells: NDArray[np.bool_]


def waits(case: Case) -> Waits:
    """Judged by the usual steps: evaluations hold up the first forward as well."""
    delay_s, least_s = _first_delays(case), _least_s(case)
    is_late = (delay_s > least_s[:, None, None]) & case.is_usual[:, None, None]
    again = is_late.sum(axis=0) >= MIN_STEPS
    if not again.any():
        nothing = np.zeros(delay_s.shape, np.bool_)
        return Waits(delay_s, np.zeros(delay_s.shape), nothing, least_s, again, False, again)
    noted, rate, others = noted_s(case, "data-wait"), _rate(is_late), _others(case, least_s)
    again &= rate >= np.maximum(RATE_OF_FEW, TIMES_OTHERS * others + BEYOND_OTHERS)
    # Those who stop everywhere do so before a first forward too.
    again &= ~case.ask(stalls).is_stalled | (rate >= RATE_OF_STALLED)
    of_everybody = bool(again[:, 0].all())
    is_noted = bool((noted >= MOST_OF_DELAY * delay_s)[is_late & again].any())
    if of_everybody and not is_noted:
        of_everybody = bool((rate[:, 0] >= RATE_OF_ALL).all())
        again &= of_everybody
    if is_noted:
        again &= _by_amount(case, noted[is_late.any(axis=(1, 2))])
        of_everybody = bool(again[:, 0].all())
    is_late = _together(is_late & again, case.is_usual)
    wait_s = _waits_s(case, delay_s, is_late)
    tells = _tell(noted, delay_s, is_late)
    return Waits(delay_s, wait_s, wait_s > 0, least_s, again, of_everybody, tells)


def _by_amount(case: Case, told_s: Floats) -> NDArray[np.bool_]:
    """[dp, pp], workers whose waits are long: beside the longest, and beside the step if all wait.

    Every worker that iterates over a loader waits a little, and longer on a busy host. Where all
    wait, a step takes longer by the longest wait on each stage: stages wait one after the other.

    Args:
        case: what is diagnosed.
        told_s: [late steps, dp, pp], what each worker's client tells of its waits in the step.
    """
    typical_s = np.median(told_s, axis=0)
    long = typical_s >= SHARE_OF_LONGEST * typical_s.max()
    if long[:, 0].all():
        least_s = LEAST_SHARE_OF_ALL * case.report.recorded_s.mean()
        long &= np.median(told_s.max(axis=1).sum(axis=1)) >= least_s
    return np.asarray(long)


def _tell(noted_s: Floats, delay_s: Floats, is_late: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[dp, pp], workers whose client tells of the waits that make them late, in most late steps.

    Every worker that iterates over a loader waits a little: amounts count, not that it waits.
    """
    in_step = is_late.any(axis=(1, 2))
    explained = (noted_s >= MOST_OF_DELAY * delay_s) & is_late
    return np.asarray(explained[in_step].sum(axis=0) > HALF * in_step.sum())


def _together(is_late: NDArray[np.bool_], is_usual: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those of one stretch of steps where most are in one: others are something else.

    Odd steps, which show nothing either way, neither make a stretch nor break it.
    """
    in_step = np.asarray(is_late.any(axis=(1, 2)), np.float64)
    first, end = stretch(np.where(is_usual, in_step, HALF))
    if in_step[first:end].sum() < NEARLY_ALL * in_step.sum():
        return is_late
    inside = np.zeros_like(is_late)
    inside[first:end] = is_late[first:end]
    return inside


def _waits_s(case: Case, delay_s: Floats, is_late: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], of delays the part that is waiting for data.

    Odd steps between late ones have waited too. What is out of all proportion is an evaluation,
    beside a wait of the usual length.
    """
    wait_s = np.where(is_late, delay_s, 0.0)
    before, after = (
        _beside(case, is_late, order) for order in (slice(None), slice(None, None, -1))
    )
    odd = ~case.is_usual[:, None, None] & before & after
    # Later stages show what is left of a wait when their input has come: long and short rests.
    of_all_s = float(np.median(delay_s[is_late])) if is_late.any() else 0.0
    for dp_rank, stage in np.argwhere(is_late.any(axis=0)):
        mine = delay_s[:, dp_rank, stage]
        usual_s = max(of_all_s, float(np.median(mine[is_late[:, dp_rank, stage]])))
        own = wait_s[:, dp_rank, stage]
        own[odd[:, dp_rank, stage]] = mine[odd[:, dp_rank, stage]]
        own[own > MOST_OF_USUAL * usual_s] = usual_s
    return wait_s


def _beside(case: Case, is_late: NDArray[np.bool_], order: slice) -> NDArray[np.bool_]:
    """[steps, dp, pp], whether the last usual step in this order was late, or there is none."""
    usual = case.is_usual[order]
    last = np.maximum.accumulate(np.where(usual, np.arange(usual.size), -1))
    found = is_late[order][np.maximum(last, 0)] | (last < 0)[:, None, None]
    return np.asarray(found[order] & is_late.any(axis=0))


def _least_s(case: Case) -> Floats:
    """[steps], from where on a delay is a wait."""
    usual_s = max(late.usual_s for late in case.delays)
    least_s = np.maximum(LEAST_SHARE * case.report.recorded_s, TIMES_USUAL * usual_s)
    return np.asarray(least_s)


def _first_delays(case: Case) -> Floats:
    """[steps, dp, pp] of first forwards."""
    sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
    first_s = np.zeros(sizes)
    for group, late in zip(case.groups, case.delays, strict=True):
        at = case.at(group)
        for first in np.flatnonzero(late.is_first)[::-1]:
            first_s[at, :, late.stage[first]] = late.delay_s[first].reshape(-1, at.size).T
    return first_s


def _others(case: Case, least_s: Floats) -> Floats:
    """[dp, pp], how often other computations are as late."""
    sizes = (case.parallelism.dp_size, case.parallelism.pp_size)
    others, trials = np.zeros(sizes), np.zeros(sizes)
    for group, late in zip(case.groups, case.delays, strict=True):
        at = case.at(group)
        by_step = late.delay_s.reshape(-1, sizes[0], at.size)
        for stage in range(sizes[1]):
            rest = by_step[(late.stage == stage) & ~late.is_first]
            others[:, stage] += (rest > least_s[at]).sum(axis=(0, 2))
            trials[:, stage] += rest.shape[0] * at.size
    return others / np.maximum(trials, 1)


def _rate(is_late: NDArray[np.bool_]) -> Floats:
    """[dp, pp], share of the steps between the first and the last late one that are late."""
    num_late = is_late.sum(axis=0)
    first = is_late.argmax(axis=0)
    last = is_late.shape[0] - 1 - is_late[::-1].argmax(axis=0)
    return np.where(num_late > 0, num_late / (last - first + 1), 0.0)
