"""Where computations go on after a wait: which collective they waited for, and how far they were.

Own time is a computation's time without its waits (hidden_waits.py). Once the waits are cut out,
nothing holds the computation until the collective ends: `resumptions_of` finds the pairs for
`graph.with_resumptions`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.blame import evenly_spaced
from app.engine.arrivals.waits import merged_intervals
from app.engine.graph import Resumption, StepGraph
from app.engine.grid import Grid
from app.engine.template import AT_ONCE_S, SAME_MOMENT_S
from app.trace.window import Floats, Ints

# Lanes of a stage in which its waits are looked at.
MAX_LANES = 64
# How far a computation was differs between lanes by noise: a share of its own time.
SAME_SHARE = 0.01
# A computation that is further than this share when the collective ends did not wait for it: two
# collectives may end together by chance.
WENT_ON = 0.1


@dataclass(frozen=True, slots=True)
class HiddenWaits:
    """Waits inside computations, by the grid's clock.

    Cell `stage * lanes + lane` has the intervals `ptr[cell]` to `ptr[cell + 1]`, ascending by
    start; `is_stay` [intervals] marks stays in collectives, which count in the computations `held`
    [ops] only. `computes` are the computations, and `collectives` those of all dp ranks, both as
    ascending rows.
    """

    ptr: Ints
    start_s: Floats
    end_s: Floats
    is_stay: NDArray[np.bool_]
    held: NDArray[np.bool_]
    computes: Ints
    collectives: Ints


class LaneWaits:
    """The waits of one worker in one lane; `recorded` are those without stays."""

    def __init__(self, grid: Grid, waits: HiddenWaits, stage: int, lane: int) -> None:
        self._start_s, self._took_s = grid.start_s[:, lane], grid.duration_s[:, lane]
        self._held = waits.held
        cell = stage * grid.start_s.shape[1] + lane
        of_cell = slice(int(waits.ptr[cell]), int(waits.ptr[cell + 1]))
        begins_s, ends_s = waits.start_s[of_cell], waits.end_s[of_cell]
        is_recorded = ~waits.is_stay[of_cell]
        self.recorded = merged_intervals(begins_s[is_recorded], ends_s[is_recorded])
        self._all = None if is_recorded.all() else merged_intervals(begins_s, ends_s)

    def own_share(self, ops: Ints, times_s: Floats) -> Floats:
        """[ops], share of each operation's own time that has passed at a time; NaN without any."""
        begins_s, took_s = self._start_s[ops], self._took_s[ops]
        waited_s = self._waited_s(ops, begins_s, times_s)
        own_s = took_s - self._waited_s(ops, begins_s, begins_s + took_s)
        done_s = times_s - begins_s - waited_s
        share = np.divide(done_s, own_s, out=np.full(done_s.shape, np.nan), where=own_s > 0)
        return np.asarray(np.clip(share, 0.0, 1.0))

    def _waited_s(self, ops: Ints, since_s: Floats, until_s: Floats) -> Floats:
        recorded_s = self.recorded.until(until_s) - self.recorded.until(since_s)
        if self._all is None:
            return recorded_s
        all_s = self._all.until(until_s) - self._all.until(since_s)
        return np.where(self._held[ops], all_s, recorded_s)


def resumptions_of(
    grid: Grid, graph: StepGraph, waits: HiddenWaits, launch_s: Floats
) -> list[Resumption]:
    """Every computation with the collectives that it waits for on its way.

    `graph` has launches by own time; `launch_s` [milestones] is when they were in their own lanes.
    """
    resumptions: list[Resumption] = []
    template, num_lanes = grid.template, grid.start_s.shape[1]
    lane = graph.milestone_lane
    for stage in range(template.parallelism.pp_size):
        awaited = waits.collectives[template.stage[waits.collectives] == stage]
        computes = waits.computes[template.stage[waits.computes] == stage]
        cells = slice(stage * num_lanes, (stage + 1) * num_lanes + 1)
        lanes = np.flatnonzero(np.diff(waits.ptr[cells]))
        if not awaited.size or not computes.size or not lanes.size:
            continue
        lanes = lanes[evenly_spaced(lanes.size, MAX_LANES)]
        of_lanes = [LaneWaits(grid, waits, stage, lane) for lane in lanes.tolist()]
        seen = _seen(grid, lanes, of_lanes, computes, awaited)
        for op, collective, share in _certain(grid, lanes, of_lanes, seen):
            launches = (graph.milestone_of == op) & (graph.milestone_share >= share - SAME_SHARE)
            ended_s = grid.start_s[collective, lane] + grid.duration_s[collective, lane]
            launches &= launch_s >= ended_s - SAME_MOMENT_S
            after = tuple(np.flatnonzero(launches).tolist())
            resumptions.append(Resumption(op, collective, share, after))
    return resumptions


