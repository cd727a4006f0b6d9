"""Clocks of a window's hosts, measured by what the hosts record together.

`measure_clocks` gives the clocks of all hosts; `ClockCorrection` brings times to the reference's
clock. The residual is the distance of shared ends after the correction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from app.engine.clocks.first_guess import FirstGuess, first_guess
from app.engine.clocks.least_squares import CLIP, MIN_SPREAD_NS, centre, fit_lines
from app.engine.clocks.shared_ends import ClockLines, SharedEnds, shared_ends
from app.engine.graph import StepGraph
from app.engine.grid import Grid
from app.engine.kernels import in_parallel, kernel
from app.engine.medians import medians_of_known
from app.trace.window import Floats, Ints, Window


@dataclass(frozen=True, slots=True)
class HostClock:
    """Offset, drift and residual of one host's clock against the reference's.

    `offset_s` is for the middle of the window; `drift_ppm` is None if the window is too short.
    `residual_s` is the 0.9 quantile of the host's corrected shared ends from their moments.
    """

    offset_s: float
    drift_ppm: float | None
    residual_s: float


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all hosts by name, and the 0.9 quantile of the residuals.

    If they could not be measured, `residual_s` is None, `reason` says why, and times stay as
    recorded; `apart_s` then is how far shared ends are from their moments as recorded (the same
    quantile), None where nothing is shared. With a residual, `reason` says what remains unknown,
    if anything.
    """

    residual_s: float | None = None
    hosts: Mapping[str, HostClock] = field(default_factory=dict)
    reason: str | None = None
    apart_s: float | None = None

    @property
    def error_s(self) -> float | None:
        """Largest likely error of a time between two workers; None where nothing shows it.

        Of clocks that were not corrected, both ends may be off.
        """
        if self.residual_s is not None:
            return self.residual_s
        return None if self.apart_s is None else 2 * self.apart_s

    @property
    def offset_s(self) -> dict[str, float]:
        """Lead of each host's clock in the middle of the window, seconds."""
        return {name: clock.offset_s for name, clock in self.hosts.items()}


def corrected(grid: Grid, lines: ClockLines, began_ns: Ints, host: Ints) -> Grid:
    """The grid by the reference's clock, corrected in place.

    `began_ns` [steps] is the origin of each step's times, `host` [dp, pp] the host of each worker.
    The new origin of a step is the start of dp rank 0's first operation.
    """
    since_ns = began_ns - lines.origin_ns
    first_ns = since_ns + np.rint(grid.start_s[0, : grid.num_steps] * 1e9).astype(np.int64)
    first_ns -= lines.offset_ns[host[0, grid.template.stage[0]]]
    # The first operation of each stage stands for its worker's clock.
    firsts = np.searchsorted(grid.template.stage, np.arange(grid.template.parallelism.pp_size))
    before_s = grid.start_s[firsts]
    in_parallel(
        grid.start_s.size,
        grid.start_s.shape[0],
        lambda first, end: _correct(
            grid.start_s, grid.duration_s, grid.template.stage, host, since_ns, first_ns,
            lines.offset_ns, lines.middle_ns, lines.half_ns, lines.coefficients, first, end,
        ),
    )  # fmt: skip
    # A new grid, without the cached properties of the old one.
    return replace(
        grid,
        origin_s=np.asarray(first_ns * 1e-9, np.float64),
        shift_s=grid.start_s[firsts] - before_s,
    )


@kernel
def _correct(  # type: ignore[no-untyped-def]
    start_s, duration_s, stage, host_of, since_ns, first_ns, offset_ns, middle_ns, half_ns,
    coefficients, first, end,
):  # fmt: skip
    num_steps = since_ns.size
    for op in range(first, end):
        for rank in range(host_of.shape[0]):
            host = host_of[rank, stage[op]]
            bias_ns, slope = coefficients[host, 0], coefficients[host, 1] / half_ns
            for step in range(num_steps):
                lane = rank * num_steps + step
                # Whole nanoseconds on the wire: nothing is lost.
                began_ns = since_ns[step] + np.int64(np.rint(start_s[op, lane] * 1e9))
                time_ns = began_ns - offset_ns[host]
                ahead_ns = bias_ns + slope * (time_ns - middle_ns)
                start_s[op, lane] = (np.float64(time_ns - first_ns[step]) - ahead_ns) * 1e-9
                duration_s[op, lane] *= 1.0 - slope


