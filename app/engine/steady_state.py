"""How long is a step if successive steps overlap? (docs/replay.md, "Step length")

Without a barrier a finished stage begins the next step while others still compute, and posts its
first receive early. Measured from its earliest start, a step then seems too long. In steady state
its length is the period: from the end of the previous step to its own end.

A wait for data before a step's first operation is part of the step, where the client reports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

import numpy as np

from app.engine.grid import Grid
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints, Window

# A gap this many times the usual one, and this share of a step, contains something not recorded
# (an evaluation, a checkpoint): the step then begins at its earliest start.
_LARGE_GAP_RATIO = 5.0
_LARGE_GAP = 0.2
# Before a larger share of the steps, and more than so many, large gaps are no evaluations.
_MAX_SHARE_LARGE = 0.3
_MAX_FEW_LARGE = 2
# Shorter periods, as a share of the step's span, are invalid: clocks were set back, or the origins
# do not give the distance between steps.
_MIN_PERIOD = 0.5


@dataclass(frozen=True)
class _Step:
    """One step of a grid; its times count from `origin_s`.

    `waited_s` is the wait for data of the worker that starts first, right before its start.
    """

    number: int
    grid: int
    position: int
    origin_s: float
    end_s: float
    first_start_s: Floats  # [pp, dp], of each worker's first operation that is no receive, or NaN
    waited_s: float

    @property
    def own_s(self) -> float:
        """Its first start, in its own times."""
        return float(np.nanmin(self.first_start_s))


def with_step_begins(grids: Sequence[Grid], window: Window | None = None) -> list[Grid]:
    """The grids of a window's structures, with the begin of each step in steady state."""
    waits_s = [_waited_s(grid, window) for grid in grids]
    if any(grid.origin_s is None for grid in grids):
        return [_with_waits(grid, wait_s) for grid, wait_s in zip(grids, waits_s, strict=True)]
    steps: list[_Step] = sorted(
        (step for at, grid in enumerate(grids) for step in _steps(at, grid, waits_s[at])),
        key=lambda step: step.number,
    )
    began_s = [grid.spans_s[0].copy() for grid in grids]
    for step, begin_s in zip(steps, _begins(steps), strict=True):
        began_s[step.grid][step.position] = begin_s
    return [grid.with_begins(begin_s) for grid, begin_s in zip(grids, began_s, strict=True)]


def _with_waits(grid: Grid, waited_s: Floats) -> Grid:
    """Without origins: steps begin with the wait for data, or their earliest operation."""
    if not waited_s.any():
        return grid
    return grid.with_begins(np.minimum(grid.spans_s[0], _first_start_s(grid) - waited_s))


def _waited_s(grid: Grid, window: Window | None) -> Floats:
    """[steps], seconds that the worker with the earliest start waited for data before it."""
    total_s = np.zeros(grid.num_steps)
    if window is None:
        return total_s
    if not (rows := window.trace.rows_of_type(OP_CODES["data-wait"])).size:
        return total_s
    sizes, waits = grid.template.parallelism, window.trace.select(rows)
    is_here = np.isin(waits.step, np.asarray(grid.steps))
    is_here &= (waits.dp_rank < sizes.dp_size) & (waits.stage < sizes.pp_size)
    waits = waits.select(is_here)
    firsts, num_steps = _first_rows(grid), grid.num_steps
    start_s = grid.start_s[firsts].reshape(firsts.size, -1, num_steps)
    earliest = start_s.reshape(-1, num_steps).argmin(axis=0)
    first, dp_rank = np.divmod(earliest, start_s.shape[1])
    position = np.searchsorted(np.asarray(grid.steps), waits.step)
    lane = waits.dp_rank.astype(np.int64) * num_steps + position
    stage = waits.stage
    begins_s = waits.start_s.copy()
    if grid.shift_s is not None:
        begins_s += grid.shift_s[stage, lane]
    first_s = start_s[first, dp_rank, np.arange(num_steps)]
    until_s = np.minimum(begins_s + waits.duration_s, first_s[position])
    is_of_first = (grid.template.stage[firsts][first][position] == stage) & (
        dp_rank[position] == waits.dp_rank
    )
    waited_s = np.where(is_of_first, np.maximum(0.0, until_s - begins_s), 0.0)
    np.add.at(total_s, position, waited_s)
    return total_s


def between_s(grid: Grid) -> Floats:
    """[steps], idle time from each step's begin to the first operation that is no receive."""
    if grid.steady_began_s is None:
        return np.zeros(grid.num_steps)
    return np.asarray(np.maximum(0.0, _first_start_s(grid) - grid.began_s))


def before_first_s(grid: Grid) -> Floats:
    """[steps], seconds from the first receive of a step to its first other operation.

    Without origins a step seems to begin with the first receive, which a stage posts while others
    are still in the step before. 0 with origins.
    """
    if grid.origin_s is not None or grid.steady_began_s is not None:
        return np.zeros(grid.num_steps)
    return np.asarray(np.maximum(0.0, _first_start_s(grid) - grid.began_s))


