"""Who computes slower than the same stage's other dp ranks, in which steps, and by how much?"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.course import Course
from app.diagnosis.features import Pace
from app.diagnosis.own_history import against_itself, of_direction
from app.diagnosis.peers import ratios, references
from app.diagnosis.selecting import medians
from app.diagnosis.stretches import Stretches, spread_of_steps, stretches
from app.trace.window import Floats, Ints

# A worker 4 % slower than its peers is worth a look; 2 % are within what GPUs of one kind differ.
LEAST_RATIO = 1.04
# Standard errors; there may be ten thousand workers, each with its chance.
MIN_DEVIATIONS = 6.0
# Healthy peers differ among themselves, too: so many of their standard deviations.
BEYOND_PEERS = 5.0
# Of the slowdown that each direction, and the shortest computation, has to show as well.
SHARE_OF_EACH = 0.35
# Lengths are said to vary where a replica's stages are slow and fast together to this degree.
_TOGETHER = 2.0
# Of a steady worker's ratios hardly any stretch has so many times the usual deviation.
_VARIES = 3.0
# A replica may have long sequences in two or three steps after each other.
_LONG_ENOUGH = 4
_ENOUGH_PEERS = 6
_MAD_TO_DEVIATION = 1.4826

NO_COMPUTATIONS = "some stage has no forward or no backward computations"


@dataclass(frozen=True)
class Slowness:
    """Each worker's computations against its peers', lengths of sequences divided out.

    Shapes: `ratio`, `forward`, `backward` and `least` (the shortest computation) [steps, dp, pp];
    `measure` [dp, pp], whom workers are measured by; `as_peers`, forward and backward, [steps,
    dp, pp] seconds: what workers took, and those that nobody is measured by what their peers
    took; `usual` [usual steps], the positions of the steps that stretches are looked for in.
    `by_itself` says that there are no peers, and that workers are held against their own past.
    `stretches` are of [workers], stages of a dp rank side by side, and count positions in `usual`.
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
    by_itself: bool = False

    @cached_property
    def stretches(self) -> Stretches:
        """Of every worker."""
        return stretches(_flat(self.ratio[self.usual]), self.spread, LEAST_RATIO - 1)

    @property
    def needed(self) -> float:
        """The ratio that a worker must reach to stand out from its peers."""
        return max(LEAST_RATIO, 1 + BEYOND_PEERS * self.peer_spread)

    @cached_property
    def shown(self) -> Floats:
        """[workers], 0..1: how far all that a slow worker must show is shown; 1 = all of it."""
        found, excess = self.stretches, np.maximum(self.stretches.mean - 1, 0.0)
        shown = np.minimum(found.deviations / MIN_DEVIATIONS, excess / (self.needed - 1))
        sides = [self.forward, self.backward] + [self.least] * (not self.lengths_vary)
        for side in sides:
            theirs, error = self._in_stretches(side)
            wanted = SHARE_OF_EACH * excess
            shown = np.minimum(shown, (theirs - 1 + 2 * error) / np.maximum(wanted, 1e-9))
        is_lone = (found.end - found.first < 2) & (self.usual.size > 1)
        return np.where(is_lone, 0.0, np.clip(shown, 0.0, 1.0))

    @cached_property
    def varies(self) -> NDArray[np.bool_]:
        """[workers], whether one is slower in some steps of its stretch than in others.

        By more than chance: a throttling GPU, not a slow one.
        """
        if self.lengths_vary:
            return np.zeros(self.stretches.mean.size, np.bool_)
        squares, _ = self._in_stretches(self.ratio**2)
        deviation = np.sqrt(np.maximum(0.0, squares - self.stretches.mean**2))
        return deviation > _VARIES * self.spread

    @cached_property
    def slow_by(self) -> Floats:
        """[steps, dp, pp], the ratio of workers that show all, in their stretches; else 1."""
        found, by = self.stretches, np.ones(self.ratio.shape)
        for at in np.flatnonzero(self.shown >= 1).tolist():
            dp_rank, stage = divmod(at, self.ratio.shape[2])
            chosen = self.usual[found.first[at] : found.end[at]]
            by[chosen[0] : chosen[-1] + 1, dp_rank, stage] = found.mean[at]
        return by

    def _in_stretches(self, side: Floats) -> tuple[Floats, Floats]:
        """[workers], the mean of a figure in each worker's stretch, and that mean's error."""
        series, found = _flat(side[self.usual]), self.stretches
        total = np.concatenate([np.zeros((1, series.shape[1])), np.cumsum(series, axis=0)])
        workers, sizes = np.arange(series.shape[1]), np.maximum(found.end - found.first, 1)
        mean = (total[found.end, workers] - total[found.first, workers]) / sizes
        spread = spread_of_steps(series)
        return np.where(found.end > found.first, mean, 1.0), spread / np.sqrt(sizes)


