"""Steps that the workers begin late: all of them stood still where the step before ended.

A worker begins late by the longest launch delay of its operations up to the first computation.
Where times of different steps are known, the shortest stop is a gap between two steps, and what
others stop longer is a late begin. Without such times a step is recorded from its first operation
on: of a stop before it only the differences between workers are seen, unless a receive was posted
before the stop.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.evidence.stops import Stop, WorkerStop, first_start_s
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

# A typical worker begins late by this share of a step, and by so many standard deviations.
MIN_LATE = 0.01
MIN_DEVIATIONS = 6.0
# Without times between steps: the last worker begins late by this share of a step, and by so many
# times its usual lateness.
MIN_APART = 0.002
MIN_TIMES_APART = 10.0
# Another worker than the last one is late too, if by this share of the last one's.
MIN_SHARE_OF_LAST = 0.1
# A stop was seen whole if the first worker to go on is late by this share of the last one's.
MIN_SHARE_OF_LONGEST = 0.5


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


def late_begins(case: Case) -> LateBegins:
    """Late begins of all steps."""
    noted_s = case.late_by_s("data-wait") + case.late_by_s("gc-pause")
    both_s = case.joined(_delays_s)
    both_s = np.maximum(0.0, both_s - np.median(both_s, axis=0) - noted_s[:, None])
    return LateBegins(both_s[:, 0], both_s[:, 1], case.joined(_span_s))


def stops_before_steps(case: Case) -> tuple[Stop, ...]:
    """Stops of all workers before a step's first computation, ascending.

    `seconds` is the longest late begin; gaps between steps are not part of it.
    """
    found = case.cached(late_begins)
    typical_s = medians_of_known(found.late_s.reshape(case.steps.size, -1))
    deviation_s = MAD_TO_DEVIATION * median_of(np.abs(typical_s - median_of(typical_s)))
    usual_s = median_of(case.report.recorded_s)
    is_late = typical_s > max(MIN_LATE * usual_s, MIN_DEVIATIONS * deviation_s)
    return _stops(case, found, is_late)


def _stops(case: Case, found: LateBegins, is_late: NDArray[np.bool_]) -> tuple[Stop, ...]:
    stops = [
        _stop(number, group, at, found)
        for number, group in enumerate(case.groups)
        for at in group.positions[is_late[group.positions]].tolist()
    ]
    return tuple(sorted(stops, key=lambda stop: stop.at))


@dataclass(frozen=True, slots=True)
class BeginsApart:
    """Steps that workers begin far apart, ascending; `of_one` where it is always the same one."""

    stops: tuple[Stop, ...]
    of_one: bool


def begins_apart(case: Case) -> BeginsApart:
    """Steps in which the last worker begins late, whatever the typical one does."""
    found = case.cached(late_begins)
    late_s = found.late_s.reshape(case.steps.size, -1)
    last_s = late_s.max(axis=1)
    least_s = max(
        MIN_APART * median_of(case.report.recorded_s), MIN_TIMES_APART * median_of(last_s)
    )
    is_apart = last_s > least_s
    if not is_apart.any():
        return BeginsApart((), of_one=False)
    num_late = (late_s[is_apart] > MIN_SHARE_OF_LAST * last_s[is_apart, None]).sum(axis=1)
    is_same = np.unique(late_s[is_apart].argmax(axis=1)).size == 1
    return BeginsApart(_stops(case, found, is_apart), bool(is_same and np.median(num_late) < 2))


def is_whole(case: Case, stop: Stop) -> bool:
    """Whether all of a stop was recorded, not only how much longer some workers stopped."""
    late_s = case.cached(late_begins).late_s[stop.at]
    return bool(late_s.min() >= MIN_SHARE_OF_LONGEST * late_s.max())


def _stop(number: int, group: Features, at: int, found: LateBegins) -> Stop:
    firsts = _first_rows(group)
    delay_s = found.delay_s[at]
    workers = tuple(
        WorkerStop((dp, stage), float(delay_s[dp, stage]), int(firsts[stage][0]), False, 0.0)
        for dp, stage in np.argwhere(delay_s > 0).tolist()
    )
    return Stop(
        at,
        number,
        float(found.late_s[at].max()),
        "begin",
        group.replayer.template.name(workers[0].row) if workers else "",
        is_inside=False,
        workers=workers,
        is_all=True,
    )


def _delays_s(group: Features) -> Floats:
    """[steps, 2, dp, pp], the longest launch delay up to the worker's first computation.

    From the step's earliest operation on, and from its begin on.
    """
    replayer, grid, firsts = group.replayer, group.replayer.grid, _first_rows(group)
    earliest_s = np.tile(np.minimum(grid.began_s, first_start_s(grid)), replayer.dp_size)
    rows = np.concatenate(firsts)
    follows = np.diff(replayer.graph.pred_ptr)[rows] > 0
    delay_s = launch_delays_s(replayer, rows)
    late_s = np.where(follows[:, None], delay_s, grid.start_s[rows] - earliest_s)
    begins = np.cumsum([0, *(rows_of_worker.size for rows_of_worker in firsts[:-1])])
    longest_s = np.maximum.reduceat(np.stack([late_s, delay_s]), begins, axis=1)
    sizes = (2, replayer.pp_size, replayer.dp_size, len(group.steps))
    return longest_s.reshape(sizes).transpose(3, 0, 2, 1)


def _span_s(group: Features) -> Floats:
    grid = group.replayer.grid
    return np.asarray(grid.spans_s[1] - first_start_s(grid))


def _first_rows(group: Features) -> list[Ints]:
    """By stage, its operations up to the first computation, as they were recorded."""
    template = group.replayer.template
    found = []
    for stage in range(group.replayer.pp_size):
        rows = np.flatnonzero(template.stage == stage)
        computes = np.asarray(template.computes[stage], np.int64)
        found.append(rows[rows <= computes.min()] if computes.size else rows[:1])
    return found
