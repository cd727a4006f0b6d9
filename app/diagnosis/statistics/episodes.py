"""The slow steps of a series as episodes: when did it begin, did it end, does it come and go?

`badness` is 1.0 in a step that is as it should be. Its logarithm is taken as one of two levels, the
one of good steps and the one of bad steps, plus normal noise; the most likely sequence of levels
(Viterbi) has the episodes. A level changes rarely, so each change costs as much as a change point
does, and a single step counts no more than `max_evidence` of that: one outlier is neither an onset
nor an end. Where an episode begins with a ramp (change_points.py), it begins with the ramp.

Unlike `latest_onset`, this also places slowdowns that ended, that come and go, or that began a few
steps after the record.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.statistics import change_points
from app.diagnosis.statistics.change_points import find_ramp, scale_of, without_outliers
from app.diagnosis.statistics.ramps import grows_from_the_first
from app.engine.kernels import kernel
from app.engine.medians import median_of
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """From when on steps are an episode. All were chosen on made series, for the reasons given."""

    # A step is bad from this excess, and from half of the median excess of bad steps: healthy GPUs
    # differ by up to 3 %.
    min_excess: float = 0.03
    # Evidence of a single step, in costs of a change: less than 2, so one step alone never makes an
    # episode, and more than 1, so two clear ones do.
    max_evidence: float = 1.6
    # Fewest known good steps before an onset or after an end: two may be chance.
    min_good_steps: int = 3
    # Good steps between two parts of one slowdown: so many, or so many times the longest part or
    # gap. What comes and goes does so regularly.
    max_gap: int = 12
    max_gap_ratio: float = 2.0
    # An earlier part that is shorter than this share of a later one belongs to nothing.
    min_share: float = 0.25
    # A slowdown that comes and goes is over after so many times its longest gap.
    quiet_ratio: float = 2.0
    # Noise: fewer standard deviations between the levels do not show which single steps are good.
    clear_deviations: float = 4.0
    # A step is clearly good below this share of the excess.
    clearly_good: float = 0.25
    # Levels so many standard deviations apart are two levels, not the halves of one.
    clear_levels: float = 6.0
    # Probability below which good steps in a row are an onset or an end, where bad ones come
    # singly: wrong in 1 of 100 series.
    max_chance: float = 0.01


LIMITS = EpisodeLimits()
# Of the highest steps, from whose median the bad level is first taken.
_HIGHEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Episodes:
    """The latest slowdown of a series [n], by positions.

    Attributes:
        parts: first and end of each episode, ascending; good steps are between them.
        begins: whether good steps before the first part show its onset.
        is_over: whether good steps after the last part show its end.
        ramp_until: the first position on the full level, where the last part begins with a ramp.
        share_bad: share of its known steps that are bad, from the first part to the last.
    """

    parts: tuple[tuple[int, int], ...]
    begins: bool
    is_over: bool
    ramp_until: int | None
    share_bad: float

    @property
    def first(self) -> int:
        """The first slow position."""
        return self.parts[0][0]

    @property
    def end(self) -> int:
        """The position after the last slow one."""
        return self.parts[-1][1]

    @property
    def positions(self) -> Ints:
        """All positions of the parts, ascending."""
        return np.concatenate([np.arange(first, end) for first, end in self.parts])


def bad_steps(badness: Floats) -> NDArray[np.bool_]:
    """[n], whether each step is bad."""
    excess = np.where(np.isnan(badness), 0.0, badness - 1.0)
    some = excess[excess >= LIMITS.min_excess]
    if not some.size:
        return np.zeros(badness.size, np.bool_)
    return np.asarray(excess >= max(LIMITS.min_excess, median_of(some) / 2))


def episodes_of(badness: Floats) -> Episodes | None:
    """The latest slowdown of badness [n], NaN = unknown; None where no step is bad."""
    at = np.flatnonzero(np.isfinite(badness) & (badness > 0))
    is_bad = bad_steps(badness)[at]
    if not is_bad.any():
        return None
    logs = np.log(badness[at])
    runs = _bad_levels(logs, is_bad)
    if runs is None:
        return _of_hits(is_bad, at)
    parts = _latest(runs)
    begin, until = _ramp_of(logs, parts)
    parts[-1] = begin, parts[-1][1]
    first, end = parts[0][0], parts[-1][1]
    longest_gap = max((after[0] - one[1] for one, after in pairwise(parts)), default=0)
    return Episodes(
        parts=tuple((int(at[one]), int(at[other - 1]) + 1) for one, other in parts),
        begins=first >= LIMITS.min_good_steps,
        is_over=at.size - end >= max(LIMITS.min_good_steps, LIMITS.quiet_ratio * longest_gap),
        ramp_until=None if until is None else int(at[until]),
        share_bad=_share_bad(logs[first:end], parts),
    )


def _of_hits(is_bad: NDArray[np.bool_], at: Ints) -> Episodes:
    """Bad steps that make no episode: they come one by one."""
    hits = np.flatnonzero(is_bad)
    first, end = int(hits[0]), int(hits[-1]) + 1
    rate = hits.size / (end - first) if hits.size > 1 else 0.5
    num_after, most = is_bad.size - end, LIMITS.max_chance
    return Episodes(
        parts=((int(at[first]), int(at[end - 1]) + 1),),
        begins=first >= LIMITS.min_good_steps and (1 - rate) ** first < most,
        is_over=num_after >= LIMITS.min_good_steps and (1 - rate) ** num_after < most,
        ramp_until=None,
        share_bad=hits.size / (end - first),
    )


Runs = list[tuple[int, int]]


def _bad_levels(logs: Floats, is_bad: NDArray[np.bool_]) -> Runs | None:
    """First and end of the runs on the bad level, at least one; None where no run is clear.

    The whole series where there is one level.
    """
    whole = [(0, logs.size)]
    if logs.size < LIMITS.min_good_steps + 1:
        return whole
    is_high = logs >= median_of(np.sort(logs)[-_HIGHEST_STEPS:]) / 2
    best = min(_segmented(logs, is_bad), _segmented(logs, is_high), key=lambda fit: fit.left)
    if best.is_bad.all():
        return whole
    return _clear_runs(logs, runs_of(best.is_bad), best.scale) or None


class _Segmented(NamedTuple):
    """States of the steps, the noise, and the squares (in variances) and changes that are left."""

    is_bad: NDArray[np.bool_]
    scale: float
    left: float


def _segmented(logs: Floats, is_bad: NDArray[np.bool_]) -> _Segmented:
    """The most likely states, beginning with these."""
    # Log odds of the levels, linear in the value; a change costs log(n), as in the BIC.
    cost = 1.0 + float(np.log(logs.size))
    usual = scale = float(scale_of(logs, change_points.LIMITS.min_scale))
    for _ in range(3):
        if is_bad.all() or not is_bad.any():
            break
        good, bad = median_of(logs[~is_bad]), median_of(logs[is_bad])
        if good > bad / 2:
            # Worse and better steps of a series that is always bad.
            is_bad = np.ones(logs.size, np.bool_)
            break
        scale = min(usual, _within(logs, is_bad))
        odds = (bad - good) * (logs - (good + bad) / 2) / scale**2
        before, most = is_bad, LIMITS.max_evidence * cost
        is_bad = _viterbi(np.minimum(np.maximum(odds, -most), most), cost)
        # One step at either end takes a single change.
        is_bad[0], is_bad[-1] = is_bad[1], is_bad[-2]
        if np.array_equal(is_bad, before):
            break
    parts = [logs[is_bad == state] for state in (False, True)]
    far = [np.abs(part - median_of(part)) / usual for part in parts if part.size]
    most = change_points.LIMITS.outlier_deviations
    squares = sum(float((np.minimum(deviations, most) ** 2).sum()) for deviations in far)
    return _Segmented(is_bad, scale, squares / 2 + cost * int((is_bad[1:] != is_bad[:-1]).sum()))


def _within(logs: Floats, is_bad: NDArray[np.bool_]) -> float:
    """Standard deviation within the levels, where these are clearly apart; else infinity.

    Levels that take turns every few steps are in half of all differences between steps.
    """
    good, bad = logs[~is_bad], logs[is_bad]
    good_level, bad_level = median_of(good), median_of(bad)
    away = np.concatenate([good - good_level, bad - bad_level])
    scale = max(change_points.LIMITS.min_scale, MAD_TO_DEVIATION * median_of(np.abs(away)))
    is_clear = bad_level - good_level >= LIMITS.clear_levels * scale
    return scale if is_clear else float(np.inf)


@kernel
def _viterbi(odds, cost):  # type: ignore[no-untyped-def]
    """[n], the most likely states by the log odds of True, where each change costs `cost`."""
    came_from = np.zeros((odds.size, 2), np.bool_)
    good, bad = 0.0, 0.0
    for step in range(odds.size):
        came_from[step, 0], came_from[step, 1] = good < bad - cost, bad >= good - cost
        gain = odds[step]
        good, bad = max(good, bad - cost) - gain / 2, max(bad, good - cost) + gain / 2
    states = np.zeros(odds.size, np.bool_)
    state = bad > good
    for step in range(odds.size - 1, -1, -1):
        states[step] = state
        state = came_from[step, 1] if state else came_from[step, 0]
    return states


def runs_of(flags: NDArray[np.bool_]) -> Runs:
    """First and end of each run of True."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _clear_runs(logs: Floats, runs: Runs, scale: float) -> Runs:
    """Runs without gaps that may be chance: good steps that are hardly better than the bad ones."""
    joined: Runs = []
    for first, end in runs:
        if joined and not _is_apart(logs, (joined[-1][1], first), (joined[-1][0], end), scale):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((first, end))
    if not joined:
        return joined
    (first, after), (before, end) = joined[0], joined[-1]
    if first > 0 and not _is_apart(logs, (0, first), (0, after), scale):
        joined[0] = 0, after
        before = joined[-1][0]
    if end < logs.size and not _is_apart(logs, (end, logs.size), (before, logs.size), scale):
        joined[-1] = before, logs.size
    return joined


