"""Offset and drift of each clock, by robust least squares from the first guess.

The true time of a shared moment is the mean of its members' corrected ends. Offsets and drifts
minimise the distances of the ends from it; distant ends are clipped (Huber). The normal equations
are solved by conjugate gradients. Of many clocks, their matrix is not written: its products with
vectors are sums over the sets.

Clocks with a bad first guess are refitted on their own first: with clipping, least squares would
need many iterations for them.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.clocks.first_guess import FirstGuess
from app.engine.clocks.shared_ends import ClockLines, SharedEnds, Slots, condense
from app.engine.kernels import kernel
from app.engine.medians import median_of, medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.trace.window import Floats, Ints

Flags = NDArray[np.bool_]

_CENTRINGS = 3


def centre(values: Floats, limit: float) -> None:
    """Shift rows near 0 until the means of their clipped values are."""
    for _ in range(_CENTRINGS):
        clipped = np.clip(values, -limit, limit)
        values -= clipped.sum(axis=1, keepdims=True) / values.shape[1]


_MAX_PRODUCTS = 500
_PRECISION = 0.02  # the caller iterates


# Of fewer clocks the matrix is written, once for all turns.
_MAX_WRITTEN = 64


class NormalEquations:
    """The equations of all clocks; those that are not free [hosts] stay as they are.

    `prior` is added to the diagonal for every drift.
    """

    def __init__(self, slots: list[Slots], is_free: Flags, prior: float) -> None:
        self.slots, self.is_free, self.prior = slots, is_free, prior
        self._moments = [same_size.moments() for same_size in slots]

    @cached_property
    def diagonal(self) -> Floats:
        """[hosts, 2]; 1 for hosts without shared ends."""
        diagonal = np.zeros((self.is_free.size, 2))
        for slots, moments in zip(self.slots, self._moments, strict=True):
            own = moments[:, ::2] * (1 - 1 / slots.host.shape[1])
            diagonal += _sums_by_host(slots.host, own[:, None], self.is_free.size)
        diagonal[:, 1] += self.prior
        return np.where(diagonal <= 0, 1.0, diagonal)

    def times(self, coefficients: Floats) -> Floats:
        """The matrix times coefficients, both [hosts, 2]."""
        if self.is_free.size <= _MAX_WRITTEN:
            # Not by BLAS, whose last bits depend on where the memory lies.
            return np.asarray((self._matrix * coefficients.ravel()).sum(axis=1).reshape(-1, 2))
        product = np.zeros(coefficients.shape)
        for slots, moments in zip(self.slots, self._moments, strict=True):
            apart = coefficients[slots.host]
            apart -= apart.sum(axis=1, keepdims=True) / slots.host.shape[1]
            pulls = apart[..., :1] * moments[:, None, :2] + apart[..., 1:] * moments[:, None, 1:]
            product += _sums_by_host(slots.host, pulls, self.is_free.size)
        product[:, 1] += self.prior * coefficients[:, 1]
        product[~self.is_free] = 0.0
        return product

    @cached_property
    def _matrix(self) -> Floats:
        """[2 hosts, 2 hosts]: a few products of the sets' members by host."""
        num_hosts = self.is_free.size
        power = np.zeros((3, num_hosts, num_hosts))  # of the time, between two hosts
        for slots, moments in zip(self.slots, self._moments, strict=True):
            num_sets, size = slots.host.shape
            cell = np.arange(num_sets)[:, None] * num_hosts + slots.host
            members = np.bincount(cell.ravel(), minlength=num_sets * num_hosts)
            members = members.reshape(num_sets, num_hosts).astype(np.float64)
            power -= members.T @ (moments.T[..., None] * members) / size
            power[:, np.arange(num_hosts), np.arange(num_hosts)] += moments.T @ members
        power[2] += self.prior * np.eye(num_hosts)
        blocks = power[[0, 1, 1, 2]].reshape(2, 2, num_hosts, num_hosts).transpose(2, 0, 3, 1)
        matrix = blocks.reshape(2 * num_hosts, 2 * num_hosts).copy()
        matrix[np.repeat(~self.is_free, 2)] = 0.0
        return matrix

    def solved(self, pull: Floats, near_enough: float) -> Floats:
        """[hosts, 2], the solution for `pull`; 0 for hosts without freedom.

        Conjugate gradients, until the remaining change is below `near_enough`, or below a share of
        the first one.
        """
        remaining, diagonal = np.where(self.is_free[:, None], pull, 0.0), self.diagonal
        solution, eased = np.zeros_like(pull), remaining / diagonal
        near_enough = max(near_enough, _PRECISION * float(np.abs(eased).max()))
        towards, size = eased, float((remaining * eased).sum())
        for _ in range(_MAX_PRODUCTS):
            if np.abs(eased).max() <= near_enough:
                break
            product = self.times(towards)
            step = size / float((towards * product).sum())
            solution += step * towards
            remaining -= step * product
            eased = remaining / diagonal
            before, size = size, float((remaining * eased).sum())
            towards = eased + (size / before) * towards
        return solution


