"""Pauses and waits that the client itself reports: gc-pause and data-wait rows.

`annotated_seconds` sums them by worker and step. `annotated_delays` says which launches they made
late, and by how much: a wait that ended before its worker was needed delays nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.outliers import LaunchDelays, launch_delays, launch_delays_s
from app.diagnosis.evidence.step_gaps import first_start_s, gaps_s, outside_s
from app.diagnosis.features import Features
from app.engine.steady_state import before_first_s
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints, Trace


@dataclass(frozen=True, slots=True)
class AnnotationLimits:
    """When an annotation lies inside of an operation."""

    # Clocks of a host and its GPU agree to so many seconds; chosen.
    clock_tolerance_s: float = 50e-6


LIMITS = AnnotationLimits()


@evidence
def annotations(case: Case, name: str) -> Trace | None:
    """The client's annotations of one type, by the step that they delay; None without any.

    Their times are those of that step.
    """
    trace = case.replay.window.trace
    rows = trace.rows_of_type(OP_CODES[name])
    return _of_delayed_steps(case, trace.select(rows)) if rows.size else None


def _of_delayed_steps(case: Case, notes: Trace) -> Trace:
    """What outlasts its worker's last operation of a step belongs to the next recorded step."""
    origins_s = [group.replayer.grid.origin_s for group in case.groups]
    if any(origin_s is None for origin_s in origins_s):
        return notes
    origin_s = case.joined(lambda group: np.asarray(group.replayer.grid.origin_s))
    ends_s = case.joined(_worker_ends_s)
    at = np.minimum(np.searchsorted(case.steps, notes.step), case.steps.size - 2)
    is_known = _is_placed(notes, case.parallelism) & (at >= 0)
    is_known &= (case.steps[at] == notes.step) & (case.steps[at + 1] == notes.step + 1)
    moved = np.flatnonzero(is_known)
    at = at[moved]
    until_s = notes.start_s[moved] + notes.duration_s[moved]
    is_after = until_s > ends_s[at, notes.dp_rank[moved], notes.stage[moved]]
    moved, at = moved[is_after], at[is_after]
    step, start_s = notes.step.copy(), notes.start_s.copy()
    step[moved] += 1
    start_s[moved] += origin_s[at] - origin_s[at + 1]
    return replace(notes, step=step, start_s=start_s)


def _worker_ends_s(group: Features) -> Floats:
    """[steps, dp, pp], the end of each worker's last operation by its own clock."""
    template, grid = group.replayer.template, group.replayer.grid
    ends_s = np.full((group.replayer.pp_size, grid.start_s.shape[1]), np.inf)
    for stage in np.unique(template.stage).tolist():
        rows = np.flatnonzero(template.stage == stage)
        ends_s[stage] = (grid.start_s[rows] + grid.duration_s[rows]).max(axis=0)
    if grid.shift_s is not None:
        ends_s -= grid.shift_s
    sizes = (group.replayer.pp_size, group.replayer.dp_size, grid.num_steps)
    return ends_s.reshape(sizes).transpose(2, 1, 0)


def annotated_seconds(notes: Trace | None, steps: Ints, sizes: Parallelism) -> Floats:
    """[steps, dp, pp], seconds of annotations of one type in these ascending steps."""
    total_s = np.zeros((steps.size, sizes.dp_size, sizes.pp_size))
    if notes is None:
        return total_s
    at = np.minimum(np.searchsorted(steps, notes.step), steps.size - 1)
    known = (steps[at] == notes.step) & _is_placed(notes, sizes)
    worker = notes.dp_rank[known], notes.stage[known]
    np.add.at(total_s, (at[known], *worker), notes.duration_s[known])
    return total_s


def _is_placed(notes: Trace, sizes: Parallelism) -> NDArray[np.bool_]:
    return np.asarray((notes.dp_rank < sizes.dp_size) & (notes.stage < sizes.pp_size))


def in_lanes(group: Features, notes: Trace) -> tuple[Trace, Ints, Floats]:
    """The group's annotations of its workers, their lanes, and their begins by the grid's clock."""
    steps, grid = np.asarray(group.steps), group.replayer.grid
    is_placed = _is_placed(notes, group.replayer.template.parallelism)
    notes = notes.select(np.isin(notes.step, steps) & is_placed)
    lane = notes.dp_rank.astype(np.int64) * steps.size + np.searchsorted(steps, notes.step)
    begins_s = notes.start_s.copy()
    if grid.shift_s is not None:
        begins_s += grid.shift_s[notes.stage, lane]
    return notes, lane, begins_s


