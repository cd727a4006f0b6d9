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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.blame import MAX_PEERS, evenly_spaced
from app.engine.arrivals.echoed_pauses import (
    NO_SPANS,
    Spans,
    echoed_pauses,
    joined,
    noted_spans,
    usual,
)
from app.engine.arrivals.resumptions import HiddenWaits, LaneWaits, resumptions_of
from app.engine.arrivals.waits import WaitIntervals, merged_intervals
from app.engine.graph import with_resumptions
from app.engine.grid import Grid
from app.engine.kernels import in_parallel, kernel
from app.engine.rules.overlap import are_two_streams
from app.engine.template import AT_ONCE_S
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
# Share of the longest wait for a rank by which its peers stand still longer than it does, from
# which their computations may have gone on.
MIN_IDLE_OF_WAIT = 0.5
# A computation that a wait held up is longer than usual by this share of the wait at least: a layer
# or two may be computed before the gather that was asked for is needed.
MIN_LONGER_OF_WAIT = 0.25
# Share of the time waited for pauses in such computations, from which they are held up.
MIN_HELD_IN_TURN = 0.75
# A pause is beyond noise: so many times what the shortest of a worker's computations is below its
# usual one, which fewer steps do not show.
MIN_SPREADS_IN_TURN = 6.0
MIN_STEPS_IN_TURN = 5
# Change of the gap by that of the wait, of a computation that went on: halfway between 0 (held up)
# and -1 (all of the wait was used).
MAX_SLOPE_OF_FREE = -0.5
# Of a launch within its computation; 0 and less mean another thing (graph.py).
_LEAST_SHARE = 1e-12
# Fewer steps do not prove that a rank is late beyond chance.
MIN_STEPS = 3


def without_waits(
    replay: ReplayGroups, arrivals: Arrivals | None
) -> tuple[tuple[Replayer, ...], tuple[NDArray[np.int8], ...]]:
    """The groups with waits taken out of their computations, and `WindowReplay.held_up`."""
    is_known = arrivals is not None and len(replay.steps) >= MIN_STEPS
    late = _late_workers(arrivals) if arrivals is not None and is_known else []
    parts = [_without_hidden_waits(replay.window, group, late, is_known) for group in replay.groups]
    has_waits = replay.window.trace.rows_of_type(WAIT_CODE).size > 0
    held_up = tuple(held for _, held in parts) if late or has_waits else ()
    return tuple(group for group, _ in parts), held_up


def _late_workers(arrivals: Arrivals) -> list[RankPlace]:
    """Culprits that all dp ranks waited for."""
    groups = arrivals.occurrences.groups
    return [
        arrivals.places[late.place] for late in arrivals.culprits if groups[late.group].axis == "dp"
    ]


def _without_hidden_waits(
    window: Window, group: Replayer, late: list[RankPlace], is_known: bool
) -> tuple[Replayer, NDArray[np.int8]]:
    """The group without waits, and [ops] as in `WindowReplay.held_up`."""
    grid, template = group.grid, group.template
    kinds = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
    computes = np.flatnonzero(kinds[template.optype])
    spans = noted_spans(window, grid, "wait")
    held = np.zeros(template.num_ops, np.bool_)
    waits = _sorted(grid, spans, NO_SPANS, computes, held)
    held_up = _held_up_by(group, late, waits)
    held = held_up > 0
    free = computes[~held[computes]]
    own_s = grid.duration_s - _overlap_s(grid, waits)
    in_turn, of_arrivals = NO_SPANS, _arrival_waits(grid, held)
    if is_known and grid.num_steps >= MIN_STEPS_IN_TURN:
        in_turn = _waits_in_turn(grid, free[held_up[free] == 0], own_s)
        if in_turn[0].size:
            waits = _sorted(grid, joined(spans, in_turn), NO_SPANS, computes, held)
            own_s = grid.duration_s - _overlap_s(grid, waits)
    in_turn = joined(in_turn, echoed_pauses(window, grid, free, own_s))
    if in_turn[0].size or of_arrivals[0].size:
        waits = _sorted(grid, joined(spans, in_turn), of_arrivals, computes, held)
    if not waits.start_s.size:
        return group, held_up
    hidden_s = _overlap_s(grid, waits)
    own_share = 1.0 - hidden_s.sum() / grid.duration_s[computes].sum() if hidden_s.any() else 1.0
    # Without any computation a step would take no time.
    is_shorter = EQUAL_TIMES < own_share < 1.0
    return _shortened(group, hidden_s, waits) if is_shorter else group, held_up


