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
from app.diagnosis.evidence.annotations import annotated_seconds, begin_delays_s
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.interruptions import stalls
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
# Longer waits than so many times the usual one have another reason.
MAX_TIMES_USUAL = 2.5
# Late steps are one stretch if it has this share of them.
MIN_SHARE_IN_STRETCH = 0.75
MIN_TIMES_OTHERS = 3.0
# Shorter waits than this share of the longest are what every loader takes.
MIN_SHARE_OF_LONGEST = 0.4
# Where all workers wait: a share of the steps' time. Less is what loaders and hosts take anyway.
MIN_SHARE_OF_ALL = 0.05
# Waiting workers have at least this share of the long waits of the one that waits most often, and
# together nearly all; else the waits wander.
MIN_SHARE_OF_MOST = 0.5
MIN_SHARE_OF_FEW = 0.8


@dataclass(frozen=True, slots=True)
class DataWaits:
    """First forward computations that waited for data.

    Shapes: [steps, dp, pp] for `delay_s`, the launch delay, `wait_s`, the part of it that is a wait
    for data, and `is_late`; [steps] for `least_s`, from which on a delay counts; [dp, pp] for
    `waits`, workers that wait repeatedly. `of_all`: nobody waits far longer than the others.
    `wanders`: different workers wait in different steps. `is_annotated`: the client reports waits.
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
    noted_s = annotated_seconds(case.replay.window, case.steps, "data-wait")
    return _annotated(case, noted_s) if noted_s.any() else _inferred(case)


def _annotated(case: Case, noted_s: Floats) -> DataWaits:
    """Waits [steps, dp, pp] that the client reports; only what delays launches counts."""
    delay_s, late_by_s = _first_delays(case), case.late_by_s("data-wait")
    least_s = np.asarray(MIN_SHARE * case.report.recorded_s)
    matters = np.asarray(late_by_s.max(axis=(1, 2)) > least_s)
    is_long = (noted_s >= _long_from_s(noted_s[matters])) & matters[:, None, None]
    counts = is_long.sum(axis=0)
    waits = (counts >= MIN_STEPS) & (counts >= MIN_SHARE_OF_MOST * counts.max())
    long_s = np.where(is_long, noted_s, 0.0)
    wanders = bool(matters.sum() >= MIN_STEPS) and not (
        long_s[:, waits].sum() >= MIN_SHARE_OF_FEW * long_s.sum()
    )
    has_loader = (noted_s > 0).any(axis=(0, 1))  # [pp]
    if wanders:
        waits = counts > 0
    of_all = wanders or bool(waits[:, has_loader].all())
    wait_s = np.where(is_long & waits, late_by_s, 0.0)
    if not of_all:
        # The others' waits delay this worker's step as well.
        wait_s = np.minimum(wait_s, np.maximum(0.0, delay_s - delay_s.min(axis=1, keepdims=True)))
    elif _joint_s(wait_s) < MIN_SHARE_OF_ALL * case.report.recorded_s.sum():
        waits = np.zeros_like(waits)
        wait_s = np.zeros_like(wait_s)
    return DataWaits(delay_s, wait_s, wait_s > 0, least_s, waits, of_all, wanders, True)


def _long_from_s(noted_s: Floats) -> float:
    """The least long wait, by the step's longest ones [steps, dp, pp].

    Half of the time waited is waited in steps whose longest wait is at least typical; a few
    single waits, as at the beginning of an epoch, do not say what is typical.
    """
    longest_s = -np.sort(-noted_s.max(axis=(1, 2)))
    while longest_s.size >= MIN_STEPS:
        half = np.searchsorted(np.cumsum(longest_s), longest_s.sum() / 2)
        least_s = MIN_SHARE_OF_LONGEST * float(longest_s[half])
        if (longest_s >= least_s).sum() >= MIN_STEPS:
            return least_s
        longest_s = longest_s[half + 1 :]
    return np.inf


def _joint_s(wait_s: Floats) -> float:
    """Seconds that all steps wait, where a step waits for its longest waiter of each stage."""
    return float(wait_s.max(axis=1).sum(axis=1).sum())


def _inferred(case: Case) -> DataWaits:
    """First forwards launched late in the usual steps: evaluations delay them as well."""
    delay_s, least_s = _first_delays(case), _least_s(case)
    # Pauses that the client reports are no waits for data.
    delay_s = np.maximum(0.0, delay_s - case.late_by_s("gc-pause"))
    is_late = (delay_s > least_s[:, None, None]) & case.is_usual[:, None, None]
    again = is_late.sum(axis=0) >= MIN_STEPS
    if not again.any():
        nothing = np.zeros(delay_s.shape)
        return DataWaits(delay_s, nothing, nothing > 0, least_s, again, False, False, False)
    rate, others = _rate(is_late), _others(case, least_s)
    again &= rate >= np.maximum(MIN_RATE_OF_FEW, MIN_TIMES_OTHERS * others + MIN_BEYOND_OTHERS)
    # A stalled worker is late before its first forward as well.
    again &= ~case.cached(stalls).is_stalled | (rate >= MIN_RATE_OF_STALLED)
    again &= _longer_than_others(delay_s, is_late & again)
    of_all = bool(again[:, 0].all())
    if of_all:
        waited_s = np.where(is_late & again, delay_s, 0.0)
        of_all = bool((rate[:, 0] >= MIN_RATE_OF_ALL).all())
        of_all &= _joint_s(waited_s) >= MIN_SHARE_OF_ALL * case.report.recorded_s.sum()
        again &= of_all
    is_late = _longest_stretch(is_late & again, case.is_usual)
    wait_s = _waits_s(case, delay_s, is_late)
    if not of_all:
        wait_s = np.minimum(wait_s, np.maximum(0.0, delay_s - delay_s.min(axis=1, keepdims=True)))
    return DataWaits(delay_s, wait_s, wait_s > 0, least_s, again, of_all, False, False)


def _longer_than_others(delay_s: Floats, is_late: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[dp, pp], workers whose late first forwards are long beside the stage's longest."""
    num_late = is_late.sum(axis=0)
    mean_s = np.where(is_late, delay_s, 0.0).sum(axis=0) / np.maximum(num_late, 1)
    return np.asarray(mean_s >= MIN_SHARE_OF_LONGEST * mean_s.max(axis=0))


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