def first_delays_s(
    group: Features,
    late: LaunchDelays,
    *,
    is_surely: bool = False,
    idle_s: Floats | None = None,
) -> Floats:
    """[pp, lanes], how late each stage's first forward starts without waiting for others.

    That is its launch delay, with that of the gather before it: parameters are gathered once the
    data have come. A stage that waits for data may also post its first receive late. A later
    stage's delay counts from the arrival of its input. Without origins a worker may still be in
    the step before when others begin: with `is_surely`, only what does not depend on that counts.
    `idle_s` [steps] is time in which nobody worked, which is not the stage's own doing: it is left
    out where the delay counts from the step's begin.
    """
    is_surely = is_surely and group.replayer.grid.origin_s is None
    template = group.replayer.template
    first_s = np.zeros((group.replayer.pp_size, late.delay_s.shape[1]))
    arrives_s = _arrivals_s(group, with_receives=not is_surely)
    gather_s = _gather_delays_s(group)
    if is_surely:
        by_dp_s = gather_s.reshape(gather_s.shape[0], group.replayer.dp_size, -1)
        gather_s = (by_dp_s - by_dp_s.min(axis=1, keepdims=True)).reshape(gather_s.shape)
    for first in np.flatnonzero(late.is_first)[::-1].tolist():
        stage, row = int(late.stage[first]), int(late.rows[first])
        own_s = late.delay_s[first] + gather_s[stage]
        if stage in arrives_s:
            arrived_s, posted_late_s = arrives_s[stage]
            start_s = group.replayer.grid.start_s[row]
            own_s = np.clip(start_s - arrived_s, 0.0, own_s + posted_late_s)
        elif is_surely and not (template.optype == OP_CODES["params-all-gather"]).any():
            # The first receive, which the delay counts from, is no begin.
            early_s = np.tile(before_first_s(group.replayer.grid), group.replayer.dp_size)
            own_s = np.maximum(0.0, own_s - early_s)
        if idle_s is not None and stage not in arrives_s:
            own_s = np.maximum(0.0, own_s - np.tile(idle_s, group.replayer.dp_size))
        first_s[stage] = own_s
    return first_s


def _gather_delays_s(group: Features) -> Floats:
    """[pp, lanes], launch delay of the gather with which a stage begins its step, else 0."""
    replayer, template = group.replayer, group.replayer.template
    delay_s = np.zeros((replayer.pp_size, replayer.grid.start_s.shape[1]))
    rows = np.flatnonzero(template.optype == OP_CODES["params-all-gather"])
    # Those that depend on nothing in the step; a worker's are numbered in recorded order.
    rows = rows[np.diff(replayer.graph.pred_ptr)[rows] == 0]
    stages, first = np.unique(template.stage[rows], return_index=True)
    delay_s[stages] = launch_delays_s(replayer, rows[first])
    return delay_s


def _arrivals_s(group: Features, *, with_receives: bool) -> dict[int, tuple[Floats, Floats]]:
    """By stage: when its first input would have come, and the receive's delay, each [lanes].

    Of jobs with one chunk a stage.
    """
    replayer, template = group.replayer, group.replayer.template
    arrivals_s: dict[int, tuple[Floats, Floats]] = {}
    if template.parallelism.vpp_size > 1:
        return arrivals_s
    sent, received = (
        _first_of_stages(template.stage, template.optype == OP_CODES[name])
        for name in ("forward-send", "forward-recv")
    )
    start_s, duration_s = replayer.grid.start_s, replayer.grid.duration_s
    gathers = _first_of_stages(template.stage, template.optype == OP_CODES["params-all-gather"])
    received = {stage: row for stage, row in received.items() if stage - 1 in sent}
    delays_s = launch_delays_s(replayer, np.array([*received.values()], np.int64))
    for (stage, row), own_s in zip(received.items(), delays_s, strict=True):
        posted_s, sent_s = start_s[row], start_s[sent[stage - 1]]
        late_s = np.clip(posted_s - sent_s, 0.0, own_s if with_receives else 0.0)
        if stage in gathers:
            # A receive may be posted late only because others were late to the gather.
            gathered_s = start_s[gathers[stage]] + duration_s[gathers[stage]]
            after_s = posted_s - gathered_s
            is_after = after_s >= -LIMITS.clock_tolerance_s
            own_s = np.where(is_after, np.maximum(0.0, after_s), own_s)
        arrivals_s[stage] = (posted_s + duration_s[row] - late_s, np.minimum(late_s, own_s))
    return arrivals_s