def _waits_in_turn(grid: Grid, computes: Ints, own_s: Floats) -> Spans:
    """Waits for a rank that paused, in computations that it held up.

    A pause of one rank makes all others wait once. Where one of the collectives that end in a
    computation was waited for longer than usual, and the computation is longer than usual as well,
    the wait held it up; where it is as long as usual, it went on. A part of the wait may have been
    computed through, so it is as long as the computation is longer, up to the collective's end.
    `MIN_HELD_IN_TURN` of the time that an op type's operations on a stage waited decide.

    Args:
        grid: the recorded times.
        computes: computations, as rows.
        own_s: [ops, lanes], recorded durations without the client's waits.
    """
    template, num_lanes = grid.template, grid.start_s.shape[1]
    spans: Spans = NO_SPANS
    for stage in range(template.parallelism.pp_size if template.parallelism.dp_size > 1 else 0):
        here = computes[template.stage[computes] == stage]
        collectives = _collectives(grid, np.array([stage]))
        at = np.searchsorted(template.start_s[here], template.start_s[collectives]) - 1
        begun_in = {
            row: [int(op) for op in here[max(0, first) : first + 2]]
            for row, first in zip(collectives, at.tolist(), strict=True)
            if first >= 0 and template.end_s[here[first]] > template.start_s[row]
        }
        waited_s = {op: np.zeros(num_lanes) for ops in begun_in.values() for op in ops}
        until_s = {op: np.zeros(num_lanes) for op in waited_s}
        for row, ops in begun_in.items():
            stay_s = grid.duration_s[row].reshape(-1, grid.num_steps)
            ended_s, late_s = grid.start_s[row] + grid.duration_s[row], stay_s - stay_s.min(axis=0)
            late_s = (late_s - usual(late_s)).ravel()
            for op in ops:
                done_s = grid.start_s[op] + grid.duration_s[op]
                is_inside = (ended_s > grid.start_s[op]) & (ended_s <= done_s + AT_ONCE_S)
                is_longest = is_inside & (late_s > waited_s[op])
                waited_s[op][is_longest] = late_s[is_longest]
                until_s[op][is_longest] = ended_s[is_longest]
        for code in dict.fromkeys(template.optype[list(waited_s)].tolist()):
            ops = [op for op in waited_s if template.optype[op] == code]
            of_type = own_s[ops].reshape(len(ops), -1, grid.num_steps)
            usual_s = usual(of_type)
            longer_s = (of_type - usual_s).reshape(len(ops), -1)
            late_s = np.array([waited_s[op] for op in ops])
            spread_s = float((usual_s[..., 0] - of_type.min(axis=2)).mean())
            least_s = np.maximum(MIN_WAIT_OF_HELD * usual_s, MIN_SPREADS_IN_TURN * spread_s)
            late_s[late_s <= np.broadcast_to(least_s, of_type.shape).reshape(late_s.shape)] = 0.0
            is_held = longer_s > MIN_LONGER_OF_WAIT * late_s
            if late_s[is_held].sum() <= MIN_HELD_IN_TURN * late_s.sum():
                continue
            chosen = np.nonzero((late_s > 0) & is_held)
            ends_s = np.array([until_s[op] for op in ops])[chosen]
            begins_s = ends_s - np.minimum(longer_s, late_s)[chosen]
            spans = joined(spans, (stage * num_lanes + chosen[1], begins_s, ends_s))
    return spans


