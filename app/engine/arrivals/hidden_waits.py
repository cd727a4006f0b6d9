"""Waits inside computations: those that clients recorded, and those that arrivals prove.

CUDA events mark a stream, so a computation's span includes waits for another stream (`wait` spans,
recorded by the client) and the time for which a waiting NCCL kernel held its kernels up. The
latter is not recorded, but shows between successive collectives of one group. Let g be the time
from the end of one to the start of the next, w the wait in the first, and c the g of the late
rank, which does not wait:

- a rank that computes while it waits has at most c of work there: g + w <= c, up to noise; with a
  long w nothing is left, g = 0;
- a rank that is held up still has all of its work to do: g + w > c, with g close to c.

docs/arrivals.md, "Waits inside computations".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.blame import MAX_PEERS, evenly_spaced
from app.engine.arrivals.waits import WaitIntervals, merged_intervals
from app.engine.grid import Grid
from app.engine.kernels import in_parallel, kernel
from app.engine.what_if import Replayer, ReplayGroups, replayer
from app.result.figures import EQUAL_TIMES
from app.trace.collectives import RankPlace
from app.trace.ops import OP_CODES, Axis, OpKind
from app.trace.window import Floats, Ints, Window

WAIT_CODE = OP_CODES["wait"]
# Margin for "more than c": recorded starts and ends are not exact.
HELD_UP_ABOVE = 1.15
# Shares of c: a shorter wait proves nothing; with a shorter gap the rank may have computed on.
MIN_WAIT_OF_HELD = 0.2
MIN_GAP_OF_HELD = 0.25
# Shares of c: the gap left when a computation went on during a wait, and the wait needed.
FREE_BELOW = 0.1
MIN_WAIT_OF_FREE = 0.5
# Fewer steps do not prove that a rank is late beyond chance.
MIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Waits of every worker in every lane, ascending by start.

    Cell `stage * lanes + lane` has the intervals `ptr[cell]` to `ptr[cell + 1]`; `is_stay`
    [intervals] marks intervals from arrivals, which count in held-up operations only.
    """

    ptr: Ints
    start_s: Floats
    end_s: Floats
    is_stay: NDArray[np.bool_]


def without_waits(
    replay: ReplayGroups, arrivals: Arrivals | None
) -> tuple[tuple[Replayer, ...], tuple[NDArray[np.int8], ...]]:
    """The groups with waits taken out of their computations, and `WindowReplay.held_up`."""
    late = [] if arrivals is None or len(replay.steps) < MIN_STEPS else _late_workers(arrivals)
    are_recorded = replay.window.trace.rows_of_type(WAIT_CODE).size > 0
    if not late and not are_recorded:
        return replay.groups, ()
    held_up = tuple(_held_up_by(group, late) for group in replay.groups)
    if not are_recorded and not any((of_ops > 0).any() for of_ops in held_up):
        return replay.groups, held_up
    groups = tuple(
        _without_hidden_waits(replay.window, group, of_ops > 0)
        for group, of_ops in zip(replay.groups, held_up, strict=True)
    )
    return groups, held_up


def _late_workers(arrivals: Arrivals) -> list[RankPlace]:
    """Culprits that all dp ranks waited for."""
    groups = arrivals.occurrences.groups
    return [
        arrivals.places[late.place] for late in arrivals.culprits if groups[late.group].axis == "dp"
    ]


def _without_hidden_waits(window: Window, group: Replayer, held: NDArray[np.bool_]) -> Replayer:
    template, grid = group.template, group.grid
    intervals = _sorted(grid, _client_waits(window, grid), _arrival_waits(grid, held))
    if not intervals.start_s.size:
        return group
    hidden_s = np.zeros(grid.start_s.shape)
    kinds = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
    rows = np.flatnonzero(kinds[template.optype])
    bounds = np.searchsorted(template.stage[rows], np.arange(group.pp_size + 1))
    in_parallel(
        rows.size * grid.start_s.shape[1],
        group.pp_size,
        lambda first, end: _overlap(
            rows, bounds, held, grid.start_s, grid.duration_s, intervals.ptr, intervals.start_s,
            intervals.end_s, intervals.is_stay, first, end, hidden_s,
        ),
    )  # fmt: skip
    own_share = 1.0 - hidden_s.sum() / grid.duration_s[rows].sum() if hidden_s.any() else 1.0
    # Without any computation a step would take no time.
    is_shorter = EQUAL_TIMES < own_share < 1.0
    return _shortened(group, hidden_s, held, intervals) if is_shorter else group


Spans = tuple[Ints, Floats, Floats]  # cells, starts, ends


def _client_waits(window: Window, grid: Grid) -> Spans:
    """The `wait` spans of the grid's steps, by its clock."""
    num_lanes, steps = grid.start_s.shape[1], np.asarray(grid.steps)
    waits = window.trace.select(window.trace.rows_of_type(WAIT_CODE))
    waits = waits.select(np.isin(waits.step, steps))
    at = np.searchsorted(steps, waits.step)
    stage = waits.stage.astype(np.int64)
    lane = waits.dp_rank.astype(np.int64) * grid.num_steps + at
    start_s = waits.start_s.copy()
    if grid.shift_s is not None:
        start_s += grid.shift_s[stage, lane]
    return stage * num_lanes + lane, start_s, start_s + waits.duration_s


