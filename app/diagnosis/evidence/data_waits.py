"""Which workers start their steps late because the first forward waits for data?

Where the client annotates waits, `data_waits` compares their lengths: every loader takes a little
time, and one that takes far longer than the others' holds up all. Elsewhere it looks for first
forwards that a few workers launch late, step after step, while others begin. Time in which nobody
works proves nothing about data (idle_time.py).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.idle_time import idle_time
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    Interruptions,
    annotated_s,
    interruptions_of,
    joined,
    rows_of_group,
    stalls,
)
from app.diagnosis.evidence.outliers import launch_delays
from app.diagnosis.evidence.reported_delays import first_delays_s, late_by_s
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.statistics import persistence
from app.diagnosis.statistics.persistence import best_stretch
from app.engine.medians import median_of
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """From when on first forwards wait for data. All were chosen on made jobs.

    docs/diagnosis.md has those of annotated waits in sentences.
    """

    # A wait for data takes at least this share of the step,
    min_share: float = 0.01
    # and, where it is not annotated, so many times the usual launch delay.
    min_times_usual: float = 20.0
    # Fewer late steps may be evaluations, or steps after a checkpoint.
    min_steps: int = 3
    # A wait in too few steps is mentioned from this share of its step.
    min_odd_share: float = 0.05
    # Share of late steps between the first and the last one: of a few workers, of a whole later
    # stage, and of workers that stall elsewhere too.
    min_rate_of_few: float = 0.25
    min_rate_of_all: float = 0.4
    min_rate_of_stalled: float = 0.9
    # The first forward is late more often than the worker's other computations, by so much and so
    # many times.
    min_beyond_others: float = 0.2
    min_times_others: float = 3.0
    # Shorter means than this share of the longest are all the same.
    least_share: float = 0.05
    # In odd steps longer waits than so many times the usual one have another reason.
    max_times_usual: float = 4.0
    # Late steps are one stretch if it has this share of them.
    min_share_in_stretch: float = 0.9
    # Shorter waits than this share of the longest are what every loader takes.
    min_share_of_longest: float = 0.4
    # Where all workers wait: a share of the steps' time. Less is what loaders and hosts take.
    min_share_of_all: float = 0.045
    # Some workers wait, and not all: each on average so many times as long as any of the others,
    # each long in this share of the steps with long waits, and together nearly all the time waited
    # long.
    min_times_longer: float = 2.0
    min_times_longer_than_shortest: float = 4.0
    min_share_of_steps: float = 0.25
    min_share_of_few: float = 0.8
    # Waits wander if in a typical step the second longest has at most this share of the longest.
    max_share_of_second: float = 0.2


LIMITS = WaitLimits()
_NO_TIME_S = 1e-9


@dataclass(frozen=True, slots=True)
class DataWaits:
    """First forward computations that waited for data.

    Shapes: [steps, dp, pp] for `delay_s`, the launch delay, `wait_s`, the part of it that is a wait
    for data, and `is_late`, those in steps with long waits; [steps] for `least_s`, from which on a
    delay counts; [dp, pp] for `waits`, workers that wait repeatedly. `of_all`: no worker waits far
    longer than the others. `wanders`: different workers wait in different steps. `is_annotated`:
    the client reports waits.
    """

    delay_s: Floats
    wait_s: Floats
    is_late: NDArray[np.bool_]
    least_s: Floats
    waits: NDArray[np.bool_]
    of_all: bool
    wanders: bool
    is_annotated: bool


@evidence
def data_waits(case: Case) -> DataWaits:
    """Data waits that make the step longer, annotated or inferred."""
    noted_s = annotated_s(case, "data-wait")
    return _annotated(case, noted_s) if noted_s.any() else _inferred(case)


def _annotated(case: Case, noted_s: Floats) -> DataWaits:
    """Waits [steps, dp, pp] that the client reports; only what delays launches counts."""
    delay_s, noted_delay_s = _first_delays(case), late_by_s(case, "data-wait")
    least_s = np.asarray(LIMITS.min_share * case.report.recorded_s)
    matters = np.asarray(noted_delay_s.max(axis=(1, 2)) > least_s)
    has_loader = (noted_s > 0).any(axis=(0, 1))  # [pp]
    of_loaders = np.where(matters[:, None], noted_s[:, :, has_loader].reshape(matters.size, -1), 0)
    waiting = _waiting(of_loaders, _long_from_s(of_loaders[matters]))
    if not waiting.in_step.any():
        waiting = _stopped(of_loaders, median_of(case.report.recorded_s))
    waits = np.zeros(noted_s.shape[1:], np.bool_)
    waits[:, has_loader] = waiting.workers.reshape(-1, int(has_loader.sum()))
    wait_s = np.where(matters[:, None, None] & waits, noted_delay_s, 0.0)
    if not waiting.of_all:
        wait_s = np.minimum(wait_s, _beyond_others_s(noted_delay_s, waits))
    elif _joint_s(wait_s) < LIMITS.min_share_of_all * case.report.recorded_s.sum():
        wait_s = np.zeros_like(wait_s)
    is_late = (wait_s > 0) & waiting.in_step[:, None, None]
    waits &= is_late.any()
    kind = waiting.of_all, waiting.wanders
    return DataWaits(delay_s, wait_s, is_late, least_s, waits, *kind, is_annotated=True)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Which of some workers wait.

    `in_step` [steps] are the steps with long waits, `workers` [workers] those that wait. `of_all`:
    all of them, with none far ahead of the others.
    """

    in_step: NDArray[np.bool_]
    workers: NDArray[np.bool_]
    of_all: bool
    wanders: bool