# By computation and collective: shares of own time that had passed, one for each lane that waited.
_Seen = dict[tuple[int, int], list[float]]


def _seen(
    grid: Grid, lanes: Ints, of_lanes: list[LaneWaits], computes: Ints, awaited: Ints
) -> _Seen:
    """The collectives that ended when a computation had waited."""
    shares: _Seen = {}
    for lane, waits in zip(lanes.tolist(), of_lanes, strict=True):
        ended_s = grid.start_s[awaited, lane] + grid.duration_s[awaited, lane]
        order = np.argsort(ended_s, kind="stable")
        ended_s, ops = ended_s[order], awaited[order]
        chosen = _nearest(ended_s, waits.recorded.end_s)
        inside = _around(grid, computes, lane, ended_s[chosen])
        chosen, inside = chosen[inside >= 0], inside[inside >= 0]
        own = waits.own_share(inside, ended_s[chosen])
        for op, collective, share in zip(
            inside.tolist(), ops[chosen].tolist(), own.tolist(), strict=True
        ):
            if not np.isnan(share):
                shares.setdefault((op, collective), []).append(share)
    return shares


def _certain(
    grid: Grid, lanes: Ints, of_lanes: list[LaneWaits], seen: _Seen
) -> list[tuple[int, int, float]]:
    """Computation, collective and median share, where more lanes waited than went on without it."""
    pairs = np.array(list(seen), np.int64).reshape(-1, 2)
    median = np.array([float(np.median(shares)) for shares in seen.values()])
    num_without = np.zeros(len(seen), np.int64)
    for lane, waits in zip(lanes.tolist(), of_lanes, strict=True):
        ended_s = grid.start_s[pairs[:, 1], lane] + grid.duration_s[pairs[:, 1], lane]
        num_without += waits.own_share(pairs[:, 0], ended_s) > median + WENT_ON
    num_seen = np.array([len(shares) for shares in seen.values()])
    chosen = np.flatnonzero(num_without < num_seen)
    return [(*pairs[at].tolist(), float(median[at])) for at in chosen.tolist()]


def _nearest(ended_s: Floats, moments_s: Floats) -> Ints:
    """Positions in ascending times that are nearest to some moments, where they are at once."""
    at = np.clip(np.searchsorted(ended_s, moments_s), 1, max(1, ended_s.size - 1))
    before = np.minimum(at - 1, ended_s.size - 1)
    at = np.minimum(at, ended_s.size - 1)
    is_before = moments_s - ended_s[before] <= ended_s[at] - moments_s
    nearest = np.where(is_before, before, at)
    return np.unique(nearest[np.abs(ended_s[nearest] - moments_s) <= AT_ONCE_S])


def _around(grid: Grid, computes: Ints, lane: int, times_s: Floats) -> Ints:
    """[times], the computation in which, or at whose end, each moment lies; -1 without any."""
    start_s = grid.start_s[computes, lane]
    order = np.argsort(start_s, kind="stable")
    at = np.searchsorted(start_s[order], times_s - SAME_MOMENT_S, side="left") - 1
    ops = computes[order[np.maximum(at, 0)]]
    ended_s = grid.start_s[ops, lane] + grid.duration_s[ops, lane]
    return np.where((at >= 0) & (times_s <= ended_s + AT_ONCE_S), ops, -1)
