"""What the first guess left: offset and drift of each clock, by least squares without outliers.

Every moment that hosts share has a true time of its own, the mean of its members' once these
are corrected; offset and drift are those that leave the ends nearest to it. Ends far from it
count as if they were nearer (Huber). The normal equations are never written down:
their product with a guess is summed over the sets.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.engine.clocks.first_guess import FirstGuess
from app.engine.clocks.least_squares import without_outliers
from app.engine.clocks.lines import Lines
from app.engine.clocks.shared_ends import SharedEnds
from app.engine.clocks.slots import Slots, in_slots
from app.engine.clocks.sums import diagonal
from app.engine.compiled import kernel
from app.trace.window import Ints

_MAX_ROUNDS = 3
_NEAR_ENOUGH = 0.02  # of the spread
# Before anything is seen of a clock, it may drift by so much; ends are good to so much. That
# keeps drift at 0 where a window is too short to tell.
LARGE_DRIFT, USUAL_JITTER_NS = 1e-3, 5e4


def lines(shared: SharedEnds, guess: FirstGuess) -> Lines:
    """Offset and drift of every clock."""
    origin_ns, middle_ns, half_ns = _span(shared, guess.offset_ns)
    first = np.stack([np.zeros(shared.num_hosts), guess.drift * half_ns], axis=1)
    found = Lines(guess.offset_ns, origin_ns, middle_ns, half_ns, first, first[:, 0], np.inf)
    is_free = guess.reference != np.arange(shared.num_hosts)
    for _ in range(_MAX_ROUNDS):
        before, found = found, _fitted(shared, in_slots(shared, found), is_free, found)
        # Times of a slot are by the lines before: what a clock gains while these are off is small.
        off_ns = np.abs(found.coefficients - before.coefficients).max()
        if off_ns * np.abs(found.drift - before.drift).max() < _NEAR_ENOUGH * found.spread_ns:
            break
    return found


def _span(shared: SharedEnds, offset_ns: Ints) -> tuple[int, float, float]:
    """A nanosecond to count from, and middle and half of the time that was looked at."""
    first_ns, last_ns = _reach(
        shared.first_member, shared.host, shared.num_times, shared.first_end, shared.end_ns,
        offset_ns,
    )  # fmt: skip
    half_ns = (int(last_ns) - int(first_ns)) / 2
    return int(first_ns), half_ns, max(half_ns, 1.0)


def _fitted(shared: SharedEnds, slots: Slots, is_free: NDArray[np.bool_], found: Lines) -> Lines:
    """The lines, nearer to what the slots say."""
    moments = slots.moments()
    prior = (USUAL_JITTER_NS / (LARGE_DRIFT * found.half_ns)) ** 2
    matrix_diagonal = diagonal(shared.first_member, shared.host, moments, shared.num_hosts, prior)
    more, spread_ns = without_outliers(
        shared.first_member, shared.host, slots.first_slot, slots.first_value, slots.apart_ns,
        slots.time, slots.weight, moments, matrix_diagonal, is_free, found.coefficients, prior,
    )  # fmt: skip
    seen = np.maximum(matrix_diagonal[:, 1] - prior, 0.0)
    with np.errstate(divide="ignore"):
        error = np.where(is_free, spread_ns / np.sqrt(seen) / found.half_ns, 0.0)
    return replace(
        found, coefficients=found.coefficients + more, drift_error=error, spread_ns=spread_ns
    )


@kernel
def _reach(first_member, host, num_times, first_end, end_ns, offset_ns):  # type: ignore[no-untyped-def]
    """First and last of all ends, corrected by the first guess."""
    first_ns = last_ns = end_ns[0] - offset_ns[host[0]]
    for each in range(num_times.size):
        times = num_times[each]
        for member in range(first_member[each], first_member[each + 1]):
            ahead_ns = offset_ns[host[member]]
            at = first_end[each] + (member - first_member[each]) * times
            # In time's order.
            first_ns = min(first_ns, end_ns[at] - ahead_ns)
            last_ns = max(last_ns, end_ns[at + times - 1] - ahead_ns)
    return first_ns, last_ns
