"""Which workers compute slower than their peers (same stage, other dp ranks), when and by how much?

With one dp rank there are no peers, so a stage is compared with its own history: its share of the
model is fixed, so a stage that becomes slower than the others is a slow worker. A stage that was
slow from the first step may simply have more work.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.turns_of_few import slow_in_turn_of_few
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.features import Pace
from app.diagnosis.job_history import ExtendedHistory
from app.diagnosis.statistics.change_points import latest_onset_of_each
from app.diagnosis.statistics.robust import (
    MIN_SPREAD,
    Stretches,
    quantiles,
    spread_of_steps,
    squares_of_steps,
    stretches,
)
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

ScalarT = TypeVar("ScalarT", bound=np.generic)

# If at least this share of the dp ranks (two, where there are four or more) is clearly faster than
# the others, these are the reference: a median would lie between two generations of GPUs. A single
# fast one makes no others slow.
FAST_SHARE = 0.2
# The gap to the fast group: this share, and so many times the spread within it.
CLEAR_GAP = 0.02
GAP_TO_SPREAD = 1.5


# At the level of the other stages: within this share, or so many times the spread of healthy peers.
SAME_LEVEL = 0.03
SAME_LEVEL_DEVIATIONS = 2.0
# The same for the medians of two groups of older GPUs.
OLDER_DEVIATIONS = 3.0
# Far from it: so many times that spread.
FAR_DEVIATIONS = 4.0
# Two groups of a stage are slow in turn if they swap in this share of the steps.
_MIN_SHARE_SWAPPED = 0.2
# Two generations of GPUs: at least this share of the other stages' workers is of the slower one.
MIN_OLDER_SHARE = 0.25


def peer_references(took_s: Floats, hosts: Ints | None = None) -> NDArray[np.bool_]:
    """[dp, pp], the reference workers: all of a stage, the faster of two distinct groups, or none.

    A stage shows two groups by itself, or because some of its workers are as fast as the other
    stages: all dp ranks of a stage have the same work, so those that take longer are slow. Where
    every stage has GPUs of two generations but one, in which all are as slow as the older ones
    elsewhere, that one has no reference of its own. Nor have several whole stages that are all of
    one host, if they are slow alike.

    Args:
        took_s: [steps, dp, pp], seconds that should be equal within a stage.
        hosts: [dp, pp], a number for each host, -1 where unknown.
    """
    _, dp_size, pp_size = took_s.shape
    found = np.ones((dp_size, pp_size), np.bool_)
    if dp_size > 1 and took_s.shape[0]:
        found = _fast_groups(took_s)
        for stage in np.flatnonzero(~found.all(axis=0)):
            if _swaps(took_s[:, :, stage], found[:, stage]):
                found[:, stage] = True
        if pp_size > 1:
            _by_other_stages(took_s.mean(axis=0), found, hosts)
    return found


def _swaps(took_s: Floats, is_fast: NDArray[np.bool_]) -> bool:
    """Whether the fast group [dp] of a stage is the slower one in many steps: slow in turn."""
    fast_s, slow_s = (medians_of_known(took_s[:, chosen]) for chosen in (is_fast, ~is_fast))
    mean_s = float(fast_s.mean())
    if not mean_s > 0:
        return False
    gap = float(slow_s.mean()) / mean_s - 1
    num_swapped = np.count_nonzero(slow_s < (1 - gap / 2) * fast_s)
    return bool(num_swapped >= _MIN_SHARE_SWAPPED * fast_s.size)


def _by_other_stages(level_s: Floats, found: NDArray[np.bool_], hosts: Ints | None) -> None:
    """Split stages that look alike inside by the levels [dp, pp] of the other stages, in place."""
    usual_s = _medians_of(level_s, found)
    if not (usual_s > 0).all():
        return
    spread = _peer_spread(level_s / usual_s, found)
    ratio = level_s / _lower_median_of_others(usual_s)
    near = _is_near(ratio, spread)
    for stage in np.flatnonzero(found.all(axis=0) & near.any(axis=0) & ~near.all(axis=0)):
        group = _as_fast_as_others(ratio[:, stage], spread)
        if group is not None:
            found[:, stage] = group
    if hosts is not None:
        found[:, _stages_of_slow_hosts(usual_s, hosts, spread)] = False
    older = _older_ratio(level_s, found, spread)
    if older is None:
        return
    slow_by, fast_s = older
    for stage in np.flatnonzero(found.all(axis=0)):
        ratio = usual_s[stage] / fast_s
        if abs(ratio / slow_by - 1) <= max(SAME_LEVEL, OLDER_DEVIATIONS * spread):
            found[:, stage] = False


def _lower_median_of_others(usual_s: Floats) -> Floats:
    """[pp], of each stage the lower median of the other stages' seconds."""
    order = np.argsort(usual_s, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    middle = (order.size - 2) // 2
    return np.asarray(usual_s[order[np.where(place > middle, middle, middle + 1)]])


def _is_near(ratio: Floats, spread: float) -> NDArray[np.bool_]:
    return np.asarray(ratio <= 1 + max(SAME_LEVEL, SAME_LEVEL_DEVIATIONS * spread))


def _as_fast_as_others(ratio: Floats, spread: float) -> NDArray[np.bool_] | None:
    """[dp], workers of a stage as fast as the other stages, where the others are clearly slower.

    Some of them are, and some are not.
    """
    near = _is_near(ratio, spread)
    slower = ratio[~near]
    if median_of(slower) < 1 + max(2 * SAME_LEVEL, FAR_DEVIATIONS * spread):
        return None
    gap = slower.min() - ratio[near].max()
    is_group = near.mean() >= FAST_SHARE or gap >= max(2 * SAME_LEVEL, FAR_DEVIATIONS * spread)
    return np.asarray(near) if is_group else None


def _stages_of_slow_hosts(usual_s: Floats, hosts: Ints, spread: float) -> list[int]:
    """Stages of hosts that have several of them, whole and alone, and are slower than the others.

    One long stage is more likely than a slow host; several by the same ratio, and just those of a
    host, are not.
    """
    found: list[int] = []
    whole = hosts[0, (hosts == hosts[0]).all(axis=0) & (hosts[0] >= 0)]
    if whole.size < 2:
        return found
    for host in np.unique(whole):
        is_mine = hosts == host
        mine = np.flatnonzero(is_mine.all(axis=0))
        others = np.setdiff1d(np.arange(usual_s.size), mine)
        if mine.size < 2 or not others.size or is_mine[:, others].any():
            continue
        apart = max(2 * SAME_LEVEL, FAR_DEVIATIONS * spread)
        are_alike = all(
            usual_s[each].max() <= (1 + apart) * usual_s[each].min() for each in (mine, others)
        )
        if are_alike and usual_s[mine].min() > (1 + apart) * usual_s[others].max():
            found += mine.tolist()
    return found


def _older_ratio(
    level_s: Floats, found: NDArray[np.bool_], spread: float
) -> tuple[float, float] | None:
    """How much slower the older GPUs of the split stages are, and the seconds of the fast ones."""
    is_split = ~found.all(axis=0) & found.any(axis=0)
    others = int(is_split.sum()) * level_s.shape[0]
    if not others or (~found[:, is_split]).sum() < max(2.0, MIN_OLDER_SHARE * others):
        return None
    usual_s = np.full(found.shape[1], np.nan)
    usual_s[is_split] = _medians_of(level_s[:, is_split], found[:, is_split])
    slow = (level_s / usual_s)[~found & is_split]
    slow_by = median_of(slow)
    are_alike = median_of(np.abs(slow / slow_by - 1)) <= max(SAME_LEVEL, 2 * spread)
    is_clear = slow_by >= 1 + 2 * SAME_LEVEL
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
    fewest = max(1 if dp_size < 4 else 2, math.ceil(FAST_SHARE * dp_size))
    if fewest >= dp_size:
        return np.ones(level.shape, np.bool_)
    in_order, stages = np.sort(level, axis=0), np.arange(pp_size)
    gaps = in_order[fewest:] - in_order[fewest - 1 : -1]
    last = fewest - 1 + gaps.argmax(axis=0)
    gap, slowest = gaps.max(axis=0), in_order[last, stages]
    is_split = (gap > 0) & (gap >= CLEAR_GAP * slowest)
    is_split &= gap >= GAP_TO_SPREAD * (slowest - in_order[0])
    return np.asarray((level <= slowest) | ~is_split)


def _medians_of(took_s: Floats, measure: NDArray[np.bool_]) -> Floats:
    """[..., pp], medians of chosen workers, both [..., dp, pp]; NaN where none is chosen."""
    return medians_of_known(np.where(measure, took_s, np.nan).swapaxes(-1, -2))


# Steps before the change, within the window, that give each direction's level.
_MIN_BEFORE = 2
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
    found, relative = ratio.copy(), _relative(took_s[:, 0])
    for stage in np.flatnonzero((ratio != 1.0).any(axis=(0, 1))):
        middle = (1.0 + ratio[usual, 0, stage].max()) / 2
        is_known = relative[:, stage] > 0
        before = usual[(ratio[usual, 0, stage] < middle) & is_known[usual]]
        if before.size >= _MIN_BEFORE:
            level = np.median(relative[before, stage])
            found[is_known, 0, stage] = relative[is_known, stage] / level
    return found


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


# GPUs of one kind differ by up to 2 %.
MIN_RATIO = 1.04
# Standard errors, enough for ten thousand workers.
MIN_DEVIATIONS = 6.0
# Standard deviations of healthy peers.
MIN_PEER_DEVIATIONS = 5.0
# What is known of GPUs of one kind before any is measured, as a deviation and in values; those
# slower than the others by this ratio do not count.
_USUAL_PEER_SPREAD = 0.02
_USUAL_PEER_VALUES = 3.0
_CLEARLY_SLOW = 1.15
# Each direction, and the shortest computation, shows at least this share of the slowdown.
SHARE_OF_EACH = 0.35
# Lengths vary if dividing out the replica's common factor lowers the spread so many times.
_MIN_COMMON = 2.0
# A worker varies if its stretch has so many times the usual spread.
_VARYING_DEVIATIONS = 3.0
# Where lengths vary, and at least this share of its excess.
_VARYING_SHARE = 0.5
# Healthy workers together vary at most so many times as much as the median one.
_MAX_OF_MEDIAN = 2.0
# Longer stretches of a slow replica are not sequence lengths.
_MIN_STRETCH = 4

NO_COMPUTATIONS = "some stage has no forward or no backward computations"


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
    has_no_peers: bool = False
    min_ratio: float = MIN_RATIO
    num_healthy: Ints | None = None

    @cached_property
    def stretches(self) -> Stretches:
        """The slowest stretch of every worker, stages of a dp rank side by side."""
        return stretches(self._of_workers(self.ratio), self.spread, MIN_RATIO - 1)

    @property
    def threshold(self) -> float:
        """The ratio from which a worker is slow."""
        return max(self.min_ratio, 1 + MIN_PEER_DEVIATIONS * self.peer_spread)

    @cached_property
    def significance(self) -> Floats:
        """[workers], 0..1, the weakest of all evidence that a slow worker must show; 1 = enough."""
        found, excess = self.stretches, np.maximum(self.stretches.mean - 1, 0.0)
        shown = np.minimum(found.standard_errors / MIN_DEVIATIONS, excess / (self.threshold - 1))
        sides = [self.forward, self.backward] + [self.least] * (not self.lengths_vary)
        if self.has_no_peers:  # its own past shows both directions together
            sides = [np.maximum(self.forward, self.backward)]
        of_usual = [self._of_workers(side) for side in sides]
        spreads = np.array([[spread_of_steps(side)] for side in of_usual])
        error = spreads / np.sqrt(np.maximum(found.end - found.first, 1))
        theirs, wanted = found.means_of(np.stack(of_usual)), SHARE_OF_EACH * excess
        of_sides = (theirs - 1 + 2 * error) / np.maximum(wanted, 1e-9)
        shown = np.minimum(1.0, np.maximum(0.0, np.minimum(shown, of_sides.min(axis=0))))
        is_lone = (found.end - found.first < 2) & (self.usual.size > 1)
        return np.where(is_lone, 0.0, shown)

    @cached_property
    def varies(self) -> NDArray[np.bool_]:
        """[workers], whether the slowdown varies within the stretch, as a throttling GPU's does."""
        squares = self.stretches.means_of(self._of_workers(self.ratio**2))
        deviation = np.sqrt(np.maximum(0.0, squares - self.stretches.mean**2))
        # What is left of uneven lengths varies as well, by less than a fault that comes and goes.
        least = _VARYING_SHARE * (self.stretches.mean - 1) if self.lengths_vary else 0.0
        return np.asarray(deviation > np.maximum(_VARYING_DEVIATIONS * self.spread, least))

    @cached_property
    def slow_by(self) -> Floats:
        """[steps, dp, pp], the mean ratio of slow workers in their stretches, elsewhere 1."""
        found, by = self.stretches, np.ones(self.ratio.shape)
        for at in np.flatnonzero(self.significance >= 1).tolist():
            dp_rank, stage = divmod(at, self.ratio.shape[2])
            chosen = self.usual[found.first[at] : found.end[at]]
            by[chosen[0] : chosen[-1] + 1, dp_rank, stage] = found.mean[at]
        return by

    @cached_property
    def slow_steps(self) -> NDArray[np.bool_]:
        """[steps, dp, pp], steps in which slow workers are slow, within their stretch or outside.

        Of one that is slow now and then, the steps between are left out.
        """
        found, ratio = self.stretches, self._of_workers(self.ratio)
        is_slow = found.mean >= self.threshold
        if is_slow.any():
            is_slow &= self.significance >= 1
        if not is_slow.any():
            return np.zeros(self.ratio.shape, np.bool_)
        at = np.arange(self.usual.size)[:, None]
        inside = (at >= found.first) & (at < found.end)
        high = 1 + np.maximum((found.mean - 1) / 2, _VARYING_DEVIATIONS * self.spread)
        fits = np.where(inside & ~self.varies, True, ratio >= np.minimum(high, found.mean))
        of_usual = is_slow & fits
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
    return _compared_twice((forward, backward), usual, measure, in_turn=in_turn)


def slowness_of(took: Pace, usual: Ints, min_ratio: float) -> Slowness:
    """The same for operations of one type alone."""
    return _compared_twice((took,), usual, peer_references(took.mean_s[usual]), min_ratio)


def _compared_twice(
    paces: tuple[Pace, ...],
    usual: Ints,
    measure: NDArray[np.bool_],
    min_ratio: float = MIN_RATIO,
    in_turn: NDArray[np.bool_] | None = None,
) -> Slowness:
    """Workers found to be slow are no reference in the steps in which they are slow.

    Otherwise two dp ranks that are slow in turn would look half as slow, and noise be taken from
    the changes of one that is slow now and then.
    """
    nobody = np.zeros(paces[0].mean_s.shape, np.bool_)
    found = _compared(paces, usual, measure, nobody, min_ratio)
    slow = found.slow_steps
    if in_turn is not None:
        slow, measure = in_turn, np.ones(measure.shape, np.bool_)
    return _compared(paces, usual, measure, slow, min_ratio) if slow.any() else found


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
    means, leasts = (tuple(getattr(each, name) for each in paces) for name in ("mean_s", "least_s"))
    kinds = [(_against(means, reference), means)]
    if any(one is not other for one, other in zip(means, leasts, strict=True)):
        kinds.append((_against(leasts, reference), leasts))
    spreads = [
        _spread_of_reference(took_s, reference, usual)
        if of_reference
        else _spread(each[0][usual][:, is_measured])
        for each, took_s in kinds
    ]
    (of_mean, spread), (of_least, of_shortest) = (
        (kinds[at][0], spreads[at]) for at in (0, len(kinds) - 1)
    )
    # With uneven lengths, means of micro-batches vary far more than the shortest ones.
    by_least = of_shortest * _MIN_COMMON < spread
    ratio, *sides = of_least if by_least else of_mean
    least, spread = of_least[0], min(spread, of_shortest) if by_least else spread
    lengths = _of_lengths(ratio, usual, spread, is_measured)
    if lengths is not None:
        ratio, least, *sides = (each / lengths[:, :, None] for each in (ratio, least, *sides))
        if not of_reference:
            spread = _spread(ratio[usual][:, is_measured])
    level = ratio[usual].mean(axis=0)
    as_peers = list(means)
    if len(means) == 2:
        as_peers = [
            _divided(took_s, by, ~reference) for took_s, by in zip(means, of_mean[1:], strict=True)
        ]
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
        num_healthy=np.maximum(1, (level < _CLEARLY_SLOW).sum(axis=0)),
        lengths_vary=by_least or lengths is not None,
        min_ratio=min_ratio,
    )


