"""Single long stops: steps far longer than usual because workers do nothing for a while.

A worker stops before an operation (a launch delay) or in a computation. A worker that waits for
others does so in a receive or in a collective, and does not stop. `long_stops` has the steps with a
stop, its workers and its place in the step; `gaps_between` is time between steps, which no step
contains.

`late_begins` are steps that the workers begin late: all of them stood still where the step before
ended. A worker begins late by the longest launch delay of its operations up to the first
computation. Where times of different steps are known, the shortest stop is a gap between two steps,
and what others stop longer is a late begin. Without such times a step is recorded from its first
operation on: of a stop before it only the differences between workers are seen, unless a receive
was posted before the stop.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.idle_time import idle_time
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    Interruptions,
    among,
    annotated_s,
    joined,
    no_rows,
    rows_of_group,
)
from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.evidence.reported_delays import late_by_s
from app.diagnosis.evidence.step_gaps import first_rows, first_start_s, gaps_s
from app.diagnosis.features import Features
from app.diagnosis.statistics.persistence import period
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.engine.template import Template
from app.trace.ops import OpKind
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class StopLimits:
    """From when on steps have a stop. All but the gaps' limits were chosen on made jobs."""

    # Fewer steps do not show what is usual.
    min_steps: int = 4
    # A step with a stop is longer than usual by this share, and by so many standard deviations;
    min_excess: float = 0.2
    min_deviations: float = 6.0
    # if more steps are, as a share, they are no exception.
    max_share_of_steps: float = 1 / 3
    # A worker that stops for this share of the excess is one of those that all wait for.
    min_share_of_excess: float = 0.5
    # If this share of the workers stops, it is all: in a pipeline some are waiting meanwhile.
    min_share_of_all: float = 0.5
    # Gaps so many times the usual one, and this share of a step, belong to no step. As in
    # app/engine/steady_state.py.
    large_gap_ratio: float = 5.0
    large_gap: float = 0.2
    # A typical worker begins late by this share of a step (and `min_deviations`).
    min_late: float = 0.01
    # Without times between steps: the last worker begins late by this share of a step, and by so
    # many times its usual lateness.
    min_apart: float = 0.002
    min_times_apart: float = 10.0
    # Another worker than the last one is late too, if by this share of the last one's.
    min_share_of_last: float = 0.1
    # A stop was seen whole if the first worker to go on is late by this share of the last one's.
    min_share_of_longest: float = 0.5


LIMITS = StopLimits()

Place = Literal["begin", "middle", "end", "between"]


@dataclass(frozen=True, slots=True)
class Stop:
    """A step in which workers stop, or the gap before it where `place` is "between".

    `at` is the step's position in `case.steps`; `seconds` is how much longer it took than usual.
    `rows` are the longest stops of the workers that stop, none between steps. `optype` is where
    most of them do.
    """

    at: int
    seconds: float
    place: Place
    optype: str
    is_inside: bool
    rows: Interruptions
    is_all: bool


def longest_of(stops: Sequence[Stop]) -> Stop:
    """The longest of some stops, at least one."""
    return max(stops, key=lambda stop: stop.seconds)


def may_be_collection(case: Case, stop: Stop) -> bool:
    """Whether a stop may be a planned collection of garbage, by its length and interval.

    One that takes whole steps is none, unless such stops come every so many steps.
    """
    if stop.seconds < usual_step_s(case):
        return True
    lost_s = np.zeros(case.steps.size)
    for other in long_stops(case):
        lost_s[other.at] += other.seconds * other.is_all
    return period(case.steps, lost_s) is not None


def usual_step_s(case: Case) -> float:
    """The median recorded step time."""
    return median_of(case.report.recorded_s)


@evidence
def long_stops(case: Case) -> tuple[Stop, ...]:
    """Steps with a stop, ascending; gaps between steps among them."""
    recorded_s = case.report.recorded_s
    if recorded_s.size < LIMITS.min_steps:
        return ()
    usual_s = usual_step_s(case)
    excess_s = recorded_s - usual_s
    deviation_s = MAD_TO_DEVIATION * median_of(np.abs(excess_s))
    least_s = LIMITS.min_excess * usual_s
    least_of_stop_s = max(least_s, LIMITS.min_deviations * deviation_s)
    is_long = excess_s > least_of_stop_s
    stops = list(_between(case, least_s))
    if is_long.sum() <= max(1.0, LIMITS.max_share_of_steps * recorded_s.size):
        noted_s = annotated_s(case, "gc-pause") + annotated_s(case, "data-wait")
        # All wait for a pause that one worker notes, and the others do not stop themselves.
        is_long &= excess_s - noted_s.max(axis=(1, 2)) > least_of_stop_s
        for number, group in enumerate(case.groups):
            positions = np.flatnonzero(is_long[group.positions])
            if positions.size:
                stops += _in_group(case, number, positions, excess_s, noted_s)
    return tuple(sorted(stops, key=lambda stop: (stop.at, stop.place != "between")))


