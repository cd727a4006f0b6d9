"""One table of a window's interruptions: operations that took too long or were launched late.

`interruptions` has a row for every computation that is far longer than expected or launched late,
and for every one that the client's gc-pause and data-wait rows, or a `gc` operation, interrupt;
stops.py makes rows of the same table of single long stops and of late begins. A cause takes the
rows that it explains, and all repair them alike. `stalls` has the few workers that are interrupted
here and there, in forward and backward, while the others are not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.outliers import launch_delays, outliers
from app.diagnosis.evidence.reported_delays import (
    annotated_delays,
    annotated_seconds,
    annotations,
    in_lanes,
)
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.finding import Worker
from app.diagnosis.repair import BlamedOps, Repair, delays_repair, durations_repair
from app.diagnosis.statistics import robust
from app.diagnosis.statistics.robust import hit_chance, log_binomial_tail, lower_quantile
from app.trace.ops import COMPUTE_STREAM, OP_CODES
from app.trace.window import Floats, Ints


class InterruptionKind(IntEnum):
    """What shows an interruption; from `LONG` on it lies inside the operation, else before it."""

    LATE = 0  # launched later than usual
    LATE_BY_GC = 1  # launched late after a gc-pause row of the client
    LATE_BY_DATA = 2  # launched late after a data-wait row of the client
    LONG = 3  # longer than expected
    LONG_BY_GC = 4  # has a gc-pause row of the client inside
    GC_OP = 5  # a `gc` operation that took time


@dataclass(frozen=True)
class Interruptions:
    """Operations that were interrupted, or launched late, each once per kind.

    Shapes: all [rows]. `group` is a position in `case.groups`, `step` one in `case.steps`; `row`
    and `lane` are the group's, `item` is the micro-batch in a chunk, -1 where unknown. `is_first`:
    it is the stage's first forward. `excess_s` is the time too long or too late, `least_s` the
    duration without it, and `ratio` the recorded time over the expected one.
    """

    kind: Ints
    group: Ints
    row: Ints
    lane: Ints
    item: Ints
    step: Ints
    dp_rank: Ints
    stage: Ints
    is_backward: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    ratio: Floats
    excess_s: Floats
    least_s: Floats

    @property
    def is_inside(self) -> NDArray[np.bool_]:
        """Whether the operation itself took too long, else it was launched late."""
        return np.asarray(self.kind >= InterruptionKind.LONG)

    @property
    def workers(self) -> list[Worker]:
        """Whose rows these are, each once, in their order."""
        return list(dict.fromkeys(zip(self.dp_rank.tolist(), self.stage.tolist(), strict=True)))

    @cached_property
    def size(self) -> int:
        """Number of rows."""
        return int(self.row.size)

    def where(self, chosen: NDArray[np.bool_]) -> "Interruptions":
        """The chosen rows."""
        if not self.size:
            return self
        at = np.flatnonzero(chosen)
        if at.size == self.size:
            return self
        return Interruptions(*(getattr(self, name)[at] for name in _COLUMNS))

    def of_workers(self, chosen: NDArray[np.bool_]) -> "Interruptions":
        """The rows of chosen workers [dp, pp]."""
        return self.where(chosen[self.dp_rank, self.stage])

    def counts(self, case: Case) -> Ints:
        """[dp, pp], rows of each worker."""
        shape = case.parallelism.dp_size, case.parallelism.pp_size
        worker = self.dp_rank * shape[1] + self.stage
        return np.bincount(worker, minlength=case.num_workers).reshape(shape)

    def seconds(self, case: Case) -> Floats:
        """[steps, dp, pp], excess seconds of each worker."""
        sizes = (case.steps.size, case.parallelism.dp_size, case.parallelism.pp_size)
        total_s = np.zeros(sizes)
        np.add.at(total_s, (self.step, self.dp_rank, self.stage), self.excess_s)
        return total_s

    def in_steps(self, case: Case) -> NDArray[np.bool_]:
        """[steps], whether any row is in each step."""
        is_hit = np.zeros(case.steps.size, np.bool_)
        is_hit[self.step] = True
        return is_hit

    def repair(self, case: Case) -> Repair:
        """Interrupted operations take `least_s`."""
        inside = self.where(self.is_inside)
        return durations_repair(inside._by_group(case, inside.least_s))

    def delays(self, case: Case) -> Repair:
        """Operations that were launched late, by `excess_s`."""
        before = self.where(~self.is_inside)
        return delays_repair(before._by_group(case, before.excess_s))

    def _by_group(self, case: Case, seconds: Floats) -> dict[tuple[int, ...], BlamedOps]:
        return {
            group.steps: BlamedOps(self.row[own], self.lane[own], seconds[own])
            for number, group in enumerate(case.groups)
            if (own := self.group == number).any()
        }


_COLUMNS = tuple(column.name for column in fields(Interruptions))


def is_one_of(case: Case, workers: Iterable[Worker]) -> NDArray[np.bool_]:
    """[dp, pp], whether each worker is one of these."""
    is_one = np.zeros((case.parallelism.dp_size, case.parallelism.pp_size), np.bool_)
    for worker in workers:
        is_one[worker] = True
    return is_one


def workers_where(chosen: NDArray[np.bool_]) -> list[Worker]:
    """The chosen ones of all workers [dp, pp]."""
    return [(int(dp_rank), int(stage)) for dp_rank, stage in np.argwhere(chosen)]


@dataclass(frozen=True, slots=True)
class InterruptionLimits:
    """From when on operations are interrupted, and workers stall. Chosen on made jobs."""

    # A `gc` operation takes no time unless garbage is collected in it: a share of the step.
    gc_share: float = 0.005
    # Shorter forwards, as a ratio to the expected time, are no pauses.
    min_pause_ratio: float = 1.25
    # An interruption is common to all if this share of the workers has it.
    min_share_at_once: float = 0.9
    # A launch is late from so many times the usual delay,
    min_times_usual: float = 5.0
    # and one that shows a stop from so many.
    min_times_usual_of_stop: float = 20.0
    # A stop is as long as this share of the computation's expected seconds.
    min_share_of_computation: float = 0.35
    # Probability that chance makes any of all workers look stalled,
    max_chance: float = 1e-6
    # and one worker in one direction: it must show in both.
    max_chance_per_direction: float = 0.1
    # A stop has another reason if this share of it is a pause that the client noted: most of it.
    min_noted: float = 0.5
    # Stalls of more workers than this share have another cause.
    max_share_of_workers: float = 0.34


LIMITS = InterruptionLimits()
# Clocks count nanoseconds: a duration of 0 is less than one. The least divisor of a ratio.
_CLOCK_TICK_S = 1e-9


def joined(parts: Sequence[Interruptions]) -> Interruptions:
    """The rows of all parts, of which there is at least one."""
    filled = [part for part in parts if part.size] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    return Interruptions(
        *(np.concatenate([getattr(part, name) for part in filled]) for name in _COLUMNS)
    )


def no_rows(case: Case) -> Interruptions:
    """A table without rows."""
    nothing = np.empty(0, np.int64)
    return rows_of_group(case, 0, InterruptionKind.LATE, nothing, nothing, np.empty(0), 0.0)


@evidence
def interruptions(case: Case) -> Interruptions:
    """The window's table, by kind and group."""
    parts = [
        rows_of_group(case, number, kind, *ops)
        for kind, ops_of_group in _OPS.items()
        for number in range(len(case.groups))
        for ops in ops_of_group(case, number)
    ]
    return joined(parts)