def _sums_by_host(host: Ints, values: Floats, num_hosts: int) -> Floats:
    """[hosts, 2], sums of values [..., 2] of each host [...]."""
    values = np.broadcast_to(values, (*host.shape, 2))
    flat = host.ravel()
    sums = [np.bincount(flat, values[..., at].ravel(), num_hosts) for at in (0, 1)]
    return np.stack(sums, axis=1)


class _Values:
    """The values of all slots in one row, slot by slot, laid out for many turns."""

    def __init__(self, slots: list[Slots]) -> None:
        sizes = [np.full(part.time.size, part.host.shape[1]) for part in slots]
        self._bounds = np.concatenate(([0], np.cumsum(np.concatenate(sizes))))
        self._host = _hosts(slots)
        self._apart_ns = np.concatenate([part.apart_ns.ravel() for part in slots])
        self._time = np.concatenate([part.time for part in slots])
        self._root = np.sqrt(np.concatenate([part.weight for part in slots]))

    def pull(self, coefficients: Floats, limit_ns: float) -> tuple[Floats, Floats]:
        """The right-hand side [hosts, 2] of the normal equations, and the size of each residual.

        Residuals are nanoseconds times the root of the weight; the right-hand side has it twice.
        """
        right_side, left_ns = np.zeros(coefficients.shape), np.empty(self._host.size)
        _pull(
            self._bounds, self._host, self._apart_ns, self._time, self._root,
            np.ascontiguousarray(coefficients), limit_ns, right_side, left_ns,
        )  # fmt: skip
        return right_side, np.abs(left_ns)


@kernel
def _pull(  # type: ignore[no-untyped-def]
    bounds, host, apart_ns, time, root, coefficients, limit_ns, right_side, left_ns
):
    for slot in range(bounds.size - 1):
        first, end = bounds[slot], bounds[slot + 1]
        mean_ns = 0.0
        for at in range(first, end):
            line_ns = coefficients[host[at], 0] + coefficients[host[at], 1] * time[slot]
            left_ns[at] = apart_ns[at] - line_ns
            mean_ns += line_ns / (end - first)
        for at in range(first, end):
            left_ns[at] = (left_ns[at] + mean_ns) * root[slot]
        # It is shifted near 0 until the mean of its clipped values is.
        for turn in range(_CENTRINGS + 1):
            mean_ns = 0.0
            for at in range(first, end):
                mean_ns += min(max(left_ns[at], -limit_ns), limit_ns) / (end - first)
            if turn < _CENTRINGS:
                for at in range(first, end):
                    left_ns[at] -= mean_ns
        for at in range(first, end):
            pull_ns = (min(max(left_ns[at], -limit_ns), limit_ns) - mean_ns) * root[slot]
            right_side[host[at], 0] += pull_ns
            right_side[host[at], 1] += pull_ns * time[slot]


_SWEEPS = 2
_FAR_SPREADS = 3.0  # spreads


def _hosts(slots: list[Slots]) -> Ints:
    """[values], host of each value, slot by slot."""
    return np.concatenate([part.host[part.of_set].ravel() for part in slots])


def _refit_far_clocks(slots: list[Slots], is_free: Flags, spread_ns: float) -> Floats:
    """[hosts, 2], correction of the coefficients of far clocks; 0 for all others."""
    correction, host = np.zeros((is_free.size, 2)), _hosts(slots)
    num_values = np.bincount(host, minlength=is_free.size)
    for _ in range(_SWEEPS):
        far_ns = np.concatenate([_apart_ns(part, correction).ravel() for part in slots])
        is_far = np.abs(far_ns) > _FAR_SPREADS * spread_ns
        num_far = np.bincount(host[is_far], minlength=is_free.size)
        # Below one in three, a line fits all but the late values.
        far = np.flatnonzero(is_free & (3 * num_far > num_values) & (num_values > 2))
        if not far.size:
            break
        lines = np.zeros((far.size, 2))
        when = np.concatenate([np.repeat(part.time, part.host.shape[1]) for part in slots])
        of_far = np.flatnonzero(np.bincount(far, minlength=is_free.size)[host])
        of_far = of_far[np.argsort(host[of_far], kind="stable")]
        for at, values in enumerate(np.split(of_far, np.cumsum(num_values[far])[:-1])):
            lines[at] = _line(far_ns[values], when[values])
        lines[np.abs(lines).sum(axis=1) < _FAR_SPREADS * spread_ns] = 0.0
        if not lines.any():
            break
        correction[far] += lines
    return correction


def _apart_ns(slots: Slots, correction: Floats) -> Floats:
    """[slots, members], distance of each value from the others of its slot, after correction."""
    host = slots.host[slots.of_set]
    left_ns = slots.apart_ns - correction[host, 0] - correction[host, 1] * slots.time[:, None]
    if host.shape[1] == 2:
        return np.asarray(left_ns - left_ns[:, ::-1])
    return np.asarray(left_ns - medians_of_known(left_ns)[:, None])