def _first_of_stages(stage: Ints, chosen: NDArray[np.bool_]) -> dict[int, int]:
    """By stage, the first chosen row; a worker's are numbered in recorded order."""
    rows = np.flatnonzero(chosen)
    stages, first = np.unique(stage[rows], return_index=True)
    return dict(zip(stages.tolist(), rows[first].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class AnnotatedDelays:
    """Launches that annotations made late, every one once.

    Shapes: all [launches]. `row` and `lane` are the group's, `at` is the row's position in the
    group's `LaunchDelays`; `seconds` are the annotated part of the delay.
    """

    row: Ints
    lane: Ints
    at: Ints
    seconds: Floats


@evidence
def annotated_delays(case: Case, name: str) -> tuple[AnnotatedDelays, ...]:
    """Launches of all groups that one type of annotation made late; empty without any."""
    notes = annotations(case, name)
    if notes is None:
        return ()
    groups = zip(case.groups, launch_delays(case), strict=True)
    if name != "gc-pause":
        return tuple(_annotated_delays(group, late, notes) for group, late in groups)
    gap_s = np.nan_to_num(gaps_s(case, first_start_s))
    gaps = [Gaps(gap_s[group.positions], outside_s(case)[group.positions]) for group in case.groups]
    return tuple(
        _annotated_delays(group, late, notes, own)
        for (group, late), own in zip(groups, gaps, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle time before each step's first operation.

    Shapes: [steps of a group]. `gap_s` counts from the end of the step before; `outside_s` is the
    part that belongs to no step: a step begins with its wait for data, but after a pause that few
    steps have.
    """

    gap_s: Floats
    outside_s: Floats


@evidence
def late_by_s(case: Case, name: str) -> Floats:
    """[steps, dp, pp], launch delays that the client puts down to a type of annotation."""
    sizes = case.parallelism
    total_s = np.zeros((case.steps.size, sizes.dp_size, sizes.pp_size))
    of_groups = zip(case.groups, launch_delays(case), annotated_delays(case, name), strict=False)
    for group, late, noted in of_groups:
        dp_rank, step = np.divmod(noted.lane, len(group.steps))
        np.add.at(total_s, (group.positions[step], dp_rank, late.stage[noted.at]), noted.seconds)
    return total_s


def _annotated_delays(
    group: Features, late: LaunchDelays, notes: Trace, gaps: Gaps | None = None
) -> AnnotatedDelays:
    """The next computation after each annotation, late by the annotated time at most.

    With `gaps`, which first ones may be late by as well, annotations that begin inside a
    computation are left out. In a gap that no worker's own launches show, all wait for the worker
    that pauses longest, in a collective that is not recorded.
    """
    notes, lane, begins_s = in_lanes(group, notes)
    at = np.full(lane.size, -1)
    for stage in np.unique(notes.stage).tolist():
        here = np.flatnonzero(notes.stage == stage)
        at[here] = _next_computation(
            group, late, stage, lane[here], begins_s[here], is_between=gaps is not None
        )
    known = np.flatnonzero(at >= 0)
    num_lanes = late.delay_s.shape[1]
    keys, of_note = np.unique(at[known] * num_lanes + lane[known], return_inverse=True)
    noted_s = np.bincount(of_note, notes.duration_s[known], keys.size)
    at, lane = np.divmod(keys, num_lanes)
    delay_s = late.delay_s[at, lane]
    firsts_s, position = first_delays_s(group, late)[late.stage[at], lane], lane % len(group.steps)
    if gaps is None:
        seconds = np.minimum(noted_s, np.where(late.is_first[at], firsts_s, delay_s))
        return AnnotatedDelays(late.rows[at], lane, at, seconds)
    delay_s = np.where(late.is_first[at], firsts_s + gaps.outside_s[position], delay_s)
    seconds = np.minimum(noted_s, delay_s)
    until_s = first_start_s(group.replayer.grid)[position[of_note]]
    since_s = until_s - gaps.gap_s[position[of_note]]
    ends_s = np.minimum(begins_s[known] + notes.duration_s[known], until_s)
    in_gap_s = np.maximum(0.0, ends_s - np.maximum(begins_s[known], since_s))
    idle_s = np.bincount(of_note, in_gap_s, keys.size)
    shown_s = np.zeros(len(group.steps))
    np.maximum.at(shown_s, position, seconds)
    order = np.lexsort((idle_s, position))
    longest = order[np.diff(position[order], append=-1) != 0]
    hidden = longest[idle_s[longest] > shown_s[position[longest]]]
    seconds[hidden] = idle_s[hidden]
    return AnnotatedDelays(late.rows[at], lane, at, seconds)


def _next_computation(
    group: Features,
    late: LaunchDelays,
    stage: int,
    lane: Ints,
    begins_s: Floats,
    *,
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
    following = of_stage[order[np.minimum(num_before, of_stage.size - 1), np.arange(lane.size)]]
    following = np.where(num_before < of_stage.size, following, -1)
    if is_between:
        before = order[np.maximum(num_before - 1, 0), np.arange(lane.size)]
        own_s = replayer.grid.duration_s[late.rows[of_stage[before]], lane]
        ends_s = start_s[before, np.arange(lane.size)] + own_s
        is_inside = (num_before > 0) & (begins_s < ends_s - LIMITS.clock_tolerance_s)
        following = np.where(is_inside, -1, following)
    return np.asarray(following)