def _overlap_s(grid: Grid, waits: HiddenWaits) -> Floats:
    """[ops, lanes], seconds of waits in computations."""
    template, hidden_s = grid.template, np.zeros(grid.start_s.shape)
    if not waits.start_s.size:
        return hidden_s
    pp_size, rows = template.parallelism.pp_size, waits.computes
    bounds = np.searchsorted(template.stage[rows], np.arange(pp_size + 1))
    in_parallel(
        rows.size * grid.start_s.shape[1],
        pp_size,
        lambda first, end: _overlap(
            rows, bounds, waits.held, grid.start_s, grid.duration_s, waits.ptr, waits.start_s,
            waits.end_s, waits.is_stay, first, end, hidden_s,
        ),
    )  # fmt: skip
    return hidden_s


def recorded_waits(
    window: Window, grid: Grid, worker: tuple[int, int], offset_s: Floats
) -> WaitIntervals:
    """The `wait` spans of one worker (dp rank, stage), each step's times `offset_s` [steps] later.

    On the clock of `Waits`, where `offset_s` is `Waits.offsets_s`.
    """
    cell, start_s, end_s = noted_spans(window, grid, "wait")
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


def _sorted(
    grid: Grid, of_client: Spans, of_arrivals: Spans, computes: Ints, held: NDArray[np.bool_]
) -> HiddenWaits:
    cell, start_s, end_s = joined(of_client, of_arrivals)
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
    stages = np.arange(grid.template.parallelism.pp_size)
    meet = np.array(_collectives(grid, stages), np.int64)
    return HiddenWaits(ptr, start_s[order], end_s[order], is_stay[order], held, computes, meet)


def _held_up_by(group: Replayer, late: list[RankPlace], waits: HiddenWaits) -> NDArray[np.int8]:
    """[ops], 1 if waiting collectives hold the computation up, -1 if not, 0 if unknown.

    One late rank that shows 1 is enough. `waits` are those that the client recorded.
    """
    template = group.template
    held_up = np.zeros(template.num_ops, np.int8)
    for place in late:
        if place.dp_rank is None or place.stage is None or group.dp_size < 2:
            continue
        votes, shares, longest_s = _votes(group.grid, place.dp_rank, place.stage, waits)
        longer_s = _idle_longer_s(group.grid, place.dp_rank, place.stage, waits)
        least = -1 if longer_s >= MIN_IDLE_OF_WAIT * longest_s else 0
        for code, vote in votes.items():
            ops = (template.optype == code) & (template.stage == place.stage)
            went_on = vote == 0 and _computed_on(np.array(shares[code]))
            verdict = max(least, -1 if went_on else np.sign(vote))
            held_up[ops] = np.where(held_up[ops] > 0, 1, verdict)
    return held_up


def _idle_longer_s(grid: Grid, late_dp: int, stage: int, waits: HiddenWaits) -> float:
    """By how much the median peer is longer outside of computations and in recorded waits.

    Than the late rank, mean seconds a step. Peers that go on while they wait for it stand still
    later, for as long as it was late in the end; held up, they compute for as long as it does.
    """
    computes = np.array(grid.template.computes[stage], np.int64)
    busy_s = (grid.duration_s[computes] - _overlap_s(grid, waits)[computes]).sum(axis=0)
    earliest_s, latest_s = grid.spans_s
    idle_s = (latest_s - earliest_s - busy_s.reshape(-1, grid.num_steps)).mean(axis=1)
    return float(np.median(np.delete(idle_s, late_dp)) - idle_s[late_dp])


Shares = list[tuple[float, float]]  # wait and gap, over the late rank's gap


