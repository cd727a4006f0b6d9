"""Offset and drift of each clock, by robust least squares from the first guess.

The true time of a shared moment is the mean of its members' corrected ends. Offsets and drifts
minimise the distances of the ends from it; distant ends are clipped (Huber). The normal equations
are solved by conjugate gradients without writing the matrix: products are summed over the sets.

Clocks with a bad first guess are refitted on their own first: with clipping, least squares would
need many iterations for them. Kernels take a set's members from `first_member` and `host`
(`SharedEnds`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.engine.clocks.first_guess import FirstGuess
from app.engine.clocks.shared_ends import ClockLines, CondensedEnds, SharedEnds, condense
from app.engine.kernels import kernel
from app.trace.window import Ints

_CENTRINGS = 3


@kernel
def diagonal(first_member, host, moments, num_hosts, prior):  # type: ignore[no-untyped-def]
    """[hosts, 2], diagonal of the normal equations; 1 for hosts without shared ends."""
    found = np.zeros((num_hosts, 2))
    for each in range(first_member.size - 1):
        size = first_member[each + 1] - first_member[each]
        for member in range(first_member[each], first_member[each + 1]):
            found[host[member], 0] += (1 - 1 / size) * moments[each, 0]
            found[host[member], 1] += (1 - 1 / size) * moments[each, 2]
    found[:, 1] += prior
    for each in range(num_hosts):
        for at in range(2):
            if found[each, at] <= 0:
                found[each, at] = 1.0
    return found


@kernel
def pull(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, weight, coefficients, limit_ns
):
    """Right-hand side [hosts, 2] of the normal equations, and residuals [values].

    Residuals are nanoseconds times the root of the weight; the right-hand side has it twice.
    """
    found, spread = np.zeros((coefficients.shape[0], 2)), np.empty(apart_ns.size)
    for each in range(first_member.size - 1):
        first, size = first_member[each], first_member[each + 1] - first_member[each]
        slots, root = first_slot[each + 1] - first_slot[each], np.sqrt(weight[each])
        left_ns = np.empty(size)
        for slot in range(slots):
            when = time[first_slot[each] + slot]
            line_ns = 0.0
            for member in range(size):
                of = host[first + member]
                left_ns[member] = coefficients[of, 0] + coefficients[of, 1] * when
                line_ns += left_ns[member] / size
            for member in range(size):
                value = first_value[each] + member * slots + slot
                left_ns[member] = (apart_ns[value] - left_ns[member] + line_ns) * root
            clipped_mean_ns = centre(left_ns, limit_ns)
            for member in range(size):
                of, value = host[first + member], first_value[each] + member * slots + slot
                spread[value] = abs(left_ns[member])
                asked = min(max(left_ns[member], -limit_ns), limit_ns) - clipped_mean_ns
                found[of, 0] += root * asked
                found[of, 1] += root * asked * when
    return found, spread


@kernel
def centre(values, limit):  # type: ignore[no-untyped-def]
    """Shift values near 0 until the mean of the clipped values is nearly 0; returns that mean."""
    left = 0.0
    for centring in range(_CENTRINGS + 1):
        left = 0.0
        for value in values:
            left += min(max(value, -limit), limit) / values.size
        if centring < _CENTRINGS:
            values -= left
    return left


_MAX_PRODUCTS = 500
_PRECISION = 0.02  # the caller iterates


@kernel
def solve_normal_equations(  # type: ignore[no-untyped-def]
    first_member, host, moments, diagonal, pull, is_free, prior, near_enough
):
    """[hosts, 2], solution of the normal equations for `pull`; 0 for hosts without freedom.

    It stops when the remaining change is below `near_enough`, or below a share of the first one.
    """
    found, left, product = np.zeros_like(pull), pull.copy(), np.empty_like(pull)
    for each in range(is_free.size):
        if not is_free[each]:
            left[each, 0] = left[each, 1] = 0.0
    eased = left / diagonal
    near_enough = max(near_enough, _PRECISION * np.max(np.abs(eased)))
    towards, size = eased.copy(), np.sum(left * eased)
    for _ in range(_MAX_PRODUCTS):
        if np.max(np.abs(eased)) <= near_enough:
            break
        _multiply(first_member, host, moments, is_free, prior, towards, product)
        step = size / np.sum(towards * product)
        found += step * towards
        left -= step * product
        eased = left / diagonal
        before, size = size, np.sum(left * eased)
        towards = eased + (size / before) * towards
    return found


@kernel
def _multiply(  # type: ignore[no-untyped-def]
    first_member, host, moments, is_free, prior, coefficients, found
):
    """The normal equations' matrix times coefficients, both [hosts, 2]."""
    found[:, 0] = 0.0
    found[:, 1] = prior * coefficients[:, 1]
    for each in range(first_member.size - 1):
        first, end = first_member[each], first_member[each + 1]
        bias, slope = 0.0, 0.0
        for member in range(first, end):
            bias += coefficients[host[member], 0]
            slope += coefficients[host[member], 1]
        bias, slope = bias / (end - first), slope / (end - first)
        for member in range(first, end):
            of = host[member]
            more_bias, more_slope = coefficients[of, 0] - bias, coefficients[of, 1] - slope
            found[of, 0] += moments[each, 0] * more_bias + moments[each, 1] * more_slope
            found[of, 1] += moments[each, 1] * more_bias + moments[each, 2] * more_slope
    for each in range(is_free.size):
        if not is_free[each]:
            found[each, 0] = found[each, 1] = 0.0


