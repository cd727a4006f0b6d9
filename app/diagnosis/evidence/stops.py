"""Single long stops: steps far longer than usual because workers do nothing for a while.

A worker stops before an operation (a launch delay) or in a computation. Whoever waits for others
waits in a receive or in a collective, and does not stop. `long_stops` finds the steps with a stop,
who stopped and where in the step; `gaps_between` is time between steps, which no step contains.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.features import Features, ops_of
from app.diagnosis.evidence.interruptions import annotated_s
from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.finding import Worker
from app.diagnosis.repair import BlamedByGroup, BlamedOps
from app.engine.grid import Grid
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.engine.template import Template
from app.trace.ops import OpKind
from app.trace.window import Floats, Ints

# Fewer steps do not show what is usual.
MIN_STEPS = 4
# A step with a stop is longer than usual by this share, and by so many standard deviations;
MIN_EXCESS = 0.2
MIN_DEVIATIONS = 6.0
# if more steps are, they are no exception.
MAX_SHARE_OF_STEPS = 1 / 3
# A worker that stops for this share of the excess is one of those that all wait for.
MIN_SHARE_OF_EXCESS = 0.5
# If so many workers stop, it is all of them: in a pipeline some are waiting meanwhile.
MIN_SHARE_OF_ALL = 0.5
# As in app/engine/steady_state.py: longer gaps belong to no step.
LARGE_GAP_RATIO = 5.0
LARGE_GAP = 0.2

Place = Literal["begin", "middle", "end", "between"]


@dataclass(frozen=True, slots=True)
class WorkerStop:
    """The longest stop of one worker in a step: before or, where `is_inside`, in an operation.

    `usual_s` is what the operation usually takes; `row` is the template's. `until_s` is when the
    worker goes on, in the step's times.
    """

    worker: Worker
    seconds: float
    row: int
    is_inside: bool
    usual_s: float
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """A step in which workers stop, or the gap before it where `place` is "between".

    `at` is the step's position in `case.steps`, `group` one in `case.groups`; `seconds` is how much
    longer it took than usual. `workers` are those that stop, none between steps. `optype` is where
    most of them do.
    """

    at: int
    group: int
    seconds: float
    place: Place
    optype: str
    is_inside: bool
    workers: tuple[WorkerStop, ...]
    is_all: bool


@dataclass(frozen=True, slots=True)
class StepGaps:
    """Time between steps that are recorded one after the other.

    Shapes: [steps] for `before_s`, seconds between the end of the step before and the first
    operation, NaN where it is unknown, and `num_left_out`, steps in between. `is_large`: the gap
    belongs to no step.
    """

    before_s: Floats
    num_left_out: Ints
    is_large: NDArray[np.bool_]
    usual_s: float


def usual_step_s(case: Case) -> float:
    """The median recorded step time."""
    return median_of(case.report.recorded_s)


def long_stops(case: Case) -> tuple[Stop, ...]:
    """Steps with a stop, ascending; gaps between steps among them."""
    recorded_s = case.report.recorded_s
    if recorded_s.size < MIN_STEPS:
        return ()
    usual_s = usual_step_s(case)
    excess_s = recorded_s - usual_s
    deviation_s = MAD_TO_DEVIATION * median_of(np.abs(excess_s))
    is_long = excess_s > max(MIN_EXCESS * usual_s, MIN_DEVIATIONS * deviation_s)
    found = _between(case, MIN_EXCESS * usual_s)
    if is_long.sum() <= max(1.0, MAX_SHARE_OF_STEPS * recorded_s.size):
        noted_s = annotated_s(case, "gc-pause") + annotated_s(case, "data-wait")
        for number, group in enumerate(case.groups):
            positions = np.flatnonzero(is_long[group.positions])
            if positions.size:
                found += _in_group(number, group, positions, excess_s, noted_s)
    return tuple(sorted(found, key=lambda stop: (stop.at, stop.place != "between")))


def _between(case: Case, least_s: float) -> list[Stop]:
    gaps = case.cached(gaps_between)
    group_of = np.zeros(case.steps.size, np.int64)
    for number, group in enumerate(case.groups):
        group_of[group.positions] = number
    chosen = gaps.is_large & (gaps.num_left_out == 0)
    chosen &= np.nan_to_num(gaps.before_s) - gaps.usual_s >= least_s
    return [
        Stop(
            at,
            int(group_of[at]),
            float(gaps.before_s[at] - gaps.usual_s),
            "between",
            "",
            is_inside=False,
            workers=(),
            is_all=True,
        )
        for at in np.flatnonzero(chosen).tolist()
    ]


def gaps_s(case: Case, begin_s_of: Callable[[Grid], Floats]) -> Floats:
    """[steps], seconds from the end of the recorded step before to a begin in the step.

    Negative where they overlap, NaN for the first step and without absolute times. `begin_s_of`
    returns [steps of the grid] in each step's own times.
    """
    begins_s, ends_s = np.full(case.steps.size, np.nan), np.full(case.steps.size, np.nan)
    for group in case.groups:
        grid = group.replayer.grid
        if grid.origin_s is not None:
            begins_s[group.positions] = grid.origin_s + begin_s_of(grid)
            ends_s[group.positions] = grid.origin_s + grid.spans_s[1]
    before_s = np.full(case.steps.size, np.nan)
    before_s[1:] = begins_s[1:] - ends_s[:-1]
    return before_s


def gaps_between(case: Case) -> StepGaps:
    """Gaps before each step; unknown without absolute times."""
    before_s = gaps_s(case, first_start_s)
    num_left_out = np.zeros(case.steps.size, np.int64)
    num_left_out[1:] = np.diff(case.steps) - 1
    known_s = before_s[np.isfinite(before_s) & (num_left_out == 0)]
    usual_s = max(0.0, median_of(known_s)) if known_s.size else 0.0
    gap_s = np.nan_to_num(before_s)
    is_large = (gap_s > LARGE_GAP * case.report.recorded_s) & (gap_s > LARGE_GAP_RATIO * usual_s)
    return StepGaps(before_s, num_left_out, is_large, usual_s)


def first_start_s(grid: Grid) -> Floats:
    """[steps], the first start of an operation that is no receive."""
    template = grid.template
    rows = np.flatnonzero(~template.op_types.is_receive[template.optype])
    if not rows.size:
        return grid.spans_s[0]
    _, first = np.unique(template.stage[rows], return_index=True)
    return np.asarray(grid.start_s[rows[first]].reshape(-1, grid.num_steps).min(axis=0))


def _in_group(
    number: int, group: Features, positions: Ints, excess_s: Floats, noted_s: Floats
) -> list[Stop]:
    """Stops in some long steps (positions in the group) of one structure."""
    own = _OwnStops(group, positions)
    found = []
    for index, position in enumerate(positions.tolist()):
        at = int(group.positions[position])
        workers = own.of_step(index, float(excess_s[at]), noted_s[at])
        if workers:
            stop = _stop(number, group, at, float(excess_s[at]), workers)
            own_workers = workers if stop.is_all else without_followers(group, workers)
            found.append(
                stop
                if len(own_workers) == len(workers)
                else _stop(number, group, at, float(excess_s[at]), own_workers)
            )
    return found


def without_followers(group: Features, workers: list[WorkerStop]) -> list[WorkerStop]:
    """Without those that only post a receive late, after another stage of their replica goes on.

    Some schedules post a receive when its input is needed: after a computation that waited for the
    stage that stopped. Workers that stop together go on together.
    """
    template = group.replayer.template
    later_s = 0.0 if group.forward is None else float(np.median(group.forward.pace.mean_s))
    is_receive = template.op_types.is_receive
    return [
        each
        for each in workers
        if each.is_inside
        or not is_receive[template.optype[each.row]]
        or all(
            other.worker[0] != each.worker[0] or other.until_s >= each.until_s - later_s / 2
            for other in workers
        )
    ]


def _stop(
    number: int, group: Features, at: int, excess_s: float, workers: Sequence[WorkerStop]
) -> Stop:
    template = group.replayer.template
    longest = max(workers, key=lambda each: each.seconds)
    places: Counter[Place] = Counter()
    for row, num_there in Counter(each.row for each in workers).items():
        places[_place(template, row)] += num_there
    num_workers = group.replayer.dp_size * group.replayer.pp_size
    types = Counter((template.name(each.row), each.is_inside) for each in workers)
    (optype, is_inside), _ = types.most_common(1)[0]
    return Stop(
        at,
        number,
        max(excess_s, longest.seconds),
        places.most_common(1)[0][0],
        optype,
        is_inside,
        tuple(workers),
        is_all=len(workers) >= max(2.0, MIN_SHARE_OF_ALL * num_workers),
    )


class _OwnStops:
    """Launch delays and excess durations of all operations in some steps of a group."""

    def __init__(self, group: Features, positions: Ints) -> None:
        replayer = group.replayer
        template = replayer.template
        self._stage, self._dp_size = template.stage, replayer.dp_size
        self._pp_size, self._num = replayer.pp_size, positions.size
        rows = np.arange(template.num_ops)
        self._late_s = self._by_step(launch_delays_s(replayer, rows, positions))
        self._rows = _timed_rows(template)
        by_step = replayer.durations.recorded_s[self._rows].reshape(
            self._rows.size, self._dp_size, -1
        )
        self._usual_s = medians_of_known(by_step)
        self._longer_s = by_step[:, :, positions] - self._usual_s[:, :, None]
        grid = replayer.grid
        self._start_s, self._end_s = (
            each.reshape(each.shape[0], self._dp_size, -1)[:, :, positions]
            for each in (grid.start_s, grid.start_s + grid.duration_s)
        )

    def _by_step(self, of_lanes: Floats) -> Floats:
        """[rows, dp, steps]"""
        return of_lanes.reshape(of_lanes.shape[0], self._dp_size, self._num)

    def of_step(self, index: int, excess_s: float, noted_s: Floats) -> list[WorkerStop]:
        """Workers that stop for most of the excess; `noted_s` [dp, pp] has a reason."""
        found = []
        for stage in range(self._pp_size):
            rows = np.flatnonzero(self._stage == stage)
            timed = np.flatnonzero(self._stage[self._rows] == stage)
            late_s = self._late_s[rows, :, index]
            longer_s = self._longer_s[timed, :, index]
            for dp_rank in range(self._dp_size):
                stop = self._longest(rows, late_s[:, dp_rank], timed, longer_s[:, dp_rank], dp_rank)
                row, seconds, is_inside, usual_s = stop
                seconds -= float(noted_s[dp_rank, stage])
                if seconds >= MIN_SHARE_OF_EXCESS * excess_s:
                    until_s = float(
                        (self._end_s if is_inside else self._start_s)[row, dp_rank, index]
                    )
                    found.append(
                        WorkerStop((dp_rank, stage), seconds, row, is_inside, usual_s, until_s)
                    )
        return found

    def _longest(
        self, rows: Ints, late_s: Floats, timed: Ints, longer_s: Floats, dp_rank: int
    ) -> tuple[int, float, bool, float]:
        """Row, seconds, whether it is inside the operation, and its usual duration."""
        before = int(late_s.argmax()) if late_s.size else -1
        inside = int(longer_s.argmax()) if longer_s.size else -1
        if inside >= 0 and (before < 0 or longer_s[inside] > late_s[before]):
            of_row = timed[inside]
            usual_s = float(self._usual_s[of_row, dp_rank])
            return int(self._rows[of_row]), float(longer_s[inside]), True, usual_s
        if before < 0:
            return -1, 0.0, False, 0.0
        return int(rows[before]), float(late_s[before]), False, 0.0


def _timed_rows(template: Template) -> Ints:
    """Computations and the optimizer; `gc` operations are collections of garbage."""
    by_code = template.op_types.by_code
    return ops_of(
        template,
        [
            code
            for code in template.present
            if by_code[code].kind is OpKind.COMPUTE and by_code[code].name != "gc"
        ],
    )


def _place(template: Template, row: int) -> Place:
    """Before the stage's first computation is done, after its last one, or between them."""
    stage = int(template.stage[row])
    passes = np.asarray(template.computes[stage], np.int64)
    if not passes.size:
        return "middle"
    if row > passes.max():
        return "end"
    return "begin" if row <= passes.min() else "middle"


