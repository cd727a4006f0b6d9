"""Which workers compute slower than their peers (same stage, other dp ranks), when and by how much?

With one dp rank there are no peers, so a stage is compared with its own history: its share of the
model is fixed, so a stage that becomes slower than the others is a slow worker. A stage that was
slow from the first step may simply have more work.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.evidence.features import Pace
from app.diagnosis.job_history import ExtendedHistory
from app.diagnosis.statistics.change_points import latest_onset_of_each
from app.diagnosis.statistics.robust import (
    Stretches,
    median,
    medians,
    spread_of_steps,
    stretches,
)
from app.engine.kernels import kernel
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

# If at least this share of the dp ranks (two, where there are four or more) is clearly faster than
# the others, these are the reference: a median would lie between two generations of GPUs. A single
# fast one makes no others slow.
FAST_SHARE = 0.2
# The gap to the fast group: this share, and so many times the spread within it.
CLEAR_GAP = 0.02
GAP_TO_SPREAD = 1.5


def peer_references(took_s: Floats) -> NDArray[np.bool_]:
    """[dp, pp], the reference workers: all, or the faster of two distinct groups.

    Args:
        took_s: [steps, dp, pp], seconds that should be equal within a stage.
    """
    _, dp_size, pp_size = took_s.shape
    found = np.ones((dp_size, pp_size), np.bool_)
    if dp_size > 1 and took_s.shape[0]:
        _references(np.ascontiguousarray(took_s), found)
    return found


def ratios_to_peers(took_s: Floats, measure: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], seconds divided by the median of the stage's reference workers [dp, pp]."""
    found = np.ones(took_s.shape)
    _ratios(np.ascontiguousarray(took_s), measure, found)
    return found


@kernel
def _references(took_s, found):  # type: ignore[no-untyped-def]
    num_steps, dp_size, pp_size = took_s.shape
    took = np.empty(dp_size)
    for stage in range(pp_size):
        level = np.zeros(dp_size)
        for step in range(num_steps):
            took[:] = took_s[step, :, stage]
            typical_s = median(took, dp_size)
            if typical_s > 0:
                for dp_rank in range(dp_size):
                    level[dp_rank] += took_s[step, dp_rank, stage] / typical_s / num_steps
        order = np.sort(level)
        best, split = 0.0, 0
        fewest = max(1 if dp_size < 4 else 2, int(np.ceil(FAST_SHARE * dp_size)))
        for count in range(fewest, dp_size):
            gap = order[count] - order[count - 1]
            if gap > best:
                best, split = gap, count
        if split == 0:
            continue
        spread = order[split - 1] - order[0]
        if best >= CLEAR_GAP * order[split - 1] and best >= GAP_TO_SPREAD * spread:
            for dp_rank in range(dp_size):
                found[dp_rank, stage] = level[dp_rank] <= order[split - 1]


@kernel
def _ratios(took_s, measure, found):  # type: ignore[no-untyped-def]
    num_steps, dp_size, pp_size = took_s.shape
    chosen = np.empty(dp_size)
    for step in range(num_steps):
        for stage in range(pp_size):
            count = 0
            for dp_rank in range(dp_size):
                if measure[dp_rank, stage]:
                    chosen[count] = took_s[step, dp_rank, stage]
                    count += 1
            typical_s = median(chosen, count)
            if typical_s > 0:
                for dp_rank in range(dp_size):
                    found[step, dp_rank, stage] = took_s[step, dp_rank, stage] / typical_s


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
    by_stage = _by(took_s, np.quantile(took_s[known], _BEST_QUANTILE, axis=0))
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
# Each direction, and the shortest computation, shows at least this share of the slowdown.
SHARE_OF_EACH = 0.35
# Lengths vary if dividing out the replica's common factor lowers the spread so many times.
_MIN_COMMON = 2.0
# A worker varies if its stretch has so many times the usual spread.
_VARYING_DEVIATIONS = 3.0
# Longer stretches of a slow replica are not sequence lengths.
_MIN_STRETCH = 4
_MIN_PEERS = 6

NO_COMPUTATIONS = "some stage has no forward or no backward computations"