def overlap_s(grid: Grid) -> Floats:
    """[steps], seconds by which a step's span exceeds the longest span of a single worker.

    Without origins workers of a pipeline seem to begin while others are still in the step before;
    no worker does so itself, and one that is busy all the time takes as long as the period. 0 with
    origins.
    """
    if grid.origin_s is not None or grid.steady_began_s is not None:
        return np.zeros(grid.num_steps)
    longest_s = np.zeros(grid.num_steps)
    for first in _first_rows(grid).tolist():
        rows = np.flatnonzero(grid.template.stage == grid.template.stage[first])
        end_s = (grid.start_s[rows] + grid.duration_s[rows]).max(axis=0)
        own_s = (end_s - grid.start_s[first]).reshape(-1, grid.num_steps)
        longest_s = np.maximum(longest_s, own_s.max(axis=0))
    earliest_s, latest_s = grid.spans_s
    return np.asarray(np.maximum(0.0, latest_s - earliest_s - longest_s))


def _steps(at: int, grid: Grid, waited_s: Floats) -> list[_Step]:
    _, latest_s = grid.spans_s
    origin_s = np.zeros(grid.num_steps) if grid.origin_s is None else grid.origin_s
    rows = _first_rows(grid)
    sizes = grid.template.parallelism
    # In steps of other structure a stage may have no operation.
    first_s = np.full((sizes.pp_size, sizes.dp_size, grid.num_steps), np.nan)
    first_s[grid.template.stage[rows]] = grid.start_s[rows].reshape(rows.size, -1, grid.num_steps)
    return [
        _Step(
            number,
            at,
            position,
            float(origin_s[position]),
            float(latest_s[position]),
            first_s[:, :, position],
            float(waited_s[position]),
        )
        for position, number in enumerate(grid.steps)
    ]


def _first_start_s(grid: Grid) -> Floats:
    """[steps], earliest start of an operation that is no receive."""
    first_s: Floats = grid.start_s[_first_rows(grid)].reshape(-1, grid.num_steps).min(axis=0)
    return first_s


def _first_rows(grid: Grid) -> Ints:
    """First operation of each stage that is no receive, for stages that have one.

    If all operations are receives, the first operation of each stage.
    """
    template = grid.template
    is_receive = template.op_types.is_receive[template.optype]
    rows = np.flatnonzero(~is_receive | is_receive.all())
    _, first = np.unique(template.stage[rows], return_index=True)
    return np.asarray(rows[first])


def _begins(steps: Sequence[_Step]) -> list[float]:
    """Begin of each step, in its own times."""
    gaps_s = [
        _gap_s(before, step) if step.number == before.number + 1 else None
        for before, step in pairwise(steps)
    ]
    own_gaps_s = [
        (gap_s - step.waited_s, step.end_s - step.own_s)
        for gap_s, step in zip(gaps_s, steps[1:], strict=True)
        if gap_s is not None
    ]
    # The lower median: one of two gaps may be an outlier.
    usual_s = median_low([gap_s for gap_s, _ in own_gaps_s]) if own_gaps_s else 0.0
    num_large = sum(_is_outlier(gap_s, usual_s, length_s) for gap_s, length_s in own_gaps_s)
    may_be_odd = num_large <= max(_MAX_FEW_LARGE, _MAX_SHARE_LARGE * len(own_gaps_s))
    begins_s = []
    for step, gap_s, next_gap_s, after in zip(
        steps, [None, *gaps_s], [*gaps_s, None], [*steps[1:], None], strict=False
    ):
        began_s = own_s = step.own_s
        waited_s = step.waited_s
        if gap_s is not None and not (
            may_be_odd and _is_outlier(gap_s - waited_s, usual_s, step.end_s - own_s)
        ):
            began_s = own_s - gap_s
        elif after is not None and next_gap_s is not None:
            # From start to start on the same workers; the gap belongs to the next step.
            period_s = _start_to_start_s(step, after)
            began_s = step.end_s - (period_s - max(0.0, next_gap_s)) - waited_s
        elif waited_s:
            began_s = own_s - waited_s
        # Also False for NaN.
        is_period = step.end_s - began_s >= _MIN_PERIOD * (step.end_s - own_s)
        begins_s.append(began_s if is_period else own_s)
    return begins_s


def _gap_s(before: _Step, step: _Step) -> float:
    """From the end of the previous step to the first start; negative if they overlap."""
    return step.own_s + step.origin_s - before.origin_s - before.end_s


def _start_to_start_s(step: _Step, after: _Step) -> float:
    """Median over workers with operations in both steps; NaN if there are none."""
    apart_s = after.first_start_s - step.first_start_s
    known_s = apart_s[np.isfinite(apart_s)]
    if not known_s.size:
        return np.nan
    return float(np.median(known_s)) + after.origin_s - step.origin_s


def _is_outlier(gap_s: float, usual_s: float, length_s: float) -> bool:
    return gap_s > _LARGE_GAP * length_s and gap_s > _LARGE_GAP_RATIO * max(usual_s, 0.0)
