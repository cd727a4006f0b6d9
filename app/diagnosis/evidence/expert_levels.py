"""How much longer do experts make computations, and which slow workers do they explain?

The tokens of a micro-batch are as many for every rank of a stage, if they are spread evenly. So
where ranks vary independently, even loads are the mean of the stage. Where the ranks of a block
wait for its fullest expert, they take longer than with even loads, which the other blocks show; the
fullest has never less than an even share, so a block whose lightest micro-batches still take longer
than the other blocks is slow for another reason as well.
"""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence import expert_load as expert_loads
from app.diagnosis.evidence.expert_load import (
    ExpertLoad,
    Flags,
    block_size,
    expert_load,
    slow_in_every_block,
)
from app.diagnosis.evidence.hot_experts import hot_experts
from app.diagnosis.evidence.slowness import slowness
from app.diagnosis.evidence.usual_steps import is_usual, usual_steps
from app.diagnosis.features import Features, work_signals
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """Up to which slowness experts explain it. All were chosen on made jobs."""

    # The lightest micro-batches of a block, a share of all, and the part of its mean excess that
    # they may have.
    lightest: float = 0.05
    max_lightest_share: float = 0.6
    # Stages differ by the loads of their few ranks within so many standard errors.
    max_stage_errors: float = 3.0
    # Some experts stay popular. Before workers are compared, a worker's mean load is taken to
    # deviate by this share of the deviation from micro-batch to micro-batch; where tokens are seen
    # to move within blocks by half of it, which counts as so many workers.
    lasting_to_spread: float = 0.9
    assumed_workers: float = 3.0
    # A worker with a mean load so many deviations above the others' is slow by itself.
    max_worker_deviations: float = 4.0
    # More tokens than the peers explain a slowness from this share of it.
    min_share_of_tokens: float = 0.5


LIMITS = LevelLimits()


@dataclass(frozen=True, slots=True)
class ExpertLevels:
    """Mean loads in the window.

    `worker` [dp, pp] is the ratio of each worker's mean time to that with even loads. `lightest`
    [dp, pp] is the same of the lightest micro-batches of its block. `deviation` is the standard
    deviation of the logarithm between workers. `stage` [pp] is the ratio of a stage's mean time to
    the other stages', where the loads of its few ranks explain it, else 1.
    """

    worker: Floats
    lightest: Floats
    deviation: float
    stage: Floats


def uneven_workers(case: Case, load: ExpertLoad) -> Flags:
    """[dp, pp], workers of the blocks and stages with uneven loads."""
    return np.repeat(load.varying, block_size(case), axis=0)


def expert_times(case: Case, group: Features) -> Floats | None:
    """[dp, pp, items, steps], computations' time over that with even loads; 1 where even.

    What slow workers take longer whatever their load stays out. None where loads are not known.
    """
    load, levels = expert_load(case), expert_levels(case)
    ratio = None if load is None else _relative(case, load, group)
    if load is None or levels is None or ratio is None:
        return None
    # A stage with more tokens than the next one loses by that as well.
    ratio = ratio * levels.stage[:, None, None]
    if (peers := slowness(case)) is not None:
        lasting = peers.slow_by[group.positions].transpose(1, 2, 0)
        lasting = np.where(hot_by_routing(case)[..., None], 1.0, lasting)
        ratio = ratio / lasting[:, :, None, :]
    return np.where(uneven_workers(case, load)[..., None, None], ratio, 1.0)


@evidence
def expert_levels(case: Case) -> ExpertLevels | None:
    """Levels over the usual steps; None where nothing varies with loads."""
    load = expert_load(case)
    if load is None or not load.varying.any():
        return None
    parts = []
    for group in case.groups:
        ratio, usual = _relative(case, load, group), is_usual(case)[group.positions]
        if ratio is not None and usual.any():
            parts.append(ratio[..., usual].reshape(*ratio.shape[:2], -1))
    if not parts:
        return None
    ratio = np.concatenate(parts, axis=2)
    size, level = block_size(case), ratio.mean(axis=2)
    of_block = ratio.reshape(-1, size, *ratio.shape[1:]).mean(axis=1)
    logs = np.log(np.maximum(level, 1e-9))
    stage_error = None if load.is_together else _stage_error(logs, size)
    return ExpertLevels(
        worker=level,
        lightest=np.repeat(np.quantile(of_block, LIMITS.lightest, axis=2), size, axis=0),
        deviation=_deviation(logs[uneven_workers(case, load)], load),
        stage=_stage_ratios(case, stage_error),
    )


def _deviation(logs: Floats, load: ExpertLoad) -> float:
    """Standard deviation between workers; of few workers, mostly what is usual.

    Never below what is usual, unless tokens are seen to move within blocks: there a popular rank is
    paid for by its peers, and what is left over is not the load.
    """
    measured = MAD_TO_DEVIATION * float(np.median(np.abs(logs - np.median(logs))))
    if load.conserved > expert_loads.LIMITS.max_conserved:
        return max(measured, LIMITS.lasting_to_spread * load.spread)
    squares = logs.size * measured**2 + LIMITS.assumed_workers * (load.spread / 2) ** 2
    return float(np.sqrt(squares / (logs.size + LIMITS.assumed_workers)))


