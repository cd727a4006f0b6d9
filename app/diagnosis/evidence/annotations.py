"""Pauses and waits that the client itself reports: gc-pause and data-wait rows.

`annotated_seconds` sums them by worker and step. `annotated_delays` says which launches they made
late, and by how much: a wait that ended before its worker was needed delays nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.outliers import LaunchDelays, launch_delays_s
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints, Trace, Window

# Clocks of a host and its GPU agree this well.
_TOLERANCE_S = 50e-6


def annotations_of(window: Window, name: str) -> Trace | None:
    """The annotations of one type; None where there are none."""
    rows = np.flatnonzero(window.trace.optype == OP_CODES[name])
    return window.trace.select(rows) if rows.size else None


def annotated_seconds(window: Window, steps: Ints, name: str) -> Floats:
    """[steps, dp, pp], seconds of one type of annotation in these ascending steps."""
    found, sizes = annotations_of(window, name), window.job.parallelism
    total_s = np.zeros((steps.size, sizes.dp_size, sizes.pp_size))
    if found is None:
        return total_s
    at = np.minimum(np.searchsorted(steps, found.step), steps.size - 1)
    known = (steps[at] == found.step) & _is_placed(found, sizes)
    np.add.at(total_s, (at[known], found.dp_rank[known], found.stage[known]),
              found.duration_s[known])  # fmt: skip
    return total_s


def _is_placed(notes: Trace, sizes: Parallelism) -> NDArray[np.bool_]:
    return np.asarray((notes.dp_rank < sizes.dp_size) & (notes.stage < sizes.pp_size))


def begin_delays_s(group: Features) -> Floats:
    """[pp, lanes], launch delay of the gather with which a stage begins its step, 0 without one.

    Parameters are gathered once the data have come, so a data wait delays the gather and not the
    forward after it.
    """
    replayer, template = group.replayer, group.replayer.template
    found = np.zeros((replayer.pp_size, replayer.grid.start_s.shape[1]))
    rows = np.flatnonzero(template.optype == OP_CODES["params-all-gather"])
    # Those that depend on nothing in the step; a worker's are numbered in recorded order.
    rows = rows[np.diff(replayer.graph.pred_ptr)[rows] == 0]
    stages, first = np.unique(template.stage[rows], return_index=True)
    found[stages] = launch_delays_s(replayer, rows[first])
    return found


def receive_delays_s(group: Features) -> Floats:
    """[pp, lanes], how much later than its data were sent a stage posts its first receive, or 0.

    A stage that waits for its own data posts it late. Of jobs with one chunk a stage.
    """
    replayer, template = group.replayer, group.replayer.template
    start_s = replayer.grid.start_s
    found = np.zeros((replayer.pp_size, start_s.shape[1]))
    if template.parallelism.vpp_size > 1:
        return found
    first = {
        name: _first_of_stages(template.stage, template.optype == OP_CODES[name])
        for name in ("forward-send", "forward-recv")
    }
    for stage, row in first["forward-recv"].items():
        if (sent := first["forward-send"].get(stage - 1)) is not None:
            own_s = launch_delays_s(replayer, np.array([row]))[0]
            found[stage] = np.clip(start_s[row] - start_s[sent], 0.0, own_s)
    return found


def _first_of_stages(stage: Ints, chosen: NDArray[np.bool_]) -> dict[int, int]:
    """By stage, the first chosen row; a worker's are numbered in recorded order."""
    rows = np.flatnonzero(chosen)
    stages, first = np.unique(stage[rows], return_index=True)
    return dict(zip(stages.tolist(), rows[first].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class AnnotatedDelays:
    """Launches that annotations made late, each once.

    Shapes: all [launches]. `row` and `lane` are the group's, `at` is the row's position in the
    group's `LaunchDelays`; `seconds` are the annotated part of the delay.
    """

    row: Ints
    lane: Ints
    at: Ints
    seconds: Floats


def annotated_delays(
    group: Features, late: LaunchDelays, notes: Trace, *, is_between: bool
) -> AnnotatedDelays:
    """The next computation after each annotation, late by the annotated time at most.

    Args:
        group: steps of equal structure.
        late: launch delays of its computations.
        notes: annotations of one type.
        is_between: leave out annotations that begin inside a computation.
    """
    replayer, grid = group.replayer, group.replayer.grid
    steps = np.asarray(group.steps)
    notes = notes.select(
        np.isin(notes.step, steps) & _is_placed(notes, replayer.template.parallelism)
    )
    lane = notes.dp_rank.astype(np.int64) * steps.size + np.searchsorted(steps, notes.step)
    begins_s = notes.start_s.copy()
    if grid.shift_s is not None:
        begins_s += grid.shift_s[notes.stage, lane]
    at = np.full(lane.size, -1)
    for stage in np.unique(notes.stage).tolist():
        mine = np.flatnonzero(notes.stage == stage)
        at[mine] = _next_computation(group, late, stage, lane[mine], begins_s[mine], is_between)
    known = np.flatnonzero(at >= 0)
    num_lanes = late.delay_s.shape[1]
    keys, of_note = np.unique(at[known] * num_lanes + lane[known], return_inverse=True)
    noted_s = np.bincount(of_note, notes.duration_s[known], keys.size)
    at, lane = np.divmod(keys, num_lanes)
    delay_s = late.delay_s[at, lane]
    before_s = (begin_delays_s(group) + receive_delays_s(group))[late.stage[at], lane]
    delay_s = delay_s + np.where(late.is_first[at], before_s, 0.0)
    return AnnotatedDelays(late.rows[at], lane, at, np.minimum(noted_s, delay_s))


def _next_computation(
    group: Features,
    late: LaunchDelays,
    stage: int,
    lane: Ints,
    begins_s: Floats,
    is_between: bool,
) -> Ints:
    """[notes], position in `late` of the stage's next computation, -1 where there is none."""
    replayer = group.replayer
    of_stage = np.flatnonzero(late.stage == stage)
    if not of_stage.size:
        return np.full(lane.size, -1)
    start_s = replayer.grid.start_s[late.rows[of_stage][:, None], lane[None, :]]
    order = np.argsort(start_s, axis=0, kind="stable")
    num_before = (start_s <= begins_s).sum(axis=0)
    found = of_stage[order[np.minimum(num_before, of_stage.size - 1), np.arange(lane.size)]]
    found = np.where(num_before < of_stage.size, found, -1)
    if is_between:
        before = order[np.maximum(num_before - 1, 0), np.arange(lane.size)]
        own_s = replayer.grid.duration_s[late.rows[of_stage[before]], lane]
        ends_s = start_s[before, np.arange(lane.size)] + own_s
        found = np.where((num_before > 0) & (begins_s < ends_s - _TOLERANCE_S), -1, found)
    return np.asarray(found)