def _votes(
    grid: Grid, late_dp: int, stage: int, waits: HiddenWaits
) -> tuple[dict[int, float], dict[int, Shares], float]:
    """By op type, pairs of collectives that show that it is held up, minus pairs that show not.

    Each weighs as much as the late rank has to do in it. And the pairs between which a gap is left,
    and the longest wait in one, in seconds.
    """
    votes: dict[int, float] = {}
    shares: dict[int, Shares] = {}
    longest_s = 0.0
    peers = np.delete(np.arange(grid.template.parallelism.dp_size), late_dp)
    ranks = np.append(peers[evenly_spaced(peers.size, MAX_PEERS)], late_dp)
    collectives = _collectives(grid, np.array([stage]))
    start_s, end_s = _worked_s(grid, waits, stage, ranks, collectives)
    apart, of_stream = are_two_streams(grid.template, stage), dict[int, int]()
    for at, row in enumerate(collectives):
        stream = int(grid.template.optype[row]) if apart else 0
        before, of_stream[stream] = of_stream.get(stream, -1), at
        if before < 0:
            continue
        inside, until_s = _computation_around(grid, row, stage, late_dp), start_s[at]
        if inside is None:
            # The next one was queued beyond the computation, whose end tells as much.
            inside = _computation_around(grid, collectives[before], stage, late_dp)
            if inside is None:
                continue
            [until_s] = _worked_s(grid, waits, stage, ranks, [inside])[1]
        stay_s = grid.duration_s[collectives[before]].reshape(-1, grid.num_steps)
        stays_s = (end_s[before] - start_s[before] - stay_s.min(axis=0))[:-1]
        waited_s = float(np.median(np.maximum(0.0, stays_s)))
        gaps_s = until_s - end_s[before]
        gap_s, own_s = (max(0.0, float(np.median(of))) for of in (gaps_s[:-1], gaps_s[-1]))
        if own_s <= AT_ONCE_S:  # the late rank had queued it
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
        longest_s = max(longest_s, waited_s)
        votes[code] = votes.get(code, 0.0) + vote * own_s
        of_pairs = shares.setdefault(code, [])
        if gap_s > 0:
            of_pairs.append((waited_s / own_s, gap_s / own_s))
    return votes, shares, longest_s


def _computed_on(shares: Floats) -> bool:
    """Whether gaps are shorter by as much as waits are longer; [pairs, 2] waits and gaps.

    The work that a held-up rank still has to do after a wait does not depend on the wait.
    """
    if not shares.size or np.ptp(shares[:, 0]) < MIN_WAIT_OF_HELD:
        return False
    waits, gaps = shares.T
    apart = waits - waits.mean()
    return bool((apart * gaps).sum() < MAX_SLOPE_OF_FREE * (apart**2).sum())


def _worked_s(
    grid: Grid, waits: HiddenWaits, stage: int, ranks: Ints, rows: list[int]
) -> tuple[Floats, Floats]:
    """[rows, ranks, steps], starts and ends on clocks that stand still in the client's waits."""
    shape = (len(rows), -1, grid.num_steps)
    start_s = grid.start_s[rows].reshape(shape)[:, ranks]
    end_s = start_s + grid.duration_s[rows].reshape(shape)[:, ranks]
    if waits.start_s.size:
        for at, rank in enumerate(ranks.tolist()):
            for step in range(grid.num_steps):
                client = LaneWaits(grid, waits, stage, rank * grid.num_steps + step).recorded
                for times_s in (start_s, end_s):
                    times_s[:, at, step] -= client.until(times_s[:, at, step])
    return start_s, end_s


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


def _shortened(group: Replayer, hidden_s: Floats, waits: HiddenWaits) -> Replayer:
    """The group with computations shortened to their own time, and their milestones moved.

    They go on after what they waited for.
    """
    grid, graph, num_ops = group.grid, group.graph, group.template.num_ops
    template, share, of_op = group.template, graph.milestone_share.copy(), graph.milestone_of
    lane = graph.milestone_lane
    launch_s = grid.start_s[of_op, lane] + share * grid.duration_s[of_op, lane]
    places, of_place = np.unique([template.stage[of_op], lane], axis=1, return_inverse=True)
    for number, (stage, of_lane) in enumerate(places.T.tolist()):
        inside = np.flatnonzero(of_place == number)
        own = LaneWaits(grid, waits, stage, of_lane).own_share(of_op[inside], launch_s[inside])
        share[inside] = np.where(np.isnan(own), share[inside], np.maximum(own, _LEAST_SHARE))
    graph = replace(graph, milestone_share=share)
    graph = with_resumptions(graph, template, resumptions_of(grid, graph, waits, launch_s))
    own_s = group.durations.recorded_s[:num_ops]
    np.maximum(0.0, own_s - hidden_s, out=own_s)
    milestones_s = own_s[graph.milestone_of] * graph.milestone_share[:, None]
    return replayer(grid, graph, np.concatenate([own_s, milestones_s]))


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