def _stage_error(logs: Floats, size: int) -> float | None:
    """Standard error of a stage's mean by the levels of its blocks; None with one block.

    Tokens that only move within a block leave its mean, and that of its stage, as it is.
    """
    blocks = logs.reshape(-1, size, logs.shape[1]).mean(axis=1)
    if len(blocks) < 2:
        return None
    return float(np.sqrt(blocks.var(axis=0, ddof=1).mean() / len(blocks)))


def _stage_ratios(case: Case, stage_error: float | None) -> Floats:
    """[pp], each stage's time over that of the stages that only loads make different."""
    ones = np.ones(case.parallelism.pp_size)
    if case.forward is None or case.backward is None or stage_error is None or ones.size < 2:
        return ones
    took_s = (case.forward.mean_s + case.backward.mean_s)[usual_steps(case)].mean(axis=(0, 1))
    if not (took_s > 0).all():
        return ones
    logs = np.log(took_s)
    is_alike = np.abs(logs - np.median(logs)) <= LIMITS.max_stage_errors * stage_error
    if is_alike.sum() < 2:
        return ones
    return np.where(is_alike, took_s / took_s[is_alike].mean(), 1.0)


def _relative(case: Case, load: ExpertLoad, group: Features) -> Floats | None:
    """[dp, pp, items, steps], time over the mean of the reference, in the quicker direction.

    A pause is in one direction only. The reference is the stage's ranks with even loads; without
    any the stage, or the block itself where its ranks wait for one another.
    """
    forward, backward = group.forward, group.backward
    if forward is None or backward is None or not forward.duration_s.size:
        return None
    if forward.duration_s.shape != backward.duration_s.shape:
        return None
    is_even = ~uneven_workers(case, load)
    size = block_size(case) if load.is_together else is_even.shape[0]

    def usual_s(duration_s: Floats) -> Floats:
        return _reference(duration_s.mean(axis=(2, 3)), is_even, size)[..., None, None]

    ratio = np.minimum(forward.over_usual(usual_s), backward.over_usual(usual_s))
    by_step = np.median(ratio[is_even if is_even.any() else ~is_even], axis=(0, 1))
    usual = np.median(by_step)
    if usual > 0:
        ratio = ratio / np.where(by_step > 0, by_step / usual, 1.0)
    cells = ratio.reshape(*ratio.shape[:2], -1).mean(axis=2)
    return np.asarray(ratio / np.maximum(_reference(cells, is_even, size), 1e-9)[..., None, None])


def _reference(mean: Floats, is_even: Flags, size: int) -> Floats:
    """[dp, pp], the mean of the even ranks of a worker's stage, else of its `size` ranks."""
    of_block = mean.reshape(-1, size, mean.shape[1]).mean(axis=1)
    reference = np.repeat(of_block, size, axis=0)
    for stage in np.flatnonzero(is_even.any(axis=0)):
        reference[:, stage] = mean[is_even[:, stage], stage].mean()
    return reference


@evidence
def hot_by_routing(case: Case) -> Flags:
    """[dp, pp], slow workers whose experts are the reason, not their GPU.

    The same place of every expert-parallel block has the same experts: where it is slow in each of
    several blocks, or gets more tokens than its peers by half of its slowness, that is routing. So
    is a mean load no further from even than those of the other workers, and that of a block whose
    lightest micro-batches take little longer than elsewhere, and so are hot experts that move.
    """
    sizes, peers = case.parallelism, slowness(case)
    if sizes.ep_size < 2 or peers is None:
        return np.zeros((sizes.dp_size, sizes.pp_size), np.bool_)
    slow_by = peers.slow_by[usual_steps(case)]
    most, slow_by = slow_by.max(axis=0), slow_by.mean(axis=0)
    is_hot = _as_loads_make(case, most / np.maximum(slow_by, 1e-9))
    tokens = work_signals(case.replay).get("tokens")
    if tokens is not None:
        mean = np.nan_to_num(np.nanmean(tokens, axis=0))
        usual = np.maximum(np.median(mean, axis=0), 1e-9)
        is_hot |= mean / usual - 1 >= LIMITS.min_share_of_tokens * (slow_by - 1)
    moving = hot_experts(case)
    is_hot = slow_in_every_block(case) | ((slow_by > 1.0) & is_hot)
    return np.asarray(is_hot if moving is None else is_hot | moving.is_hot.any(axis=0))


def _as_loads_make(case: Case, at_worst: Floats) -> Flags:
    """[dp, pp], workers that are slower by no more than uneven loads make them.

    `at_worst` [dp, pp] is a worker's slowness in its worst steps over that of the whole window.
    """
    load, levels = expert_load(case), expert_levels(case)
    if load is None or levels is None or not load.is_by_routing:
        return np.zeros(at_worst.shape, np.bool_)
    uneven = uneven_workers(case, load)
    if load.is_together:
        # Of a block all stages together, as one stage has few micro-batches.
        excess, lightest = (
            np.where(uneven, ratio - 1, 0.0).sum(axis=1, keepdims=True)
            for ratio in (levels.worker, levels.lightest)
        )
        is_light = lightest <= LIMITS.max_lightest_share * np.maximum(excess, 0.0)
    else:
        level = at_worst * levels.worker / np.median(levels.worker, axis=0)
        is_light = np.log(level) <= LIMITS.max_worker_deviations * levels.deviation
    return np.asarray(uneven & is_light)