def recorded_waits(
    window: Window, grid: Grid, worker: tuple[int, int], offset_s: Floats
) -> WaitIntervals:
    """The `wait` spans of one worker (dp rank, stage), each step's times `offset_s` [steps] later.

    On the clock of `Waits`, where `offset_s` is `Waits.offsets_s`.
    """
    cell, start_s, end_s = _client_waits(window, grid)
    (dp_rank, stage), num_steps = worker, grid.num_steps
    position = cell - (stage * grid.start_s.shape[1] + dp_rank * num_steps)
    of_worker = (position >= 0) & (position < num_steps)
    later_s = offset_s[position[of_worker]]
    return merged_intervals(start_s[of_worker] + later_s, end_s[of_worker] + later_s)


def _arrival_waits(grid: Grid, held: NDArray[np.bool_]) -> Spans:
    """Waits in collectives of all dp ranks, on stages with held-up operations."""
    template, num_steps = grid.template, grid.num_steps
    num_lanes = grid.start_s.shape[1]
    cells, starts, ends = [np.empty(0, np.int64)], [np.empty(0)], [np.empty(0)]
    for row in _collectives(grid, np.unique(template.stage[held])):
        stay_s = grid.duration_s[row].reshape(-1, num_steps)
        waited_s = (stay_s - stay_s.min(axis=0)).ravel()
        cells.append(template.stage[row] * num_lanes + np.arange(num_lanes))
        starts.append(grid.start_s[row])
        ends.append(grid.start_s[row] + waited_s)
    return np.concatenate(cells), np.concatenate(starts), np.concatenate(ends)


def _collectives(grid: Grid, stages: Ints) -> list[int]:
    """The template's collectives of all dp ranks on some stages, in recorded order."""
    template = grid.template
    meet = template.op_types.flags(
        lambda spec: spec.kind is OpKind.COLLECTIVE and spec.axis is Axis.DP
    )
    chosen = meet[template.optype] & np.isin(template.stage, stages)
    return list(np.flatnonzero(chosen).tolist())


def _sorted(grid: Grid, of_client: Spans, of_arrivals: Spans) -> _Intervals:
    spans = zip(of_client, of_arrivals, strict=True)
    cell, start_s, end_s = (np.concatenate(columns) for columns in spans)
    is_stay = np.arange(cell.size) >= of_client[0].size
    num_cells = grid.template.parallelism.pp_size * grid.start_s.shape[1]
    keep = end_s > start_s
    num = np.bincount(cell[keep], minlength=num_cells)
    ptr = np.concatenate([[0], np.cumsum(num)])
    order = np.flatnonzero(keep)
    order = order[np.argsort(cell[order], kind="stable")]
    # Most cells are in order already, and sorting all would take a hundred times as long.
    cell, began_s = cell[order], start_s[order]
    is_behind = np.zeros(num_cells, np.bool_)
    is_behind[cell[1:][(cell[1:] == cell[:-1]) & (began_s[1:] < began_s[:-1])]] = True
    behind = np.flatnonzero(is_behind[cell])
    order[behind] = order[behind[np.lexsort((began_s[behind], cell[behind]))]]
    return _Intervals(ptr, start_s[order], end_s[order], is_stay[order])


def _held_up_by(group: Replayer, late: list[RankPlace]) -> NDArray[np.int8]:
    """[ops], 1 if waiting collectives hold the computation up, -1 if not, 0 if unknown.

    One late rank that shows 1 is enough.
    """
    template = group.template
    held_up = np.zeros(template.num_ops, np.int8)
    for place in late:
        if place.dp_rank is None or place.stage is None or group.dp_size < 2:
            continue
        for code, vote in _votes(group.grid, place.dp_rank, place.stage).items():
            ops = (template.optype == code) & (template.stage == place.stage)
            held_up[ops] = np.where(held_up[ops] > 0, 1, np.sign(vote))
    return held_up


def _votes(grid: Grid, late_dp: int, stage: int) -> dict[int, int]:
    """By op type, pairs of collectives that show that it is held up, minus pairs that show not."""
    votes: dict[int, int] = {}
    for before, row in pairwise(_collectives(grid, np.array([stage]))):
        inside = _computation_around(grid, row, stage, late_dp)
        if inside is None:
            continue
        gap_s, waited_s, own_s = _gap_and_wait(grid, before, row, late_dp)
        if own_s <= 0:
            continue
        code, vote = int(grid.template.optype[inside]), 0
        if waited_s >= MIN_WAIT_OF_FREE * own_s and gap_s < FREE_BELOW * own_s:
            vote = -1
        elif (
            waited_s >= MIN_WAIT_OF_HELD * own_s
            and gap_s >= MIN_GAP_OF_HELD * own_s
            and gap_s + waited_s > HELD_UP_ABOVE * own_s
        ):
            vote = 1
        votes[code] = votes.get(code, 0) + vote
    return votes


