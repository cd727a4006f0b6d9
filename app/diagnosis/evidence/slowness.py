"""Which workers compute slower than their peers (same stage, other dp ranks), when and by how much?

With one dp rank there are no peers, so a stage is compared with its own history: its share of the
model is fixed, so a stage that becomes slower than the others is a slow worker. A stage that was
slow from the first step may simply have more work.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.turns_of_few import slow_in_turn_of_few
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.features import Pace
from app.diagnosis.job_history import ExtendedHistory
from app.diagnosis.statistics import robust
from app.diagnosis.statistics.change_points import latest_onset_of_each
from app.diagnosis.statistics.robust import (
    Stretches,
    lower_quantile,
    quantiles,
    spread_of_steps,
    squares_of_steps,
    stretches,
)
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

ScalarT = TypeVar("ScalarT", bound=np.generic)

NO_COMPUTATIONS = "some stage has no forward or no backward computations"


@dataclass(frozen=True, slots=True)
class SlownessLimits:
    """Which workers are the reference, and from when on others are slow.

    All were chosen on made jobs, unless a comment says otherwise.
    """

    # If at least this share of the dp ranks (two, where there are four or more) is clearly faster
    # than the others, these are the reference: a median would lie between two generations of GPUs.
    # A single fast one makes no others slow.
    fast_share: float = 0.2
    # The gap to the fast group: this share, and so many times the spread within it.
    clear_gap: float = 0.02
    gap_to_spread: float = 1.5
    # At the level of the other stages: within this share, or so many times the spread of healthy
    # peers.
    same_level: float = 0.03
    same_level_deviations: float = 2.0
    # The same for the medians of two groups of older GPUs.
    older_deviations: float = 3.0
    # Far from it: so many times that spread.
    far_deviations: float = 4.0
    # Two groups of a stage are slow in turn if they swap in this share of the steps.
    min_share_swapped: float = 0.2
    # Two generations of GPUs: at least this share of the other stages' workers is of the slower.
    min_older_share: float = 0.25
    # Steps before the change, within the window, that give the level of a direction.
    min_before: int = 2
    # Ratio to the peers of a slow worker: GPUs of one kind differ by up to 2 %.
    min_ratio: float = 1.04
    # Standard errors beyond that, enough for ten thousand workers,
    min_deviations: float = 6.0
    # and standard deviations of healthy peers.
    min_peer_deviations: float = 5.0
    # What is known of GPUs of one kind before any is measured, as a deviation and in values; those
    # slower than the others by this ratio do not count.
    usual_peer_spread: float = 0.02
    usual_peer_values: float = 3.0
    clearly_slow: float = 1.15
    # Both directions, and the shortest computation, show at least this share of the slowdown.
    share_of_each: float = 0.35
    # Lengths vary if dividing out the replica's common factor lowers the spread so many times.
    min_common: float = 2.0
    # A worker varies if its stretch has so many times the usual spread, and, where lengths vary, at
    # least this share of its excess.
    varying_deviations: float = 3.0
    varying_share: float = 0.5
    # Healthy workers together vary at most so many times as much as the median one.
    max_of_median: float = 2.0
    # Steps of a stretch, which has a quarter of the usual ones as well, that are neither a pause
    # nor sequence lengths; fewer usual steps do not show how far a worker varies.
    min_stretch: int = 4


LIMITS = SlownessLimits()


def peer_references(took_s: Floats, hosts: Ints | None = None) -> NDArray[np.bool_]:
    """[dp, pp], the reference workers: all of a stage, the faster of two distinct groups, or none.

    A stage shows two groups by itself, or because some of its workers are as fast as the other
    stages: all dp ranks of a stage have the same work, so those that take longer are slow. Where
    every stage has GPUs of two generations but one, in which all are as slow as the older ones
    elsewhere, that one has no reference of its own. Nor have several whole stages that are all of
    one host, if they are slow alike.

    Args:
        took_s: [steps, dp, pp], seconds that should be equal within a stage.
        hosts: [dp, pp], the number of the worker's host, -1 where unknown.
    """
    num_steps, dp_size, pp_size = took_s.shape
    if dp_size == 1 or not num_steps:
        return np.ones((dp_size, pp_size), np.bool_)
    reference = _fast_groups(took_s)
    for stage in np.flatnonzero(~reference.all(axis=0)):
        if _swaps(took_s[:, :, stage], reference[:, stage]):
            reference[:, stage] = True
    if pp_size > 1:
        _by_other_stages(took_s.mean(axis=0), reference, hosts)
    return reference


def _swaps(took_s: Floats, is_fast: NDArray[np.bool_]) -> bool:
    """Whether the fast group [dp] of a stage is the slower one in many steps: slow in turn."""
    fast_s, slow_s = (medians_of_known(took_s[:, chosen]) for chosen in (is_fast, ~is_fast))
    mean_s = float(fast_s.mean())
    if not mean_s > 0:
        return False
    gap = float(slow_s.mean()) / mean_s - 1
    num_swapped = np.count_nonzero(slow_s < (1 - gap / 2) * fast_s)
    return bool(num_swapped >= LIMITS.min_share_swapped * fast_s.size)


def _by_other_stages(level_s: Floats, reference: NDArray[np.bool_], hosts: Ints | None) -> None:
    """Split stages that look alike inside by the levels [dp, pp] of the other stages, in place."""
    usual_s = _medians_of(level_s, reference)
    if not (usual_s > 0).all():
        return
    spread = _peer_spread(level_s / usual_s, reference)
    ratio = level_s / _lower_median_of_others(usual_s)
    near = _is_near(ratio, spread)
    for stage in np.flatnonzero(reference.all(axis=0) & near.any(axis=0) & ~near.all(axis=0)):
        group = _as_fast_as_others(ratio[:, stage], spread)
        if group is not None:
            reference[:, stage] = group
    if hosts is not None:
        reference[:, _stages_of_slow_hosts(usual_s, hosts, spread)] = False
    older = _older_ratio(level_s, reference, spread)
    if older is not None:
        slow_by, fast_s = older
        apart = np.abs(usual_s / fast_s / slow_by - 1)
        is_older = apart <= max(LIMITS.same_level, LIMITS.older_deviations * spread)
        reference[:, reference.all(axis=0) & is_older] = False


def _lower_median_of_others(usual_s: Floats) -> Floats:
    """[pp], of each stage the lower median of the other stages' seconds."""
    order = np.argsort(usual_s, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    middle = (order.size - 2) // 2
    return np.asarray(usual_s[order[np.where(place > middle, middle, middle + 1)]])


def _is_near(ratio: Floats, spread: float) -> NDArray[np.bool_]:
    near = max(LIMITS.same_level, LIMITS.same_level_deviations * spread)
    return np.asarray(ratio <= 1 + near)


def _far(spread: float) -> float:
    """The excess from which workers are far from others, by the spread of healthy peers."""
    return max(2 * LIMITS.same_level, LIMITS.far_deviations * spread)


def _as_fast_as_others(ratio: Floats, spread: float) -> NDArray[np.bool_] | None:
    """[dp], workers of a stage as fast as the other stages, where the others are clearly slower.

    Some of them are, and some are not.
    """
    near = _is_near(ratio, spread)
    slower = ratio[~near]
    if median_of(slower) < 1 + _far(spread):
        return None
    gap = slower.min() - ratio[near].max()
    return near if near.mean() >= LIMITS.fast_share or gap >= _far(spread) else None


def _stages_of_slow_hosts(usual_s: Floats, hosts: Ints, spread: float) -> list[int]:
    """Stages of hosts that have several of them, whole and alone, and are slower than the others.

    One long stage is more likely than a slow host; several by the same ratio, and just those of a
    host, are not.
    """
    slow: list[int] = []
    apart = 1 + _far(spread)
    for host in np.unique(hosts[0, (hosts == hosts[0]).all(axis=0) & (hosts[0] >= 0)]):
        is_here = hosts == host
        stages = np.flatnonzero(is_here.all(axis=0))
        others = np.setdiff1d(np.arange(usual_s.size), stages)
        if stages.size < 2 or not others.size or is_here[:, others].any():
            continue
        own_s, others_s = usual_s[stages], usual_s[others]
        are_alike = all(part_s.max() <= apart * part_s.min() for part_s in (own_s, others_s))
        if are_alike and own_s.min() > apart * others_s.max():
            slow += stages.tolist()
    return slow


def _older_ratio(
    level_s: Floats, reference: NDArray[np.bool_], spread: float
) -> tuple[float, float] | None:
    """How much slower the older GPUs of the split stages are, and the seconds of the fast ones."""
    is_split = ~reference.all(axis=0) & reference.any(axis=0)
    others = int(is_split.sum()) * level_s.shape[0]
    num_older = (~reference[:, is_split]).sum()
    if not others or num_older < max(2.0, LIMITS.min_older_share * others):
        return None
    usual_s = np.full(reference.shape[1], np.nan)
    usual_s[is_split] = _medians_of(level_s[:, is_split], reference[:, is_split])
    slow = (level_s / usual_s)[~reference & is_split]
    slow_by = median_of(slow)
    are_alike = median_of(np.abs(slow / slow_by - 1)) <= max(LIMITS.same_level, 2 * spread)
    is_clear = slow_by >= 1 + 2 * LIMITS.same_level
    return (slow_by, median_of(usual_s[is_split])) if are_alike and is_clear else None


def ratios_to_peers(took_s: Floats, measure: NDArray[np.bool_]) -> Floats:
    """[..., steps, dp, pp], seconds divided by the median of the stage's reference workers.

    Args:
        took_s: [..., steps, dp, pp], seconds.
        measure: [dp, pp] or [steps, dp, pp], the reference workers. In a step without any the
            stage's median over the other steps counts; a stage without any in all steps is compared
            with the other stages.
    """
    usual_s = _reference_s(took_s, measure)[..., None, :]
    return np.divide(took_s, usual_s, out=np.ones(took_s.shape), where=usual_s > 0)


def _reference_s(took_s: Floats, measure: NDArray[np.bool_]) -> Floats:
    """[..., steps, pp], seconds of the reference; NaN where there is none at all."""
    usual_s = _medians_of(took_s, measure)
    unknown = np.isnan(usual_s)
    if not unknown.any():
        return usual_s
    if took_s.ndim > 3:
        return np.stack([_reference_s(direction_s, measure) for direction_s in took_s])
    for stage in np.flatnonzero(unknown.any(axis=0)):
        known = ~unknown[:, stage]
        if known.any():
            usual_s[~known, stage] = median_of(usual_s[known, stage])
    known_stages = np.flatnonzero(~unknown.all(axis=0))
    if known_stages.size:
        usual_s[:, unknown.all(axis=0)] = np.median(usual_s[:, known_stages], axis=1)[:, None]
    return usual_s


def _fast_groups(took_s: Floats) -> NDArray[np.bool_]:
    """[dp, pp], the faster group of each stage that has two distinct ones, else all."""
    num_steps, dp_size, pp_size = took_s.shape
    typical_s = medians_of_known(took_s.transpose(0, 2, 1))[:, None]
    ratio = np.divide(took_s, typical_s, out=np.zeros(took_s.shape), where=typical_s > 0)
    level = ratio.sum(axis=0) / num_steps
    fewest = max(1 if dp_size < 4 else 2, math.ceil(LIMITS.fast_share * dp_size))
    if fewest >= dp_size:
        return np.ones(level.shape, np.bool_)
    in_order, stages = np.sort(level, axis=0), np.arange(pp_size)
    gaps = in_order[fewest:] - in_order[fewest - 1 : -1]
    last = fewest - 1 + gaps.argmax(axis=0)
    gap, slowest = gaps.max(axis=0), in_order[last, stages]
    is_split = (gap > 0) & (gap >= LIMITS.clear_gap * slowest)
    is_split &= gap >= LIMITS.gap_to_spread * (slowest - in_order[0])
    return np.asarray((level <= slowest) | ~is_split)


def _medians_of(took_s: Floats, measure: NDArray[np.bool_]) -> Floats:
    """[..., pp], medians of chosen workers, both [..., dp, pp]; NaN where none is chosen."""
    return medians_of_known(np.where(measure, took_s, np.nan).swapaxes(-1, -2))


# Of a stage's own times, near its best.
_BEST_QUANTILE = 0.1


def against_own_history(history: ExtendedHistory) -> Floats:
    """[steps of the history, 1, pp], time of each stage over its level before it became slower.

    1.0 for a stage without an onset, and in unknown steps of the window; NaN in earlier unknown
    ones. Factors common to all stages, as sequence lengths, are divided out.
    """
    took_s = history.signals["compute_s"][:, 0]
    ratio = np.ones((took_s.shape[0], 1, took_s.shape[1]))
    if took_s.shape[1] < 2:
        return ratio
    relative = _relative(took_s)
    for stage, change in enumerate(latest_onset_of_each(np.ascontiguousarray(relative.T))):
        if change is not None:
            ratio[:, 0, stage] = relative[:, stage] / change.before
    window = ratio[history.num_before :]
    window[np.isnan(window)] = 1.0
    return ratio


def direction_against_own_history(took_s: Floats, ratio: Floats, usual: Ints) -> Floats:
    """[steps, 1, pp] of the window, the ratio of one direction to its own level before the onset.

    Args:
        took_s: [steps, 1, pp], seconds.
        ratio: [steps, 1, pp], of both directions; used where the window begins after the onset.
        usual: positions of the usual steps.
    """
    if took_s.shape[2] < 2:
        return ratio
    of_direction, relative = ratio.copy(), _relative(took_s[:, 0])
    for stage in np.flatnonzero((ratio != 1.0).any(axis=(0, 1))):
        middle = (1.0 + ratio[usual, 0, stage].max()) / 2
        is_known = relative[:, stage] > 0
        before = usual[(ratio[usual, 0, stage] < middle) & is_known[usual]]
        if before.size >= LIMITS.min_before:
            level = np.median(relative[before, stage])
            of_direction[is_known, 0, stage] = relative[is_known, stage] / level
    return of_direction


def _relative(took_s: Floats) -> Floats:
    """[steps, pp], time of each stage over its best, with the factor common to all divided out.

    NaN where a time is unknown or 0.
    """
    known = np.isfinite(took_s).all(axis=1)
    # A low quantile, as a stage may be slow in most steps.
    if not known.any():
        return np.full(took_s.shape, np.nan)
    by_stage = _by(took_s, quantiles(took_s[known].T, _BEST_QUANTILE))
    low = (took_s.shape[1] - 1) // 4
    return _by(by_stage, np.partition(by_stage, low, axis=1)[:, low, None])


def _by(took: Floats, other: Floats) -> Floats:
    can_tell = (took > 0) & (other > 0)
    return np.asarray(np.divide(took, other, out=np.full(took.shape, np.nan), where=can_tell))


@dataclass(frozen=True, eq=False)
class Slowness:
    """Ratios of each worker's computation times to its peers', sequence lengths divided out.

    Shapes: `ratio`, `forward`, `backward` and `least` (the shortest computation) [steps, dp, pp];
    `measure` [dp, pp], the reference workers; `as_peers`, forward and backward seconds [steps, dp,
    pp] with slow groups brought to the reference; `usual` [usual steps], positions of the steps in
    which `stretches` [workers] are searched, which count positions in `usual`. `has_no_peers`: the
    workers are compared with their own history. Of one type of operation alone (`slowness_of`)
    forward and backward are the ratio, `as_peers` the recorded seconds, and `min_ratio` is higher.
    `num_healthy` [pp] counts dp ranks that are not clearly slow, 1 at least.
    """

    ratio: Floats
    forward: Floats
    backward: Floats
    least: Floats
    measure: NDArray[np.bool_]
    as_peers: tuple[Floats, Floats]
    usual: Ints
    spread: float
    peer_spread: float
    lengths_vary: bool
    min_ratio: float
    has_no_peers: bool = False
    num_healthy: Ints | None = None

    @cached_property
    def stretches(self) -> Stretches:
        """The slowest stretch of every worker, stages of a dp rank side by side."""
        return stretches(self._of_workers(self.ratio), self.spread, LIMITS.min_ratio - 1)

    @property
    def threshold(self) -> float:
        """The ratio from which a worker is slow."""
        return max(self.min_ratio, 1 + LIMITS.min_peer_deviations * self.peer_spread)

    @cached_property
    def significance(self) -> Floats:
        """[workers], 0..1, the weakest of all evidence that a slow worker must show; 1 = enough."""
        slowest, excess = self.stretches, np.maximum(self.stretches.mean - 1, 0.0)
        errors = slowest.standard_errors / LIMITS.min_deviations
        shown = np.minimum(errors, excess / (self.threshold - 1))
        sides = [self.forward, self.backward] + [self.least] * (not self.lengths_vary)
        if self.has_no_peers:  # its own past shows both directions together
            sides = [np.maximum(self.forward, self.backward)]
        of_usual = [self._of_workers(side) for side in sides]
        spreads = np.array([[spread_of_steps(side)] for side in of_usual])
        num_steps = slowest.end - slowest.first
        error = spreads / np.sqrt(np.maximum(num_steps, 1))
        means, wanted = slowest.means_of(np.stack(of_usual)), LIMITS.share_of_each * excess
        of_sides = (means - 1 + 2 * error) / np.maximum(wanted, 1e-9)
        shown = np.minimum(1.0, np.maximum(0.0, np.minimum(shown, of_sides.min(axis=0))))
        return np.where((num_steps < 2) & (self.usual.size > 1), 0.0, shown)

    @cached_property
    def varies(self) -> NDArray[np.bool_]:
        """[workers], whether the slowdown varies within the stretch, as a throttling GPU's does."""
        squares = self.stretches.means_of(self._of_workers(self.ratio**2))
        deviation = np.sqrt(np.maximum(0.0, squares - self.stretches.mean**2))
        # What is left of uneven lengths varies as well, by less than a fault that comes and goes.
        least = LIMITS.varying_share * (self.stretches.mean - 1) if self.lengths_vary else 0.0
        return np.asarray(deviation > np.maximum(LIMITS.varying_deviations * self.spread, least))

    @cached_property
    def slow_by(self) -> Floats:
        """[steps, dp, pp], the mean ratio of slow workers in their stretches, elsewhere 1."""
        slowest, by = self.stretches, np.ones(self.ratio.shape)
        for at in np.flatnonzero(self.significance >= 1).tolist():
            dp_rank, stage = divmod(at, self.ratio.shape[2])
            chosen = self.usual[slowest.first[at] : slowest.end[at]]
            by[chosen[0] : chosen[-1] + 1, dp_rank, stage] = slowest.mean[at]
        return by

    @cached_property
    def slow_steps(self) -> NDArray[np.bool_]:
        """[steps, dp, pp], steps in which slow workers are slow, within their stretch or outside.

        Of one that is slow now and then, the steps between are left out.
        """
        slowest, ratio = self.stretches, self._of_workers(self.ratio)
        is_slow = slowest.mean >= self.threshold
        if is_slow.any():
            is_slow &= self.significance >= 1
        if not is_slow.any():
            return np.zeros(self.ratio.shape, np.bool_)
        at = np.arange(self.usual.size)[:, None]
        inside = (at >= slowest.first) & (at < slowest.end)
        high = 1 + np.maximum((slowest.mean - 1) / 2, LIMITS.varying_deviations * self.spread)
        is_high = ratio >= np.minimum(high, slowest.mean)
        of_usual = is_slow & ((inside & ~self.varies) | is_high)
        nearest = np.searchsorted(self.usual, np.arange(len(self.ratio)), side="right") - 1
        return np.asarray(of_usual[np.maximum(nearest, 0)].reshape(self.ratio.shape))

    def usual_mean(self, side: Floats, at: int) -> float:
        """Mean over the usual steps of a figure [steps, dp, pp] of one of the workers."""
        return float(self.of_worker(side, at)[self.usual].mean())

    def of_worker(self, side: NDArray[ScalarT], at: int) -> NDArray[ScalarT]:
        """[steps] of a figure [steps, dp, pp] of one of the workers."""
        dp_rank, stage = divmod(at, side.shape[2])
        return side[:, dp_rank, stage]

    def _of_workers(self, side: Floats) -> Floats:
        """[usual steps, workers] of a figure [steps, dp, pp]."""
        return side[self.usual].reshape(self.usual.size, -1)


@evidence
def slowness(case: Case) -> Slowness | None:
    """Every worker compared with its peers; None without forward, backward or usual steps."""
    forward, backward, usual = case.forward, case.backward, usual_steps(case)
    if forward is None or backward is None or not usual.size:
        return None
    if case.parallelism.dp_size == 1:
        return slowness_by_history(case.extended_history, forward, backward, usual)
    return slowness_to_peers(forward, backward, usual, case.host_numbers)


def slowness_to_peers(
    forward: Pace, backward: Pace, usual: Ints, hosts: Ints | None = None
) -> Slowness:
    """Every worker compared with its peers; `hosts` as in `peer_references`."""
    measure = peer_references((forward.mean_s + backward.mean_s)[usual], hosts)
    in_turn = slow_in_turn_of_few(forward, backward, usual)
    return _compared_twice((forward, backward), usual, measure, LIMITS.min_ratio, in_turn)


def slowness_of(took: Pace, usual: Ints, min_ratio: float) -> Slowness:
    """The same for operations of one type alone."""
    return _compared_twice((took,), usual, peer_references(took.mean_s[usual]), min_ratio)


def _compared_twice(
    paces: tuple[Pace, ...],
    usual: Ints,
    measure: NDArray[np.bool_],
    min_ratio: float,
    in_turn: NDArray[np.bool_] | None = None,
) -> Slowness:
    """Workers that are slow are no reference in the steps in which they are slow.

    Otherwise two dp ranks that are slow in turn would look half as slow, and noise be taken from
    the changes of one that is slow now and then.
    """
    none_slow = np.zeros(paces[0].mean_s.shape, np.bool_)
    first = _compared(paces, usual, measure, none_slow, min_ratio)
    slow = first.slow_steps
    if in_turn is not None:
        slow, measure = in_turn, np.ones(measure.shape, np.bool_)
    return _compared(paces, usual, measure, slow, min_ratio) if slow.any() else first


def _compared(
    paces: tuple[Pace, ...],
    usual: Ints,
    measure: NDArray[np.bool_],
    slow: NDArray[np.bool_],
    min_ratio: float,
) -> Slowness:
    """Every worker against `measure` [dp, pp] without workers in steps `slow` [steps, dp, pp]."""
    reference = measure & ~slow
    # A worker that is measured by itself alone shows no variation between workers, and the changes
    # of a slow one are no noise.
    is_measured = ~(measure & (measure.sum(axis=0) == 1))
    steady = is_measured & ~slow[usual].any(axis=0)
    of_reference = not steady.any() and slow.any()
    is_measured = steady if steady.any() else is_measured
    means, leasts = tuple(pace.mean_s for pace in paces), tuple(pace.least_s for pace in paces)

    def against(took_s: tuple[Floats, ...]) -> tuple[list[Floats], float]:
        ratios = _against(took_s, reference)
        if of_reference:
            return ratios, _spread_of_reference(took_s, reference, usual)
        return ratios, _spread(ratios[0][usual][:, is_measured])

    of_mean, spread = against(means)
    is_same = all(one is other for one, other in zip(means, leasts, strict=True))
    of_least, of_shortest = (of_mean, spread) if is_same else against(leasts)
    # With uneven lengths, means of micro-batches vary far more than the shortest ones.
    by_least = of_shortest * LIMITS.min_common < spread
    ratio, *sides = of_least if by_least else of_mean
    least, spread = of_least[0], min(spread, of_shortest) if by_least else spread
    lengths = _of_lengths(ratio, usual, spread, is_measured)
    if lengths is not None:
        ratio, least, *sides = (side / lengths[:, :, None] for side in (ratio, least, *sides))
        if not of_reference:
            spread = _spread(ratio[usual][:, is_measured])
    level = ratio[usual].mean(axis=0)
    as_peers = list(means)
    if len(means) == 2:
        as_peers = list(map(partial(_divided, chosen=~reference), means, of_mean[1:]))
    return Slowness(
        ratio=ratio,
        forward=sides[0],
        backward=sides[-1],
        least=least,
        measure=measure,
        as_peers=(as_peers[0], as_peers[-1]),
        usual=usual,
        spread=spread,
        peer_spread=_peer_spread(level, measure),
        num_healthy=np.maximum(1, (level < LIMITS.clearly_slow).sum(axis=0)),
        lengths_vary=by_least or lengths is not None,
        min_ratio=min_ratio,
    )


def slowness_by_history(
    history: ExtendedHistory, forward: Pace, backward: Pace, usual: Ints
) -> Slowness:
    """The only replica's workers compared with their own history."""
    ratio = against_own_history(history)[history.num_before :]
    took_s = [forward.mean_s, backward.mean_s]
    sides = [direction_against_own_history(side_s, ratio, usual) for side_s in took_s]
    forward_s, backward_s = map(partial(_divided, chosen=ratio > 1), took_s, sides)
    return Slowness(
        ratio=ratio,
        forward=sides[0],
        backward=sides[1],
        least=ratio,
        measure=np.ones(ratio.shape[1:], np.bool_),
        as_peers=(forward_s, backward_s),
        usual=usual,
        spread=spread_of_steps(ratio[usual], np.ones(ratio.shape[2])),
        peer_spread=0.0,
        lengths_vary=False,
        min_ratio=LIMITS.min_ratio,
        has_no_peers=True,
    )


def _spread(ratio: Floats) -> float:
    """Standard deviation of ratios [steps, workers] within a worker, without changes of level.

    One worker that comes and goes makes all of them together vary, but not the median one.
    """
    if ratio.shape[0] < LIMITS.min_stretch or ratio.shape[1] < 2:
        return spread_of_steps(ratio)
    squares = np.sort(squares_of_steps(ratio))
    together = math.sqrt(float(squares.sum()) / squares.size / 2)
    usual = math.sqrt(float(squares[(squares.size - 1) // 2]) / 2)
    return max(robust.LIMITS.min_spread, min(together, LIMITS.max_of_median * usual))


def _spread_of_reference(
    took_s: tuple[Floats, ...], reference: NDArray[np.bool_], usual: Ints
) -> float:
    """Standard deviation of ratios, by the times of workers that are the only ones to compare with.

    Both of a ratio vary, the worker and its reference.
    """
    is_steady = reference[usual].all(axis=0)
    all_s = np.sum(took_s, axis=0)[usual][:, is_steady]
    level_s = all_s.mean(axis=0)
    if not all_s.size or not (level_s > 0).all():
        return robust.LIMITS.min_spread
    return float(np.sqrt(2.0)) * spread_of_steps(all_s / level_s)


def _peer_spread(level: Floats, measure: NDArray[np.bool_]) -> float:
    """Standard deviation between healthy workers of a stage, by their mean ratios [dp, pp].

    Without those that are clearly slow, and without the slower groups `~measure` where these are
    far from the others. With few workers, what is usual counts as well.
    """
    is_healthy = level < LIMITS.clearly_slow
    # Where one worker alone is the reference, it shows no variation.
    is_fast = is_healthy & (measure | (measure.sum(axis=0) < 2))
    among_fast, slower = _spread_within(level, is_fast), level[is_healthy & ~is_fast]
    if not slower.size or median_of(slower) >= 1 + LIMITS.min_peer_deviations * among_fast:
        return among_fast
    return _spread_within(level, is_healthy)


def _spread_within(level: Floats, chosen: NDArray[np.bool_]) -> float:
    size = chosen.sum(axis=0)
    total = np.where(chosen, level, 0.0).sum(axis=0)
    is_measured = (size >= 2) & (total > 0)
    if not is_measured.any():
        return LIMITS.usual_peer_spread
    size, total, chosen = size[is_measured], total[is_measured], chosen[:, is_measured]
    away = np.abs(level[:, is_measured] / (total / size) - 1) * np.sqrt(size / (size - 1))
    freedom = int((size - 1).sum())
    # The lower median: of two workers of two stages, those of one may differ by a fault.
    measured = MAD_TO_DEVIATION * lower_quantile(away[chosen], 0.5)
    squares = freedom * measured**2 + LIMITS.usual_peer_values * LIMITS.usual_peer_spread**2
    return float(np.sqrt(squares / (freedom + LIMITS.usual_peer_values)))


def _against(took_s: tuple[Floats, ...], reference: NDArray[np.bool_]) -> list[Floats]:
    """[steps, dp, pp] ratios to peers: of all operations together, and of each kind."""
    if len(took_s) == 1:
        return [ratios_to_peers(took_s[0], reference)] * 2
    return list(ratios_to_peers(np.stack([np.add(*took_s), *took_s]), reference))


def _divided(took_s: Floats, ratio: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], seconds of chosen workers divided by their ratio, where it is not 0."""
    return np.divide(took_s, ratio, out=took_s.copy(), where=chosen & (ratio > 0))


def _of_lengths(
    ratio: Floats, usual: Ints, spread: float, is_measured: NDArray[np.bool_]
) -> Floats | None:
    """[steps, dp], factor of a replica's sequence lengths, 1 = usual; None where they are alike.

    A long micro-batch takes longer on all stages, so the factor common to a replica's stages in
    single steps is its lengths. Over many steps in a row it means that all stages are slow.
    """
    if ratio.shape[2] < 2 or usual.size < 2:
        return None
    # A low quantile: the median of two stages would hold half of a slow one.
    low = (ratio.shape[2] - 1) // 4
    common = np.partition(ratio, low, axis=2)[:, :, low]
    usual_common = medians_of_known(common)[:, None]
    # Computations of 0 s show no lengths.
    can_tell = (common > 0) & (usual_common > 0)
    common = np.divide(common, usual_common, out=np.ones(common.shape), where=can_tell)
    left = (ratio[usual] / common[usual, :, None])[:, is_measured]
    if spread < LIMITS.min_common * spread_of_steps(left):
        return None
    slow = stretches(common[usual], spread_of_steps(common[usual]), LIMITS.min_ratio - 1)
    lasts = slow.end - slow.first >= max(LIMITS.min_stretch, usual.size // 4)
    for dp_rank in np.flatnonzero(lasts & (slow.standard_errors >= LIMITS.min_deviations)):
        stretch = usual[slow.first[dp_rank] : slow.end[dp_rank]]
        # Its lengths are taken to be the others' on average.
        common[stretch, dp_rank] /= slow.mean[dp_rank]
    return common
