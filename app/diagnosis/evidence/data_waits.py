"""Which workers start their steps late because the first forward waits for data?

Where the client annotates waits, `data_waits` compares their lengths: every loader takes a little
time, and one that takes far longer than the others' holds up all. Elsewhere it looks for first
forwards that are launched late, step after step. `host_of_first_stage` decides whether a wait of
the whole first stage is the matter of its host alone, or of every host's data loader.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.interruptions import annotated_s, stalls
from app.diagnosis.evidence.reported_delays import first_delays_s
from app.diagnosis.evidence.stops import gaps_s
from app.diagnosis.statistics.persistence import MIN_HIT_SHARE, densest_stretch
from app.trace.window import Floats

# A wait for data takes at least this share of the step,
MIN_SHARE = 0.01
# and, where it is not annotated, so many times the usual launch delay.
MIN_TIMES_USUAL = 20.0
# Fewer late steps may be evaluations, or steps after a checkpoint.
MIN_STEPS = 3
# Share of late steps between the first and the last one: of a few workers, of the whole first stage
# (which an evaluation holds up as well, though hardly every other step), and of workers that stall
# elsewhere too.
MIN_RATE_OF_FEW = 0.25
MIN_RATE_OF_ALL = 0.4
MIN_RATE_OF_STALLED = 0.9
# The first forward is late more often than the worker's other computations, by so much and
# MIN_TIMES_OTHERS times.
MIN_BEYOND_OTHERS = 0.2
# Shorter means than this share of the longest are all the same.
_LEAST_SHARE = 0.05
_NO_TIME_S = 1e-9
# Longer waits than so many times the usual one have another reason.
MAX_TIMES_USUAL = 4.0
# Late steps are one stretch if it has this share of them.
MIN_SHARE_IN_STRETCH = 0.9
MIN_TIMES_OTHERS = 3.0
# Shorter waits than this share of the longest are what every loader takes.
MIN_SHARE_OF_LONGEST = 0.4
# Where all workers wait: a share of the steps' time. Less is what loaders and hosts take anyway.
MIN_SHARE_OF_ALL = 0.045
# Some workers wait, and not all: each on average so many times as long as any of the others, each
# long in this share of the steps with long waits, and together nearly all the time waited long.
MIN_TIMES_LONGER = 2.0
MIN_TIMES_LONGER_THAN_SHORTEST = 4.0
MIN_SHARE_OF_STEPS = 0.25
MIN_SHARE_OF_FEW = 0.8
# Waits wander if in a typical step the second longest has at most this share of the longest.
MAX_SHARE_OF_SECOND = 0.2


@dataclass(frozen=True, slots=True)
class DataWaits:
    """First forward computations that waited for data.

    Shapes: [steps, dp, pp] for `delay_s`, the launch delay, `wait_s`, the part of it that is a wait
    for data, and `is_late`, those in steps with long waits; [steps] for `least_s`, from which on a
    delay counts; [dp, pp] for `waits`, workers that wait repeatedly. `of_all`: nobody waits far
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


def data_waits(case: Case) -> DataWaits:
    """Data waits that make the step longer, annotated or inferred."""
    noted_s = annotated_s(case, "data-wait")
    return _annotated(case, noted_s) if noted_s.any() else _inferred(case)


