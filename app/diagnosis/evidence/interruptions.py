"""Computations that were interrupted or launched late, and what clients annotate of it.

`ComputationEvents` joins the outliers and late launches of all groups of a window. Annotations are
gc-pause and data-wait. `stalls` finds the few workers that are stopped here and there, in forward
and backward, while the others are not.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.outliers import LaunchDelays, Outliers
from app.diagnosis.evidence.reported_delays import AnnotatedDelays, annotated_seconds
from app.diagnosis.repair import BlamedByGroup, BlamedOps
from app.diagnosis.statistics.robust import CHANCE_MARGIN, MIN_CHANCE, log_binomial_tail
from app.trace.ops import COMPUTE_STREAM, NUM_CODES, Direction
from app.trace.window import Floats, Integers, Ints, Trace


@dataclass(frozen=True)
class ComputationEvents:
    """Computations that took too long or were launched late, each once.

    Shapes: all [events]. `group` is a position in `case.groups`, `step` one in `case.steps`; `row`
    and `lane` are the group's, `item` is the micro-batch in a chunk, -1 where unknown. `excess_s`
    is the time too long or too late, `least_s` the duration without it, and `ratio` the recorded
    time over the expected one.
    """

    group: Ints
    row: Ints
    lane: Ints
    item: Ints
    step: Ints
    dp_rank: Ints
    stage: Ints
    is_backward: NDArray[np.bool_]
    ratio: Floats
    excess_s: Floats
    least_s: Floats

    @cached_property
    def size(self) -> int:
        """Number of events."""
        return int(self.row.size)

    def where(self, chosen: NDArray[np.bool_]) -> "ComputationEvents":
        """The chosen events."""
        if not self.size:
            return self
        at = np.flatnonzero(chosen)
        if at.size == self.size:
            return self
        return ComputationEvents(*(getattr(self, name)[at] for name in _NAMES))

    def counts(self, case: Case) -> Ints:
        """[dp, pp], events of each worker."""
        shape = case.parallelism.dp_size, case.parallelism.pp_size
        worker = self.dp_rank * shape[1] + self.stage
        return np.bincount(worker, minlength=case.num_workers).reshape(shape)

    def seconds(self, case: Case) -> Floats:
        """[steps, dp, pp], excess seconds of each worker."""
        sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
        found = np.zeros(sizes)
        np.add.at(found, (self.step, self.dp_rank, self.stage), self.excess_s)
        return found

    def blamed_ops(self, case: Case, seconds: Floats) -> BlamedByGroup:
        """The operations by group; `seconds` [events] are their durations or delays."""
        return {
            group.steps: BlamedOps(self.row[mine], self.lane[mine], seconds[mine])
            for number, group in enumerate(case.groups)
            if (mine := self.group == number).any()
        }


_NAMES = tuple(each.name for each in fields(ComputationEvents))

# Clocks count nanoseconds: a duration of 0 is less than one.
_CLOCK_TICK_S = 1e-9


def join_events(parts: list[ComputationEvents]) -> ComputationEvents:
    """The events of all parts, of which there is at least one."""
    filled = [part for part in parts if part.size] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    return ComputationEvents(
        *(np.concatenate([getattr(part, name) for part in filled]) for name in _NAMES)
    )


def no_events() -> ComputationEvents:
    """No events at all."""
    place, seconds = np.empty(0, np.int64), np.empty(0)
    return ComputationEvents(
        group=place,
        row=place,
        lane=place,
        item=place,
        step=place,
        dp_rank=place,
        stage=place,
        is_backward=np.empty(0, np.bool_),
        ratio=seconds,
        excess_s=seconds,
        least_s=seconds,
    )


def long_computations(case: Case) -> ComputationEvents:
    """Outliers of all groups."""
    return join_events(
        [_long(case, *each) for each in enumerate(zip(case.groups, case.outliers, strict=True))]
    )


def late_computations(
    case: Case,
    choose: Callable[[LaunchDelays], NDArray[np.bool_]],
    at_least_s: Callable[[LaunchDelays], Floats],
) -> ComputationEvents:
    """Computations of the chosen rows launched later than `at_least_s` [computations]."""
    return join_events(
        [
            _late(case, number, group, late, choose(late), at_least_s(late))
            for number, (group, late) in enumerate(zip(case.groups, case.delays, strict=True))
        ]
    )


def _long(case: Case, number: int, of_group: tuple[Features, Outliers]) -> ComputationEvents:
    group, found = of_group
    return ComputationEvents(
        group=np.full(found.row.size, number),
        row=found.row,
        lane=found.lane,
        item=found.item,
        step=group.positions[found.step],
        dp_rank=found.dp_rank,
        stage=found.stage,
        is_backward=found.direction == 1,
        ratio=found.ratio,
        excess_s=found.excess_s,
        least_s=found.expected_s,
    )


def _late(
    case: Case,
    number: int,
    group: Features,
    late: LaunchDelays,
    chosen: NDArray[np.bool_],
    at_least_s: Floats,
) -> ComputationEvents:
    at, lane = np.nonzero((late.delay_s > at_least_s[:, None]) & chosen[:, None])
    dp_rank, step = np.divmod(lane, len(group.steps))
    delay_s, row = late.delay_s[at, lane], late.rows[at]
    took_s = group.replayer.durations.recorded_s[row, lane]
    return ComputationEvents(
        group=np.full(at.size, number),
        row=row,
        lane=lane,
        item=np.full(at.size, -1),
        step=group.positions[step],
        dp_rank=dp_rank,
        stage=late.stage[at],
        is_backward=late.is_backward[at],
        ratio=1 + delay_s / np.maximum(np.maximum(took_s, late.usual_s), _CLOCK_TICK_S),
        excess_s=delay_s - late.usual_s,
        least_s=np.full(at.size, late.usual_s),
    )


# Least divisor of a ratio.
MIN_S = 1e-9


def annotated_s(case: Case, name: str) -> Floats:
    """[steps, dp, pp], seconds of one type of annotation; not to be written to."""
    return case.cached_for(_annotated_s, name)


def _annotated_s(case: Case, name: str) -> Floats:
    return annotated_seconds(case.annotations(name), case.steps, case.parallelism)


def annotated_launches(case: Case, name: str) -> ComputationEvents:
    """Computations that annotations of one type made late; `excess_s` is the annotated delay."""
    return case.cached_for(_annotated_launches, name)


def _annotated_launches(case: Case, name: str) -> ComputationEvents:
    found = case.annotated_delays(name)
    if not found:
        return no_events()
    return join_events(
        [
            _launched(number, *each)
            for number, each in enumerate(zip(case.groups, case.delays, found, strict=True))
        ]
    )


def _launched(
    number: int, group: Features, late: LaunchDelays, found: AnnotatedDelays
) -> ComputationEvents:
    kept = np.flatnonzero(found.seconds > 0)
    row, lane, at = (each[kept] for each in (found.row, found.lane, found.at))
    seconds = found.seconds[kept]
    dp_rank, step = np.divmod(lane, len(group.steps))
    took_s = group.replayer.durations.recorded_s[row, lane]
    return ComputationEvents(
        group=np.full(kept.size, number),
        row=row,
        lane=lane,
        item=np.full(kept.size, -1),
        step=group.positions[step],
        dp_rank=dp_rank,
        stage=late.stage[at],
        is_backward=late.is_backward[at],
        ratio=1 + seconds / np.maximum(took_s, _CLOCK_TICK_S),
        excess_s=seconds,
        least_s=np.zeros(kept.size),
    )


def annotated_pauses(case: Case) -> ComputationEvents:
    """Computations with gc-pause annotations inside; the pauses are their excess."""
    return case.cached(_annotated_pauses)


def _annotated_pauses(case: Case) -> ComputationEvents:
    pauses = case.annotations("gc-pause")
    if pauses is None:
        return no_events()
    inside = _computation_around(case, pauses)
    known = inside >= 0
    computations = case.replay.window.trace.select(inside[known])
    return join_events(
        [
            _paused(case, number, group, computations, pauses.duration_s[known])
            for number, group in enumerate(case.groups)
        ]
    )


def _computation_around(case: Case, pauses: Trace) -> Ints:
    """[pauses], the trace's row of the computation that each began in, -1 if in none.

    Recorded times are compared, as clock correction moves operations only.
    """
    trace, types = case.replay.window.trace, case.replay.window.job.op_types
    is_computation = types.flags(lambda spec: spec.stream == COMPUTE_STREAM)
    paused = np.zeros((case.parallelism.dp_size, case.parallelism.pp_size), np.bool_)
    paused[pauses.dp_rank, pauses.stage] = True
    rows = np.flatnonzero(is_computation[trace.optype] & paused[trace.dp_rank, trace.stage])
    both = [
        np.concatenate([column[rows], of_pauses])
        for column, of_pauses in (
            (trace.step, pauses.step),
            (trace.dp_rank, pauses.dp_rank),
            (trace.stage, pauses.stage),
            (trace.start_s, pauses.start_s),
        )
    ]
    is_pause = np.arange(both[0].size) >= rows.size
    # The last computation of the worker's step that began no later than the pause.
    order = np.lexsort((is_pause, both[3], both[2], both[1], both[0]))
    before = np.where(is_pause[order], -1, np.arange(order.size))
    last = np.empty(order.size, np.int64)
    last[order] = order[np.maximum(np.maximum.accumulate(before), 0)]
    at = last[rows.size :]
    found = np.where(at < rows.size, rows[np.minimum(at, rows.size - 1)], -1)
    same = [
        column[found] == of_pauses
        for column, of_pauses in (
            (trace.step, pauses.step),
            (trace.dp_rank, pauses.dp_rank),
            (trace.stage, pauses.stage),
        )
    ]
    inside = (trace.start_s[found] <= pauses.start_s) & (
        pauses.start_s < trace.start_s[found] + trace.duration_s[found]
    )
    return np.where((found >= 0) & np.logical_and.reduce(same) & inside, found, -1)


def _paused(
    case: Case, number: int, group: Features, computations: Trace, pause_s: Floats
) -> ComputationEvents:
    steps, template = np.asarray(group.steps), group.replayer.template
    mine = np.isin(computations.step, steps)
    computations, pause_s = computations.select(mine), pause_s[mine]
    num_lanes = group.replayer.dp_size * steps.size
    lane = computations.dp_rank * steps.size + np.searchsorted(steps, computations.step)
    keys, at = np.unique(_rows(group, computations) * num_lanes + lane, return_inverse=True)
    row, lane = np.divmod(keys, num_lanes)
    dp_rank, step = np.divmod(lane, steps.size)
    took_s = group.replayer.durations.recorded_s[row, lane]
    excess_s = np.minimum(np.bincount(at, pause_s, keys.size), took_s)
    forward = template.op_types.flags(lambda spec: spec.direction is Direction.FORWARD)
    return ComputationEvents(
        group=np.full(row.size, number),
        row=row,
        lane=lane,
        item=np.full(row.size, -1),
        step=group.positions[step],
        dp_rank=dp_rank,
        stage=template.stage[row],
        is_backward=~forward[template.optype[row]],
        ratio=took_s / np.maximum(took_s - excess_s, MIN_S),
        excess_s=excess_s,
        least_s=took_s - excess_s,
    )


def _rows(group: Features, computations: Trace) -> Ints:
    """The template's row of each operation of the trace."""
    template = group.replayer.template
    num_ids = int(template.seq_id.max()) + 1

    def key(stage: Integers, optype: Integers, seq_id: Integers) -> Ints:
        return (stage.astype(np.int64) * NUM_CODES + optype) * num_ids + seq_id

    keys = key(template.stage, template.optype, template.seq_id)
    order = np.argsort(keys)
    wanted = key(computations.stage, computations.optype, computations.seq_id)
    return order[np.searchsorted(keys[order], wanted)]