_TYPICAL_QUANTILE = 0.5
# One moment in twenty may have an end that is late for reasons other than clocks.
RESIDUAL_QUANTILE = 0.9


@dataclass(frozen=True)
class Residuals:
    """Distances of shared ends from their moments, one of each slot, nanoseconds.

    Shapes: `far_ns` [values]; `hosts` has the hosts [sets, members] of successive values of
    [sets, slots, members], and the number of slots.
    """

    far_ns: Floats
    hosts: list[tuple[Ints, int]]

    @classmethod
    def of(cls, shared: SharedEnds, lines: ClockLines) -> "Residuals":
        """The residuals after correction by these lines."""
        far_ns, hosts = [], []
        for sets in shared.of_shape:
            left_ns, _ = lines.corrected(sets.end_ns[:, :, :: sets.per_slot], sets.host)
            num_slots = left_ns.shape[2]
            left_ns = left_ns.transpose(0, 2, 1).reshape(-1, sets.host.shape[1])
            if left_ns.shape[1] == 2:
                left_ns -= left_ns.mean(axis=1, keepdims=True)
            else:
                left_ns -= medians_of_known(left_ns)[:, None]
                centre(left_ns, CLIP * lines.spread_ns)
            far_ns.append(np.abs(left_ns).ravel())
            hosts.append((sets.host, num_slots))
        return cls(np.concatenate(far_ns), hosts)

    @cached_property
    def quantiles_ns(self) -> tuple[float, float]:
        """The typical one of all, and the `RESIDUAL_QUANTILE`."""
        in_order = np.sort(self.far_ns)  # NumPy would part them around each place, one by one
        typical_ns, large_ns = np.quantile(in_order, (_TYPICAL_QUANTILE, RESIDUAL_QUANTILE))
        return float(typical_ns), float(large_ns)

    def by_host_ns(self, num_hosts: int, share: float = RESIDUAL_QUANTILE) -> Floats:
        """[hosts], the quantile of each host's, the nearest value; NaN without any."""
        host = np.concatenate(
            [np.repeat(of_sets, num, axis=0).ravel() for of_sets, num in self.hosts]
        )
        in_order = self.far_ns[np.lexsort((self.far_ns, host))]
        num_values = np.bincount(host, minlength=num_hosts)
        place = (share * (num_values - 1) + 0.5).astype(np.int64)
        at = np.minimum(np.cumsum(num_values) - num_values + place, in_order.size - 1)
        return np.where(num_values > 0, in_order[at], np.nan)


# A drift with a larger error is not reported.
_MAX_DRIFT_ERROR = 20e-6
# With larger residuals, as a share of a step, the ends do not mark the same moments (a client
# records them differently), and no clocks are better than clocks measured by them.
_MAX_RESIDUAL = 0.05
# Clocks that are not known to be several are taken to be so if the correction divides the distances
# of shared ends by this (published traces: by 1.15 at most), and there are so many distances for
# each figure of a clock, that chance cannot.
MIN_EVIDENCE_RATIO = 3.0
MIN_ENDS_PER_FIGURE = 5
# Share of the step; clocks nearer to each other move no cause by as much as 1 %.
MIN_APART_OF_STEP = 1e-5
# Steps without absolute times are laid end to end by their numbers; a larger gap means nothing.
_MAX_STEPS_APART = 1000