def _waits_s(case: Case, delay_s: Floats, is_late: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], the part of each delay that is a wait for data.

    Odd steps between late ones count as late. A delay far above the worker's usual wait holds an
    evaluation, so only the usual wait is taken from it.
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
        own[own > MAX_TIMES_USUAL * usual_s] = usual_s
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
    """[steps, dp, pp], launch delays of first forwards, and of gathers before them."""
    sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
    first_s = np.zeros(sizes)
    for group, late in zip(case.groups, case.delays, strict=True):
        at, begin_s = group.positions, begin_delays_s(group)
        for first in np.flatnonzero(late.is_first)[::-1]:
            stage, row = late.stage[first], late.rows[first]
            own_s = late.delay_s[first] + begin_s[stage]
            depends_on_nothing = np.diff(group.replayer.graph.pred_ptr[row : row + 2])[0] == 0
            if begin_s[stage].any() or depends_on_nothing:
                own_s = np.maximum(0.0, own_s - _before_first_s(group))
            first_s[at, :, stage] = own_s.reshape(-1, at.size).T
    return first_s


def _before_first_s(group: Features) -> Floats:
    """[lanes], seconds of a step before its first operation that is no receive.

    Without origins a step seems to begin with the first receive, which a stage posts while others
    are still in the step before.
    """
    grid, template = group.replayer.grid, group.replayer.template
    if grid.origin_s is not None:
        return np.zeros(grid.start_s.shape[1])
    rows = np.flatnonzero(~template.op_types.is_receive[template.optype])
    first_s = grid.start_s[rows].min(axis=0).reshape(-1, grid.num_steps).min(axis=0)
    return np.tile(np.maximum(0.0, first_s - grid.began_s), group.replayer.dp_size)


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
