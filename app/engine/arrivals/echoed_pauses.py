"""Waits for a rank that paused, inside computations whose collectives are not recorded.

Ranks of one stage may meet in a computation without a record of it, as in tensor- and
expert-parallel groups. If one pauses, the same computation is as much longer on all others in the
same step. That it was the one shows where it noted a collection in that computation, or began it
late and was no longer at it than usual. Without either nobody can tell, and nothing is taken out.
"""

from dataclasses import dataclass

import numpy as np

from app.engine.grid import Grid
from app.engine.template import SAME_MOMENT_S
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints, Window


@dataclass(frozen=True, slots=True)
class EchoLimits:
    """When a computation is longer because another rank paused. All were chosen."""

    # A pause is longer than this share of the usual computation,
    min_share: float = 0.2
    # and so many times what the shortest of a worker's computations is below its usual one.
    min_spreads: float = 6.0
    # A computation holds a wait for a pause if it is longer by this share of it, and a pause is one
    # of most others: of this share of them.
    min_of_pause: float = 0.5
    min_others: float = 0.75
    # Fewer steps do not show what is usual for each computation, or beyond noise. Those of the type
    # do, and a late begin counts as far as collections before it are noted.
    min_steps: int = 5


LIMITS = EchoLimits()
Spans = tuple[Ints, Floats, Floats]  # cells (stage * lanes + lane), starts, ends
NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0), np.empty(0))


def joined(one: Spans, other: Spans) -> Spans:
    """Both, one after the other."""
    cells, starts, ends = (np.concatenate(columns) for columns in zip(one, other, strict=True))
    return cells, starts, ends


def noted_spans(window: Window, grid: Grid, name: str) -> Spans:
    """A client's annotations of one type in the grid's steps, by its clock."""
    num_lanes, steps = grid.start_s.shape[1], np.asarray(grid.steps)
    notes = window.trace.select(window.trace.rows_of_type(OP_CODES[name]))
    notes = notes.select(np.isin(notes.step, steps))
    at = np.searchsorted(steps, notes.step)
    stage = notes.stage.astype(np.int64)
    lane = notes.dp_rank.astype(np.int64) * grid.num_steps + at
    start_s = notes.start_s.copy()
    if grid.shift_s is not None:
        start_s += grid.shift_s[stage, lane]
    return stage * num_lanes + lane, start_s, start_s + notes.duration_s


def usual(by_step: Floats) -> Floats:
    """[..., 1], the lower quartile over the steps, as pauses may be in most of them."""
    low = (by_step.shape[-1] - 1) // 4
    return np.asarray(np.partition(by_step, low, axis=-1)[..., low, None])


def echoed_pauses(window: Window, grid: Grid, computes: Ints, own_s: Floats) -> Spans:
    """Waits in the middle of computations for another dp rank of the stage, which paused.

    Args:
        window: the window of the grid.
        grid: the recorded times.
        computes: computations, as ascending rows.
        own_s: [ops, lanes], durations without waits that are known.
    """
    template, num_lanes = grid.template, grid.start_s.shape[1]
    spans = NO_SPANS
    if template.parallelism.dp_size < 2:
        return spans
    notes = noted_spans(window, grid, "gc-pause")
    for stage in range(template.parallelism.pp_size):
        of_stage = computes[template.stage[computes] == stage]
        for code in np.unique(template.optype[of_stage]).tolist():
            rows = of_stage[template.optype[of_stage] == code]
            waits_s = _waits_s(grid, of_stage, rows, own_s[rows], notes)
            at, lane = np.nonzero(waits_s)
            row, took_s = rows[at], waits_s[at, lane]
            begins_s = grid.start_s[row, lane] + (grid.duration_s[row, lane] - took_s) / 2
            spans = joined(spans, (stage * num_lanes + lane, begins_s, begins_s + took_s))
    return spans