@dataclass(frozen=True, slots=True)
class BlamedStops:
    """Operations of stops, by group: usual durations, and seconds of late launch."""

    durations: BlamedByGroup
    delays: BlamedByGroup


def blamed_stops(case: Case, stops: Sequence[Stop]) -> BlamedStops:
    """The operations in and before which workers stop."""
    durations: dict[tuple[int, ...], BlamedOps] = {}
    delays: dict[tuple[int, ...], BlamedOps] = {}
    for number, group in enumerate(case.groups):
        mine = [stop for stop in stops if stop.group == number and stop.workers]
        if not mine:
            continue
        durations[group.steps] = _ops(group, mine, is_inside=True)
        delays[group.steps] = _ops(group, mine, is_inside=False)
    return BlamedStops(durations, delays)


def _ops(group: Features, stops: Sequence[Stop], *, is_inside: bool) -> BlamedOps:
    num_steps = len(group.steps)
    position_of = {int(at): position for position, at in enumerate(group.positions)}
    seconds_of: dict[tuple[int, int], float] = {}
    for stop in stops:
        for each in stop.workers:
            if each.is_inside is not is_inside:
                continue
            row = each.row if is_inside else _delayed_row(group.replayer.template, each.row)
            if row is None:
                continue
            lane = each.worker[0] * num_steps + position_of[stop.at]
            seconds_of[row, lane] = each.usual_s if is_inside else each.seconds
        if stop.is_all and is_inside:
            seconds_of |= _stretched(group, position_of[stop.at], stop.seconds)
    keys = np.array(list(seconds_of), np.int64).reshape(-1, 2)
    return BlamedOps(keys[:, 0], keys[:, 1], np.array(list(seconds_of.values()), np.float64))


