"""Does a slowdown last: transient, chronic, rotating between culprits, or progressive?

`persistence` is for a degree of badness in each step, `onset_of_hits` for steps that show a cause
or do not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.statistics.episodes import Episodes, bad_steps, episodes_of
from app.engine.medians import median_of
from app.result.finding import Persistence
from app.trace.window import Floats, Ints

# Of the window's steps, or of those since the onset.
MIN_CHRONIC_SHARE = 0.5
# Fewer bad steps up to the newest one are few steps.
MIN_CHRONIC_STEPS = 4
# Progressive: Kendall's tau of the steps, and growth from the first third to the last; or a ramp
# over at least this share of the bad steps.
MIN_AGREEMENT = 0.6
MIN_GROWTH = 0.1
MIN_STEPS = 6
GROWTH_STEPS = 64  # newest steps that are looked at
MIN_RAMP_SHARE = 0.5
# It comes and goes where less than this share of the steps is bad, from the first bad one on.
MIN_STEADY_SHARE = 0.85
# Rotating: at least three culprits, none with more than half of the bad steps.
MAX_SHARE_OF_ONE = 0.5
MIN_CULPRITS = 3


def persistence(badness: Floats, num_before: int = 0) -> Persistence | None:
    """Persistence of badness [n]; the first `num_before` steps are before the window.

    1.0 = not bad, NaN = unknown; None where no step of the window is bad.
    """
    found = episodes_of(badness)
    return None if found is None else persistence_of(found, badness, num_before)


def persistence_of(found: Episodes, badness: Floats, num_before: int) -> Persistence | None:
    """The same, of episodes that are known."""
    bad = is_bad = bad_steps(badness)
    inside = np.zeros(badness.size, np.bool_)
    for first, end in found.parts:
        inside[first:end] = True
    if (is_bad & inside)[num_before:].any():
        is_bad = bad & inside
    num_known = int(np.isfinite(badness[num_before:]).sum())
    num_bad = int(is_bad[num_before:].sum())
    if not num_bad:
        return None
    is_most = num_bad >= MIN_CHRONIC_SHARE * num_known
    if found.is_over:
        return "chronic" if is_most and found.share_bad >= MIN_STEADY_SHARE else "transient"
    if _is_ramp(found, badness) or _is_growing(badness, bad):
        return "progressive"
    if found.share_bad < MIN_STEADY_SHARE:
        return "transient"
    is_lasting = int(is_bad[found.parts[-1][0] :].sum()) >= MIN_CHRONIC_STEPS
    return "chronic" if is_most or is_lasting else "transient"


def _is_ramp(found: Episodes, badness: Floats) -> bool:
    """Whether most of the last part is a ramp upwards."""
    first, end = found.parts[-1]
    if found.ramp_until is None or end < badness.size - GROWTH_STEPS:
        return False
    values = badness[first:end][np.isfinite(badness[first:end])]
    if found.ramp_until + 1 - first < MIN_RAMP_SHARE * (end - first) or values.size < MIN_STEPS:
        return False
    third = max(2, values.size // 3)
    return bool(median_of(values[-third:]) / median_of(values[:third]) - 1 >= MIN_GROWTH / 2)


def rotation(culprits: Ints) -> Persistence | None:
    """ "rotating" if the worst culprit, [n] with -1 for none, changes from step to step."""
    named = culprits[culprits >= 0]
    if not named.size:
        return None
    counts = np.bincount(named)
    is_rotating = (
        np.count_nonzero(counts) >= MIN_CULPRITS and counts.max() <= MAX_SHARE_OF_ONE * named.size
    )
    return "rotating" if is_rotating else None


def _is_growing(badness: Floats, is_bad: np.ndarray) -> bool:
    """Whether the current stretch of bad steps gets worse (Kendall's tau, and growth)."""
    grown = _current_stretch(badness, is_bad)
    if grown.size < MIN_STEPS:
        return False
    pairs = np.sign(grown[None, :] - grown[:, None])
    agreement = np.triu(pairs, 1).sum() / (grown.size * (grown.size - 1) / 2)
    third = max(2, grown.size // 3)
    growth = median_of(grown[-third:]) / median_of(grown[:third]) - 1
    return bool(agreement >= MIN_AGREEMENT and growth >= MIN_GROWTH)


def _current_stretch(badness: Floats, is_bad: np.ndarray) -> Floats:
    """The last stretch of bad steps; single good or unknown steps do not end it."""
    at = np.flatnonzero(is_bad)
    if not at.size or at[-1] < badness.size - 2:
        return np.empty(0)
    breaks = np.flatnonzero(np.diff(at) > 2)
    first = at[breaks[-1] + 1] if breaks.size else at[0]
    recent = badness[max(first, badness.size - GROWTH_STEPS) :]
    return recent[np.isfinite(recent)]


# Probability below which quiet steps in a row are an onset or an end.
_MAX_CHANCE = 0.01
# A step belongs to a stretch if its share is at least this.
MIN_HIT_SHARE = 0.5
# So few hits in a longer window are transient.
_FEW_STEPS = 3


@dataclass(frozen=True, slots=True)
class Onset:
    """Since when something is bad, whether it lasts, and its last step where it does not.

    `onset_step` is None where it began before the known steps, or with no single step;
    `persistence` is None where no step of the window is bad; `end_step` is None while it lasts.
    """

    onset_step: int | None
    persistence: Persistence | None
    end_step: int | None = None


def onset_of_hits(steps: Ints, is_hit: NDArray[np.bool_]) -> Onset:
    """Onset and persistence of a cause that at least one step shows.

    Args:
        steps: [steps], ascending.
        is_hit: [steps], whether each shows the cause.
    """
    hits = np.flatnonzero(is_hit)
    first, last = int(hits[0]), int(hits[-1])
    # Hits a step after the first one; two hits are too few for that.
    rate = (hits.size - 1) / (last + 1 - first) if hits.size > 2 else float(is_hit[first:].mean())
    began_here = (1 - rate) ** first < _MAX_CHANCE
    num_after = is_hit.size - 1 - last
    is_over = num_after > 0 and (1 - rate) ** num_after < _MAX_CHANCE
    is_hiccup = hits.size <= _FEW_STEPS < is_hit.size / 2
    lasts: Persistence = "transient" if is_over or is_hiccup else "chronic"
    return Onset(
        int(steps[first]) if began_here else None, lasts, int(steps[last]) if is_over else None
    )


def densest_stretch(share: Floats) -> tuple[int, int]:
    """First and end of the stretch with the largest sum of share - 1/2.

    `share` [steps] is within 0..1.
    """
    return best_stretch(share - MIN_HIT_SHARE)


def best_stretch(gain: Floats) -> tuple[int, int]:
    """First and end of the stretch with the largest sum of `gain` [steps] (Kadane)."""
    best, found, total, began = -np.inf, (0, gain.size), 0.0, 0
    for position, each in enumerate(gain.tolist()):
        if total <= 0.0:
            total, began = 0.0, position
        total += each
        if total > best:
            best, found = total, (began, position + 1)
    return found