def slowness(forward: Pace, backward: Pace, usual: Ints) -> Slowness:
    """Every worker against its peers."""
    measure = references((forward.mean_s + backward.mean_s)[usual])
    is_measured = ~(measure & (measure.sum(axis=0) == 1))
    of_mean, of_least = (
        _against(kind, measure)
        for kind in ((forward.mean_s, backward.mean_s), (forward.least_s, backward.least_s))
    )
    spread, of_shortest = (_spread(each[0][usual], is_measured) for each in (of_mean, of_least))
    # Means of micro-batches of uneven lengths vary far more than the shortest ones do.
    by_least = of_shortest * _TOGETHER < spread
    ratio, *sides = of_least if by_least else of_mean
    least, spread = of_least[0], min(spread, of_shortest) if by_least else spread
    lengths = _of_lengths(ratio, usual, spread, is_measured)
    if lengths is not None:
        ratio, least, *sides = (each / lengths[:, :, None] for each in (ratio, least, *sides))
        spread = _spread(ratio[usual], is_measured)
    level = ratio[usual].mean(axis=0)[measure]
    peer_spread = _MAD_TO_DEVIATION * float(medians(np.abs(level - 1)))
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
        peer_spread=peer_spread if level.size >= _ENOUGH_PEERS else 0.0,
        lengths_vary=by_least or lengths is not None,
    )


def slowness_by_itself(course: Course, forward: Pace, backward: Pace, usual: Ints) -> Slowness:
    """The workers of the only replica against what they were; 1.0 where they did not change."""
    ratio = against_itself(course)[course.num_before :]
    sides = [of_direction(each.mean_s, ratio, usual) for each in (forward, backward)]
    return Slowness(
        ratio=ratio,
        forward=sides[0],
        backward=sides[1],
        least=ratio,
        measure=np.ones(ratio.shape[1:], np.bool_),
        as_peers=(forward.mean_s, backward.mean_s),
        usual=usual,
        spread=spread_of_steps(_flat(ratio[usual]), np.ones(ratio.shape[2])),
        peer_spread=0.0,
        lengths_vary=False,
        by_itself=True,
    )


def _against(took_s: tuple[Floats, Floats], measure: NDArray[np.bool_]) -> list[Floats]:
    """[steps, dp, pp] against peers: both directions together, forward, backward."""
    forward_s, backward_s = took_s
    return [ratios(each, measure) for each in (forward_s + backward_s, forward_s, backward_s)]


def _divided(took_s: Floats, ratio: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """[steps, dp, pp], chosen workers' seconds by their ratio; nothing by 0 stays as it is."""
    return np.divide(took_s, ratio, out=took_s.copy(), where=chosen & (ratio > 0))


def _flat(figure: Floats) -> Floats:
    """[steps, workers]."""
    return figure.reshape(figure.shape[0], -1)


def _spread(ratio: Floats, is_measured: NDArray[np.bool_]) -> float:
    """Of single ratios, those of workers that are measured by others than themselves."""
    series = _flat(ratio)[:, is_measured.ravel()]
    return spread_of_steps(series)


def _of_lengths(
    ratio: Floats, usual: Ints, spread: float, is_measured: NDArray[np.bool_]
) -> Floats | None:
    """[steps, dp], how long a replica's sequences were, 1 = as usual; None where they are alike.

    A micro-batch of long sequences is long on all stages: what a replica's stages have in common
    in single steps is the lengths. What they have in common in many steps is not: all of its
    stages are slow.
    """
    if ratio.shape[2] < 2 or usual.size < 2:
        return None
    # Not the median: of two stages it would be half as slow as a slow one.
    low = (ratio.shape[2] - 1) // 4
    common = np.partition(ratio, low, axis=2)[:, :, low]
    usual_common = medians(common)[:, None]
    # Computations that took no time at all tell no lengths.
    can_tell = (common > 0) & (usual_common > 0)
    common = np.divide(common, usual_common, out=np.ones(common.shape), where=can_tell)
    if spread < _TOGETHER * _spread(ratio[usual] / common[usual, :, None], is_measured):
        return None
    common_spread = spread_of_steps(common[usual])
    found = stretches(common[usual], common_spread, LEAST_RATIO - 1)
    lasts = found.end - found.first >= max(_LONG_ENOUGH, usual.size // 4)
    for dp_rank in np.flatnonzero(lasts & (found.deviations >= MIN_DEVIATIONS)):
        stretch = usual[found.first[dp_rank] : found.end[dp_rank]]
        # Its lengths are not known; on average they are as the others' are.
        common[stretch, dp_rank] /= found.mean[dp_rank]
    return common
