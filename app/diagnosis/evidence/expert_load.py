"""Uneven loads of experts: do computations follow the tokens that each rank's experts get?

A rank whose experts get more tokens computes longer, forward and backward of a micro-batch alike,
although these run at different times: the load is part of the micro-batch, not of the hour. Two
forms are known.

- Apart: computations hold the experts' work alone. Each rank varies by itself, and as tokens only
  move within an expert-parallel block, one rank's surplus is another one's lack.
- Together: computations hold the exchange of tokens as well. All ranks of the block wait for its
  fullest expert, so all of them take longer for the same micro-batches, unlike other blocks.

Layers route differently, so stages differ. Long sequences lengthen a micro-batch on all stages of
their own replica, and a busy host or GPU lengthens what runs next to each other in time. Deviations
are from the worker's own mean of the step, so a slow worker or a long stage shows nothing here.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.sequence_lengths import column_r
from app.diagnosis.evidence.slowness import slowness
from app.diagnosis.evidence.usual_steps import is_usual, usual_steps
from app.diagnosis.features import Computations, Features
from app.diagnosis.statistics.robust import quantiles
from app.trace.window import Floats, Ints

Flags = NDArray[np.bool_]

# Steps sampled for the correlations, fewer where one has very many computations. Of every block and
# stage enough are left that noise of one of thousands of blocks is not taken for loads.
MAX_STEPS = 32
MAX_SAMPLED_COMPUTATIONS = 1 << 19  # of one direction
MIN_BLOCK_COMPUTATIONS = 1 << 10


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """What uneven loads of experts show. All were chosen on made jobs."""

    # Micro-batches times steps of a worker: fewer show no variation.
    min_cells: int = 12
    # The part of the variation that forward and backward share, a standard deviation, and its
    # correlation. Healthy workers share next to nothing; clock noise of a worker that lasts for a
    # step is up to 0.03.
    min_spread: float = 0.04
    min_r: float = 0.4
    # Sequences make the stages of a replica agree; routing, which differs by layer, does not.
    max_stages_r: float = 0.4
    # Lengths that a sampler makes alike on all dp ranks make blocks agree; routing does not.
    max_blocks_r: float = 0.4
    # A busy host or GPU makes neighbouring micro-batches agree, as a share of forward and backward.
    max_neighbour_share: float = 0.5
    # Tokens only move within a block: its mean varies far less than that of independent ranks, as
    # a share of its variance.
    max_conserved: float = 0.3
    # Ranks of a block that wait for its fullest expert share this much of their variation.
    min_together: float = 0.5
    # Correlation from which time goes with a column that is sent.
    min_column_r: float = 0.6
    # A pause is no load: at most so many times the usual time counts.
    max_load: float = 4.0


LIMITS = LoadLimits()


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How computations vary from micro-batch to micro-batch, by block and stage.

    `varying` [blocks, pp] are those beyond noise; the figures are of these, or of all if there are
    none. `has_lasting`: the same place of every block is slow in the whole window, which counts as
    varying. `spread` is the standard deviation that forward and backward share, as a share of the
    usual time; `pearson_r` their correlation. `neighbours` is what a micro-batch shares with the
    next one, as a share of that. `together` is what ranks of a block share, 1 = all of it.
    `stages_r` is the correlation of one stage with the other stages of the replica, None with one
    stage; `blocks_r` that of a block with the other blocks, None with one block. `conserved` is the
    variance of the block's mean over that of as many independent ranks: 0 where tokens only move
    between ranks, 1 without a link. `tokens_r` and `squares_r` are correlations with `tokens` and
    `seq_len_sq`, None where unknown.
    """

    varying: Flags
    has_lasting: bool
    spread: float
    pearson_r: float
    neighbours: float
    together: float
    stages_r: float | None
    blocks_r: float | None
    conserved: float
    tokens_r: float | None
    squares_r: float | None

    @property
    def varies(self) -> bool:
        """Whether forward and backward vary together, beyond noise, and with the micro-batch."""
        return bool(self.varying.any()) and self.neighbours <= LIMITS.max_neighbour_share

    @property
    def is_together(self) -> bool:
        """Whether the ranks of a block take longer for the same micro-batches."""
        return self.together >= LIMITS.min_together

    @property
    def by_sequences(self) -> bool:
        """Whether lengths explain the variation: those that are sent, or all stages alike."""
        if self.squares_r is not None and self.squares_r >= LIMITS.min_column_r:
            return self.tokens_r is None or self.squares_r >= self.tokens_r
        return self.stages_r is not None and self.stages_r > LIMITS.max_stages_r

    @property
    def by_experts(self) -> bool:
        """Whether tokens, the balance within blocks, blocks that differ, or stages show experts."""
        if self.squares_r is not None and self.squares_r >= LIMITS.min_column_r:
            return self.tokens_r is not None and self.tokens_r > self.squares_r
        if self.tokens_r is not None and self.tokens_r >= LIMITS.min_column_r:
            return True
        if self.conserved <= LIMITS.max_conserved or self.has_lasting:
            return True
        if self.is_together and self.blocks_r is not None:
            # Lengths of one dp rank say nothing about those of the next.
            return self.blocks_r <= LIMITS.max_blocks_r
        # Inputs that only one stage works on, as images, vary on that stage alone.
        if not self.is_together and self.varying.any(axis=0).sum() < 2:
            return False
        return self.stages_r is not None and self.stages_r <= LIMITS.max_stages_r

    @property
    def is_by_routing(self) -> bool:
        """Whether computations vary, and experts are what explains it."""
        return self.varies and self.by_experts and not self.by_sequences


