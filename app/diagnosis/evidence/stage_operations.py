"""Which stage takes far longer than the others outside its micro-batches: in the optimizer?

The optimizer goes with the parameters, which go with what a stage computes; embeddings add to the
first and last stage. So a stage is compared for what it computes, and one that takes many times as
long has far more parameters, slow memory or a slow host. One that takes longer than it did before
has no more parameters than then.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.detector import LIMITS as FEW_STEPS
from app.diagnosis.evidence.slow_operations import once_times
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.finding import score
from app.diagnosis.repair import ShortenedTypes, stretch_slice
from app.diagnosis.statistics.robust import spread_of_steps, stretches
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class StageOperationLimits:
    """From when on a stage is slow in an operation that it does once a step. All were chosen."""

    # Its time for what it computes, over that of the other stages. Embeddings of small models reach
    # five times at either end, so that less is not told from them there.
    min_ratio: float = 3.0
    clear_of_embeddings: float = 6.0
    # Its time for what it computes over that before. Parameters stay, so less is needed.
    min_ratio_to_past: float = 1.5
    # Score 1 from so many times these.
    certain_of_least: float = 4.0
    # The share of the slow steps in which it may be less, and there it has this share of the
    # excess: few long ones are pauses.
    low_quantile: float = 0.25
    min_share_of_excess: float = 0.35
    # The level before is this quantile of the steps: one that ends is as low before as after.
    quantile_of_past: float = 0.1
    # On nearly all dp ranks, all but this share, by at least this share of the excess.
    max_not_slow: float = 0.2
    min_alike: float = 0.6


LIMITS = StageOperationLimits()


@dataclass(frozen=True, slots=True)
class StageOperation:
    """A stage that takes `ratio` times as long in one type, on nearly all of its dp ranks.

    That is against the other stages for what each computes, or, `is_to_past`, against its own steps
    before; `may_be_embeddings` where parameters of the first or last stage may explain the former.
    `compute_ratio` is that of its computations to the other stages', and `excess_s` the mean
    seconds of a slow step that it takes too long.

    Shapes: `factor` [steps], by how much it is too long, 1 where it is not; `badness` [steps of the
    extended history], 1 where it is as usual, NaN where unknown.
    """

    optype: str
    stage: int
    ratio: float
    is_to_past: bool
    may_be_embeddings: bool
    compute_ratio: float
    excess_s: float
    factor: Floats
    badness: Floats

    @property
    def positions(self) -> Ints:
        """Positions of its slow steps in the case's."""
        return np.flatnonzero(self.factor > 1)

    @property
    def score(self) -> float:
        """0..1, by how far the ratio exceeds what parameters explain."""
        least = LIMITS.min_ratio_to_past if self.is_to_past else LIMITS.min_ratio
        return score(self.ratio, least, LIMITS.certain_of_least * least)

    def evidence(self, case: Case) -> dict[str, Any]:
        """What a suspicion of it says."""
        against = "itself" if self.is_to_past else "stages"
        return {
            "stages": [self.stage],
            "optypes": [self.optype],
            "steps": case.steps[self.positions].tolist(),
            f"slowdown_against_{against}": self.ratio,
            "slowdown_in_computations": self.compute_ratio,
        }

    def repair(self, case: Case) -> ShortenedTypes:
        """The operation as long as on the other stages, or as before."""
        factors = np.ones((self.factor.size, case.parallelism.dp_size, case.parallelism.pp_size))
        factors[:, :, self.stage] = self.factor[:, None]
        return ShortenedTypes(case, {self.optype: factors})


@evidence
def slow_stage_operation(case: Case) -> StageOperation | None:
    """The stage and type with the largest excess; None where no stage is slow in any."""
    steps = usual_steps(case)
    if case.forward is None or case.backward is None or steps.size < FEW_STEPS.enough_steps:
        return None
    if case.parallelism.pp_size < 2:
        return None
    once = once_times(case)
    slow = [
        _slowest(case, optype, took_s, is_only=len(once) == 1) for optype, took_s in once.items()
    ]
    known = [operation for operation in slow if operation is not None]
    return max(known, key=lambda operation: operation.excess_s, default=None)


@dataclass(frozen=True, slots=True)
class _SlowStretch:
    """The steps [first, end) in which a stage is slow, and the usual level of its ratio."""

    stage: int
    first: int
    end: int
    level: float = 1.0
    is_to_past: bool = False
    may_be_embeddings: bool = False