@dataclass(frozen=True, slots=True)
class ClockCorrection:
    """A window's clocks, and the correction of its times to the reference clock.

    `host` [dp, pp] numbers the hosts; `lines` is None if no time is corrected. `origin_ns` [steps]
    is the origin of each of the window's steps, since the first one.
    """

    clocks: Clocks
    window: Window
    host: Ints
    lines: ClockLines | None = None
    origin_ns: Ints | None = None

    def of(self, grid: Grid) -> Grid:
        """The grid by one clock, corrected in place; unchanged if no time is corrected."""
        if self.lines is None or self.origin_ns is None:
            return grid
        began_ns = _began_ns(self.window, self.origin_ns, grid)
        by_one = corrected(grid, self.lines, began_ns, self.host)
        # Origins that were made up say nothing of the time between steps.
        return by_one if self.window.origin_ns is not None else replace(by_one, origin_s=None)


def measure_clocks(window: Window, grids: list[tuple[Grid, StepGraph]]) -> ClockCorrection:
    """The clocks of the window's hosts, measured over all of its steps.

    A worker of no known host has its own clock. Where hosts or absolute times are unknown, times
    are corrected only where shared ends clearly show several clocks.
    """
    doubt, names, host = _hosts(window)
    if len(names) < 2 or not grids:
        reason = doubt or (
            "all workers are on one host" if len(names) < 2 else "no step can be replayed"
        )
        return ClockCorrection(Clocks(reason=reason), window, host)
    step_s = max(float(grid.template.end_s.max()) for grid, _ in grids)
    origin_ns = _origin_ns(window, step_s)
    began_ns = [_began_ns(window, origin_ns, grid) for grid, _ in grids]
    shared = shared_ends(grids, began_ns, host)
    if not shared.of_shape:
        reason = "workers on different hosts record no operation that ends at one moment on both"
        return ClockCorrection(Clocks(reason=doubt or reason), window, host)
    guess = first_guess(shared)
    lines = fit_lines(shared, guess)
    residuals = Residuals.of(shared, lines)
    residual_s = residuals.quantiles_ns[1] * 1e-9
    if residual_s > _MAX_RESIDUAL * step_s:
        reason = doubt or (
            f"operations that should end together end {residual_s * 1e3:.1f} ms apart, whatever "
            "the clocks: too far to tell these by"
        )
        return ClockCorrection(_unmeasured(reason, _as_recorded(shared, lines)), window, host)
    if doubt is not None:
        recorded, num_figures = _as_recorded(shared, lines), lines.coefficients.size
        if not _show_several_clocks(shared, recorded, residuals, step_s, num_figures):
            return ClockCorrection(_unmeasured(doubt, recorded), window, host)
        doubt = f"{doubt}; shared ends show several clocks, so each worker's was measured"
    by_name = _by_name(names, residuals, lines, knows_time=window.origin_ns is not None)
    clocks = Clocks(residual_s, by_name, doubt or _missing_links(names, guess))
    return ClockCorrection(clocks, window, host, lines, origin_ns)


def _as_recorded(shared: SharedEnds, lines: ClockLines) -> Residuals:
    """Residuals of the shared ends without any correction."""
    no_offset_ns, no_line = np.zeros_like(lines.offset_ns), np.zeros_like(lines.coefficients)
    return Residuals.of(shared, replace(lines, offset_ns=no_offset_ns, coefficients=no_line))


def _show_several_clocks(
    shared: SharedEnds, recorded: Residuals, residuals: Residuals, step_s: float, num_figures: int
) -> bool:
    """Whether shared ends are apart, and much closer to each other after the correction.

    Either most of them, or the distant ones: a few workers may have all of the wrong clocks.
    """
    shapes = [sets.end_ns.shape for sets in shared.of_shape]
    distances = sum(num * (members - 1) * times for num, members, times in shapes)
    if distances < MIN_ENDS_PER_FIGURE * num_figures:
        return False
    least_ns = 1e9 * MIN_APART_OF_STEP * step_s
    return any(
        before_ns > max(least_ns, MIN_EVIDENCE_RATIO * max(after_ns, MIN_SPREAD_NS))
        for before_ns, after_ns in zip(recorded.quantiles_ns, residuals.quantiles_ns, strict=True)
    )