@evidence
def interruptions_of(case: Case, kind: InterruptionKind) -> Interruptions:
    """The table's rows of one kind."""
    table = interruptions(case)
    return table.where(table.kind == kind)


def rows_of_group(
    case: Case,
    number: int,
    kind: Ints | InterruptionKind,
    row: Ints,
    lane: Ints,
    excess_s: Floats,
    least_s: Floats | float,
    item: Ints | int = -1,
) -> Interruptions:
    """Rows of one group of steps, whose other columns follow from `row` and `lane`."""
    group, late = case.groups[number], launch_delays(case)[number]
    dp_rank, position = np.divmod(lane, len(group.steps))
    is_backward, is_first = np.zeros((2, group.replayer.template.num_ops), np.bool_)
    is_backward[late.rows], is_first[late.rows] = late.is_backward, late.is_first
    kind, least_s = np.full(row.size, kind), np.full(row.size, least_s)
    took_s = group.replayer.durations.recorded_s[row, lane]
    expected_s = np.where(kind >= InterruptionKind.LONG, least_s, np.maximum(took_s, least_s))
    lasted_s = np.where(kind >= InterruptionKind.LONG, took_s, expected_s + least_s + excess_s)
    return Interruptions(
        kind=kind,
        group=np.full(row.size, number),
        row=row,
        lane=lane,
        item=np.full(row.size, item),
        step=group.positions[position],
        dp_rank=dp_rank,
        stage=group.replayer.template.stage[row],
        is_backward=is_backward[row],
        is_first=is_first[row],
        ratio=lasted_s / np.maximum(expected_s, _CLOCK_TICK_S),
        excess_s=excess_s,
        least_s=least_s,
    )


