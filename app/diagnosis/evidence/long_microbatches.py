"""Which micro-batches are long in every step, on all replicas or on one after the other?

Where batches are sorted by length, or the last micro-batch is filled with what is left, the same
micro-batch is long each time. On all stages of its replica it is, and in both directions, while
caches that are cold for the first forward, or gradients that are reduced beside the last backward,
lengthen one direction alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.features import Computations, Features
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.persistence import best_stretch
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LongMicroBatchLimits:
    """When a micro-batch is long in every step. All were chosen."""

    # Its time over the usual one, on the stage and in the direction where that is least, and so
    # many deviations of all: where all lengths vary, none is the exception.
    min_ratio: float = 1.1
    min_deviations: float = 4.0
    # Share of a stretch of steps that have it, on any replica, and the fewest of them.
    min_share_of_steps: float = 0.8
    min_steps: int = 3
    # Share of what all long ones take beyond these limits. Elsewhere they are so by chance.
    min_share_of_long: float = 0.8
    # More micro-batches than this share are not the exception.
    max_share_long: float = 0.5


LIMITS = LongMicroBatchLimits()
# Replicas and steps of which the usual time is taken.
_MAX_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class LongMicroBatches:
    """Micro-batches of a group of steps that are always long, by `numbers`.

    `is_long` [dp, shared items, steps]; `dp_ranks` have them; `in_each`: all dp ranks have, in
    nearly each of the steps. `times_as_long` is their typical ratio to the usual time.
    """

    numbers: tuple[int, ...]
    is_long: Flags
    dp_ranks: tuple[int, ...]
    in_each: bool
    times_as_long: float


def long_microbatches(case: Case, group: Features) -> LongMicroBatches | None:
    """Of a group of steps; None where none is always long."""
    number = next(at for at, other in enumerate(case.groups) if other is group)
    return _of_groups(case)[number]


def always_long(case: Case) -> LongMicroBatches | None:
    """Of the structure that most steps have; None where none is always long."""
    return long_microbatches(case, max(case.groups, key=lambda group: len(group.steps)))


def has_longer_sequences(case: Case, worker: Worker) -> bool:
    """Whether the worker's replica has a micro-batch that is always long, and not all have it."""
    long = always_long(case)
    return long is not None and not long.in_each and worker[0] in long.dp_ranks


@evidence
def _of_groups(case: Case) -> list[LongMicroBatches | None]:
    return [_long(case, group) for group in case.groups]


def _long(case: Case, group: Features) -> LongMicroBatches | None:
    forward, backward = group.forward, group.backward
    usual = np.flatnonzero(is_usual(case)[group.positions])
    if forward is None or backward is None or usual.size < LIMITS.min_steps:
        return None
    items = forward.items[forward.shared]
    if not _has_microbatches(forward) or not np.array_equal(items, backward.items[backward.shared]):
        return None
    least = _least_ratio((forward, backward), usual)
    microbatch = forward.microbatch[forward.shared]
    numbers, number_of = np.unique(microbatch, return_inverse=True)
    # [dp, micro-batches, steps], the least of its chunks.
    ratio = np.stack([least[:, number_of == at].min(axis=1) for at in range(numbers.size)], axis=1)
    level = np.median(ratio[..., usual], axis=(0, 2))
    # The least of several has less than the usual time by chance.
    usual_level = _lower_median(level)
    if level.min() <= 0 or level.min() < usual_level / LIMITS.min_ratio:
        return None  # some are always short: all lengths differ
    ratio, level = ratio / usual_level, level / usual_level
    away = np.abs(ratio[..., usual] / level[:, None] - 1)
    spread = MAD_TO_DEVIATION * _lower_median(np.median(away, axis=(0, 2)))
    least_excess = max(LIMITS.min_ratio - 1, LIMITS.min_deviations * spread)
    is_long = ratio >= 1 + least_excess
    in_step = np.asarray(is_long.any(axis=0))[:, usual]
    always = np.array([_is_always(steps) for steps in in_step])
    if not 0 < always.sum() <= LIMITS.max_share_long * numbers.size:
        return None
    beyond = np.maximum(ratio - 1 - least_excess, 0.0)
    if beyond[:, always].sum() < LIMITS.min_share_of_long * beyond.sum():
        return None
    dp_ranks = np.flatnonzero(is_long[:, always].any(axis=(1, 2)))
    # What is long by less counts there, too.
    is_long = (ratio >= 1 + least_excess / 2) & always[:, None]
    is_long[np.setdiff1d(np.arange(len(is_long)), dp_ranks)] = False
    hit = is_long[:, always][..., is_long.any(axis=(0, 1))]
    return LongMicroBatches(
        tuple(numbers[always].tolist()),
        is_long[:, number_of],
        tuple(dp_ranks.tolist()),
        bool(hit.mean() >= LIMITS.min_share_of_steps),
        float(np.median(ratio[is_long])),
    )


def _is_always(in_step: Flags) -> bool:
    """Whether nearly all steps of a stretch have it."""
    first, end = best_stretch(in_step.astype(np.float64) - LIMITS.min_share_of_steps)
    return end - first >= LIMITS.min_steps


def _has_microbatches(side: Computations) -> bool:
    """Whether the items are micro-batches, not parts of one between two collectives (FSDP)."""
    return bool((side.replayer.template.mb_id[side.rows[side.rows >= 0]] >= 0).all())


def _least_ratio(sides: tuple[Computations, ...], usual: Ints) -> Floats:
    """[dp, items, steps] over the usual time, on the stage and in the direction of the least ratio.

    The usual time is that of the usual one of a chunk's items.
    """
    shape = sides[0].duration_s.shape
    least = np.full((shape[0], *shape[2:]), np.inf)
    replicas, steps = _sampled(np.arange(shape[0])), _sampled(usual)
    for side in sides:
        chunk = side.chunk[side.shared]
        for number in np.unique(chunk):
            at = np.flatnonzero(chunk == number)
            for stage in range(shape[1]):
                took_s = side.duration_s[:, stage, at]
                usual_s = _lower_median(np.median(took_s[replicas][..., steps], axis=(0, 2)))
                if usual_s > 0:
                    least[:, at] = np.minimum(least[:, at], took_s / usual_s)
    return np.where(np.isfinite(least), least, 1.0)


def _lower_median(values: Floats) -> float:
    """Of two the smaller one, so that of two micro-batches the short one is usual."""
    return float(np.sort(values)[(values.size - 1) // 2])


def _sampled(positions: Ints) -> Ints:
    return positions[:: -(-positions.size // _MAX_SAMPLED)]