def _line(far_ns: Floats, when: Floats) -> tuple[float, float]:
    """Bias and slope of a line through the values, by medians of both halves."""
    is_late = when > median_of(when)
    slope = 0.0
    if is_late.any():
        between = median_of(when[is_late]) - median_of(when[~is_late])
        slope = (median_of(far_ns[is_late]) - median_of(far_ns[~is_late])) / between
    return median_of(far_ns - slope * when), slope


# Values further off than this many spreads are clipped to it.
CLIP = 2.0
MIN_SPREAD_NS = 1000.0
_MAX_TURNS = 20
_NEAR_ENOUGH = 0.02  # of the spread
_SPREAD_SAMPLE = 1 << 13  # values; more make it no surer


def _robust_least_squares(equations: NormalEquations, before: Floats) -> tuple[Floats, float]:
    """[hosts, 2], correction of the coefficients `before`, and the spread of values.

    The matrix stays the same; outliers are clipped in the right-hand side.
    """
    slots, values = equations.slots, _Values(equations.slots)
    # Distances from the median of each slot, which a few outliers do not move.
    spread_ns = _robust_deviation(np.concatenate([np.abs(part.apart_ns).ravel() for part in slots]))
    correction = _refit_far_clocks(slots, equations.is_free, spread_ns)
    for _ in range(_MAX_TURNS):
        right_side, left_ns = values.pull(correction, CLIP * spread_ns)
        right_side[:, 1] -= equations.prior * (correction[:, 1] + before[:, 1])
        change = equations.solved(right_side, 0.1 * _NEAR_ENOUGH * spread_ns)
        correction += change
        is_near = np.abs(change).max() < _NEAR_ENOUGH * spread_ns
        spread_ns = _robust_deviation(left_ns)
        if is_near:
            break
    return correction, spread_ns


def _robust_deviation(residuals: Floats) -> float:
    """Robust standard deviation: that of normal values with a few outliers."""
    stride = 1 + residuals.size // _SPREAD_SAMPLE
    return max(MAD_TO_DEVIATION * median_of(residuals[::stride]), MIN_SPREAD_NS)


_MAX_ROUNDS = 3
# Before anything is seen of a clock, it may drift by so much; ends are good to so much. That
# keeps drift at 0 where a window is too short to show it.
LARGE_DRIFT, USUAL_JITTER_NS = 1e-3, 5e4


def fit_lines(shared: SharedEnds, guess: FirstGuess) -> ClockLines:
    """Offset and drift of every clock."""
    origin_ns, middle_ns, half_ns = _span(shared, guess.offset_ns)
    first = np.stack([np.zeros(shared.num_hosts), guess.drift * half_ns], axis=1)
    lines = ClockLines(guess.offset_ns, origin_ns, middle_ns, half_ns, first, first[:, 0], np.inf)
    is_free = guess.reference != np.arange(shared.num_hosts)
    for _ in range(_MAX_ROUNDS):
        before, lines = lines, _fitted(condense(shared, lines), is_free, lines)
        # Times of a slot are by the lines before: what a clock gains while these are off is small.
        off_ns = np.abs(lines.coefficients - before.coefficients).max()
        if off_ns * np.abs(lines.drift - before.drift).max() < _NEAR_ENOUGH * lines.spread_ns:
            break
    return lines


def _span(shared: SharedEnds, offset_ns: Ints) -> tuple[int, float, float]:
    """Origin in nanoseconds, and middle and half length of the measured time span."""
    # In order of time; by the first guess.
    first_ns, last_ns = (
        [(sets.end_ns[:, :, at] - offset_ns[sets.host]) for sets in shared.of_shape]
        for at in (0, -1)
    )
    origin_ns = min(int(firsts_ns.min()) for firsts_ns in first_ns)
    half_ns = (max(int(lasts_ns.max()) for lasts_ns in last_ns) - origin_ns) / 2
    return origin_ns, half_ns, max(half_ns, 1.0)


def _fitted(slots: list[Slots], is_free: Flags, lines: ClockLines) -> ClockLines:
    """The lines after one more fit to the slots."""
    prior = (USUAL_JITTER_NS / (LARGE_DRIFT * lines.half_ns)) ** 2
    equations = NormalEquations(slots, is_free, prior)
    correction, spread_ns = _robust_least_squares(equations, lines.coefficients)
    seen = np.maximum(equations.diagonal[:, 1] - prior, 0.0)
    with np.errstate(divide="ignore"):
        error = np.where(is_free, spread_ns / np.sqrt(seen) / lines.half_ns, 0.0)
    return replace(
        lines, coefficients=lines.coefficients + correction, drift_error=error, spread_ns=spread_ns
    )
