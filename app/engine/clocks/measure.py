"""Measure the clocks of a window's hosts by what they record together."""

from dataclasses import dataclass

import numpy as np

from app.engine.clocks.clocks import Clocks, HostClock
from app.engine.clocks.correct import corrected
from app.engine.clocks.drift import lines
from app.engine.clocks.first_guess import FirstGuess, first_guess
from app.engine.clocks.lines import Lines
from app.engine.clocks.residuals import residuals_ns
from app.engine.clocks.shared_ends import SharedEnds, shared_ends
from app.engine.graph import StepGraph
from app.engine.grid import Grid
from app.trace.window import Floats, Ints, Window

# A drift that may be off by more is not told.
_LARGEST_DRIFT_ERROR = 20e-6
# Ends that are further apart, as a share of a step, do not belong together: a client records them
# otherwise. Clocks that were told by them would be worse than none.
_LARGEST_RESIDUAL = 0.05


@dataclass(frozen=True, slots=True)
class Correction:
    """What is known of a window's clocks, and how to bring its times to one of them.

    `host` [dp, pp] numbers the hosts; `found` is None where nothing was measured.
    """

    clocks: Clocks
    window: Window
    host: Ints
    found: Lines | None = None

    def of(self, grid: Grid) -> Grid:
        """The grid of some of the window's steps by one clock: as it is where none was measured.

        It is corrected in place.
        """
        if self.found is None:
            return grid
        return corrected(grid, self.found, _began_ns(self.window, grid), self.host)


def measured(window: Window, grids: list[tuple[Grid, StepGraph]]) -> Correction:
    """The clocks of the window's hosts by all of its steps."""
    reason, names, host = _hosts(window)
    if reason is not None or not grids:
        return Correction(Clocks(reason=reason or "no step can be replayed"), window, host)
    began_ns = [_began_ns(window, grid) for grid, _ in grids]
    shared = shared_ends(grids, began_ns, host)
    if not shared.num_sets:
        reason = "workers on different hosts record no operation that ends at one moment on both"
        return Correction(Clocks(reason=reason), window, host)
    guess = first_guess(shared)
    found = lines(shared, guess)
    clocks = _clocks(names, shared, guess, found)
    step_s = max(float(grid.template.end_s.max()) for grid, _ in grids)
    if (residual_s := clocks.residual_s or 0.0) > _LARGEST_RESIDUAL * step_s:
        reason = (
            f"operations that should end together end {residual_s * 1e3:.1f} ms apart, whatever "
            "the clocks: too far to tell these by"
        )
        return Correction(Clocks(reason=reason), window, host)
    return Correction(clocks, window, host, found)


def _began_ns(window: Window, grid: Grid) -> Ints:
    """[steps] of the grid, what their times count from, since the window's first."""
    origin_ns = window.origin_ns or ()
    by_step = {
        step: each - origin_ns[0] for step, each in zip(window.steps, origin_ns, strict=True)
    }
    return np.array([by_step[step] for step in grid.steps], np.int64)


def _hosts(window: Window) -> tuple[str | None, list[str], Ints]:
    """Why clocks cannot be compared, if so; the hosts' names, and [dp, pp] each worker's."""
    sizes = window.job.parallelism
    host = np.zeros((sizes.dp_size, sizes.pp_size), np.int64)
    if window.origin_ns is None:
        return "times of different steps have nothing to do with each other", [], host
    names = sorted(set(window.hosts.values()))
    number = {name: at for at, name in enumerate(names)}
    host[:] = -1
    for (dp_rank, stage), name in window.hosts.items():
        host[dp_rank, stage] = number[name]
    if (host < 0).any():
        dp_rank, stage = np.argwhere(host < 0)[0]
        others = int((host < 0).sum()) - 1
        more = f" and of {others:,} more workers" if others else ""
        return f"the host of dp rank {dp_rank}, stage {stage}{more} is not known", [], host
    return ("all workers are on one host" if len(names) < 2 else None), names, host


def _clocks(names: list[str], shared: SharedEnds, guess: FirstGuess, found: Lines) -> Clocks:
    residual_ns, of_host_ns = residuals_ns(shared, found)
    offset_ns = found.offset_ns + found.coefficients[:, 0]
    by_name = {
        name: HostClock(
            float(offset_ns[at]) * 1e-9,
            _drift_ppm(found.drift[at], found.drift_error[at]),
            float(of_host_ns[at]) * 1e-9,
        )
        for at, name in enumerate(names)
        if not np.isnan(of_host_ns[at])
    }
    return Clocks(residual_ns * 1e-9, by_name, _what_is_unknown(names, guess))


def _drift_ppm(drift: Floats, error: Floats) -> float | None:
    return float(drift) * 1e6 if error <= _LARGEST_DRIFT_ERROR else None


def _what_is_unknown(names: list[str], guess: FirstGuess) -> str | None:
    groups = np.unique(guess.reference).size
    if groups == 1:
        return None
    named = ", ".join(names[at] for at in np.unique(guess.reference)[:3].tolist())
    return (
        f"{groups:,} groups of hosts share no operation with each other, so that their clocks "
        f"are compared within each group only, with {named}"
    )