_SWEEPS = 2
_FAR_SPREADS = 3.0  # spreads


@kernel
def refit_far_clocks(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, is_free, spread_ns
):
    """[hosts, 2], correction of the coefficients of far clocks; 0 for all others."""
    more = np.zeros((is_free.size, 2))
    first, at = np.zeros(is_free.size + 1, np.int64), np.zeros(is_free.size, np.int64)
    for each in range(first_member.size - 1):
        slots = first_slot[each + 1] - first_slot[each]
        for member in range(first_member[each], first_member[each + 1]):
            first[host[member] + 1] += slots
    first = np.cumsum(first)
    far_ns, when = np.empty(apart_ns.size), np.empty(apart_ns.size)
    for _ in range(_SWEEPS):
        at[:] = first[:-1]
        _by_host(
            first_member, host, first_slot, first_value, apart_ns, time, more, at, far_ns, when
        )
        has_news = False
        for each in range(is_free.size):
            low, high, num_far = first[each], first[each + 1], 0
            for value in range(low, high):
                num_far += abs(far_ns[value]) > _FAR_SPREADS * spread_ns
            # Below one in three, a line fits all but the late values.
            if is_free[each] and 3 * num_far > high - low and high - low > 2:
                has_news |= _line(far_ns[low:high], when[low:high], spread_ns, more[each])
        if not has_news:
            break
    return more


@kernel
def _by_host(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, more, at, far_ns, when
):
    """Distance of each value from the others of its slot, and its time, host by host."""
    for each in range(first_member.size - 1):
        first, size = first_member[each], first_member[each + 1] - first_member[each]
        slots, left_ns = first_slot[each + 1] - first_slot[each], np.empty(size)
        for slot in range(slots):
            moment = time[first_slot[each] + slot]
            for member in range(size):
                of, value = host[first + member], first_value[each] + member * slots + slot
                left_ns[member] = apart_ns[value] - more[of, 0] - more[of, 1] * moment
            middle_ns = np.median(left_ns) if size > 2 else 0.0
            for member in range(size):
                of = host[first + member]
                if size == 2:
                    middle_ns = left_ns[1 - member]
                far_ns[at[of]] = left_ns[member] - middle_ns
                when[at[of]] = moment
                at[of] += 1


@kernel
def _line(far_ns, when, spread_ns, coefficients):  # type: ignore[no-untyped-def]
    """Add a line through the values to the correction if it is far from 0; whether it was."""
    is_late = when > np.median(when)
    slope = 0.0
    if is_late.any():
        between = np.median(when[is_late]) - np.median(when[~is_late])
        slope = (np.median(far_ns[is_late]) - np.median(far_ns[~is_late])) / between
    bias_ns = np.median(far_ns - slope * when)
    if abs(bias_ns) + abs(slope) < _FAR_SPREADS * spread_ns:
        return False
    coefficients[0] += bias_ns
    coefficients[1] += slope
    return True


