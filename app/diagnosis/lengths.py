"""What do a micro-batch's computations have in common, on all stages and in both directions?

Its sequences: long ones take longer everywhere. Chance, clocks and pauses do not go together so.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.features import Computations, Features
from app.diagnosis.selecting import median, medians
from app.diagnosis.uneven import uneven_replicas
from app.engine.compiled import kernel
from app.trace.window import Floats, Ints

Flags = NDArray[np.bool_]

# The median over so many replicas, and so many of their steps together, is as good as over all.
MAX_REPLICAS = 16
MAX_LANES = 64
# Computations whose directions agree least are left out: a pause is in one of them only.
_AGREE = 0.95


@dataclass(frozen=True, slots=True)
class Variation:
    """How computations of one worker vary from item to item.

    Medians over workers: `pearson_r` of forward against backward, and their coefficient of
    variation. `replica_r` is the same r of each replica's stages together, with less noise in it,
    and `stages_r` that of half of its stages against the others; both None with one stage.
    """

    pearson_r: float
    coefficient_of_variation: float
    replica_r: float | None
    stages_r: float | None


def variation(case: Case) -> Variation | None:
    """Over the usual steps; None where there is too little to tell, or nothing varies.

    Where lengths are sent, only over replicas whose sequences are uneven.
    """
    parts = [_relative(case, group) for group in case.groups]
    known = [part for part in parts if part is not None]
    if not known:
        return None
    forward, backward = (
        np.concatenate([_cells(each[k]) for each in known], axis=-1) for k in (0, 1)
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
    return Variation(of_worker, _spread(forward, backward, agrees), replica, stages)


def _relative(case: Case, group: Features) -> tuple[Floats, Floats] | None:
    """Forward and backward [replicas, pp, items, steps], of usual steps and some replicas."""
    forward, backward = group.forward, group.backward
    usual = np.flatnonzero(case.is_usual[case.at(group)])
    if forward is None or backward is None or not usual.size:
        return None
    replicas, looked_at = _replicas(case)
    usual = usual[:: max(1, usual.size * int(looked_at.sum()) // MAX_LANES)]
    one, other = (
        relative(each.duration_s[replicas][..., usual])[looked_at] for each in (forward, backward)
    )
    return (one, other) if one.size and one.shape == other.shape else None


def _replicas(case: Case) -> tuple[Ints, Flags]:
    """Some replicas, and which of them are looked at; what is usual, all of them tell."""
    every = np.arange(case.parallelism.dp_size)
    some = _thinned(every)
    uneven = case.ask(uneven_replicas)
    if uneven is None:
        return some, np.ones(some.size, bool)
    chosen = _thinned(np.flatnonzero(uneven))
    replicas = np.union1d(some, chosen)
    return replicas, np.isin(replicas, chosen)


def _thinned(replicas: Ints) -> Ints:
    return replicas[:: -(-replicas.size // MAX_REPLICAS)]


def relative(duration_s: Floats) -> Floats:
    """[dp, pp, items, steps], durations by the median of their stage and item, then of their step.

    So neither the place of an item in the step nor a slow step makes computations differ.
    """
    found = np.array(duration_s, order="C")
    _by_medians(found)
    return found


@kernel
def _by_medians(relative):  # type: ignore[no-untyped-def]
    num_dp, num_stages, num_items, num_steps = relative.shape
    of_item, of_step = np.empty(num_dp * num_steps), np.empty(num_dp * num_items)
    for stage in range(num_stages):
        for item in range(num_items):
            for dp_rank in range(num_dp):
                first = dp_rank * num_steps
                of_item[first : first + num_steps] = relative[dp_rank, stage, item]
            usual = median(of_item, of_item.size)
            for dp_rank in range(num_dp):
                for step in range(num_steps):
                    value = relative[dp_rank, stage, item, step]
                    relative[dp_rank, stage, item, step] = value / usual if usual > 0 else 1.0
        for step in range(num_steps):
            for dp_rank in range(num_dp):
                for item in range(num_items):
                    of_step[dp_rank * num_items + item] = relative[dp_rank, stage, item, step]
            usual = median(of_step, of_step.size)
            if usual > 0:
                for dp_rank in range(num_dp):
                    for item in range(num_items):
                        relative[dp_rank, stage, item, step] /= usual


def _cells(relative: Floats) -> Floats:
    """[replicas, pp, items x steps], deviations from the worker's own mean, as a share of it.

    0 where a worker took no time at all.
    """
    flat = relative.reshape(*relative.shape[:2], -1)
    mean = flat.mean(axis=2, keepdims=True)
    return np.asarray(np.divide(flat, mean, out=np.ones(flat.shape), where=mean > 0) - 1)


def _agree(forward: Floats, backward: Floats) -> Flags:
    apart = np.abs(forward - backward)
    last = int(_AGREE * (apart.size - 1))
    return np.asarray(apart <= np.partition(apart.ravel(), last)[last])


def _correlation(one: Floats, other: Floats, chosen: Flags) -> float | None:
    """Pearson's r over the last axis of chosen cells, the median over all others."""
    rows = np.empty(one[..., 0].size)
    flat = (rows.size, one.shape[-1])
    _pearson(one.reshape(flat), other.reshape(flat), chosen.reshape(flat), rows)
    known = rows[np.isfinite(rows)]
    return float(medians(known)) if known.size else None