@dataclass(frozen=True, slots=True)
class StepGaps:
    """Time between steps that are recorded one after the other.

    Shapes: [steps] for `before_s`, seconds between the end of the step before and the first
    operation, NaN where it is unknown, `num_left_out`, steps in between, and `is_large`: the gap
    belongs to no step, and no step lies in it.
    """

    before_s: Floats
    num_left_out: Ints
    is_large: NDArray[np.bool_]
    usual_s: float


def _between(case: Case, least_s: float) -> Iterator[Stop]:
    gaps, rows, idle = gaps_between(case), no_rows(case), idle_time(case)
    longer_s = gaps.before_s - gaps.usual_s - sum(idle.reported_s.values())
    for at in np.flatnonzero(gaps.is_large & (longer_s >= least_s)).tolist():
        yield Stop(at, float(longer_s[at]), "between", "", False, rows, is_all=True)


@evidence
def gaps_between(case: Case) -> StepGaps:
    """Gaps before each step; unknown without absolute times."""
    before_s = gaps_s(case, first_start_s)
    num_left_out = np.diff(case.steps, prepend=case.steps[0] - 1) - 1
    known_s = before_s[np.isfinite(before_s) & (num_left_out == 0)]
    usual_s = max(0.0, median_of(known_s)) if known_s.size else 0.0
    gap_s = np.where(num_left_out == 0, np.nan_to_num(before_s), 0.0)
    is_large = gap_s > LIMITS.large_gap * case.report.recorded_s
    is_large &= gap_s > LIMITS.large_gap_ratio * usual_s
    return StepGaps(before_s, num_left_out, is_large, usual_s)


def _in_group(
    case: Case, number: int, positions: Ints, excess_s: Floats, noted_s: Floats
) -> Iterator[Stop]:
    """Stops in some long steps (positions in the group) of one structure.

    Workers that stop for most of the excess; `noted_s` [steps, dp, pp] has a reason.
    """
    group = case.groups[number]
    replayer, template, grid = group.replayer, group.replayer.template, group.replayer.grid
    sizes = (template.num_ops, replayer.dp_size, -1)
    # Computations and the optimizer; `gc` operations are collections of garbage.
    is_timed = template.op_types.flags(lambda op: op.kind is OpKind.COMPUTE and op.name != "gc")
    timed = np.flatnonzero(is_timed[template.optype])
    by_step = replayer.durations.recorded_s[timed].reshape(timed.size, *sizes[1:])
    usual_s = np.zeros(sizes[:2])
    usual_s[timed] = medians_of_known(by_step)
    # [rows, dp, long steps]: launch delays, and what computations take longer than usual.
    late_s = launch_delays_s(replayer, np.arange(template.num_ops), positions).reshape(sizes)
    longer_s = np.full(late_s.shape, -np.inf)
    longer_s[timed] = by_step[:, :, positions] - usual_s[timed, :, None]
    stages = np.unique(template.stage)
    of_stages = [np.flatnonzero(template.stage == stage) for stage in stages]
    # [stages, dp, long steps]: rows with the longest stop before and inside, and its seconds.
    before, inside = (
        np.stack([rows[times_s[rows].argmax(axis=0)] for rows in of_stages])
        for times_s in (late_s, longer_s)
    )
    before_s, inside_s = (
        np.stack([times_s[rows].max(axis=0) for rows in of_stages])
        for times_s in (late_s, longer_s)
    )
    for index, at in enumerate(group.positions[positions].tolist()):
        own_s = np.maximum(before_s, inside_s)[:, :, index] - noted_s[at].T[stages]
        worker = np.nonzero(own_s >= LIMITS.min_share_of_excess * excess_s[at])
        if not worker[0].size:
            continue
        is_inside = (inside_s > before_s)[:, :, index][worker]
        row = np.where(is_inside, inside[:, :, index][worker], before[:, :, index][worker])
        lane = worker[1] * len(group.steps) + positions[index]
        least_s = np.where(is_inside, usual_s[row, worker[1]], 0.0)
        of_ops = (row, lane, own_s[worker], least_s)
        kind = np.where(is_inside, InterruptionKind.LONG, InterruptionKind.LATE)
        rows = rows_of_group(case, number, kind, *of_ops)
        stop = _stop(group, at, float(excess_s[at]), rows)
        if not stop.is_all:
            until_s = grid.start_s[row, lane] + np.where(is_inside, grid.duration_s[row, lane], 0.0)
            rows = rows.where(~is_follower(group, rows, until_s))
            stop = _stop(group, at, float(excess_s[at]), rows)
        yield stop


