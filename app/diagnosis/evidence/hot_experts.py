"""Experts that stay popular for some steps: which workers do they make slow, until others are?

A router's favourite changes from time to time. Until then the rank that holds it, the block that
waits for it, or all ranks of a stage whose blocks have the same favourite compute longer, step
after step, as on a slow GPU or in a long stage. Then others do, and the first ones are as fast as
before: work that moves on as it is put down was routed. `expert_load.py` is for loads that change
with every micro-batch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.expert_load import block_size
from app.diagnosis.statistics.episodes import runs_of
from app.trace.window import Floats

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HotLimits:
    """From when on experts are hot in turn. Chosen on made jobs, unless a comment says otherwise.

    The excess and the deviations are those of workers that are slow in turn (turns_of_few.py).
    """

    min_excess: float = 0.1
    min_deviations: float = 6.0
    # Workers that are not hot: such a quantile of a stage's ranks, and of their steps.
    of_ranks: float = 0.25
    of_steps: float = 0.15
    # A stay takes so many steps: a single one may be a pause.
    min_stay: int = 2
    # Places that take over from each other.
    min_places: int = 2
    # From the first hot step to the last so many are hot: where one place is put down, another one
    # is taken up. Two GPUs that are slow one after the other leave a gap, or overlap.
    min_share_hot: float = 0.8
    # The first quartile of the absolute deviations, in standard deviations, as up to half of the
    # workers may be hot; of the normal distribution.
    quartile: float = 0.3186


LIMITS = HotLimits()


@dataclass(frozen=True, slots=True)
class HotExperts:
    """Workers that hold hot experts or wait for them, and times over those with even loads.

    Shapes: [steps, dp, pp]. Of `forward` and `backward` the peers that have less to do meanwhile
    are below 1, and all that hot experts leave alone are 1.
    """

    is_hot: Flags
    forward: Floats
    backward: Floats


@evidence
def hot_experts(case: Case) -> HotExperts | None:
    """Hot experts that stay and move; None where there are none, or the job has no experts."""
    if case.parallelism.ep_size < 2 or case.forward is None or case.backward is None:
        return None
    sides = [_over_least(pace.mean_s) for pace in (case.forward, case.backward)]
    excess = np.minimum(*(ratio for ratio, _ in sides)) - 1
    if not (excess > -1).all():
        return None
    scale = float(np.quantile(np.abs(excess), 0.25)) / LIMITS.quartile
    is_hot = _staying(excess >= max(LIMITS.min_excess, LIMITS.min_deviations * scale))
    is_hot &= _moves(is_hot.reshape(len(is_hot), -1)) | _stages_that_move(is_hot)
    if not is_hot.any():
        return None
    forward, backward = (
        _over_even(ratio, least_s, is_hot, block_size(case)) for ratio, least_s in sides
    )
    return HotExperts(is_hot, forward, backward)


def _over_even(ratio: Floats, least_s: Floats, is_hot: Flags, size: int) -> Floats:
    """[steps, dp, pp], times over those with even loads, by times `ratio` over the least ones.

    Even loads are those of the stage's blocks without hot experts, if all have some those of its
    steps without; else its mean, or its least, whichever is nearer to stages without hot experts:
    tokens move between the ranks, so that their mean is more likely where nothing tells.
    """
    num_steps, _, pp_size = ratio.shape
    of_block = is_hot.reshape(num_steps, -1, size, pp_size).any(axis=2)
    in_hot = np.repeat(of_block, size, axis=1)
    is_cold: Flags = ~np.asarray(in_hot.any(axis=1))
    even = np.ones((num_steps, 1, pp_size))
    cold_s = least_s[is_cold.all(axis=0)]
    for stage in np.flatnonzero(~is_cold.all(axis=0)):
        of_stage, hot = ratio[:, :, stage], ~is_cold[:, stage]
        level = float(of_stage[hot].mean())
        if (~hot).sum() >= LIMITS.min_stay:
            level = float(of_stage[~hot].mean())
        elif is_hot[hot][:, :, stage].all() or (
            cold_s.size and np.median(cold_s) < np.sqrt(level) * least_s[stage]
        ):
            level = 1.0
        others = np.where(in_hot[:, :, stage], 0.0, of_stage).sum(axis=1)
        num_others = (~in_hot[:, :, stage]).sum(axis=1)
        even[:, 0, stage] = np.where(num_others > 0, others / np.maximum(num_others, 1), level)
    return np.where(in_hot, ratio / even, 1.0)


def _over_least(took_s: Floats) -> tuple[Floats, Floats]:
    """[steps, dp, pp], times over those of the workers and steps with the least, and these [pp].

    What a step takes longer on most workers is divided out.
    """
    usual_s = np.quantile(np.quantile(took_s, LIMITS.of_ranks, axis=1), LIMITS.of_steps, axis=0)
    ratio = np.divide(took_s, usual_s, out=np.zeros(took_s.shape), where=usual_s > 0)
    usual = np.quantile(ratio, LIMITS.of_ranks, axis=(1, 2), keepdims=True)
    return np.divide(ratio, usual, out=np.zeros(took_s.shape), where=usual > 0), usual_s


def _staying(is_hot: Flags) -> Flags:
    """The flags [steps, dp, pp] without stays that are too short."""
    stays = np.zeros(is_hot.shape, np.bool_)
    for worker in np.ndindex(is_hot.shape[1:]):
        for first, end in runs_of(is_hot[:, *worker]):
            stays[first:end, *worker] = end - first >= LIMITS.min_stay
    return stays


def _stages_that_move(is_hot: Flags) -> Flags:
    """[pp], whether hot experts move within a stage: each layer has a router of its own."""
    return np.array([_moves(is_hot[:, :, stage]) for stage in range(is_hot.shape[2])])


def _moves(is_hot: Flags) -> bool:
    """Whether several places of [steps, workers] are hot, one after the other.

    Workers that are hot in the same step are one place.
    """
    in_step = is_hot.any(axis=1)
    if not in_step.any():
        return False
    hot = np.flatnonzero(in_step)
    if hot.size < LIMITS.min_share_hot * (hot[-1] + 1 - hot[0]):
        return False
    place = np.arange(is_hot.shape[1])
    for of_step in is_hot[hot]:
        together = np.unique(place[of_step])
        place[np.isin(place, together)] = together[0]
    return np.unique(place[is_hot.any(axis=0)]).size >= LIMITS.min_places