def _unmeasured(reason: str, recorded: Residuals) -> Clocks:
    return Clocks(reason=reason, apart_s=recorded.quantiles_ns[1] * 1e-9)


def _origin_ns(window: Window, step_s: float) -> Ints:
    """[steps], origin of each step's times since the first one's; made up where unknown."""
    if window.origin_ns is not None:
        first_ns = window.origin_ns[0]
        return np.array([origin_ns - first_ns for origin_ns in window.origin_ns], np.int64)
    apart = np.minimum(np.diff(window.steps, prepend=window.steps[0]), _MAX_STEPS_APART)
    return np.asarray(np.cumsum(apart) * np.int64(np.rint(step_s * 1e9)), np.int64)


def _began_ns(window: Window, origin_ns: Ints, grid: Grid) -> Ints:
    """[steps] of the grid, origin of their times since the window's first origin."""
    return np.asarray(origin_ns[np.searchsorted(window.steps, grid.steps)], np.int64)


def _hosts(window: Window) -> tuple[str | None, list[str], Ints]:
    """Reason to doubt that clocks can be compared or None, names, and each worker's host [dp, pp].

    A worker of no known host is a host of its own.
    """
    sizes = window.job.parallelism
    host = np.full((sizes.dp_size, sizes.pp_size), -1, np.int64)
    donors = window.imputed.clock_of if window.imputed else {}
    hosts = dict(window.hosts)
    hosts |= {worker: hosts[donor] for worker, donor in donors.items() if donor in hosts}
    names = sorted(set(hosts.values()))
    number = {name: at for at, name in enumerate(names)}
    for (dp_rank, stage), name in hosts.items():
        host[dp_rank, stage] = number[name]
    unknown = np.argwhere(host < 0).tolist()
    # Workers by a donor's clock come last. Two may be each other's donors, in different steps.
    for dp_rank, stage in sorted(unknown, key=lambda worker: tuple(worker) in donors):
        donor = donors.get((dp_rank, stage))
        if donor is not None and host[donor] >= 0:
            host[dp_rank, stage] = host[donor]
        else:
            host[dp_rank, stage] = len(names)
            names.append(f"dp {dp_rank}, stage {stage}")
    if window.origin_ns is None:
        return "times of different steps have nothing to do with each other", names, host
    if not unknown:
        return None, names, host
    dp_rank, stage = unknown[0]
    others = f" and of {len(unknown) - 1:,} more workers" if len(unknown) > 1 else ""
    return f"the host of dp rank {dp_rank}, stage {stage}{others} is not known", names, host


def _by_name(
    names: list[str], residuals: Residuals, lines: ClockLines, *, knows_time: bool
) -> dict[str, HostClock]:
    """The clocks of the hosts that share ends."""
    residual_s = (residuals.by_host_ns(len(names)) * 1e-9).tolist()
    offset_s = ((lines.offset_ns + lines.coefficients[:, 0]) * 1e-9).tolist()
    drift_ppm = (lines.drift * 1e6).tolist()
    has_drift = (lines.drift_error <= _MAX_DRIFT_ERROR) & knows_time
    return {
        name: HostClock(offset_s[at], drift_ppm[at] if has_drift[at] else None, residual_s[at])
        for at, name in enumerate(names)
        if not np.isnan(residual_s[at])
    }


def _missing_links(names: list[str], guess: FirstGuess) -> str | None:
    groups = np.unique(guess.reference).size
    if groups == 1:
        return None
    named = ", ".join(names[at] for at in np.unique(guess.reference)[:3].tolist())
    return (
        f"{groups:,} groups of hosts share no operation with each other, so that their clocks "
        f"are compared within each group only, with {named}"
    )
