"""Since when, and does it last? For what shows in some steps and not in others."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.finding import Persistence
from app.trace.window import Floats, Ints

# Quiet steps are a beginning or an end only where so many in a row have less than this chance.
_BY_CHANCE = 0.01
# A step is in a stretch of them rather than beside it if it shows it for so much.
HALF = 0.5
# In so few steps of a longer window it is a hiccup.
_FEW_STEPS = 3


@dataclass(frozen=True, slots=True)
class Coming:
    """First step of something, None if it may be older than the window, and how it lasts."""

    onset_step: int | None
    persistence: Persistence


def coming(steps: Ints, is_hit: NDArray[np.bool_]) -> Coming:
    """From the steps that show it, of which there is at least one.

    Args:
        steps: [steps], ascending.
        is_hit: [steps], whether each shows it.
    """
    hits = np.flatnonzero(is_hit)
    first, last = int(hits[0]), int(hits[-1])
    # While it lasts; the first one is what it is counted from. Of two, one cannot say.
    rate = (hits.size - 1) / (last + 1 - first) if hits.size > 2 else float(is_hit[first:].mean())
    began_here = (1 - rate) ** first < _BY_CHANCE
    is_over = (1 - rate) ** (is_hit.size - 1 - last) < _BY_CHANCE
    is_hiccup = hits.size <= _FEW_STEPS < is_hit.size / 2
    lasts: Persistence = "transient" if is_over or is_hiccup else "chronic"
    return Coming(int(steps[first]) if began_here else None, lasts)


def stretch(share: Floats) -> tuple[int, int]:
    """First position and end of the stretch of steps that shows most of it, for its length.

    That of the largest sum of share - 1/2 (Kadane); `share` [steps] is within 0..1.
    """
    best, found, total, began = -np.inf, (0, share.size), 0.0, 0
    for position, gain in enumerate((share - HALF).tolist()):
        if total <= 0.0:
            total, began = 0.0, position
        total += gain
        if total > best:
            best, found = total, (began, position + 1)
    return found
