"""Which single computations took far longer than their worker's usually do?

A micro-batch of long sequences is long on every stage and in both directions: that common factor
is divided out, and so is a whole step in which the worker was slow.
"""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.features import Features
from app.diagnosis.selecting import smallest
from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.trace.window import Floats, Ints

# Below this an operation is not listed: healthy noise of 5 % does not come so far.
LOWEST_RATIO = 1.2

# A median of so many values is as good as one of all.
MOST_VALUES = 96

# So many operations at least say what a worker's pace was in a step.
MIN_OF_STEP = 6


@dataclass(frozen=True, slots=True)
class Outliers:
    """Computations that took at least `LOWEST_RATIO` times what they should have.

    Shapes: [outliers] for `direction` (forward 0, backward 1), `stage`, `item`, `dp_rank`, `step`
    (position in the group), `row` (of the template), `lane`, `ratio` (recorded over expected),
    `expected_s`, and `factor`, how much longer the micro-batch is everywhere. `median_s`
    [2, pp, dp] is each worker's own median, `num_ops` [2, pp] how many such operations a worker
    has in a step.
    """

    direction: Ints
    stage: Ints
    item: Ints
    dp_rank: Ints
    step: Ints
    row: Ints
    lane: Ints
    ratio: Floats
    expected_s: Floats
    factor: Floats
    median_s: Floats
    num_ops: Ints

    @property
    def excess_s(self) -> Floats:
        """[outliers], what they took too long."""
        return self.expected_s * (self.ratio - 1)


def outliers(group: Features) -> Outliers:
    """Lone long computations of a group of steps; the first halves of split backwards.

    expected = the worker's median of that direction * the micro-batch's factor * the worker's
    pace in that step, if it was slow; the factor is the lower median, over stages and directions,
    of duration over median, so that nothing that happened once can raise it. Where a stage has not
    as many forwards as backwards, its computations are in no micro-batch's order: none is listed.
    """
    rows = group.computed_rows
    own_s, num_steps = group.replayer.durations.recorded_s, len(group.steps)
    # No -1 for a size: there are no rows at all where nobody computes in such a step.
    flat = np.ascontiguousarray(rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2]))
    size = rows.size * own_s.shape[1]
    median_s = np.full((flat.shape[0], group.replayer.dp_size), np.nan)
    in_parallel(
        size,
        flat.shape[0],
        lambda first, end: _medians(own_s, flat, num_steps, MOST_VALUES, first, end, median_s),
    )
    paired = _in_both_directions(rows).reshape(flat.shape)
    parts = in_parallel(
        size,
        rows.shape[-1],
        lambda first, end: _long(own_s, paired, median_s, num_steps, LOWEST_RATIO, first, end),
    )
    where, factor = (np.concatenate(part) for part in zip(*parts, strict=True))
    place, item, lane = where.T
    pace = _paces(own_s, flat, median_s, num_steps, place % rows.shape[1], lane)
    row, dp_rank = flat[place, item], lane // num_steps
    expected_s = median_s[place, dp_rank] * factor * pace
    ratio = own_s[row, lane] / expected_s
    kept = ratio > LOWEST_RATIO
    return Outliers(
        direction=(place // rows.shape[1])[kept],
        stage=(place % rows.shape[1])[kept],
        item=item[kept],
        dp_rank=dp_rank[kept],
        step=(lane % num_steps)[kept],
        row=row[kept],
        lane=lane[kept],
        ratio=ratio[kept],
        expected_s=expected_s[kept],
        factor=factor[kept],
        median_s=median_s.reshape(*rows.shape[:2], group.replayer.dp_size),
        num_ops=(rows >= 0).sum(axis=-1),
    )


def _in_both_directions(rows: Ints) -> Ints:
    """[2, pp, items], the rows of stages that compute as many items forward as backward.

    Elsewhere items are parts of one computation, as FSDP2 is recorded around its collectives: the
    third part of a forward is not the micro-batch of the third part of its backward.
    """
    num_items = (rows >= 0).sum(axis=-1)
    is_paired = num_items[0] == num_items[1]
    return np.ascontiguousarray(np.where(is_paired[None, :, None], rows, -1))


def _paces(
    own_s: Floats, rows: Ints, median_s: Floats, num_steps: int, stage: Ints, lane: Ints
) -> Floats:
    """[outliers], how slow the worker was in all of its step, 1.0 or more."""
    key, at = np.unique(stage * own_s.shape[1] + lane, return_inverse=True)
    paces = np.ones(key.size)
    _pace_of(own_s, rows, median_s, num_steps, MIN_OF_STEP, *np.divmod(key, own_s.shape[1]), paces)
    return paces[at]


@kernel
def _medians(  # type: ignore[no-untyped-def]
    own_s, rows, num_steps, most_values, first, end, median_s
):
    num_values = rows.shape[1] * num_steps
    stride = max(1, (num_values + most_values - 1) // most_values)
    values = np.empty(num_values // stride + 1)
    for place in range(first, end):
        for dp_rank in range(median_s.shape[1]):
            count = 0
            for at in range(0, num_values, stride):
                row = rows[place, at // num_steps]
                if row >= 0:
                    values[count] = own_s[row, dp_rank * num_steps + at % num_steps]
                    count += 1
            if count:
                median_s[place, dp_rank] = smallest(values, count, (count - 1) // 2)


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
    num_found = 0
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
            # The factor is one of them, so that without this none can be far above it.
            if count == 0 or most <= lowest * least:
                continue
            factor = _factor(own_s, rows, median_s, num_steps, item, lane, in_order)
            if factor <= 0:
                continue
            for place in range(num_places):
                if pool[place] > lowest * factor:
                    if num_found == factors.size:
                        where = np.concatenate((where, np.empty_like(where)))
                        factors = np.concatenate((factors, np.empty_like(factors)))
                    where[num_found, 0], where[num_found, 1] = place, item
                    where[num_found, 2], factors[num_found] = lane, factor
                    num_found += 1
    return where[:num_found], factors[:num_found]


@kernel
def _pace_of(  # type: ignore[no-untyped-def]
    own_s, rows, median_s, num_steps, min_of_step, stages, lanes, paces
):
    num_places, num_items = rows.shape
    num_stages = num_places // 2
    in_order = np.empty(num_places)
    for at in range(paces.size):
        stage, dp_rank, step = stages[at], lanes[at] // num_steps, lanes[at] % num_steps
        of_step = 0
        for item in range(num_items):
            of_step += (rows[stage, item] >= 0) + (rows[num_stages + stage, item] >= 0)
        # Steps on either side, so that enough operations say what the pace was.
        beside = 0
        while of_step * (2 * beside + 1) < min_of_step:
            beside += 1
        values = np.empty(of_step * (2 * beside + 1))
        count = 0
        for near in range(max(0, step - beside), min(num_steps, step + beside + 1)):
            lane = dp_rank * num_steps + near
            for item in range(num_items):
                factor = _factor(own_s, rows, median_s, num_steps, item, lane, in_order)
                for place in (stage, num_stages + stage):
                    expected_s = median_s[place, dp_rank] * factor
                    if rows[place, item] >= 0 and expected_s > 0:
                        values[count] = own_s[rows[place, item], lane] / expected_s
                        count += 1
        if count:
            paces[at] = max(1.0, smallest(values, count, (count - 1) // 2))