def block_size(case: Case) -> int:
    """dp ranks of an expert-parallel block; of a job without experts all."""
    sizes = case.parallelism
    is_known = sizes.ep_size > 1 and sizes.dp_size % sizes.ep_size == 0
    return sizes.ep_size if is_known else sizes.dp_size


@evidence
def expert_load(case: Case) -> ExpertLoad | None:
    """Loads over the usual steps; None where there is nothing to compare."""
    parts = [part for part in (_deviations(case, group) for group in case.groups) if part]
    if not parts:
        return None
    forward, backward = _cells([part[0] for part in parts]), _cells([part[1] for part in parts])
    if forward.shape[2] < LIMITS.min_cells:
        return None
    size = block_size(case)
    own, squares, varying = _varying(forward, backward, size)
    lasting, lasting_spread = _lasting(case, size)
    chosen = varying if varying.any() else np.ones(varying.shape, np.bool_)
    of_workers = np.repeat(chosen, size, axis=0)
    both = (forward + backward) / 2
    common = max(0.0, float(own[chosen].mean()))
    # Searched only for what varies.
    neighbours = together = 0.0
    if varying.any():
        later = _cells([_with_next(*part) for part in parts])[of_workers]
        neighbours = _share(float(later.mean()), common) if later.size else 0.0
        shared = _shared_in_blocks(forward, backward, size)[chosen]
        together = _share(float(shared.mean()), common)
    return ExpertLoad(
        varying=varying | lasting,
        has_lasting=bool(lasting.any()),
        spread=max(float(np.sqrt(common)), lasting_spread),
        pearson_r=_share(own[chosen].sum(), math.sqrt(squares[:, chosen].sum(axis=1).prod())),
        neighbours=neighbours,
        together=together,
        stages_r=_between_stages(both, of_workers),
        blocks_r=_between_blocks(both, chosen, size),
        conserved=_conserved(both, case.parallelism.ep_size),
        tokens_r=column_r(case, "tokens"),
        squares_r=column_r(case, "seq_len_sq"),
    )