@dataclass(frozen=True)
class Slowness:
    """Ratios of each worker's computation times to its peers', sequence lengths divided out.

    Shapes: `ratio`, `forward`, `backward` and `least` (the shortest computation) [steps, dp, pp];
    `measure` [dp, pp], the reference workers; `as_peers`, forward and backward seconds [steps, dp,
    pp] with slow groups brought to the reference; `usual` [usual steps], positions of the steps in
    which `stretches` [workers] are searched, which count positions in `usual`. `has_no_peers`: the
    workers are compared with their own history.
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

    @cached_property
    def stretches(self) -> Stretches:
        """The slowest stretch of every worker, stages of a dp rank side by side."""
        return stretches(
            self.ratio[self.usual].reshape(self.usual.size, -1), self.spread, MIN_RATIO - 1
        )

    @property
    def threshold(self) -> float:
        """The ratio from which a worker is slow."""
        return max(MIN_RATIO, 1 + MIN_PEER_DEVIATIONS * self.peer_spread)

    @cached_property
    def significance(self) -> Floats:
        """[workers], 0..1, the weakest of all evidence that a slow worker must show; 1 = enough."""
        found, excess = self.stretches, np.maximum(self.stretches.mean - 1, 0.0)
        shown = np.minimum(found.standard_errors / MIN_DEVIATIONS, excess / (self.threshold - 1))
        sides = [self.forward, self.backward] + [self.least] * (not self.lengths_vary)
        spreads = [spread_of_steps(side[self.usual]) for side in sides]
        for side, spread in zip(sides, spreads, strict=True):
            theirs = self._in_stretches(side)
            error = spread / np.sqrt(np.maximum(found.end - found.first, 1))
            wanted = SHARE_OF_EACH * excess
            shown = np.minimum(shown, (theirs - 1 + 2 * error) / np.maximum(wanted, 1e-9))
        is_lone = (found.end - found.first < 2) & (self.usual.size > 1)
        return np.where(is_lone, 0.0, np.clip(shown, 0.0, 1.0))

    @cached_property
    def varies(self) -> NDArray[np.bool_]:
        """[workers], whether the slowdown varies within the stretch, as a throttling GPU's does."""
        if self.lengths_vary:
            return np.zeros(self.stretches.mean.size, np.bool_)
        squares = self._in_stretches(self.ratio**2)
        deviation = np.sqrt(np.maximum(0.0, squares - self.stretches.mean**2))
        return deviation > _VARYING_DEVIATIONS * self.spread

    @cached_property
    def slow_by(self) -> Floats:
        """[steps, dp, pp], the mean ratio of slow workers in their stretches, elsewhere 1."""
        found, by = self.stretches, np.ones(self.ratio.shape)
        for at in np.flatnonzero(self.significance >= 1).tolist():
            dp_rank, stage = divmod(at, self.ratio.shape[2])
            chosen = self.usual[found.first[at] : found.end[at]]
            by[chosen[0] : chosen[-1] + 1, dp_rank, stage] = found.mean[at]
        return by

    def _in_stretches(self, side: Floats) -> Floats:
        """[workers], the mean of a figure in each worker's stretch; 1 where there is none."""
        series, found = side[self.usual].reshape(self.usual.size, -1), self.stretches
        total = np.concatenate([np.zeros((1, series.shape[1])), np.cumsum(series, axis=0)])
        workers, sizes = np.arange(series.shape[1]), np.maximum(found.end - found.first, 1)
        mean = (total[found.end, workers] - total[found.first, workers]) / sizes
        return np.where(found.end > found.first, mean, 1.0)


def slowness_to_peers(forward: Pace, backward: Pace, usual: Ints) -> Slowness:
    """Every worker compared with its peers."""
    measure = peer_references((forward.mean_s + backward.mean_s)[usual])
    # A worker that is measured by itself alone shows no variation between workers.
    is_measured = ~(measure & (measure.sum(axis=0) == 1))
    of_mean, of_least = (
        _against(kind, measure)
        for kind in ((forward.mean_s, backward.mean_s), (forward.least_s, backward.least_s))
    )
    spread, of_shortest = (
        spread_of_steps(each[0][usual][:, is_measured]) for each in (of_mean, of_least)
    )
    # With uneven lengths, means of micro-batches vary far more than the shortest ones.
    by_least = of_shortest * _MIN_COMMON < spread
    ratio, *sides = of_least if by_least else of_mean
    least, spread = of_least[0], min(spread, of_shortest) if by_least else spread
    lengths = _of_lengths(ratio, usual, spread, is_measured)
    if lengths is not None:
        ratio, least, *sides = (each / lengths[:, :, None] for each in (ratio, least, *sides))
        spread = spread_of_steps(ratio[usual][:, is_measured])
    level = ratio[usual].mean(axis=0)[measure]
    peer_spread = MAD_TO_DEVIATION * float(medians(np.abs(level - 1)))
    return Slowness(
        ratio=ratio,
        forward=sides[0],
        backward=sides[1],
        least=least,
        measure=measure,
        as_peers=(
            _divided(forward.mean_s, of_mean[1], ~measure),
            _divided(backward.mean_s, of_mean[2], ~measure),
        ),
        usual=usual,
        spread=spread,
        peer_spread=peer_spread if level.size >= _MIN_PEERS else 0.0,
        lengths_vary=by_least or lengths is not None,
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
        as_peers=(forward.mean_s, backward.mean_s),
        usual=usual,
        spread=spread_of_steps(ratio[usual], np.ones(ratio.shape[2])),
        peer_spread=0.0,
        lengths_vary=False,
        has_no_peers=True,
    )


def _against(took_s: tuple[Floats, Floats], measure: NDArray[np.bool_]) -> list[Floats]:
    """[steps, dp, pp] ratios to peers: both directions together, forward, backward."""
    forward_s, backward_s = took_s
    return [
        ratios_to_peers(each, measure) for each in (forward_s + backward_s, forward_s, backward_s)
    ]


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
    usual_common = medians(common)[:, None]
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
