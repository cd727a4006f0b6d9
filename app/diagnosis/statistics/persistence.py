"""When does a cause cost time: all the time, every k steps, now and then, in few steps, in turn?

`persistence` is for a degree of badness in each step, `onset_of_losses` for the time that each
step loses, `onset_of_hits` for steps that show a cause or do not. A step counts by what it loses:
one huge event is one event, whatever small ones surround it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.statistics import episodes
from app.diagnosis.statistics.episodes import Episodes, bad_steps, episodes_of
from app.engine.medians import median_of
from app.result.finding import Persistence
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class PersistenceLimits:
    """What makes a slowdown chronic, progressive or rotating. All were chosen on made series."""

    # Chronic: this share of the window's steps is bad, or so many steps up to the newest one: three
    # in a row may be an evaluation and what follows it.
    min_chronic_share: float = 0.5
    min_chronic_steps: int = 4
    # Progressive: Kendall's tau of the bad steps, and the growth (a share) from their first third
    # to the last, over so many steps; of 200 noisy series none is (test_persistence.py).
    min_agreement: float = 0.6
    min_growth: float = 0.1
    min_steps: int = 6
    # Or a ramp over this share of the bad steps.
    min_ramp_share: float = 0.5
    # It comes and goes where less than this share of the steps is bad, from the first bad one on.
    min_steady_share: float = 0.85
    # Rotating: so many culprits, as two may take turns by chance, none with more than this share of
    # the loss.
    min_culprits: int = 3
    max_share_of_one: float = 0.5
    # A step belongs to a stretch from this share of its operations on: most of them.
    min_hit_share: float = 0.5
    # A loss is of few steps if it is spread over so many, or over this share of them: more than
    # that are no exception (the same for stops, evidence/stops.py).
    few_steps: float = 3.0
    few_share: float = 1 / 3
    # Steps of a period: with two, any distance would be one. A step belongs to them from this
    # share of what the step of a typical lost second loses.
    min_times: int = 3
    min_share_of_typical: float = 0.5
    # They hold so much of the loss, and come at so many of the steps in which one is due: a step
    # that was not judged, or a weak one, ends no period.
    min_share_of_loss: float = 0.75
    min_share_of_due: float = 0.9


LIMITS = PersistenceLimits()
# Newest steps in which growth is searched: pairs of all of them are compared.
_GROWTH_STEPS = 64


def persistence(badness: Floats, num_before: int = 0) -> Persistence | None:
    """Persistence of badness [n]; the first `num_before` steps are before the window.

    1.0 = not bad, NaN = unknown; None where no step of the window is bad.
    """
    slowdown = episodes_of(badness)
    return None if slowdown is None else persistence_of(slowdown, badness, num_before)


def persistence_of(slowdown: Episodes, badness: Floats, num_before: int) -> Persistence | None:
    """The same, of episodes that are known."""
    bad = is_bad = bad_steps(badness)
    inside = np.zeros(badness.size, np.bool_)
    inside[slowdown.positions] = True
    if (is_bad & inside)[num_before:].any():
        is_bad = bad & inside
    num_known = int(np.isfinite(badness[num_before:]).sum())
    num_bad = int(is_bad[num_before:].sum())
    if not num_bad:
        return None
    if num_bad == 1 < num_known:
        return "transient"  # one event
    is_most = num_bad >= LIMITS.min_chronic_share * num_known
    is_steady = slowdown.share_bad >= LIMITS.min_steady_share
    if slowdown.is_over:
        return "chronic" if is_most and is_steady else "transient"
    if _is_ramp(slowdown, badness) or _is_growing(badness, bad):
        return "progressive"
    is_lasting = int(is_bad[slowdown.parts[-1][0] :].sum()) >= LIMITS.min_chronic_steps
    return "chronic" if is_steady and (is_most or is_lasting) else "transient"


def _is_ramp(slowdown: Episodes, badness: Floats) -> bool:
    """Whether most of the last part is a ramp upwards."""
    first, end = slowdown.parts[-1]
    if slowdown.ramp_until is None or end < badness.size - _GROWTH_STEPS:
        return False
    values = badness[first:end][np.isfinite(badness[first:end])]
    is_short = slowdown.ramp_until + 1 - first < LIMITS.min_ramp_share * (end - first)
    if is_short or values.size < LIMITS.min_steps:
        return False
    return _growth(values) >= LIMITS.min_growth / 2


def _growth(values: Floats) -> float:
    """By which share the last third of a series is higher than the first."""
    third = max(2, values.size // 3)
    return median_of(values[-third:]) / median_of(values[:third]) - 1


def rotation(culprits: Ints, lost: Floats | None = None) -> Persistence | None:
    """ "rotating" if the worst culprit changes from step to step.

    Args:
        culprits: [n], the worst one in each step, -1 for none.
        lost: [n], what it loses there; alike where not given.
    """
    named = culprits >= 0
    if not named.any():
        return None
    weights = np.ones(culprits.size) if lost is None else lost
    of_each = np.bincount(culprits[named], weights[named])
    is_none_most = of_each.max() <= LIMITS.max_share_of_one * of_each.sum()
    return "rotating" if np.count_nonzero(of_each) >= LIMITS.min_culprits and is_none_most else None


def _is_growing(badness: Floats, is_bad: np.ndarray) -> bool:
    """Whether the current stretch of bad steps gets worse (Kendall's tau, and growth)."""
    grown = _current_stretch(badness, is_bad)
    if grown.size < LIMITS.min_steps:
        return False
    pairs = np.sign(grown[None, :] - grown[:, None])
    agreement = np.triu(pairs, 1).sum() / (grown.size * (grown.size - 1) / 2)
    return bool(agreement >= LIMITS.min_agreement and _growth(grown) >= LIMITS.min_growth)


def _current_stretch(badness: Floats, is_bad: np.ndarray) -> Floats:
    """The last stretch of bad steps; single good or unknown steps do not end it."""
    at = np.flatnonzero(is_bad)
    if not at.size or at[-1] < badness.size - 2:
        return np.empty(0)
    breaks = np.flatnonzero(np.diff(at) > 2)
    first = at[breaks[-1] + 1] if breaks.size else at[0]
    recent = badness[max(first, badness.size - _GROWTH_STEPS) :]
    return recent[np.isfinite(recent)]


@dataclass(frozen=True, slots=True)
class Onset:
    """Since when something is bad, whether it lasts, and its last step where it does not.

    `onset_step` is None where it began before the known steps, or with no single step;
    `persistence` is None where no step of the window is bad; `end_step` is None while it lasts.
    `every_steps` is its period, None where it has none.
    """

    onset_step: int | None
    persistence: Persistence | None
    end_step: int | None = None
    every_steps: int | None = None


def num_lost_steps(lost: Floats) -> float:
    """Over how many steps a loss [steps] is spread: as many as would lose it in equal parts."""
    squares = float((lost**2).sum())
    return float(lost.sum()) ** 2 / squares if squares > 0 else 0.0


def is_of_few(lost: Floats) -> bool:
    """Whether few of many steps hold a loss [steps]."""
    spread = num_lost_steps(lost)
    most = max(LIMITS.few_steps, LIMITS.few_share * lost.size)
    return 0 < spread <= most and spread < lost.size / 2


def period(steps: Ints, lost: Floats) -> int | None:
    """Every how many steps, at least 2, a loss comes; None where it is not periodic.

    Args:
        steps: [n], ascending; others are unknown.
        lost: [n], at least 0.
    """
    total = float(lost.sum())
    if not total > 0:
        return None
    typical = float((lost**2).sum()) / total
    is_hit = lost >= LIMITS.min_share_of_typical * typical
    hits = steps[is_hit]
    if hits.size < LIMITS.min_times or lost[is_hit].sum() < LIMITS.min_share_of_loss * total:
        return None
    every = int(np.gcd.reduce(np.diff(hits)))
    is_between = (steps >= hits[0]) & (steps <= hits[-1])
    is_due = is_between & ((steps - hits[0]) % every == 0)
    # Of a thinned history no step between two hits may be known.
    is_seen = (is_between & ~is_due).sum() >= hits.size - 1
    return every if is_seen and hits.size >= LIMITS.min_share_of_due * is_due.sum() else None


def onset_of_losses(steps: Ints, lost: Floats) -> Onset:
    """When a cause costs time of which at least one step loses some.

    Args:
        steps: [steps], ascending.
        lost: [steps], what each loses, at least 0.
    """
    is_hit = lost > 0
    hits = np.flatnonzero(is_hit)
    first, last = int(hits[0]), int(hits[-1])
    # Hits a step after the first one; two hits are too few for that.
    rate = (hits.size - 1) / (last + 1 - first) if hits.size > 2 else float(is_hit[first:].mean())
    num_after, max_chance = is_hit.size - 1 - last, episodes.LIMITS.max_chance
    began_here = (1 - rate) ** first < max_chance
    is_over = num_after > 0 and (1 - rate) ** num_after < max_chance
    lasts: Persistence = "transient" if is_over or is_of_few(lost) else "chronic"
    return Onset(
        int(steps[first]) if began_here else None,
        lasts,
        int(steps[last]) if is_over else None,
        period(steps, lost),
    )


def onset_of_hits(steps: Ints, is_hit: NDArray[np.bool_]) -> Onset:
    """The same of a cause whose steps [steps] are known, and count alike."""
    return onset_of_losses(steps, is_hit.astype(np.float64))


def best_stretch(gain: Floats) -> tuple[int, int]:
    """First and end of the stretch with the largest sum of `gain` [steps] (Kadane)."""
    best, stretch, total, began = -np.inf, (0, gain.size), 0.0, 0
    for position, of_step in enumerate(gain.tolist()):
        if total <= 0.0:
            total, began = 0.0, position
        total += of_step
        if total > best:
            best, stretch = total, (began, position + 1)
    return stretch