@evidence
def slow_in_every_block(case: Case) -> Flags:
    """[dp, pp], workers that are slow at the same place of each of several blocks.

    That place has the same experts in all of them. If all places are slow, nothing tells experts
    from GPUs.
    """
    sizes = case.parallelism
    size, peers = block_size(case), slowness(case)
    if sizes.ep_size < 2 or peers is None or sizes.dp_size == size:
        return np.zeros((sizes.dp_size, sizes.pp_size), np.bool_)
    is_slow = (peers.slow_by[usual_steps(case)].mean(axis=0) > 1.0).reshape(-1, size, sizes.pp_size)
    everywhere = is_slow.all(axis=0)
    return np.tile(everywhere & ~everywhere.all(axis=0), (len(is_slow), 1))


def _lasting(case: Case, size: int) -> tuple[Flags, float]:
    """[blocks, pp] with a place that is slow in every block, and how far its ranks differ."""
    slow, peers = slow_in_every_block(case), slowness(case)
    blocks: Flags = np.asarray(slow.reshape(-1, size, slow.shape[1]).any(axis=1))
    if peers is None or not blocks.any():
        return blocks, 0.0
    level = peers.slow_by[usual_steps(case)].mean(axis=0)
    return blocks, float(np.log(level)[np.repeat(blocks, size, axis=0)].std())


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _deviations(case: Case, group: Features) -> tuple[Floats, Floats, Flags] | None:
    """[dp, pp, items, steps] of forward and backward, and [items - 1] whether the next one follows.

    Deviations of logarithms from the worker's mean of the step and chunk, and from that of all dp
    ranks and steps for the micro-batch's position. None where directions do not correspond.
    """
    forward, backward = group.forward, group.backward
    usual = np.flatnonzero(is_usual(case)[group.positions])
    if forward is None or backward is None or not usual.size:
        return None
    usual = usual[:: -(-usual.size // _max_steps(case, forward))]
    sides = [_centred(side, usual) for side in (forward, backward)]
    if not sides[0].size or sides[0].shape != sides[1].shape:
        return None
    items = forward.chunk[forward.shared], forward.microbatch[forward.shared]
    follows = (np.diff(items[0]) == 0) & (np.diff(items[1]) == 1)
    return sides[0], sides[1], follows


def _with_next(one: Floats, other: Floats, follows: Flags) -> Floats:
    """[dp, pp, pairs, steps], mean product of directions of a micro-batch and the next one."""
    products = other[:, :, :-1] * one[:, :, 1:] + one[:, :, :-1] * other[:, :, 1:]
    return products[:, :, follows] / 2


def _cells(parts: list[Floats]) -> Floats:
    """[dp, pp, cells], all parts [dp, pp, items, steps] side by side."""
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def _max_steps(case: Case, side: Computations) -> int:
    """At most so many steps are sampled; a stride may leave half of these."""
    num_items = max(side.shared.size, 1)
    of_step = math.prod(side.duration_s.shape[:2]) * num_items
    of_worker = max(2 * LIMITS.min_cells, MIN_BLOCK_COMPUTATIONS // block_size(case))
    enough = -(-of_worker // num_items)
    return min(MAX_STEPS, max(enough, MAX_SAMPLED_COMPUTATIONS // of_step))


def _centred(side: Computations, usual: Ints) -> Floats:
    """[dp, pp, items, steps], deviations of logarithms; 0 for computations of 0 s."""
    duration_s = side.duration_s[..., usual]
    logs = np.log(np.where(duration_s > 0, duration_s, 1.0))
    chunk = side.chunk[side.shared]
    limit = np.log(LIMITS.max_load)
    begins = 1 + np.flatnonzero(np.diff(chunk))
    for of_chunk in np.split(logs, begins, axis=2) if chunk.size else ():
        of_chunk -= quantiles(of_chunk.transpose(0, 1, 3, 2), 0.5)[:, :, None]
        np.clip(of_chunk, -limit, limit, out=of_chunk)
        # Not the mean, which would hold a part of what one block's micro-batches take longer.
        of_items = of_chunk.transpose(1, 2, 0, 3).reshape(*of_chunk.shape[1:3], -1)
        of_chunk -= quantiles(of_items, 0.5)[..., None]
        of_chunk -= of_chunk.mean(axis=2, keepdims=True)
    return logs


def _varying(forward: Floats, backward: Floats, size: int) -> tuple[Floats, Floats, Flags]:
    """[blocks, pp], covariance of the directions, and whether they vary alike beyond noise.

    In between [2, blocks, pp], their variances: the mean of the deviations is 0.
    """
    forward, backward = _by_block(forward, size), _by_block(backward, size)
    own, *squares = (
        np.einsum("bdsc,bdsc->bs", one, other) / math.prod(one.shape[1::2])
        for one, other in ((forward, backward), (forward, forward), (backward, backward))
    )
    are_alike = own >= LIMITS.min_r * np.sqrt(squares[0] * squares[1])
    varying = (own >= LIMITS.min_spread**2) & are_alike
    # A block with uneven loads in one stage may have them in others to a lesser degree.
    is_some = own >= (LIMITS.min_spread / 2) ** 2
    varying |= varying.any(axis=1, keepdims=True) & is_some & are_alike
    return own, np.stack(squares), varying


def _by_block(values: Floats, size: int) -> Floats:
    """[blocks, dp ranks of a block, ...] of [dp, ...]."""
    return values.reshape(-1, size, *values.shape[1:])


def _shared_in_blocks(forward: Floats, backward: Floats, size: int) -> Floats:
    """[blocks, pp], mean covariance of one rank's forward and another one's backward."""
    if size < 2:
        return np.zeros((forward.shape[0], forward.shape[1]))
    one, other = _by_block(forward, size), _by_block(backward, size)
    of_all = (one.sum(axis=1) * other.sum(axis=1)).mean(axis=2)
    of_own = (one * other).mean(axis=3).sum(axis=1)
    return np.asarray((of_all - of_own) / (size * (size - 1)))


def _between_stages(both: Floats, chosen: Flags) -> float | None:
    """Correlation of half of the stages with the others, over cells of the chosen replicas."""
    if both.shape[1] < 2:
        return None
    rows = chosen.any(axis=1)
    one, other = (both[:, first::2].mean(axis=1)[rows].ravel() for first in (0, 1))
    return _pearson(one, other)


def _between_blocks(both: Floats, chosen: Flags, size: int) -> float | None:
    """Correlation of the chosen blocks [blocks, pp] with the mean of all others of the stage."""
    if len(both) == size:
        return None
    blocks = _by_block(both, size).mean(axis=1)
    others = (blocks.sum(axis=0) - blocks) / (len(blocks) - 1)
    return _pearson(blocks[chosen].ravel(), others[chosen].ravel())


def _conserved(both: Floats, ep_size: int) -> float:
    """Variance of the block's mean over that of as many independent ranks."""
    if ep_size < 2 or len(both) % ep_size:
        return 1.0
    blocks = _by_block(both, ep_size)
    within = float(blocks.var(axis=1, ddof=1).mean())
    mean = blocks.mean(axis=1)
    of_mean = float((mean - mean.mean()).var())
    return of_mean * ep_size / within if within > 0 else 1.0


def _pearson(one: Floats, other: Floats) -> float:
    one, other = one - one.mean(), other - other.mean()
    size = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / size if size > 0 else 0.0


NOT_TOLD_APART = (
    "computations vary by rank and micro-batch, as uneven experts or uneven sequences make them: "
    "without token counts these look alike"
)


def is_not_told_apart(case: Case) -> bool:
    """Whether a job with experts varies in a way that sequences may explain as well."""
    if case.parallelism.ep_size < 2:
        return False
    load = expert_load(case)
    return load is not None and load.varies and not (load.by_sequences or load.by_experts)