def _slowest(case: Case, optype: str, took_s: Floats, *, is_only: bool) -> StageOperation | None:
    """Of one type, `took_s` [steps, dp, pp]; `is_only`: the history has its times, not a sum."""
    signals, num_before = case.extended_history.signals, case.extended_history.num_before
    before_s = signals["once_s"][:num_before]
    every_s = np.concatenate([before_s if is_only else np.full_like(before_s, np.nan), took_s])
    computed_s = np.median(signals["compute_s"], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.median(every_s, axis=1) / computed_s
        ratio = own / _of_others(own)
    # Positions in the history, of earlier steps that are known, then of usual ones.
    is_known = np.asarray(np.isfinite(ratio).all(axis=1))
    earlier, usual = np.flatnonzero(is_known[:num_before]), usual_steps(case)
    at = np.concatenate([earlier, num_before + usual])
    if not is_known[num_before:].all():
        return None
    slow = _slower_than_before(ratio[at], own[at]) or _slower_than_others(ratio[at[earlier.size :]])
    if slow is None:
        return None
    stage, is_to_past = slow.stage, slow.is_to_past
    first, end = (max(0, step - earlier.size * is_to_past) for step in (slow.first, slow.end))
    if end - first < FEW_STEPS.enough_steps:
        return None  # the window itself does not show it
    badness, chosen = ratio[:, stage] / slow.level, usual[first:end]
    of_window, by_rank_s = badness[num_before:], took_s[chosen, :, stage].mean(axis=0)
    times = float(np.median(of_window[chosen]))
    low_s = np.sort(by_rank_s)[int(LIMITS.max_not_slow * (by_rank_s.size - 1))]
    if times * low_s / np.median(by_rank_s) - 1 < LIMITS.min_alike * (times - 1):
        return None
    stretch, factor = stretch_slice(usual, first, end, case.steps.size), np.ones(case.steps.size)
    factor[stretch] = np.maximum(of_window[stretch], 1.0)
    return StageOperation(
        optype,
        stage,
        times,
        is_to_past,
        slow.may_be_embeddings,
        compute_ratio=float(np.median((computed_s / _of_others(computed_s))[num_before:, stage])),
        excess_s=float(by_rank_s.mean() * (1 - 1 / times)),
        factor=factor,
        badness=badness,
    )


def _of_others(figures: Floats) -> Floats:
    """[steps, pp], the median of the other stages, of [steps, pp]."""
    stages = range(figures.shape[1])
    return np.stack([np.median(np.delete(figures, at, axis=1), axis=1) for at in stages], axis=1)


def _slower_than_before(ratio: Floats, own: Floats) -> _SlowStretch | None:
    """The stage that became slow, both against the others and by its `own` time.

    With two stages, one that becomes slow makes the other seem to have been slow before. Arguments
    [steps, pp], what a stage takes for what it computes, against the others or by itself.
    """
    levels = [np.quantile(figure, LIMITS.quantile_of_past, axis=0) for figure in (ratio, own)]
    if not all((level > 0).all() for level in levels):
        return None
    relative = np.minimum(ratio / levels[0], own / levels[1])
    slowest = stretches(relative, spread_of_steps(relative), LIMITS.min_ratio_to_past - 1)
    stage = int(slowest.mean.argmax())
    slow = slice(int(slowest.first[stage]), int(slowest.end[stage]))
    excess, inside = float(slowest.mean[stage]) - 1, relative[slow, stage]
    outside = np.delete(ratio[:, stage], slow)
    if excess < LIMITS.min_ratio_to_past - 1:
        return None
    if min(inside.size, outside.size) < FEW_STEPS.enough_steps:
        return None
    if np.quantile(inside, LIMITS.low_quantile) - 1 < LIMITS.min_share_of_excess * excess:
        return None
    return _SlowStretch(stage, slow.start, slow.stop, float(np.median(outside)), is_to_past=True)


def _slower_than_others(ratio: Floats) -> _SlowStretch | None:
    """The stage that is slow for what it computes; `ratio` [usual steps, pp]."""
    stage = int(np.median(ratio, axis=0).argmax())
    least = float(np.quantile(ratio[:, stage], LIMITS.low_quantile))
    if least < LIMITS.min_ratio:
        return None
    is_end = stage in (0, ratio.shape[1] - 1)
    may_be_embeddings = is_end and least < LIMITS.clear_of_embeddings
    return _SlowStretch(stage, 0, len(ratio), may_be_embeddings=may_be_embeddings)