def _is_apart(logs: Floats, gap: tuple[int, int], around: tuple[int, int], scale: float) -> bool:
    """Whether the good steps of a gap are lower than the bad ones around them, beyond chance."""
    good = logs[gap[0] : gap[1]]
    bad = np.concatenate([logs[around[0] : gap[0]], logs[gap[1] : around[1]]])
    if not good.size or not bad.size:
        return False
    error = scale * np.sqrt(1 / good.size + 1 / bad.size)
    return bool(median_of(bad) - median_of(good) >= change_points.LIMITS.min_deviations * error)


def _latest(runs: Runs) -> Runs:
    """The last run and those before it that are part of the same slowdown."""
    parts, longest, widest = [runs[-1]], runs[-1][1] - runs[-1][0], 0
    for run in reversed(runs[:-1]):
        size, gap = run[1] - run[0], parts[0][0] - run[1]
        max_gap = max(LIMITS.max_gap, LIMITS.max_gap_ratio * max(longest, widest))
        if gap > max_gap or size < LIMITS.min_share * longest:
            break
        longest, widest = max(longest, size), max(widest, gap)
        parts.insert(0, run)
    return parts


def _ramp_of(logs: Floats, parts: Runs) -> tuple[int, int | None]:
    """Where the last part begins, and where its ramp ends; None where it begins with a jump."""
    first, end = parts[-1]
    before = parts[-2][1] if len(parts) > 1 else 0
    if first == before:
        return first, None
    ramp = find_ramp(without_outliers(logs[before:end]), [first - before])
    if ramp is None or ramp.after <= ramp.before:
        return first, None
    begin, until = before + ramp.begin, before + ramp.until
    if before == 0 and grows_from_the_first(logs[:end], ramp):
        return 0, until
    return begin, until


def _share_bad(logs: Floats, parts: Runs) -> float:
    """Share of the steps that are bad, where single good ones can be seen; else of the parts'."""
    inside = sum(end - begin for begin, end in parts) / logs.size
    noise = scale_of(logs, change_points.LIMITS.min_scale) if logs.size > 2 else np.inf
    level = median_of(logs)
    if level < LIMITS.clear_deviations * noise:
        return inside
    return min(inside, float((logs >= LIMITS.clearly_good * level).mean()))