# Shorter forwards are no pauses.
MIN_PAUSE_RATIO = 1.25
# An interruption is common to all if this share of the workers has it.
MIN_SHARE_AT_ONCE = 0.9
MIN_WORKERS = 2


def longer_at_once(case: Case, found: ComputationEvents) -> NDArray[np.bool_]:
    """[events], pauses that nearly all workers have in the same forward of the same step."""
    num_workers = case.num_workers
    if num_workers < MIN_WORKERS or not found.size:
        return np.zeros(found.size, np.bool_)
    key = found.step * (int(found.item.max()) + 2) + found.item + 1
    is_pause = ~found.is_backward & (found.item >= 0) & (found.ratio >= MIN_PAUSE_RATIO)
    counts = np.bincount(key[is_pause], minlength=int(key.max()) + 1)
    is_shared = np.asarray(counts >= MIN_SHARE_AT_ONCE * num_workers)
    return np.asarray(is_shared[key] & is_pause)


# A computation is stopped if it, or the delay before it, is longer by this share of its expected
# duration;
MIN_STOP_SHARE = 0.35
# a delay also takes so many times the usual one.
MIN_TIMES_USUAL = 20.0
# Probability that chance makes any of all workers look stalled,
MAX_STALL_CHANCE = 1e-6
# and one worker in one direction: it must show in both.
MAX_CHANCE_PER_DIRECTION = 0.1
# Stalls of more workers than this share have another cause.
MAX_SHARE_OF_FEW = 0.34


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stopped computations, and the workers that stall.

    `stops` are those of all workers, `late` the ones among them that were launched late. [dp, pp]:
    `trials`, the worker's computations in the usual steps; `is_frequent`, stopped far more often
    than the typical worker, and `is_stalled`, the same where such workers are few; `log_chance`,
    the natural logarithm of the probability of its stops if it were typical. `usual_share` is the
    typical worker's share of stopped computations.
    """

    stops: ComputationEvents
    late: ComputationEvents
    trials: Ints
    is_frequent: NDArray[np.bool_]
    is_stalled: NDArray[np.bool_]
    usual_share: float
    log_chance: Floats


def stalls(case: Case) -> Stalls:
    """Workers with far more stopped computations than the typical one, forward and backward.

    A first forward may wait for data, so only its duration counts. Stops of all workers at once are
    left out.
    """
    late, longer = _later(case), _longer(case)
    late = late.where(case.is_usual[late.step])
    stops = join_events([longer.where(case.is_usual[longer.step]), late])
    trials = _trials(case)
    hits = stops.counts(case)
    log_all = _log_chance(hits, 2 * trials, _typical(hits / (2 * trials)))
    often = log_all + np.log(trials.size) < np.log(MAX_STALL_CHANCE)
    is_frequent = _both_ways(case, stops, late, trials, often)
    few = is_frequent.sum() <= max(1.0, MAX_SHARE_OF_FEW * trials.size)
    share = _typical(hits / (2 * trials))
    return Stalls(stops, late, 2 * trials, is_frequent, is_frequent & few, share, log_all)


def _both_ways(
    case: Case,
    stops: ComputationEvents,
    late: ComputationEvents,
    trials: Ints,
    often: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """[dp, pp], workers stopped `often` that are stopped in forward and in backward.

    Where there is one, workers that are also launched late need only some stops in each direction.
    """
    if not often.any():
        return often
    surely, ever = often.copy(), often & (late.counts(case) > 0)
    for backward in (False, True):
        hits = stops.where(stops.is_backward == backward).counts(case)
        others = float(hits[~often].sum() / max(1, trials[~often].sum()))
        usual = max(_typical(hits / trials), others / CHANCE_MARGIN)
        surely &= _log_chance(hits, trials, usual) < np.log(MAX_CHANCE_PER_DIRECTION)
        ever &= hits > 0
    return np.asarray(surely | (ever & surely.any()))


def _longer(case: Case) -> ComputationEvents:
    found = case.cached(long_computations)
    found = found.where(found.ratio >= 1 + MIN_STOP_SHARE)
    return found.where(~longer_at_once(case, found))


def _later(case: Case) -> ComputationEvents:
    found = late_computations(
        case,
        lambda late: ~late.is_first,
        lambda late: np.full(late.rows.size, MIN_TIMES_USUAL * late.usual_s),
    )
    found = found.where(found.ratio >= 1 + MIN_STOP_SHARE)
    # What the client gives a reason for is no stop without one.
    known = join_events([annotated_launches(case, name) for name in ("gc-pause", "data-wait")])
    return found.where(~among(found, known)) if known.size else found


def among(found: ComputationEvents, others: ComputationEvents) -> NDArray[np.bool_]:
    """[events], whether each is about the same operation as one of the others."""
    if not found.size or not others.size:
        return np.zeros(found.size, np.bool_)
    return np.isin(_keys(found), _keys(others))


def _keys(events: ComputationEvents) -> Ints:
    """[events], one number for each operation, as lanes are below 2^36 and rows below 2^20."""
    return ((events.group << 20) + events.row << 36) + events.lane


def _trials(case: Case) -> Ints:
    """[dp, pp], the worker's computations of one direction in the usual steps."""
    num_usual = [int(case.is_usual[group.positions].sum()) for group in case.groups]
    each = sum(
        found.num_ops.max(axis=0) * steps
        for found, steps in zip(case.outliers, num_usual, strict=True)
    )
    return np.broadcast_to(
        np.maximum(each, 1), (case.parallelism.dp_size, case.parallelism.pp_size)
    )


def _log_chance(hits: Ints, trials: Ints, usual: float) -> Floats:
    """[dp, pp], log probability of so many hits where the usual worker has this share."""
    # Up to ten times below the usual minimum, where so many computations were seen.
    least = min(MIN_CHANCE, max(MIN_CHANCE / 10, 1.0 / trials.sum()))
    chance = min(0.5, max(CHANCE_MARGIN * usual, least))
    return log_binomial_tail(np.minimum(hits, trials), trials, chance)


def _typical(shares: Floats) -> float:
    """The lower median: of two workers the less affected one."""
    return float(np.sort(shares, axis=None)[(shares.size - 1) // 2])