def _waiting(amount_s: Floats, long_from_s: float, *, is_whole: bool = True) -> _Waiting:
    """Divide workers by their waits [steps, workers] at the widest gap between their means.

    With `is_whole` amounts are the whole waits, else what they are longer than the step's shortest:
    then one worker seems not to wait at all, and only a minority far ahead of it is named.
    """
    is_long = np.asarray(amount_s >= long_from_s)
    in_step = np.asarray(is_long.any(axis=1))
    num_workers = amount_s.shape[1]
    if in_step.sum() < LIMITS.min_steps:
        none = np.zeros(num_workers, np.bool_)
        return _Waiting(np.zeros_like(in_step), none, of_all=False, wanders=False)
    mean_s = amount_s[in_step].mean(axis=0)
    in_order = np.argsort(-mean_s, kind="stable")
    sorted_s = mean_s[in_order]
    least_s = max(LIMITS.least_share * float(sorted_s[0]), _NO_TIME_S)
    times = sorted_s[:-1] / np.maximum(sorted_s[1:], least_s)
    if not is_whole:
        times = times[: num_workers // 2]
    cut = int(times.argmax()) + 1 if times.size else num_workers
    waits = np.zeros(num_workers, np.bool_)
    waits[in_order[:cut]] = True
    long_s = np.where(is_long, amount_s, 0.0)
    min_times = LIMITS.min_times_longer if is_whole else LIMITS.min_times_longer_than_shortest
    is_some = (
        cut < num_workers
        and times[cut - 1] >= min_times
        and bool((is_long[in_step][:, waits].mean(axis=0) >= LIMITS.min_share_of_steps).all())
        and long_s[:, waits].sum() >= LIMITS.min_share_of_few * long_s.sum()
    )
    if is_some:
        return _Waiting(in_step, waits, of_all=False, wanders=False)
    in_order_s = np.sort(amount_s[in_step], axis=1)
    wanders = num_workers > 1 and bool(
        np.median(in_order_s[:, -2] / in_order_s[:, -1]) <= LIMITS.max_share_of_second
    )
    return _Waiting(in_step, np.ones(num_workers, np.bool_), of_all=True, wanders=wanders)


def _stopped(amount_s: Floats, least_s: float) -> _Waiting:
    """Waits [steps, workers] as long as a step: each is a stop, in however few steps."""
    is_stop = np.asarray(amount_s >= least_s)
    workers = np.asarray(is_stop.any(axis=0))
    return _Waiting(np.asarray(is_stop.any(axis=1)), workers, bool(workers.all()), wanders=False)


def _long_from_s(amount_s: Floats) -> float:
    """The least long wait, by the longest one of each step [steps, workers].

    Half of the time is waited in steps whose longest wait is at least typical. A few single waits,
    as at the beginning of an epoch, do not say what is typical.
    """
    longest_s = -np.sort(-amount_s.max(axis=1, initial=0.0))
    while longest_s.size >= LIMITS.min_steps and longest_s[0] > 0:
        half = int(np.searchsorted(np.cumsum(longest_s), longest_s.sum() / 2))
        least_s = LIMITS.min_share_of_longest * float(longest_s[half])
        if (longest_s >= least_s).sum() >= LIMITS.min_steps:
            return least_s
        longest_s = longest_s[half + 1 :]
    return np.inf


def _joint_s(wait_s: Floats) -> float:
    """Seconds that all steps wait, where a step waits for its longest waiter of each stage."""
    return float(wait_s.max(axis=1).sum(axis=1).sum())


def _beyond_others_s(delay_s: Floats, waits: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], delays beyond the least of the stage, if not all of the stage wait."""
    least_s = np.where(waits.all(axis=0), 0.0, delay_s.min(axis=1))
    return np.asarray(np.maximum(0.0, delay_s - least_s[:, None]))


def _inferred(case: Case) -> DataWaits:
    """First forwards launched late in the usual steps, by some workers of a stage.

    A whole later stage counts as well, if its input comes in time and all before it begin at once;
    the whole first stage may wait for anything.
    """
    idle_s = idle_time(case).idle_s
    delay_s = _first_delays(case, idle_s)
    usual_s = max(late.usual_s for late in launch_delays(case))
    # [steps], the shortest delay that counts as a wait.
    least_s = np.maximum(
        LIMITS.min_share * case.report.recorded_s, LIMITS.min_times_usual * usual_s
    )
    # Pauses that the client reports are no waits for data.
    delay_s = np.maximum(0.0, delay_s - late_by_s(case, "gc-pause"))
    counts_s = np.where(
        (delay_s > least_s[:, None, None]) & is_usual(case)[:, None, None], delay_s, 0.0
    )
    others, is_stalled = _others(case, least_s), stalls(case).is_stalled
    beyond = LIMITS.min_times_others * others + LIMITS.min_beyond_others
    # A stalled worker is late before its first forward as well.
    of_kind = np.where(is_stalled, LIMITS.min_rate_of_stalled, LIMITS.min_rate_of_few)
    least_rate = np.maximum(of_kind, beyond)
    is_late = np.zeros(delay_s.shape, np.bool_)
    for stage in range(delay_s.shape[2]):
        own_s = counts_s[:, :, stage]
        if not own_s.any():
            continue
        waiting = _waiting(own_s, _long_from_s(own_s), is_whole=stage > 0)
        # Where the first stage waits, or some of it, whole later stages do as well.
        waits_first = is_late[:, :, 0].any() or (idle_s > least_s)[waiting.in_step].any()
        if waiting.of_all and (stage == 0 or waits_first):
            continue
        late = waiting.in_step[:, None] & waiting.workers & (own_s > 0)
        rate = _rate(waiting.in_step[:, None] if waiting.of_all else late)
        enough = rate >= least_rate[:, stage]
        if waiting.of_all:
            enough &= (rate >= LIMITS.min_rate_of_all) & late.any(axis=0)
        is_late[:, :, stage] = late & enough
    is_late = _longest_stretch(case, is_late)
    waits = np.asarray(is_late.any(axis=0))
    wait_s = np.minimum(_waits_s(case, delay_s, is_late), _beyond_others_s(delay_s, waits))
    return DataWaits(
        delay_s, wait_s, wait_s > 0, least_s, waits, of_all=False, wanders=False, is_annotated=False
    )


def _longest_stretch(case: Case, is_late: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The late operations of the densest stretch of steps, if most are in it; else all of them.

    Odd steps neither begin a stretch nor break it.
    """
    in_step = np.asarray(is_late.any(axis=(1, 2)), np.float64)
    even = persistence.LIMITS.min_hit_share
    first, end = best_stretch(np.where(is_usual(case), in_step - even, 0.0))
    if in_step[first:end].sum() < LIMITS.min_share_in_stretch * in_step.sum():
        return is_late
    inside = np.zeros_like(is_late)
    inside[first:end] = is_late[first:end]
    return inside


def _waits_s(case: Case, delay_s: Floats, is_late: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], the part of each delay that is a wait for data.

    Odd steps between late ones count as late. There a delay far above the worker's usual wait holds
    an evaluation, so only the usual wait is taken from it.
    """
    wait_s = np.where(is_late, delay_s, 0.0)
    before, after = (
        _beside(case, is_late, order) for order in (slice(None), slice(None, None, -1))
    )
    odd = ~is_usual(case)[:, None, None] & before & after
    # A later stage shows only the part of a wait that outlasts the arrival of its input.
    of_all_s = float(np.median(delay_s[is_late])) if is_late.any() else 0.0
    for dp_rank, stage in np.argwhere(is_late.any(axis=0)):
        worker = slice(None), dp_rank, stage
        usual_s = max(of_all_s, float(np.median(delay_s[worker][is_late[worker]])))
        own_s, is_odd = wait_s[worker], odd[worker]
        own_s[is_odd] = delay_s[worker][is_odd]
        is_far = own_s > LIMITS.max_times_usual * usual_s
        own_s[is_far & is_odd] = usual_s
    return wait_s


def _beside(case: Case, is_late: NDArray[np.bool_], order: slice) -> NDArray[np.bool_]:
    """[steps, dp, pp], whether the nearest usual step before (or after) was late, or is missing."""
    usual = is_usual(case)[order]
    last = np.maximum.accumulate(np.where(usual, np.arange(usual.size), -1))
    was_late = is_late[order][np.maximum(last, 0)] | (last < 0)[:, None, None]
    return np.asarray(was_late[order] & is_late.any(axis=0))


def _first_delays(case: Case, idle_s: Floats | None = None) -> Floats:
    """[steps, dp, pp], how late first forwards start by their own worker's doing.

    `idle_s` [steps] is left out.
    """
    sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
    first_s = np.zeros(sizes)
    for group, late in zip(case.groups, launch_delays(case), strict=True):
        own_idle_s = None if idle_s is None else idle_s[group.positions]
        own_s = first_delays_s(group, late, is_surely=True, idle_s=own_idle_s)
        first_s[group.positions] = own_s.reshape(sizes[2], sizes[1], -1).transpose(2, 1, 0)
    return first_s


def _others(case: Case, least_s: Floats) -> Floats:
    """[dp, pp], share of the worker's other computations that are as late."""
    late = interruptions_of(case, InterruptionKind.LATE)
    trials = np.zeros(case.parallelism.pp_size, np.int64)
    for of_group in launch_delays(case):
        num_steps = of_group.delay_s.shape[1] // case.parallelism.dp_size
        trials += np.bincount(of_group.stage[~of_group.is_first], minlength=trials.size) * num_steps
    is_late = ~late.is_first & (late.excess_s + late.least_s > least_s[late.step])
    return late.where(is_late).counts(case) / np.maximum(trials, 1)


def _rate(is_late: NDArray[np.bool_]) -> Floats:
    """[dp, pp], share of the steps between the first and the last late one that are late."""
    num_late = is_late.sum(axis=0)
    first = is_late.argmax(axis=0)
    last = is_late.shape[0] - 1 - is_late[::-1].argmax(axis=0)
    return np.where(num_late > 0, num_late / (last - first + 1), 0.0)


def wait_rows(case: Case, waits: DataWaits) -> Interruptions:
    """The waits as late launches of first forwards."""
    parts = []
    for number, (group, late) in enumerate(zip(case.groups, launch_delays(case), strict=True)):
        first_row = np.full(case.parallelism.pp_size, -1)
        first_row[late.stage[late.is_first]] = late.rows[late.is_first]
        wait_s = waits.wait_s[group.positions]
        step, dp_rank, stage = np.nonzero(wait_s)
        lane = dp_rank * len(group.steps) + step
        of_ops = (first_row[stage], lane, wait_s[step, dp_rank, stage], 0.0)
        parts.append(rows_of_group(case, number, InterruptionKind.LATE, *of_ops))
    return joined(parts)
