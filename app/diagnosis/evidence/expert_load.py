"""Uneven loads of experts: which worker computes longer for a micro-batch than its peers?

A rank whose experts get more tokens computes longer, forward and backward alike. The tokens are
those of the whole expert-parallel block, so one rank's surplus is another one's lack, and layers
route differently, so stages differ. Long sequences lengthen a micro-batch on all stages of their
own replica, and take nothing from others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.features import Features, work_signals
from app.diagnosis.evidence.sequence_lengths import column_r, relative_durations
from app.trace.window import Floats

# Steps sampled for the correlations.
MAX_STEPS = 32
# The part of the variation that forward and backward share, and its correlation. Healthy workers
# share next to nothing; clock noise of a worker that lasts for a step is up to 0.03.
MIN_SPREAD = 0.05
MIN_R = 0.7
# Sequences make the stages of a replica agree; routing, which differs by layer, does not.
MAX_STAGES_R = 0.4
# Tokens only move within a block: its mean varies far less than that of independent ranks.
MAX_CONSERVED = 0.3
# Time goes with a column that is sent, or does not.
MIN_COLUMN_R = 0.6


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How the computations of an expert-parallel block differ for the same micro-batch.

    `spread` is the standard deviation that forward and backward share, as a share of the usual
    time; `pearson_r` their correlation. `stages_r` is the correlation of one stage with the other
    stages of the replica, None with one stage. `conserved` is the variance of the block's mean over
    that of as many independent ranks: 0 where tokens only move between ranks, 1 without a link.
    `tokens_r` and `squares_r` are correlations with `tokens` and `seq_len_sq`, None where unknown.
    """

    spread: float
    pearson_r: float
    stages_r: float | None
    conserved: float
    tokens_r: float | None
    squares_r: float | None

    @property
    def varies(self) -> bool:
        """Whether forward and backward vary together, beyond noise."""
        return self.spread >= MIN_SPREAD and self.pearson_r >= MIN_R

    @property
    def by_sequences(self) -> bool:
        """Whether lengths explain the variation: those that are sent, or all stages alike."""
        if self.squares_r is not None and self.squares_r >= MIN_COLUMN_R:
            return self.tokens_r is None or self.squares_r >= self.tokens_r
        return self.stages_r is not None and self.stages_r > MAX_STAGES_R

    @property
    def by_experts(self) -> bool:
        """Whether tokens, the balance within blocks, or stages show experts."""
        if self.squares_r is not None and self.squares_r >= MIN_COLUMN_R:
            return self.tokens_r is not None and self.tokens_r > self.squares_r
        if self.tokens_r is not None and self.tokens_r >= MIN_COLUMN_R:
            return True
        if self.conserved <= MAX_CONSERVED:
            return True
        return self.stages_r is not None and self.stages_r <= MAX_STAGES_R


def relative_loads(case: Case, group: Features) -> tuple[Floats, Floats] | None:
    """Forward and backward [dp, pp, items, steps] over the usual time of stage, item and step.

    Slow workers are corrected first. None where items of the directions do not correspond.
    """
    forward, backward = group.forward, group.backward
    if forward is None or backward is None:
        return None
    sides = [forward.duration_s, backward.duration_s]
    if not sides[0].size or sides[0].shape != sides[1].shape:
        return None
    if case.slowness is not None:
        slow_by = case.slowness.slow_by[group.positions]
        slow_by = np.where(case.cached(hot_by_routing), 1.0, slow_by)
        sides = [each / slow_by.transpose(1, 2, 0)[:, :, None, :] for each in sides]
    one, other = (relative_durations(each) for each in sides)
    return one, other


