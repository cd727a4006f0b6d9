"""How uneven are sequence lengths, by the factor common to a micro-batch's computations?

A long micro-batch takes longer everywhere, while noise, clocks and pauses do not correlate. Lengths
that clients send show whose sequences are uneven.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.long_microbatches import long_microbatches
from app.diagnosis.evidence.slowness import slowness
from app.diagnosis.evidence.usual_steps import is_usual, usual_steps
from app.diagnosis.features import Computations, Features
from app.diagnosis.statistics.robust import quantiles
from app.engine.medians import median_of, medians_of_known
from app.engine.replays import WindowReplay
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints, Trace

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """When lengths are uneven, and directions agree. Both were chosen."""

    # Sums of squared lengths up to this ratio are alike, as packed rows are never quite full.
    max_alike_ratio: float = 1.05
    # Share of computations kept, those whose directions agree best: a pause is in one direction
    # only, and hardly in 1 of 20 computations.
    min_agreement: float = 0.95


LIMITS = LengthLimits()
# Replicas, and replicas times steps, to sample for medians.
_MAX_REPLICAS = 16
# Relative durations below this are none.
_NO_TIME = 1e-9
_MAX_LANES = 64


@evidence
def uneven_replicas(case: Case) -> Flags | None:
    """[dp], replicas with uneven lengths; None where all or none are, or lengths are unknown.

    A replica that sends no lengths counts as neither even nor uneven.
    """
    trace = case.replay.window.trace
    if trace.seq_len_sq is None:
        return None
    least, most = _extremes(trace, trace.seq_len_sq, case.parallelism.dp_size)
    # The shortest micro-batch of all is the usual one; replicas with long ones only are uneven.
    limit = LIMITS.max_alike_ratio * least.min()
    are_alike, are_uneven = (most > 0) & (most <= limit), most > limit
    return are_uneven if are_alike.any() and are_uneven.any() else None


def _extremes(trace: Trace, squares: NDArray[np.int64], dp_size: int) -> tuple[Floats, Floats]:
    """[dp], the smallest and largest squares that each replica sends; infinity and 0 if none."""
    least, most = np.full(dp_size, np.inf), np.zeros(dp_size)
    rows = np.flatnonzero(squares > 0)  # 0 is a micro-batch of padding alone
    of_rank, lengths = trace.dp_rank[rows], squares[rows].astype(np.float64)  # one type is quick
    np.minimum.at(least, of_rank, lengths)
    np.maximum.at(most, of_rank, lengths)
    return least, most


@dataclass(frozen=True, slots=True)
class Variation:
    """How computations of a worker vary from item to item, median over workers.

    `pearson_r` is of forward against backward; `replica_r` the same of a replica's stages summed,
    which has less noise; `stages_r` of half of the stages against the others. The latter two are
    None with one stage. `within_steps` is the share of the variance that is among the items of a
    step, 1 where items are independent; None with one item a step.
    """

    pearson_r: float
    coefficient_of_variation: float
    replica_r: float | None
    stages_r: float | None
    within_steps: float | None


def variation(case: Case) -> Variation | None:
    """Variation over the usual steps, of replicas with uneven lengths where these are sent.

    None where there are too few computations, or nothing varies.
    """
    parts = [_relative(case, group) for group in case.groups]
    known = [part for part in parts if part is not None]
    if not known:
        return None
    forward, backward = (
        np.concatenate([_cells(part[side]) for part in known], axis=-1) for side in (0, 1)
    )
    agrees = _agree(forward, backward)
    of_worker = _correlation(forward, backward, agrees)
    if of_worker is None:
        return None
    replica = stages = None
    if forward.shape[1] > 1:
        both = forward + backward
        everywhere = np.asarray(agrees.all(axis=1))
        replica = _correlation(forward.mean(axis=1), backward.mean(axis=1), everywhere)
        stages = _correlation(both[:, ::2].mean(axis=1), both[:, 1::2].mean(axis=1), everywhere)
    spread = _spread(forward, backward, agrees)
    return Variation(of_worker, spread, replica, stages, _share_within_steps(known))


def _relative(case: Case, group: Features) -> tuple[Floats, Floats] | None:
    """Forward and backward [replicas, pp, items, steps], of usual steps and some replicas."""
    forward, backward = group.forward, group.backward
    usual = np.flatnonzero(is_usual(case)[group.positions])
    if forward is None or backward is None or not usual.size:
        return None
    replicas, is_chosen = _replicas(case)
    usual = usual[:: max(1, usual.size * int(is_chosen.sum()) // _MAX_LANES)]
    one, other = (
        relative_durations(side.duration_s[replicas][..., usual])[is_chosen]
        for side in (forward, backward)
    )
    return (one, other) if one.size and one.shape == other.shape else None


def _replicas(case: Case) -> tuple[Ints, Flags]:
    """Sampled replicas for the usual time, and the flags of those whose variation counts."""
    every = np.arange(case.parallelism.dp_size)
    some = _thinned(every)
    uneven = uneven_replicas(case)
    if uneven is None:
        return some, np.ones(some.size, bool)
    chosen = _thinned(np.flatnonzero(uneven))
    replicas = np.union1d(some, chosen)
    return replicas, np.isin(replicas, chosen)


def _thinned(replicas: Ints) -> Ints:
    return replicas[:: -(-replicas.size // _MAX_REPLICAS)]


def relative_durations(duration_s: Floats) -> Floats:
    """[dp, pp, items, steps], durations over the median of their stage and item, then their step.

    This removes the effects of an item's position and of slow steps.
    """
    num_dp, num_stages, num_items, num_steps = duration_s.shape
    if not duration_s.size:
        return duration_s
    by_item = duration_s.transpose(1, 2, 0, 3).reshape(num_stages, num_items, num_dp * num_steps)
    usual_s = quantiles(by_item, 0.5)[None, :, :, None]
    relative = np.divide(duration_s, usual_s, out=np.ones(duration_s.shape), where=usual_s > 0)
    by_step = relative.transpose(1, 3, 0, 2).reshape(num_stages, num_steps, num_dp * num_items)
    usual = quantiles(by_step, 0.5)[None, :, None, :]
    return np.divide(relative, usual, out=relative, where=usual > 0)


def _cells(relative: Floats) -> Floats:
    """[replicas, pp, items x steps], relative deviations from the worker's mean; 0 if that is 0."""
    flat = relative.reshape(*relative.shape[:2], -1)
    mean = flat.mean(axis=2, keepdims=True)
    return np.asarray(np.divide(flat, mean, out=np.ones(flat.shape), where=mean > 0) - 1)