def _gap_and_wait(grid: Grid, before: int, row: int, late_dp: int) -> tuple[float, float, float]:
    """Median seconds: gap between two collectives, wait in the first, gap of the late rank."""
    num_steps = grid.num_steps
    stay_s = grid.duration_s[before].reshape(-1, num_steps)
    peers = np.delete(np.arange(stay_s.shape[0]), late_dp)
    peers = peers[evenly_spaced(peers.size, MAX_PEERS)]
    ranks = np.append(peers, late_dp)
    end_s = (grid.start_s[before].reshape(-1, num_steps) + stay_s)[ranks]
    gap_s = grid.start_s[row].reshape(-1, num_steps)[ranks] - end_s
    waited_s = stay_s[peers] - stay_s.min(axis=0)
    return (
        max(0.0, float(np.median(gap_s[:-1]))),
        float(np.median(waited_s)),
        max(0.0, float(np.median(gap_s[-1]))),
    )


def _computation_around(grid: Grid, row: int, stage: int, late_dp: int) -> int | None:
    """The stage's computation in which peers start a collective; None if there is none."""
    template = grid.template
    computes = np.array(template.computes[stage], np.int64)
    peer = 1 if late_dp == 0 else 0
    lane = peer * grid.num_steps
    begun = grid.start_s[computes, lane] <= grid.start_s[row, lane]
    running = begun & (
        grid.start_s[computes, lane] + grid.duration_s[computes, lane] > grid.start_s[row, lane]
    )
    return int(computes[running][-1]) if running.any() else None


def _shortened(
    group: Replayer, hidden_s: Floats, held: NDArray[np.bool_], intervals: _Intervals
) -> Replayer:
    """The group with computations shortened to their own time, and their milestones moved."""
    graph, num_ops = group.graph, group.template.num_ops
    own_s = group.durations.recorded_s
    share = graph.milestone_share.copy()
    for number, op in enumerate(graph.milestone_of.tolist()):
        share[number] = _own_share(group.grid, op, float(share[number]), held, intervals)
    own_s[:num_ops] = np.maximum(0.0, own_s[:num_ops] - hidden_s)
    own_s[num_ops:] = own_s[graph.milestone_of] * share[:, None]
    return replayer(group.grid, replace(graph, milestone_share=share), own_s)


def _own_share(
    grid: Grid, op: int, share: float, held: NDArray[np.bool_], intervals: _Intervals
) -> float:
    """Share of an operation's own time that had passed at a share of its recorded time.

    In the step and dp rank of the template, where milestones are read.
    """
    num_lanes, template = grid.start_s.shape[1], grid.template
    lane = template.dp_rank * len(grid.steps) + template.step_at
    start_s, took_s = float(grid.start_s[op, lane]), float(grid.duration_s[op, lane])
    cell = int(template.stage[op]) * num_lanes + lane
    of_cell = slice(int(intervals.ptr[cell]), int(intervals.ptr[cell + 1]))
    counts = ~intervals.is_stay[of_cell] | held[op]
    waiting = merged_intervals(intervals.start_s[of_cell][counts], intervals.end_s[of_cell][counts])
    moments_s = start_s + took_s * np.array([0.0, share, 1.0])
    began_s, then_s, ended_s = waiting.until(moments_s).tolist()
    own_s = took_s - (ended_s - began_s)
    if own_s <= 0:
        return share
    return float(np.clip((share * took_s - (then_s - began_s)) / own_s, 0.0, 1.0))


@kernel
def _overlap(  # type: ignore[no-untyped-def]
    rows, bounds, held, start_s, duration_s, ptr, wait_start_s, wait_end_s, is_stay, first, end,
    hidden_s,
):  # fmt: skip
    num_lanes = start_s.shape[1]
    for stage in range(first, end):
        for lane in range(num_lanes):
            low, high = ptr[stage * num_lanes + lane], ptr[stage * num_lanes + lane + 1]
            before_s = -np.inf
            for at in range(bounds[stage], bounds[stage + 1]):
                row = rows[at]
                began_s = start_s[row, lane]
                ended_s = began_s + duration_s[row, lane]
                if began_s < before_s:
                    # Rows are in the order of lane 0; this lane has another order.
                    low = ptr[stage * num_lanes + lane]
                before_s = began_s
                while low < high and wait_end_s[low] <= began_s:
                    low += 1
                covered_s, total_s = began_s, 0.0
                for interval in range(low, high):
                    if wait_start_s[interval] >= ended_s:
                        break
                    if is_stay[interval] and not held[row]:
                        continue
                    from_s = max(wait_start_s[interval], covered_s)
                    to_s = min(wait_end_s[interval], ended_s)
                    if to_s > from_s:
                        total_s += to_s - from_s
                        covered_s = to_s
                hidden_s[row, lane] = total_s
