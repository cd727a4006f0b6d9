"""Outliers among computations, and their launch delays.

A long micro-batch takes longer on all stages and in both directions: this common factor is divided
out, and so is the pace of a slow step. A launch delay is the time from the end of all predecessors
to the start.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.features import Features, add_delays
from app.engine.kernels import in_parallel, kernel
from app.engine.medians import kth_smallest, median_of
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class LaunchDelays:
    """Launch delays of forward and backward computations.

    Shapes: [computations] for `rows` of the template, `stage`, `is_backward` and `is_first` (the
    stage's first forward); `delay_s` [computations, lanes]. `usual_s` is the median without first
    forwards.
    """

    rows: Ints
    stage: Ints
    is_backward: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    delay_s: Floats
    usual_s: float


@evidence
def launch_delays(case: Case) -> tuple[LaunchDelays, ...]:
    """Launch delays of computations, of each group of steps."""
    return tuple(_launch_delays(group) for group in case.groups)


def _launch_delays(group: Features) -> LaunchDelays:
    """Recorded start - latest end of the predecessors, or the step's start; never below 0."""
    computed = group.item_rows
    is_one = np.zeros((2, group.replayer.template.num_ops), np.bool_)
    for flags, of_direction in zip(is_one, computed, strict=True):
        flags[of_direction[of_direction >= 0]] = True
    rows = np.flatnonzero(is_one.any(axis=0))
    delay_s = launch_delays_s(group.replayer, rows)
    # Operations of a worker are numbered in recorded order.
    firsts = [forward[forward >= 0].min(initial=rows.max(initial=0)) for forward in computed[0]]
    is_first = np.zeros(is_one.shape[1], np.bool_)
    is_first[firsts] = True
    is_first = is_first[rows]
    others_s = delay_s[~is_first]
    return LaunchDelays(
        rows=rows,
        stage=group.replayer.template.stage[rows],
        is_backward=is_one[1, rows],
        is_first=is_first,
        delay_s=delay_s,
        usual_s=_median(others_s if others_s.size else delay_s),
    )


def launch_delays_s(replayer: Replayer, rows: Ints, steps: Ints | None = None) -> Floats:
    """[rows, lanes], seconds from the latest end of an operation's predecessors to its start.

    With `steps` (positions in the group), lanes are of these steps only: dp_rank * steps + step.
    """
    graph, grid = replayer.graph, replayer.grid
    start_s, duration_s, earliest_s = grid.start_s, grid.duration_s, grid.began_s
    if steps is not None:
        start_s = _in_steps(start_s, grid.num_steps, steps)
        duration_s = _in_steps(duration_s, grid.num_steps, steps)
        earliest_s = np.ascontiguousarray(earliest_s[steps])
    delay_s, into = np.zeros((rows.size, start_s.shape[1])), np.arange(rows.size)
    in_parallel(
        delay_s.size * 2,
        rows.size,
        lambda first, end: add_delays(
            rows[first:end], into[first:end], graph.pred_ptr, graph.preds, graph.milestone_of,
            graph.milestone_share, start_s, duration_s, earliest_s, delay_s,
        ),
    )  # fmt: skip
    return delay_s


def _in_steps(values: Floats, num_steps: int, steps: Ints) -> Floats:
    """[rows, lanes of some steps] of [rows, lanes]."""
    by_step = values.reshape(values.shape[0], -1, num_steps)[:, :, steps]
    return np.ascontiguousarray(by_step.reshape(values.shape[0], -1))


# Larger medians are sampled: of all launch delays, and of a worker's operations.
_MAX_MEDIAN_DELAYS = 100_000
MAX_MEDIAN_VALUES = 96


def _median(values: Floats) -> float:
    flat = values.ravel()
    return median_of(flat[:: max(1, flat.size // _MAX_MEDIAN_DELAYS)])


@dataclass(frozen=True, slots=True)
class OutlierLimits:
    """From when on a computation is an outlier. Both were chosen."""

    # Ratio to the expected time: above healthy noise of 5 %.
    min_ratio: float = 1.2
    # Fewest operations that show a worker's pace in a step; where it has less, those of the steps
    # beside it count.
    min_of_step: int = 6


LIMITS = OutlierLimits()


@dataclass(frozen=True, slots=True)
class Outliers:
    """Computations that took at least `LIMITS.min_ratio` times the expected time.

    Shapes: [outliers] for `row` (of the template), `lane`, `item`, `expected_s` and `excess_s`, the
    seconds above it. `median_s` [2, pp x chunks, dp] has the workers' own medians by direction and
    model chunk, NaN where there is none; `num_ops` [2, pp] a worker's operations in a step.
    """

    row: Ints
    lane: Ints
    item: Ints
    expected_s: Floats
    excess_s: Floats
    median_s: Floats
    num_ops: Ints


@evidence
def outliers(case: Case) -> tuple[Outliers, ...]:
    """Single long computations, of each group of steps."""
    return tuple(_outliers(group) for group in case.groups)


def _outliers(group: Features) -> Outliers:
    """Single long computations of a group of steps; of split backwards the first halves.

    expected = the worker's median of that direction and model chunk * the micro-batch's factor *
    the worker's pace in that step, if slow. Chunks of one stage differ, as the last one computes
    the loss. The factor is the lower median, over stages and directions, of duration / median, so a
    single event cannot raise it. Stages with unequal numbers of forwards and backwards are left
    out, as their items do not correspond.
    """
    rows, chunk = group.item_rows, group.item_chunk
    num_chunks = int(chunk.max(initial=0)) + 1
    own_s, num_steps = group.replayer.durations.recorded_s, len(group.steps)
    flat = _by_chunk(rows, chunk, num_chunks)
    median_s = np.full((flat.shape[0], group.replayer.dp_size), np.nan)
    for place, of_place in enumerate(flat):
        sampled, lanes = sampled_values(group, of_place, MAX_MEDIAN_VALUES * num_chunks)
        is_known = sampled[:, 0] >= 0
        if is_known.any():
            middle = (np.count_nonzero(is_known) - 1) // 2
            took_s = own_s[sampled[is_known], lanes[is_known]]
            median_s[place] = np.partition(took_s, middle, axis=0)[middle]
    paired = _by_chunk(_in_both_directions(rows), chunk, num_chunks)
    parts = in_parallel(
        rows.size * own_s.shape[1],
        rows.shape[-1],
        lambda first, end: _long(own_s, paired, median_s, num_steps, LIMITS.min_ratio, first, end),
    )
    where, factor = (np.concatenate(part) for part in zip(*parts, strict=True))
    place, item, lane = where.T
    stage = place // num_chunks % rows.shape[1]
    pace = _paces(own_s, flat, median_s, num_steps, num_chunks, stage, lane)
    row = flat[place, item]
    expected_s = median_s[place, lane // num_steps] * factor * pace
    ratio = own_s[row, lane] / expected_s
    kept = ratio > LIMITS.min_ratio
    return Outliers(
        row=row[kept],
        lane=lane[kept],
        item=item[kept],
        expected_s=expected_s[kept],
        excess_s=expected_s[kept] * (ratio[kept] - 1),
        median_s=median_s.reshape(2, rows.shape[1] * num_chunks, group.replayer.dp_size),
        num_ops=(rows >= 0).sum(axis=-1),
    )


def sampled_values(group: Features, rows: Ints, most: int) -> tuple[Ints, Ints]:
    """Rows [values, 1] and lanes [values, dp] by which rows of each worker are judged.

    At most `most` values, spread evenly over rows and steps.
    """
    num_steps, dp_ranks = len(group.steps), np.arange(group.replayer.dp_size)
    size = rows.size * num_steps
    row, step = np.divmod(np.arange(0, size, max(1, -(-size // most))), num_steps)
    return rows[row][:, None], dp_ranks * num_steps + step[:, None]


def _by_chunk(rows: Ints, chunk: Ints, num_chunks: int) -> Ints:
    """[places, items], the rows of each direction, stage and chunk; -1 for other chunks' items.

    A place is (direction * pp + stage) * chunks + chunk.
    """
    is_here = chunk == np.arange(num_chunks)[:, None]
    split = np.where(is_here, rows[:, :, None, :], -1)
    # No -1 for a size, as there may be no rows.
    return np.ascontiguousarray(
        split.reshape(rows.shape[0] * rows.shape[1] * num_chunks, rows.shape[2])
    )


def _in_both_directions(rows: Ints) -> Ints:
    """[2, pp, items], the rows of stages with as many forwards as backwards, else -1.

    Elsewhere items are parts of one computation, as FSDP2 records between collectives, and the
    third part of the forward is another layer than the third of the backward.
    """
    num_items = (rows >= 0).sum(axis=-1)
    is_paired = num_items[0] == num_items[1]
    return np.ascontiguousarray(np.where(is_paired[None, :, None], rows, -1))


def _paces(
    own_s: Floats,
    rows: Ints,
    median_s: Floats,
    num_steps: int,
    num_chunks: int,
    stage: Ints,
    lane: Ints,
) -> Floats:
    """[outliers], pace of the worker in the whole step, 1.0 or slower."""
    key, at = np.unique(stage * own_s.shape[1] + lane, return_inverse=True)
    paces = np.ones(key.size)
    stages, lanes = np.divmod(key, own_s.shape[1])
    least = LIMITS.min_of_step
    _pace_of(own_s, rows, median_s, num_steps, num_chunks, least, stages, lanes, paces)
    return paces[at]


@kernel
def _factor(  # type: ignore[no-untyped-def]
    own_s, rows, median_s, num_steps, item, lane, in_order
):
    count = 0
    for place in range(rows.shape[0]):
        usual_s = median_s[place, lane // num_steps]
        if rows[place, item] >= 0 and usual_s > 0:
            value = own_s[rows[place, item], lane] / usual_s
            at = count
            while at > 0 and in_order[at - 1] > value:
                in_order[at] = in_order[at - 1]
                at -= 1
            in_order[at] = value
            count += 1
    return in_order[(count - 1) // 2] if count else 1.0


@kernel
def _long(own_s, rows, median_s, num_steps, lowest, first, end):  # type: ignore[no-untyped-def]
    num_places = rows.shape[0]
    pool, in_order = np.empty(num_places), np.empty(num_places)
    where, factors = np.empty((64, 3), np.int64), np.empty(64)
    num_outliers = 0
    for item in range(first, end):
        for lane in range(own_s.shape[1]):
            count = 0
            least, most = np.inf, 0.0
            for place in range(num_places):
                usual_s = median_s[place, lane // num_steps]
                pool[place] = -1.0
                if rows[place, item] >= 0 and usual_s > 0:
                    pool[place] = own_s[rows[place, item], lane] / usual_s
                    count += 1
                    least, most = min(least, pool[place]), max(most, pool[place])
            # The factor is one of them, so otherwise none is far above it.
            if count == 0 or most <= lowest * least:
                continue
            factor = _factor(own_s, rows, median_s, num_steps, item, lane, in_order)
            if factor <= 0:
                continue
            for place in range(num_places):
                if pool[place] > lowest * factor:
                    if num_outliers == factors.size:
                        where = np.concatenate((where, np.empty_like(where)))
                        factors = np.concatenate((factors, np.empty_like(factors)))
                    where[num_outliers, 0], where[num_outliers, 1] = place, item
                    where[num_outliers, 2], factors[num_outliers] = lane, factor
                    num_outliers += 1
    return where[:num_outliers], factors[:num_outliers]


@kernel
def _pace_of(  # type: ignore[no-untyped-def]
    own_s, rows, median_s, num_steps, num_chunks, min_of_step, stages, lanes, paces
):
    num_places, num_items = rows.shape
    half = num_places // 2
    in_order = np.empty(num_places)
    places = np.empty(2 * num_chunks, np.int64)
    for at in range(paces.size):
        dp_rank, step = lanes[at] // num_steps, lanes[at] % num_steps
        for chunk in range(num_chunks):
            places[2 * chunk] = stages[at] * num_chunks + chunk
            places[2 * chunk + 1] = half + stages[at] * num_chunks + chunk
        of_step = 0
        for item in range(num_items):
            for place in places:
                of_step += rows[place, item] >= 0
        # Enough steps on either side for `min_of_step` operations.
        beside = 0
        while of_step * (2 * beside + 1) < min_of_step:
            beside += 1
        values = np.empty(of_step * (2 * beside + 1))
        count = 0
        for near in range(max(0, step - beside), min(num_steps, step + beside + 1)):
            lane = dp_rank * num_steps + near
            for item in range(num_items):
                factor = _factor(own_s, rows, median_s, num_steps, item, lane, in_order)
                for place in places:
                    expected_s = median_s[place, dp_rank] * factor
                    if rows[place, item] >= 0 and expected_s > 0:
                        values[count] = own_s[rows[place, item], lane] / expected_s
                        count += 1
        if count:
            paces[at] = max(1.0, kth_smallest(values, count, (count - 1) // 2))