def is_follower(group: Features, rows: Interruptions, until_s: Floats) -> NDArray[np.bool_]:
    """[rows], stops that only post a receive late, after another stage of the replica goes on.

    Some schedules post a receive when its input is needed: after a computation that waited for the
    stage that stopped. Workers that stop together go on together. `until_s` [rows] is when each
    goes on, in the step's times.
    """
    template = group.replayer.template
    later_s = 0.0 if group.forward is None else float(np.median(group.forward.pace.mean_s))
    first_s = np.full(group.replayer.dp_size, np.inf)
    np.minimum.at(first_s, rows.dp_rank, until_s)
    receives = ~rows.is_inside & template.op_types.is_receive[template.optype[rows.row]]
    return np.asarray(receives & (first_s[rows.dp_rank] < until_s - later_s / 2))


def _stop(group: Features, at: int, excess_s: float, rows: Interruptions) -> Stop:
    template = group.replayer.template
    ops = list(zip(rows.row.tolist(), rows.is_inside.tolist(), strict=True))
    place_of = {row: _place(template, row) for row, _ in ops}
    [(place, _)] = Counter(place_of[row] for row, _ in ops).most_common(1)
    [((optype, is_inside), _)] = Counter(
        (template.name(row), is_inside) for row, is_inside in ops
    ).most_common(1)
    num_workers = group.replayer.dp_size * group.replayer.pp_size
    is_all = rows.size >= max(2.0, LIMITS.min_share_of_all * num_workers)
    seconds = max(excess_s, float(rows.excess_s.max()))
    return Stop(at, seconds, place, optype, is_inside, rows, is_all)


def _place(template: Template, row: int) -> Place:
    """Before the stage's first computation is done, after its last one, or between them."""
    passes = template.computes[int(template.stage[row])]
    if not len(passes):
        return "middle"
    if row > max(passes):
        return "end"
    return "begin" if row <= min(passes) else "middle"


def blamed_rows(case: Case, stops: Sequence[Stop]) -> Interruptions:
    """The operations in and before which workers stop, or which a stop made longer."""
    parts = [no_rows(case)]
    for stop in stops:
        if not stop.rows.size:
            continue
        number, rows = int(stop.rows.group[0]), stop.rows
        template, delayed = case.groups[number].replayer.template, rows.row.copy()
        for row in np.unique(delayed[~rows.is_inside]).tolist():
            delayed[(rows.row == row) & ~rows.is_inside] = _delayed_row(template, row)
        rows = replace(rows, row=delayed).where(delayed >= 0)
        if stop.is_all:
            stretched = _stretched(case, number, stop)
            parts.append(stretched)
            rows = rows.where(~(rows.is_inside & among(rows, stretched)))
        parts.append(rows)
    return joined(parts)


def _stretched(case: Case, number: int, stop: Stop) -> Interruptions:
    """Operations that a stop of all workers made longer.

    Workers that were sending or met others when all stopped have no stop of their own.
    """
    group = case.groups[number]
    replayer = group.replayer
    own_s = replayer.durations.recorded_s[: replayer.template.num_ops]
    by_step = own_s.reshape(own_s.shape[0], replayer.dp_size, -1)
    position = int(np.searchsorted(group.positions, stop.at))
    least_s = LIMITS.min_share_of_excess * stop.seconds
    row, dp_rank = np.nonzero(by_step[:, :, position] >= least_s)
    usual_s = np.median(by_step[row, dp_rank], axis=1)
    longer_s = by_step[row, dp_rank, position] - usual_s
    at = longer_s >= least_s
    lane = dp_rank * by_step.shape[2] + position
    of_ops = (row[at], lane[at], longer_s[at], usual_s[at])
    return rows_of_group(case, number, InterruptionKind.LONG, *of_ops)


def _delayed_row(template: Template, row: int) -> int:
    """The computation whose delay has the same effect as a late launch of this operation.

    A delay lengthens its operation, and one member of a collective that takes longer holds up no
    other.
    After the last micro-batch the next computation is delayed (the optimizer step), else the one
    before; -1 where the stage computes nothing.
    """
    is_compute = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
    of_stage = np.flatnonzero(is_compute[template.optype] & (template.stage == template.stage[row]))
    if not of_stage.size:
        return -1
    before, after = of_stage[of_stage < row], of_stage[of_stage >= row]
    if row in of_stage or not before.size or (_place(template, row) == "end" and after.size):
        return int(after[0])
    return int(before[-1])


@dataclass(frozen=True, slots=True)
class LateBegins:
    """How much later than usual workers begin each step, seconds.

    Shapes: [steps, dp, pp] for `late_s`, from the step's earliest operation on, and `delay_s`, from
    its begin on, which may be later (steady_state.py); [steps] for `span_s`, from the earliest
    operation to the last end. Waits for data and collections of garbage that the client reports
    are left out.
    """

    late_s: Floats
    delay_s: Floats
    span_s: Floats