@kernel
def _pearson(one, other, chosen, found):  # type: ignore[no-untyped-def]
    for row in range(found.size):
        count, mean, other_mean = 0, 0.0, 0.0
        for cell in range(one.shape[1]):
            if chosen[row, cell]:
                count += 1
                mean += one[row, cell]
                other_mean += other[row, cell]
        mean, other_mean = mean / max(count, 1), other_mean / max(count, 1)
        squares, other_squares, products = 0.0, 0.0, 0.0
        for cell in range(one.shape[1]):
            if chosen[row, cell]:
                away, other_away = one[row, cell] - mean, other[row, cell] - other_mean
                squares += away * away
                other_squares += other_away * other_away
                products += away * other_away
        size = np.sqrt(squares * other_squares)
        found[row] = products / size if size > 0 else np.nan


def _spread(forward: Floats, backward: Floats, chosen: Flags) -> float:
    """The coefficient of variation of both directions, median over workers."""
    squares = ((forward * forward + backward * backward) * chosen).sum(axis=-1) / 2
    of_worker = np.sqrt(squares / np.maximum(chosen.sum(axis=-1), 1))
    return float(medians(of_worker.ravel()))


def common_factor(case: Case, group: Features) -> Floats:
    """[dp, items, steps], how much longer an item's computations took than a step's usual one.

    1.0 in the mean of each step: the same work, dealt out evenly. The mean over stages and
    directions but for the longest and the shortest, so that a pause does not count as length; a
    slow worker counts as its peers.
    """
    sides = [_of_chunks(each) for each in (group.forward, group.backward) if each]
    both = np.stack(sides, axis=1)
    if case.slowness is not None:
        both /= case.slowness.slow_by[case.at(group)].transpose(1, 2, 0)[:, None, :, None, :]
    flat = both.reshape(both.shape[0], -1, *both.shape[3:])
    size = flat.shape[1]
    if size > 2:
        common = np.partition(flat, (1, size - 2), axis=1)[:, 1:-1].mean(axis=1)
    else:
        common = flat.min(axis=1)
    mean = common.mean(axis=(0, 1), keepdims=True)
    return np.asarray(np.divide(common, mean, out=np.ones(common.shape), where=mean > 0))


def _of_chunks(side: Computations) -> Floats:
    """[dp, pp, items, steps], durations by the median of their stage and chunk.

    Not of their item: of a few replicas and steps that would be their lengths.
    """
    duration_s, chunk = side.duration_s, side.chunk[side.shared]
    found = np.ones(duration_s.shape)
    for each in np.unique(chunk):
        of_chunk = duration_s[:, :, chunk == each]
        usual_s = np.median(of_chunk, axis=(0, 2, 3), keepdims=True)
        found[:, :, chunk == each] = of_chunk / np.where(usual_s > 0, usual_s, 1.0)
    return found


def rows_and_items(side: Computations) -> tuple[Ints, Ints]:
    """Template rows of the items that all stages have, and the position of each one's item."""
    rows = side.rows[:, side.shared]
    item = np.broadcast_to(np.arange(rows.shape[1])[None, :, None], rows.shape)
    return rows[rows >= 0], item[rows >= 0]