def _annotated(case: Case, noted_s: Floats) -> DataWaits:
    """Waits [steps, dp, pp] that the client reports; only what delays launches counts."""
    delay_s, late_by_s = _first_delays(case), case.late_by_s("data-wait")
    least_s = np.asarray(MIN_SHARE * case.report.recorded_s)
    matters = np.asarray(late_by_s.max(axis=(1, 2)) > least_s)
    has_loader = (noted_s > 0).any(axis=(0, 1))  # [pp]
    of_loaders = np.where(matters[:, None], noted_s[:, :, has_loader].reshape(matters.size, -1), 0)
    found = _waiting(of_loaders, _long_from_s(of_loaders[matters]))
    waits = np.zeros(noted_s.shape[1:], np.bool_)
    waits[:, has_loader] = found.waits.reshape(-1, int(has_loader.sum()))
    wait_s = np.where(matters[:, None, None] & waits, late_by_s, 0.0)
    if not found.of_all:
        wait_s = np.minimum(wait_s, _beyond_others_s(late_by_s, waits))
    elif _joint_s(wait_s) < MIN_SHARE_OF_ALL * case.report.recorded_s.sum():
        wait_s = np.zeros_like(wait_s)
    is_late = (wait_s > 0) & found.in_step[:, None, None]
    waits &= is_late.any(axis=0).any()
    return DataWaits(
        delay_s, wait_s, is_late, least_s, waits, found.of_all, found.wanders, is_annotated=True
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Who of some workers waits.

    `in_step` [steps] are the steps with long waits, `waits` [workers] those who wait.
    `of_all`: all of them, with nobody far ahead of the others.
    """

    in_step: NDArray[np.bool_]
    waits: NDArray[np.bool_]
    of_all: bool
    wanders: bool


def _waiting(amount_s: Floats, long_from_s: float, *, is_whole: bool = True) -> _Waiting:
    """Divide workers by their waits [steps, workers] at the widest gap between their means.

    With `is_whole` amounts are the whole waits, else what they are longer than the step's shortest:
    then one worker seems not to wait at all, and only a minority far ahead of it is found.
    """
    is_long = np.asarray(amount_s >= long_from_s)
    in_step = np.asarray(is_long.any(axis=1))
    num_workers = amount_s.shape[1]
    if in_step.sum() < MIN_STEPS:
        none = np.zeros(num_workers, np.bool_)
        return _Waiting(np.zeros_like(in_step), none, of_all=False, wanders=False)
    mean_s = amount_s[in_step].mean(axis=0)
    in_order = np.argsort(-mean_s, kind="stable")
    sorted_s = mean_s[in_order]
    least_s = max(_LEAST_SHARE * float(sorted_s[0]), _NO_TIME_S)
    times = sorted_s[:-1] / np.maximum(sorted_s[1:], least_s)
    if not is_whole:
        times = times[: num_workers // 2]
    cut = int(times.argmax()) + 1 if times.size else num_workers
    waits = np.zeros(num_workers, np.bool_)
    waits[in_order[:cut]] = True
    long_s = np.where(is_long, amount_s, 0.0)
    is_some = (
        cut < num_workers
        and times[cut - 1] >= (MIN_TIMES_LONGER if is_whole else MIN_TIMES_LONGER_THAN_SHORTEST)
        and bool((is_long[in_step][:, waits].mean(axis=0) >= MIN_SHARE_OF_STEPS).all())
        and long_s[:, waits].sum() >= MIN_SHARE_OF_FEW * long_s.sum()
    )
    if is_some:
        return _Waiting(in_step, waits, of_all=False, wanders=False)
    in_order_s = np.sort(amount_s[in_step], axis=1)
    wanders = num_workers > 1 and bool(
        np.median(in_order_s[:, -2] / in_order_s[:, -1]) <= MAX_SHARE_OF_SECOND
    )
    return _Waiting(in_step, np.ones(num_workers, np.bool_), of_all=True, wanders=wanders)


def _long_from_s(amount_s: Floats) -> float:
    """The least long wait, by the longest one of each step [steps, workers].

    Half of the time is waited in steps whose longest wait is at least typical. A few single waits,
    as at the beginning of an epoch, do not say what is typical.
    """
    longest_s = -np.sort(-amount_s.max(axis=1, initial=0.0))
    while longest_s.size >= MIN_STEPS and longest_s[0] > 0:
        half = int(np.searchsorted(np.cumsum(longest_s), longest_s.sum() / 2))
        least_s = MIN_SHARE_OF_LONGEST * float(longest_s[half])
        if (longest_s >= least_s).sum() >= MIN_STEPS:
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
    """First forwards launched late in the usual steps: evaluations delay them as well."""
    delay_s, least_s = _first_delays(case), _least_s(case)
    # Pauses that the client reports are no waits for data.
    delay_s = np.maximum(0.0, delay_s - case.late_by_s("gc-pause"))
    counts_s = np.where(
        (delay_s > least_s[:, None, None]) & case.is_usual[:, None, None], delay_s, 0.0
    )
    if not counts_s.any():
        nobody = np.zeros(delay_s.shape, np.bool_)
        return DataWaits(
            delay_s, np.zeros(delay_s.shape), nobody, least_s, nobody[0],
            of_all=False, wanders=False, is_annotated=False,
        )  # fmt: skip
    others, is_stalled = _others(case, least_s), case.cached(stalls).is_stalled
    least_rate = np.maximum(MIN_RATE_OF_FEW, MIN_TIMES_OTHERS * others + MIN_BEYOND_OTHERS)
    # A stalled worker is late before its first forward as well.
    least_rate = np.where(is_stalled, np.maximum(least_rate, MIN_RATE_OF_STALLED), least_rate)
    is_late = np.zeros(delay_s.shape, np.bool_)
    of_all, is_whole = False, all(map(_has_origins, case.groups))
    for stage in range(delay_s.shape[2]):
        own_s = counts_s[:, :, stage]
        if not own_s.any():
            continue
        found = _waiting(own_s, _long_from_s(own_s), is_whole=is_whole or stage > 0)
        mine = found.in_step[:, None] & found.waits & (own_s > 0)
        rate = _rate(found.in_step[:, None] if found.of_all else mine)
        enough = rate >= least_rate[:, stage]
        if found.of_all:
            enough &= (rate >= MIN_RATE_OF_ALL) & (mine.sum(axis=0) > 0)
        if stage == 0 and found.of_all:
            of_all = bool(enough.all()) and (
                _joint_s(own_s[:, :, None]) >= MIN_SHARE_OF_ALL * case.report.recorded_s.sum()
            )
            enough &= of_all
        elif found.of_all and is_late[:, :, 0].any() and not of_all:
            # Some of the first stage wait, and whole later stages for them.
            enough[:] = False
        is_late[:, :, stage] = mine & enough
    is_late = _longest_stretch(is_late, case.is_usual)
    wait_s = _waits_s(case, delay_s, is_late, of_all=of_all)
    waits = np.asarray(is_late.any(axis=0))
    if not of_all:
        wait_s = np.minimum(wait_s, _beyond_others_s(delay_s, waits))
    return DataWaits(
        delay_s, wait_s, wait_s > 0, least_s, waits, of_all, wanders=False, is_annotated=False
    )


def _longest_stretch(is_late: NDArray[np.bool_], is_usual: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The late operations of the densest stretch of steps, if most are in it; else all of them.

    Odd steps neither begin a stretch nor break it.
    """
    in_step = np.asarray(is_late.any(axis=(1, 2)), np.float64)
    first, end = densest_stretch(np.where(is_usual, in_step, MIN_HIT_SHARE))
    if in_step[first:end].sum() < MIN_SHARE_IN_STRETCH * in_step.sum():
        return is_late
    inside = np.zeros_like(is_late)
    inside[first:end] = is_late[first:end]
    return inside


def _waits_s(case: Case, delay_s: Floats, is_late: NDArray[np.bool_], *, of_all: bool) -> Floats:
    """[steps, dp, pp], the part of each delay that is a wait for data.

    Odd steps between late ones count as late. If all wait, a delay far above the worker's usual
    wait holds an evaluation, so only the usual wait is taken from it.
    """
    wait_s = np.where(is_late, delay_s, 0.0)
    before, after = (
        _beside(case, is_late, order) for order in (slice(None), slice(None, None, -1))
    )
    odd = ~case.is_usual[:, None, None] & before & after
    # A later stage shows only the part of a wait that outlasts the arrival of its input.
    of_all_s = float(np.median(delay_s[is_late])) if is_late.any() else 0.0
    for dp_rank, stage in np.argwhere(is_late.any(axis=0)):
        mine = delay_s[:, dp_rank, stage]
        usual_s = max(of_all_s, float(np.median(mine[is_late[:, dp_rank, stage]])))
        own = wait_s[:, dp_rank, stage]
        own[odd[:, dp_rank, stage]] = mine[odd[:, dp_rank, stage]]
        is_far = own > MAX_TIMES_USUAL * usual_s
        own[is_far & (of_all | odd[:, dp_rank, stage])] = usual_s
    return wait_s


def _beside(case: Case, is_late: NDArray[np.bool_], order: slice) -> NDArray[np.bool_]:
    """[steps, dp, pp], whether the nearest usual step before (or after) was late, or is missing."""
    usual = case.is_usual[order]
    last = np.maximum.accumulate(np.where(usual, np.arange(usual.size), -1))
    found = is_late[order][np.maximum(last, 0)] | (last < 0)[:, None, None]
    return np.asarray(found[order] & is_late.any(axis=0))


def _least_s(case: Case) -> Floats:
    """[steps], the shortest delay that counts as a wait."""
    usual_s = max(late.usual_s for late in case.delays)
    least_s = np.maximum(MIN_SHARE * case.report.recorded_s, MIN_TIMES_USUAL * usual_s)
    return np.asarray(least_s)


def _first_delays(case: Case) -> Floats:
    """[steps, dp, pp], how late first forwards start by their own worker's doing."""
    sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
    first_s = np.zeros(sizes)
    for group, late in zip(case.groups, case.delays, strict=True):
        own_s = first_delays_s(group, late, is_surely=True)
        first_s[group.positions] = own_s.reshape(sizes[2], sizes[1], -1).transpose(2, 1, 0)
    return first_s


def _has_origins(group: Features) -> bool:
    return group.replayer.grid.origin_s is not None


def _others(case: Case, least_s: Floats) -> Floats:
    """[dp, pp], share of the worker's other computations that are as late."""
    sizes = (case.parallelism.dp_size, case.parallelism.pp_size)
    others, trials = np.zeros(sizes), np.zeros(sizes)
    for group, late in zip(case.groups, case.delays, strict=True):
        at = group.positions
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


# Probability that the other hosts waited as well and showed nothing.
MAX_CHANCE = 0.1


def host_of_first_stage(case: Case, found: DataWaits) -> str | None:
    """The host of the whole first stage, if other hosts would show it when they waited as long.

    A later stage shows a wait only where it outlasts the arrival of its input. Hosts are taken to
    wait independently, each as long as the first stage does in some step.
    """
    hosts, sizes = case.replay.window.hosts, case.parallelism
    first = {hosts.get((dp_rank, 0)) for dp_rank in range(sizes.dp_size)}
    host = first.pop()
    others = [worker for worker, name in hosts.items() if name != host]
    if first or host is None or not others:
        return None
    dp_rank, stage = min(others, key=lambda worker: (worker[1], worker[0]))
    is_late = found.is_late[:, dp_rank, 0]
    if (found.delay_s[is_late, dp_rank, stage] > found.least_s[is_late]).any():
        return None
    wait_s = found.wait_s[is_late, dp_rank, 0]
    longer = wait_s[:, None] > wait_s + _behind_s(case, dp_rank, stage)[is_late]
    return host if (1 - longer.mean()) ** wait_s.size < MAX_CHANCE else None


def _behind_s(case: Case, dp_rank: int, stage: int) -> Floats:
    """[steps], how long after the first stage's first forward another stage's begins."""
    behind_s = np.zeros(case.steps.size)
    for group, late in zip(case.groups, case.delays, strict=True):
        lanes = dp_rank * len(group.steps) + np.arange(len(group.steps))
        here, there = (
            group.replayer.grid.start_s[late.rows[late.is_first & (late.stage == each)][0], lanes]
            for each in (0, stage)
        )
        behind_s[group.positions] = there - here
    return behind_s


def unrecorded_s(case: Case) -> Floats:
    """[steps], seconds between a step's begin and the end of the step before it, if known.

    Long gaps that few steps have are no part of them (app/engine/steady_state.py).
    """
    before_s = np.maximum(0.0, np.nan_to_num(gaps_s(case, lambda grid: grid.began_s)))
    is_next = np.diff(case.steps, prepend=case.steps[0]) == 1
    return np.where(is_next, before_s, 0.0)