# Rows, lanes, excess_s and least_s of a group's operations, and items where known.
_Ops = Iterator[tuple[Ints, Ints, Floats, Floats | float] | tuple[Ints, Ints, Floats, Floats, Ints]]


def _long(case: Case, number: int) -> _Ops:
    """Computations far longer than expected."""
    ops = outliers(case)[number]
    yield ops.row, ops.lane, ops.excess_s, ops.expected_s, ops.item


def _late(case: Case, number: int) -> _Ops:
    """Computations launched far later than usual."""
    late = launch_delays(case)[number]
    at, lane = np.nonzero(late.delay_s > LIMITS.min_times_usual * late.usual_s)
    yield late.rows[at], lane, late.delay_s[at, lane] - late.usual_s, late.usual_s


def _late_by(case: Case, number: int, name: str) -> _Ops:
    """Computations that the client's rows of a type made late, by the annotated delay."""
    for launches in annotated_delays(case, name)[number : number + 1]:
        late = np.flatnonzero(launches.seconds > 0)
        yield launches.row[late], launches.lane[late], launches.seconds[late], 0.0


def _long_by_gc(case: Case, number: int) -> _Ops:
    """Computations with gc-pause rows inside; the pauses are their excess."""
    group, notes = case.groups[number], annotations(case, "gc-pause")
    if notes is None:
        return
    template, grid = group.replayer.template, group.replayer.grid
    notes, lane, begins_s = in_lanes(group, notes)
    is_computation = template.op_types.flags(lambda spec: spec.stream == COMPUTE_STREAM)
    row = np.full(lane.size, -1)
    for stage in np.unique(notes.stage).tolist():
        of_stage = np.flatnonzero(is_computation[template.optype] & (template.stage == stage))
        if not of_stage.size:
            continue
        at = np.flatnonzero(notes.stage == stage)
        start_s = grid.start_s[of_stage[:, None], lane[at]]
        # The last computation that began no later than the pause; a corrected clock rounds.
        is_begun = start_s <= begins_s[at] + _CLOCK_TICK_S
        began_s = np.where(is_begun, start_s, -np.inf)
        last = of_stage[of_stage.size - 1 - began_s[::-1].argmax(axis=0)]
        ends_s = grid.start_s[last, lane[at]] + grid.duration_s[last, lane[at]]
        is_inside = is_begun.any(axis=0) & (begins_s[at] < ends_s - _CLOCK_TICK_S)
        row[at] = np.where(is_inside, last, -1)
    known, num_lanes = row >= 0, grid.start_s.shape[1]
    ops, of_note = np.unique(row[known] * num_lanes + lane[known], return_inverse=True)
    row, lane = np.divmod(ops, num_lanes)
    took_s = group.replayer.durations.recorded_s[row, lane]
    paused_s = np.minimum(np.bincount(of_note, notes.duration_s[known], ops.size), took_s)
    yield row, lane, paused_s, took_s - paused_s