# Values further off than this many spreads are clipped to it.
CLIP = 2.0
MIN_SPREAD_NS = 1000.0
_MAX_TURNS = 20
_NEAR_ENOUGH = 0.02  # of the spread
_SPREAD_SAMPLE = 1 << 13  # values; more make it no surer


@kernel
def robust_least_squares(  # type: ignore[no-untyped-def]
    first_member, host, first_slot, first_value, apart_ns, time, weight, moments, diagonal,
    is_free, before, prior,
):  # fmt: skip
    """[hosts, 2], correction of the coefficients, and the spread of values.

    The matrix stays the same; outliers are clipped in the right-hand side.
    """
    more, every = np.zeros_like(before), 1 + apart_ns.size // _SPREAD_SAMPLE
    # Distances from the median of each slot, which a few outliers do not move.
    spread_ns = _robust_deviation(np.abs(apart_ns[::every]))
    more += refit_far_clocks(
        first_member, host, first_slot, first_value, apart_ns, time, is_free, spread_ns
    )
    for _ in range(_MAX_TURNS):
        limit_ns = CLIP * spread_ns
        asked, spread = pull(
            first_member, host, first_slot, first_value, apart_ns, time, weight, more, limit_ns
        )
        asked[:, 1] -= prior * (more[:, 1] + before[:, 1])
        change = solve_normal_equations(
            first_member, host, moments, diagonal, asked, is_free, prior,
            0.1 * _NEAR_ENOUGH * spread_ns,
        )  # fmt: skip
        more += change
        is_near = np.max(np.abs(change)) < _NEAR_ENOUGH * spread_ns
        spread_ns = _robust_deviation(spread[::every])
        if is_near:
            break
    return more, spread_ns


@kernel
def _robust_deviation(spread):  # type: ignore[no-untyped-def]
    """Robust standard deviation: that of normal values with a few outliers."""
    return max(1.4826 * np.median(spread), MIN_SPREAD_NS)


_MAX_ROUNDS = 3
# Before anything is seen of a clock, it may drift by so much; ends are good to so much. That
# keeps drift at 0 where a window is too short to tell.
LARGE_DRIFT, USUAL_JITTER_NS = 1e-3, 5e4


def fit_lines(shared: SharedEnds, guess: FirstGuess) -> ClockLines:
    """Offset and drift of every clock."""
    origin_ns, middle_ns, half_ns = _span(shared, guess.offset_ns)
    first = np.stack([np.zeros(shared.num_hosts), guess.drift * half_ns], axis=1)
    found = ClockLines(guess.offset_ns, origin_ns, middle_ns, half_ns, first, first[:, 0], np.inf)
    is_free = guess.reference != np.arange(shared.num_hosts)
    for _ in range(_MAX_ROUNDS):
        before, found = found, _fitted(shared, condense(shared, found), is_free, found)
        # Times of a slot are by the lines before: what a clock gains while these are off is small.
        off_ns = np.abs(found.coefficients - before.coefficients).max()
        if off_ns * np.abs(found.drift - before.drift).max() < _NEAR_ENOUGH * found.spread_ns:
            break
    return found


def _span(shared: SharedEnds, offset_ns: Ints) -> tuple[int, float, float]:
    """Origin in nanoseconds, and middle and half length of the measured time span."""
    first_ns, last_ns = _reach(
        shared.first_member, shared.host, shared.num_times, shared.first_end, shared.end_ns,
        offset_ns,
    )  # fmt: skip
    half_ns = (int(last_ns) - int(first_ns)) / 2
    return int(first_ns), half_ns, max(half_ns, 1.0)


def _fitted(
    shared: SharedEnds, slots: CondensedEnds, is_free: NDArray[np.bool_], found: ClockLines
) -> ClockLines:
    """The lines after one more fit to the slots."""
    moments = slots.moments()
    prior = (USUAL_JITTER_NS / (LARGE_DRIFT * found.half_ns)) ** 2
    matrix_diagonal = diagonal(shared.first_member, shared.host, moments, shared.num_hosts, prior)
    more, spread_ns = robust_least_squares(
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