def _waits_s(grid: Grid, of_stage: Ints, rows: Ints, own_s: Floats, notes: Spans) -> Floats:
    """[rows, lanes], seconds for which computations of one type waited for one that paused.

    `of_stage` are all computations of the stage, of which `rows` are some.
    """
    stage = int(grid.template.stage[rows[0]])
    shape = (rows.size, -1, grid.num_steps)
    by_step = own_s.reshape(shape)
    is_each = grid.num_steps >= LIMITS.min_steps
    usual_s = usual(by_step) if is_each else np.median(by_step, axis=(0, 2), keepdims=True)
    longer_s = by_step - usual_s
    below_s = usual_s - by_step.min(axis=2, keepdims=True) if is_each else np.zeros(1)
    least_s = np.maximum(
        LIMITS.min_share * usual_s, LIMITS.min_spreads * float(np.mean(np.maximum(below_s, 0.0)))
    )
    num_others = by_step.shape[1] - 1
    if not ((longer_s > least_s).sum(axis=1) >= LIMITS.min_others * num_others).any():
        return np.zeros(own_s.shape)
    late_s = grid.start_s[rows].reshape(shape)
    earlier = (num_others - 1) // 2 if num_others > 1 else 0
    late_s = late_s - np.partition(late_s, earlier, axis=1)[:, earlier, None]
    # Late as it did nothing, and not as what it did before took long.
    idle_s = _idle_s(grid, of_stage, rows).reshape(shape)
    if is_each:
        late_s -= usual(late_s)
        idle_s -= usual(idle_s)
    late_s = np.minimum(late_s, np.maximum(idle_s, 0.0))
    inside_s, before_s = (noted.reshape(shape) for noted in _noted_s(grid, stage, rows, notes))
    noted_s = np.minimum(inside_s, longer_s)
    # A rank that came late and did not wait itself, or noted why it was longer.
    late_s = np.where(longer_s < LIMITS.min_of_pause * late_s, late_s, 0.0)
    if not is_each:
        late_s = np.minimum(late_s, before_s)
    paused_s = np.maximum(noted_s, late_s)
    first = paused_s.argmax(axis=1)[:, None]
    pause_s = np.take_along_axis(paused_s, first, axis=1)
    others_s = np.maximum(0.0, longer_s - noted_s)
    np.put_along_axis(others_s, first, 0.0, axis=1)
    is_echo = (others_s >= LIMITS.min_of_pause * pause_s) & (pause_s > least_s.max(axis=1)[:, None])
    are_most = is_echo.sum(axis=1, keepdims=True) >= LIMITS.min_others * num_others
    return np.where(is_echo & are_most, np.minimum(others_s, pause_s), 0.0).reshape(own_s.shape)


def _idle_s(grid: Grid, of_stage: Ints, rows: Ints) -> Floats:
    """[rows, lanes], seconds from the computation before, or from the step's first one."""
    order = of_stage[np.argsort(grid.template.start_s[of_stage], kind="stable")]
    position = np.empty(grid.template.num_ops, np.int64)
    position[order] = np.arange(order.size)
    before = order[np.maximum(position[rows] - 1, 0)]
    since_s = grid.start_s[before] + grid.duration_s[before]
    is_first = position[rows] == 0
    since_s[is_first] = grid.start_s[order[0]].min()
    return np.asarray(grid.start_s[rows] - since_s)


def _noted_s(grid: Grid, stage: int, rows: Ints, notes: Spans) -> tuple[Floats, Floats]:
    """[rows, lanes] each, seconds of notes that begin inside a computation, or before it.

    Before it is after the one of the same type before, outside of it.
    """
    cell, begins_s, ends_s = notes
    num_lanes = grid.start_s.shape[1]
    inside_s, before_s = np.zeros((2, rows.size, num_lanes))
    here = np.flatnonzero(cell // num_lanes == stage)
    for lane in np.unique(cell[here] % num_lanes).tolist():
        of_lane = here[cell[here] % num_lanes == lane]
        start_s = grid.start_s[rows, lane]
        order = np.argsort(start_s, kind="stable")
        num_begun = np.searchsorted(start_s[order], begins_s[of_lane] + SAME_MOMENT_S)
        last = order[np.maximum(num_begun - 1, 0)]
        following = order[np.minimum(num_begun, rows.size - 1)]
        done_s = start_s[last] + grid.duration_s[rows[last], lane]
        is_inside = (num_begun > 0) & (begins_s[of_lane] < done_s)
        is_before = ~is_inside & (num_begun < rows.size)
        took_s = (ends_s - begins_s)[of_lane]
        np.add.at(inside_s[:, lane], last[is_inside], took_s[is_inside])
        np.add.at(before_s[:, lane], following[is_before], took_s[is_before])
    return inside_s, before_s