def _stretched(group: Features, position: int, stop_s: float) -> dict[tuple[int, int], float]:
    """{(row, lane): usual seconds} of operations that a stop of all workers made longer.

    Those who were sending or met others when all stopped have no stop of their own.
    """
    replayer = group.replayer
    own_s = replayer.durations.recorded_s[: replayer.template.num_ops]
    by_step = own_s.reshape(own_s.shape[0], replayer.dp_size, -1)
    rows, dp_ranks = np.nonzero(by_step[:, :, position] >= MIN_SHARE_OF_EXCESS * stop_s)
    usual_s = np.median(by_step[rows, dp_ranks], axis=1)
    is_longer = by_step[rows, dp_ranks, position] - usual_s >= MIN_SHARE_OF_EXCESS * stop_s
    lanes = dp_ranks * by_step.shape[2] + position
    return {
        (row, lane): seconds
        for row, lane, seconds in zip(
            rows[is_longer].tolist(),
            lanes[is_longer].tolist(),
            usual_s[is_longer].tolist(),
            strict=True,
        )
    }


def _delayed_row(template: Template, row: int) -> int | None:
    """The computation whose delay has the same effect as a late launch of this operation.

    A delay lengthens its operation, and what lengthens one member of a collective holds up nobody.
    After the last micro-batch the next computation is delayed (the optimizer step), else the one
    before; None where the stage computes nothing.
    """
    is_compute = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
    computes = np.flatnonzero(is_compute[template.optype])
    of_stage = computes[template.stage[computes] == template.stage[row]]
    if not of_stage.size:
        return None
    before, after = of_stage[of_stage < row], of_stage[of_stage >= row]
    if row in of_stage or not before.size or (_place(template, row) == "end" and after.size):
        return int(after[0])
    return int(before[-1])