def _gc_ops(case: Case, number: int) -> _Ops:
    """`gc` operations that took time."""
    replayer = case.groups[number].replayer
    rows = np.flatnonzero(replayer.template.optype == OP_CODES["gc"])
    took_s = replayer.durations.recorded_s[rows]
    is_long = took_s > LIMITS.gc_share * float(replayer.simulated_s.mean())
    if not is_long.any():
        return
    short_s = took_s[~is_long]
    usual_s = float(np.median(short_s)) if short_s.size else 0.0
    at, lane = np.nonzero(is_long)
    yield rows[at], lane, took_s[at, lane] - usual_s, usual_s


_OPS: Mapping[InterruptionKind, Callable[[Case, int], _Ops]] = {
    InterruptionKind.LONG: _long,
    InterruptionKind.LATE: _late,
    InterruptionKind.LONG_BY_GC: _long_by_gc,
    InterruptionKind.LATE_BY_GC: partial(_late_by, name="gc-pause"),
    InterruptionKind.LATE_BY_DATA: partial(_late_by, name="data-wait"),
    InterruptionKind.GC_OP: _gc_ops,
}


@evidence
def annotated_s(case: Case, name: str) -> Floats:
    """[steps, dp, pp], seconds of one type of annotation; not to be written to."""
    return annotated_seconds(annotations(case, name), case.steps, case.parallelism)


def longer_at_once(case: Case, rows: Interruptions) -> NDArray[np.bool_]:
    """[rows], pauses that nearly all workers have in the same forward of the same step."""
    if case.num_workers == 1 or not rows.size:
        return np.zeros(rows.size, np.bool_)
    key = rows.step * (int(rows.item.max()) + 2) + rows.item + 1
    is_pause = ~rows.is_backward & (rows.item >= 0) & (rows.ratio >= LIMITS.min_pause_ratio)
    counts = np.bincount(key[is_pause], minlength=int(key.max()) + 1)
    is_shared = np.asarray(counts >= LIMITS.min_share_at_once * case.num_workers)
    return np.asarray(is_shared[key] & is_pause)


def among(rows: Interruptions, others: Interruptions) -> NDArray[np.bool_]:
    """[rows], whether each is about the same operation as one of the others."""
    if not rows.size or not others.size:
        return np.zeros(rows.size, np.bool_)
    return np.isin(_keys(rows), _keys(others))


def _is_noted(rows: Interruptions, noted: Interruptions) -> NDArray[np.bool_]:
    """[rows], whether most of each excess is a pause that the client noted in the operation."""
    if not rows.size or not noted.size:
        return np.zeros(rows.size, np.bool_)
    keys, of_noted = np.unique(_keys(noted), return_inverse=True)
    paused_s = np.bincount(of_noted, noted.excess_s, keys.size)
    at = np.minimum(np.searchsorted(keys, _keys(rows)), keys.size - 1)
    is_same = keys[at] == _keys(rows)
    return np.asarray(is_same & (paused_s[at] >= LIMITS.min_noted * rows.excess_s))