def _agree(forward: Floats, backward: Floats) -> Flags:
    """Cells whose directions agree best; noise grows with the time, so relative to it."""
    apart = np.abs(forward - backward) / np.maximum(2 + forward + backward, _NO_TIME)
    last = int(LIMITS.min_agreement * (apart.size - 1))
    return np.asarray(apart <= np.partition(apart.ravel(), last)[last])


def _correlation(one: Floats, other: Floats, chosen: Flags) -> float | None:
    """Pearson's r over the chosen cells of the last axis, median over the other axes."""
    num = np.maximum(chosen.sum(axis=-1, keepdims=True), 1)
    away, other_away = (
        np.where(chosen, side - np.where(chosen, side, 0.0).sum(axis=-1, keepdims=True) / num, 0.0)
        for side in (one, other)
    )
    return _median_r((away**2).sum(-1), (other_away**2).sum(-1), (away * other_away).sum(-1))


def _median_r(squares: Floats, other_squares: Floats, products: Floats) -> float | None:
    """Pearson's r, median over rows with values that vary; None where there are none."""
    size = np.sqrt(squares * other_squares)
    varies = size > 0
    return median_of(products[varies] / size[varies]) if varies.any() else None


def _spread(forward: Floats, backward: Floats, chosen: Flags) -> float:
    """The coefficient of variation of both directions, median over workers."""
    squares = ((forward * forward + backward * backward) * chosen).sum(axis=-1) / 2
    of_worker = np.sqrt(squares / np.maximum(chosen.sum(axis=-1), 1))
    return median_of(of_worker)


@evidence
def column_r(case: Case, name: str) -> float | None:
    """Pearson's r of forward times and a column that is sent, of the usual steps; median of stages.

    None where the column, `tokens` or `seq_len_sq`, is not sent or does not vary.
    """
    trace = case.replay.window.trace
    column: Ints | None = getattr(trace, name)
    if column is None:
        return None
    rows = np.flatnonzero((trace.optype == OP_CODES["forward-compute"]) & (column >= 0))
    rows = rows[np.isin(trace.step[rows], case.steps[usual_steps(case)])]
    stage, pp_size = trace.stage[rows], case.parallelism.pp_size
    num = np.bincount(stage, minlength=pp_size)
    away, away_s = (
        values - (np.bincount(stage, values, pp_size) / np.maximum(num, 1))[stage]
        for values in (column[rows].astype(np.float64), trace.duration_s[rows])
    )
    squares, other_squares, products = (
        np.asarray(np.bincount(stage, values, pp_size)[num > 2], np.float64)
        for values in (away**2, away_s**2, away * away_s)
    )
    return _median_r(squares, other_squares, products)