def hot_by_routing(case: Case) -> NDArray[np.bool_]:
    """[dp, pp], slow workers whose experts are the reason, not their GPU.

    The same place of every expert-parallel block has the same experts: where it is slow in each of
    several blocks, or gets more tokens than its peers by half of its slowness, that is routing.
    """
    sizes = case.parallelism
    found = np.zeros((sizes.dp_size, sizes.pp_size), np.bool_)
    if sizes.ep_size < 2 or case.slowness is None:
        return found
    slow_by = case.slowness.slow_by[case.usual_steps].mean(axis=0)
    is_slow = slow_by > 1.0
    num_blocks = sizes.dp_size // sizes.ep_size
    if num_blocks > 1:
        everywhere = is_slow.reshape(num_blocks, sizes.ep_size, sizes.pp_size).all(axis=0)
        # If all places are slow everywhere, nothing tells them from their GPUs.
        found |= np.tile(everywhere & ~everywhere.all(axis=0), (num_blocks, 1))
    tokens = work_signals(case.replay).get("tokens")
    if tokens is not None:
        mean = np.nan_to_num(np.nanmean(tokens, axis=0))
        usual = np.maximum(np.median(mean, axis=0), 1e-9)
        found |= is_slow & (mean / usual - 1 >= 0.5 * (slow_by - 1))
    return found


def expert_load(case: Case) -> ExpertLoad | None:
    """Loads over the usual steps; None where there is nothing to compare."""
    ep_size = case.parallelism.ep_size
    parts = []
    for group in case.groups:
        usual = np.flatnonzero(case.is_usual[group.positions])
        usual = usual[:: -(-max(1, usual.size) // MAX_STEPS)]
        found = relative_loads(case, group) if usual.size else None
        if found is not None:
            parts.append([each[..., usual].reshape(*each.shape[:2], -1) for each in found])
    if not parts:
        return None
    forward, backward = (np.concatenate([part[k] for part in parts], axis=2) for k in (0, 1))
    if forward.shape[2] < 3:
        return None
    forward, backward = (_clipped(each - 1) for each in (forward, backward))
    common = (forward * backward).mean()
    both = (forward + backward) / 2
    deviations = forward.std() * backward.std()
    return ExpertLoad(
        spread=float(np.sqrt(max(0.0, float(common)))),
        pearson_r=_pearson(forward.ravel(), backward.ravel()) if deviations > 0 else 0.0,
        stages_r=_between_stages(both),
        conserved=_conserved(both, max(ep_size, 1)),
        tokens_r=_column_r(case, "tokens"),
        squares_r=_column_r(case, "seq_len_sq"),
    )


# A pause is no load: at most so many times the usual time counts.
_MAX_LOAD = 4.0


def _clipped(relative: Floats) -> Floats:
    """Deviations [dp, pp, cells]; far ones are pauses."""
    return np.asarray(np.clip(relative, -1.0, _MAX_LOAD - 1))


def _between_stages(both: Floats) -> float | None:
    """Correlation of half of the stages with the others, over replicas and cells."""
    if both.shape[1] < 2:
        return None
    one, other = (both[:, first::2].mean(axis=1).ravel() for first in (0, 1))
    return _pearson(one, other)


def _conserved(both: Floats, ep_size: int) -> float:
    """Variance of the block's mean over that of as many independent ranks."""
    dp_size, pp_size, cells = both.shape
    if ep_size < 2 or dp_size % ep_size:
        return 1.0
    blocks = both.reshape(dp_size // ep_size, ep_size, pp_size, cells)
    within = float(blocks.var(axis=1, ddof=1).mean())
    mean = blocks.mean(axis=1)
    of_mean = float((mean - mean.mean()).var())
    return of_mean * ep_size / within if within > 0 else 1.0


def _pearson(one: Floats, other: Floats) -> float:
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one * one).sum() * (other * other).sum()))
    return float((one * other).sum() / size) if size > 0 else 0.0


def _column_r(case: Case, name: str) -> float | None:
    return case.cached_for(column_r, name)


NOT_TOLD_APART = (
    "computations vary by rank and micro-batch, as uneven experts or uneven sequences make them: "
    "without token counts these look alike"
)


def is_not_told_apart(case: Case) -> bool:
    """Whether a job with experts varies in a way that sequences may explain as well."""
    if case.parallelism.ep_size < 2:
        return False
    found = case.cached(expert_load)
    return found is not None and found.varies and not (found.by_sequences or found.by_experts)