def slowness_by_history(
    history: ExtendedHistory, forward: Pace, backward: Pace, usual: Ints
) -> Slowness:
    """The only replica's workers compared with their own history."""
    ratio = against_own_history(history)[history.num_before :]
    sides = [
        direction_against_own_history(each.mean_s, ratio, usual) for each in (forward, backward)
    ]
    return Slowness(
        ratio=ratio,
        forward=sides[0],
        backward=sides[1],
        least=ratio,
        measure=np.ones(ratio.shape[1:], np.bool_),
        as_peers=(
            _divided(forward.mean_s, sides[0], ratio > 1),
            _divided(backward.mean_s, sides[1], ratio > 1),
        ),
        usual=usual,
        spread=spread_of_steps(ratio[usual], np.ones(ratio.shape[2])),
        peer_spread=0.0,
        lengths_vary=False,
        has_no_peers=True,
    )


def _spread(ratio: Floats) -> float:
    """Standard deviation of ratios [steps, workers] within a worker, without changes of level.

    One worker that comes and goes makes all of them together vary, but not the median one.
    """
    if ratio.shape[0] < _MIN_STRETCH or ratio.shape[1] < 2:
        return spread_of_steps(ratio)
    squares = np.sort(squares_of_steps(ratio))
    together = math.sqrt(float(squares.sum()) / squares.size / 2)
    usual = math.sqrt(float(squares[(squares.size - 1) // 2]) / 2)
    return max(MIN_SPREAD, min(together, _MAX_OF_MEDIAN * usual))


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
        return MIN_SPREAD
    return float(np.sqrt(2.0)) * spread_of_steps(all_s / level_s)


def _peer_spread(level: Floats, measure: NDArray[np.bool_]) -> float:
    """Standard deviation between healthy workers of a stage, by their mean ratios [dp, pp].

    Without those that are clearly slow, and without the slower groups `~measure` where these are
    far from the others. With few workers, what is usual counts as well.
    """
    is_healthy = level < _CLEARLY_SLOW
    # Where one worker alone is the reference, it shows no variation.
    is_fast = is_healthy & (measure | (measure.sum(axis=0) < 2))
    among_fast, slower = _spread_within(level, is_fast), level[is_healthy & ~is_fast]
    if not slower.size or median_of(slower) >= 1 + MIN_PEER_DEVIATIONS * among_fast:
        return among_fast
    return _spread_within(level, is_healthy)


def _spread_within(level: Floats, chosen: NDArray[np.bool_]) -> float:
    size = chosen.sum(axis=0)
    total = np.where(chosen, level, 0.0).sum(axis=0)
    is_measured = (size >= 2) & (total > 0)
    if not is_measured.any():
        return _USUAL_PEER_SPREAD
    size, total, chosen = size[is_measured], total[is_measured], chosen[:, is_measured]
    away = np.abs(level[:, is_measured] / (total / size) - 1) * np.sqrt(size / (size - 1))
    freedom = int((size - 1).sum())
    # The lower median: of two workers of two stages, those of one may differ by a fault.
    measured = MAD_TO_DEVIATION * float(np.sort(away[chosen])[(int(size.sum()) - 1) // 2])
    squares = freedom * measured**2 + _USUAL_PEER_VALUES * _USUAL_PEER_SPREAD**2
    return float(np.sqrt(squares / (freedom + _USUAL_PEER_VALUES)))


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
    if spread < _MIN_COMMON * spread_of_steps(
        (ratio[usual] / common[usual, :, None])[:, is_measured]
    ):
        return None
    common_spread = spread_of_steps(common[usual])
    found = stretches(common[usual], common_spread, MIN_RATIO - 1)
    lasts = found.end - found.first >= max(_MIN_STRETCH, usual.size // 4)
    for dp_rank in np.flatnonzero(lasts & (found.standard_errors >= MIN_DEVIATIONS)):
        stretch = usual[found.first[dp_rank] : found.end[dp_rank]]
        # Its lengths are taken to be the others' on average.
        common[stretch, dp_rank] /= found.mean[dp_rank]
    return common