def _keys(rows: Interruptions) -> Ints:
    """[rows], one number an operation, as lanes are below 2^36 and rows below 2^20."""
    return ((rows.group << 20) + rows.row << 36) + rows.lane


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stopped computations, and the workers that stall.

    `stops` are those of all workers. [dp, pp]: `trials`, the worker's computations in the usual
    steps; `is_frequent`, stopped far more often than the typical worker, and `is_stalled`, the same
    where such workers are few; `log_chance`, the natural logarithm of the probability of its stops
    if it were typical. `usual_share` is the typical worker's share of stopped computations.
    """

    stops: Interruptions
    trials: Ints
    is_frequent: NDArray[np.bool_]
    is_stalled: NDArray[np.bool_]
    usual_share: float
    log_chance: Floats

    @property
    def late(self) -> Interruptions:
        """The stops before a launch."""
        return self.stops.where(~self.stops.is_inside)


@evidence
def stalls(case: Case) -> Stalls:
    """Workers with far more stopped computations than the typical one, forward and backward.

    A first forward may wait for data, so only its duration counts. Stops of all workers at once are
    left out, and those that the client gives a reason for.
    """
    longer = interruptions_of(case, InterruptionKind.LONG)
    longer = longer.where(_is_stop(longer))
    longer = longer.where(~_is_noted(longer, interruptions_of(case, InterruptionKind.LONG_BY_GC)))
    longer = longer.where(~longer_at_once(case, longer))
    late = interruptions_of(case, InterruptionKind.LATE)
    is_late = late.excess_s + late.least_s > LIMITS.min_times_usual_of_stop * late.least_s
    late = late.where(is_late & ~late.is_first & _is_stop(late))
    for kind in (InterruptionKind.LATE_BY_GC, InterruptionKind.LATE_BY_DATA):
        late = late.where(~among(late, interruptions_of(case, kind)))
    stops = joined([longer, late])
    stops = stops.where(is_usual(case)[stops.step])
    trials = _trials(case)
    hits = stops.counts(case)
    usual_share = lower_quantile(hits / (2 * trials), 0.5)
    log_chance = _log_chance(hits, 2 * trials, usual_share)
    often = log_chance + np.log(trials.size) < np.log(LIMITS.max_chance)
    is_frequent = _both_ways(case, stops, trials, often)
    is_few = is_frequent.sum() <= max(1.0, LIMITS.max_share_of_workers * trials.size)
    return Stalls(stops, 2 * trials, is_frequent, is_frequent & is_few, usual_share, log_chance)


def _is_stop(rows: Interruptions) -> NDArray[np.bool_]:
    return np.asarray(rows.ratio >= 1 + LIMITS.min_share_of_computation)


def _both_ways(
    case: Case, stops: Interruptions, trials: Ints, often: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[dp, pp], workers stopped `often` that are stopped in forward and in backward.

    Where there is one, workers that are also launched late need only some stops in each direction.
    """
    if not often.any():
        return often
    is_late = stops.where(~stops.is_inside).counts(case) > 0
    surely, ever = often.copy(), often & is_late
    for backward in (False, True):
        hits = stops.where(stops.is_backward == backward).counts(case)
        others = float(hits[~often].sum() / max(1, trials[~often].sum()))
        usual = max(lower_quantile(hits / trials, 0.5), others / robust.LIMITS.chance_margin)
        log_chance = _log_chance(hits, trials, usual)
        surely &= log_chance < np.log(LIMITS.max_chance_per_direction)
        ever &= hits > 0
    return np.asarray(surely | (ever & surely.any()))


def _trials(case: Case) -> Ints:
    """[dp, pp], the worker's computations of one direction in the usual steps."""
    of_stage = sum(
        ops.num_ops.max(axis=0) * int(is_usual(case)[group.positions].sum())
        for ops, group in zip(outliers(case), case.groups, strict=True)
    )
    sizes = (case.parallelism.dp_size, case.parallelism.pp_size)
    return np.broadcast_to(np.maximum(of_stage, 1), sizes)


def _log_chance(hits: Ints, trials: Ints, usual: float) -> Floats:
    """[dp, pp], log probability of so many hits where the usual worker has this share."""
    # Up to ten times below the usual minimum, where so many computations were seen.
    least = robust.LIMITS.min_chance
    chance = hit_chance(usual, min(least, max(least / 10, 1.0 / trials.sum())))
    return log_binomial_tail(np.minimum(hits, trials), trials, chance)