def _share_within_steps(parts: list[tuple[Floats, Floats]]) -> float | None:
    """Share of the variance among the items of a step; median over workers that vary as most do."""
    within, total = [], []
    for forward, backward in parts:
        num_items = forward.shape[2]
        if num_items < 2:
            continue
        both = (_cells(forward) + _cells(backward)).reshape(*forward.shape)
        away = both - both.mean(axis=2, keepdims=True)
        within.append((away * away).sum(axis=(2, 3)) * num_items / (num_items - 1))
        total.append((both * both).sum(axis=(2, 3)))
    if not total:
        return None
    of_total = np.sum(total, axis=0)
    varies = (of_total >= median_of(of_total)) & (of_total > 0)
    return median_of(np.sum(within, axis=0)[varies] / of_total[varies]) if varies.any() else None


def common_factor(case: Case, group: Features) -> Floats:
    """[dp, items, steps], an item's time on all stages over what it would be with even lengths.

    That is the mean of its step. Where the same micro-batches are long in every step, it is the
    others' mean, and these are even. An item's time is the mean over stages and directions without
    the longest and the shortest, so a pause does not count; slow workers are corrected first.
    """
    sides = [side for side in (group.forward, group.backward) if side is not None]
    both = np.stack([side.over_usual(_medians_of_stages) for side in sides], axis=1)
    if (peers := slowness(case)) is not None:
        both /= peers.slow_by[group.positions].transpose(1, 2, 0)[:, None, :, None, :]
    flat = both.reshape(both.shape[0], -1, *both.shape[3:])
    size = flat.shape[1]
    if size > 2:
        common = np.partition(flat, (1, size - 2), axis=1)[:, 1:-1].mean(axis=1)
    else:
        common = flat.min(axis=1)
    long = long_microbatches(case, group)
    long = long_microbatches(case, group)
    is_even = is_uneven = np.ones(common.shape, np.bool_)
    if long is not None:
        is_even, is_uneven = ~long.is_long, long.is_long
    mean = common.mean(axis=(0, 1), keepdims=True, where=is_even)
    is_divided = (mean > 0) & is_uneven
    return np.asarray(np.divide(common, mean, out=np.ones(common.shape), where=is_divided))


def _medians_of_stages(duration_s: Floats) -> Floats:
    """[1, pp, 1, 1] of durations [dp, pp, items, steps].

    A median by item would hold the lengths themselves where there are few replicas and steps.
    """
    by_stage_s = duration_s.transpose(1, 0, 2, 3).reshape(duration_s.shape[1], -1)
    return medians_of_known(by_stage_s)[None, :, None, None]


def rows_and_items(side: Computations) -> tuple[Ints, Ints]:
    """Template rows of the items that all stages have, and each row's item position."""
    rows = side.rows[:, side.shared]
    item = np.broadcast_to(np.arange(rows.shape[1])[None, :, None], rows.shape)
    return rows[rows >= 0], item[rows >= 0]


PAIR_STAGE = 0  # the first stage has no loss layer and no input to wait for


@dataclass(frozen=True, slots=True)
class LengthPairs:
    """Pairs of a window, one a micro-batch, on one stage; `y` is seconds.

    `x` is the sum of squared sequence lengths. Where no client sends them, `is_lengths` is False,
    `x` the forward and `y` the backward time.
    """

    x: Floats
    y: Floats
    is_lengths: bool


def length_pairs(replay: WindowReplay, steps: Collection[int] | None = None) -> LengthPairs | None:
    """Pairs of all dp ranks in these steps, by default all; None if fewer than three."""
    chosen = replay.steps if steps is None else tuple(steps)
    pairs = _of_lengths(replay.window.trace, chosen) or _of_directions(replay, chosen)
    return pairs if pairs is not None and pairs.x.size >= 3 else None


def _of_lengths(trace: Trace, steps: tuple[int, ...]) -> LengthPairs | None:
    if trace.seq_len_sq is None:
        return None
    is_forward = (trace.optype == OP_CODES["forward-compute"]) & (trace.stage == PAIR_STAGE)
    rows = np.flatnonzero(is_forward & (trace.seq_len_sq >= 0) & np.isin(trace.step, steps))
    if not rows.size:
        return None
    return LengthPairs(trace.seq_len_sq[rows].astype(np.float64), trace.duration_s[rows], True)


def _of_directions(replay: WindowReplay, steps: tuple[int, ...]) -> LengthPairs | None:
    """Forward and backward time of the same micro-batch."""
    x, y = [], []
    for group in map(Features, replay.groups):
        forward, backward = group.forward, group.backward
        if forward is None or backward is None:
            continue
        chosen = np.isin(group.steps, steps)
        one, other = (side.duration_s[:, PAIR_STAGE][..., chosen] for side in (forward, backward))
        if one.shape == other.shape:
            x.append(one.ravel())
            y.append(other.ravel())
    return LengthPairs(np.concatenate(x), np.concatenate(y), False) if x else None