@evidence
def late_begins(case: Case) -> LateBegins:
    """Late begins of all steps."""
    noted_s = late_by_s(case, "data-wait") + late_by_s(case, "gc-pause")
    both_s = case.joined(_begin_delays_s)
    both_s = np.maximum(0.0, both_s - np.median(both_s, axis=0) - noted_s[:, None])
    ends_s = case.joined(lambda group: group.replayer.grid.spans_s[1])
    first_s = case.joined(lambda group: first_start_s(group.replayer.grid))
    return LateBegins(both_s[:, 0], both_s[:, 1], ends_s - first_s)


def stops_before_steps(case: Case) -> tuple[Stop, ...]:
    """Stops of all workers before a step's first computation, ascending.

    `seconds` is the longest late begin; gaps between steps are not part of it.
    """
    late_s = late_begins(case).late_s
    typical_s = medians_of_known(late_s.reshape(case.steps.size, -1))
    deviation_s = MAD_TO_DEVIATION * median_of(np.abs(typical_s - median_of(typical_s)))
    least_s = max(LIMITS.min_late * usual_step_s(case), LIMITS.min_deviations * deviation_s)
    return _begin_stops(case, typical_s > least_s)


@dataclass(frozen=True, slots=True)
class RegularStops:
    """Stops that may come at an interval, ascending.

    Where a part of them was not recorded, they are not `are_whole`: workers begin steps apart, or
    with `of_one` the same worker begins late.
    """

    stops: Sequence[Stop]
    are_whole: bool = True
    of_one: bool = False


def begins_apart(case: Case) -> RegularStops:
    """Steps in which the last worker begins late, whatever the typical one does."""
    late_s = late_begins(case).late_s.reshape(case.steps.size, -1)
    last_s = late_s.max(axis=1)
    least_s = max(LIMITS.min_apart * usual_step_s(case), LIMITS.min_times_apart * median_of(last_s))
    is_apart = last_s > least_s
    if not is_apart.any():
        return RegularStops(())
    is_late = late_s[is_apart] > LIMITS.min_share_of_last * last_s[is_apart, None]
    is_same = np.unique(late_s[is_apart].argmax(axis=1)).size == 1
    is_of_one = bool(is_same and np.median(is_late.sum(axis=1)) < 2)
    stops = _begin_stops(case, is_apart)
    return RegularStops(stops, are_whole=not stops, of_one=is_of_one)


def is_whole(case: Case, stop: Stop) -> bool:
    """Whether all of a stop was recorded, not only how much longer some workers stopped."""
    late_s = late_begins(case).late_s[stop.at]
    return bool(late_s.min() >= LIMITS.min_share_of_longest * late_s.max())


def _begin_stops(case: Case, is_late: NDArray[np.bool_]) -> tuple[Stop, ...]:
    begins = late_begins(case)
    stops = []
    for number, group in enumerate(case.groups):
        first_row = np.array([rows[0] if rows.size else -1 for rows in first_rows(group)])
        for position in np.flatnonzero(is_late[group.positions]).tolist():
            at = int(group.positions[position])
            dp_rank, stage = np.nonzero(begins.delay_s[at] > 0)
            lane = dp_rank * len(group.steps) + position
            of_ops = (first_row[stage], lane, begins.delay_s[at][dp_rank, stage], 0.0)
            rows = rows_of_group(case, number, InterruptionKind.LATE, *of_ops)
            optype = group.replayer.template.name(int(rows.row[0])) if rows.size else ""
            seconds = float(begins.late_s[at].max())
            stops.append(Stop(at, seconds, "begin", optype, False, rows, is_all=True))
    return tuple(sorted(stops, key=lambda stop: stop.at))


def _begin_delays_s(group: Features) -> Floats:
    """[steps, 2, dp, pp], the longest launch delay up to the worker's first computation.

    From the step's earliest operation on, and from its begin on.
    """
    replayer, grid, firsts = group.replayer, group.replayer.grid, first_rows(group)
    earliest_s = np.tile(np.minimum(grid.began_s, first_start_s(grid)), replayer.dp_size)
    rows = np.concatenate(firsts)
    follows = np.diff(replayer.graph.pred_ptr)[rows] > 0
    delay_s = launch_delays_s(replayer, rows)
    late_s = np.where(follows[:, None], delay_s, grid.start_s[rows] - earliest_s)
    begins = np.cumsum([0, *(rows_of_worker.size for rows_of_worker in firsts[:-1])])
    longest_s = np.maximum.reduceat(np.stack([late_s, delay_s]), begins, axis=1)
    sizes = (2, replayer.pp_size, replayer.dp_size, len(group.steps))
    return longest_s.reshape(sizes).transpose(3, 0, 2, 1)
