"""Where a step's time went on one rank's GPU.

    step = computing + communicating, exposed + copying + idle

Computing is the time in which at least one computing kernel runs. Communication is hidden while a
computing kernel runs too, and exposed else; copying counts where nothing else runs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.waiting import Waiting, merged
from app.trace.readers.profiles.events import COMMUNICATING, COMPUTING
from app.trace.readers.profiles.profile import GpuWork, RankProfile
from app.trace.readers.profiles.steps import PROFILER
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of each step, all [steps]; `hidden_s` is within `computing_s`."""

    step_s: Floats
    computing_s: Floats
    exposed_s: Floats
    hidden_s: Floats
    copying_s: Floats
    idle_s: Floats

    def of_steps(self, at: Ints) -> "Breakdown":
        """The steps at these places alone."""
        return Breakdown(
            self.step_s[at],
            self.computing_s[at],
            self.exposed_s[at],
            self.hidden_s[at],
            self.copying_s[at],
            self.idle_s[at],
        )

    @property
    def coverage(self) -> float:
        """Share of the steps in which the GPU worked."""
        return float(1.0 - self.idle_s.sum() / self.step_s.sum())


def computing(work: GpuWork, origin_ns: int) -> Waiting:
    """Merged intervals of computing, in seconds since an origin by the file's clock."""
    return _merged(work, work.kind == COMPUTING, origin_ns)


def kernel_span(profile: RankProfile) -> Breakdown:
    """One step from the first kernel's start to the last one's end, as HolisticTraceAnalysis takes.

    Of files with several ProfilerStep marks it leaves out what is launched in the last of them, or
    before the file begins.
    """
    work = profile.work
    if profile.steps_from == PROFILER and len(profile.steps) > 1:
        is_earlier = work.launch_ns < profile.host_start_ns[-1]
        chosen = (work.launch_ns >= 0) & is_earlier
        if not chosen.any():
            chosen[:] = True
        work = GpuWork(
            work.kind[chosen],
            work.start_ns[chosen],
            work.end_ns[chosen],
            work.launch_ns[chosen],
            work.step[chosen],
        )
    bounds_ns = np.array([work.start_ns.min(), work.end_ns.max()], np.int64)
    return breakdown(work, bounds_ns)


def breakdown(work: GpuWork, bounds_ns: Ints) -> Breakdown:
    """Each step's time, for steps with these bounds, [steps + 1] ascending."""
    origin_ns = int(bounds_ns[0])
    bounds_s = (bounds_ns - origin_ns) / 1e9
    is_computing, is_comm = work.kind == COMPUTING, work.kind == COMMUNICATING
    compute_s = _within(_merged(work, is_computing, origin_ns), bounds_s)
    comm_s = _within(_merged(work, is_comm, origin_ns), bounds_s)
    both_s = _within(_merged(work, is_computing | is_comm, origin_ns), bounds_s)
    all_s = _within(_merged(work, np.ones(work.kind.size, np.bool_), origin_ns), bounds_s)
    step_s = np.diff(bounds_s)
    return Breakdown(
        step_s=step_s,
        computing_s=compute_s,
        exposed_s=_positive(both_s - compute_s),
        hidden_s=_positive(compute_s + comm_s - both_s),
        copying_s=_positive(all_s - both_s),
        idle_s=_positive(step_s - all_s),
    )


def _merged(work: GpuWork, chosen: NDArray[np.bool_], origin_ns: int) -> Waiting:
    start_s = (work.start_ns[chosen] - origin_ns) / 1e9
    return merged(start_s, (work.end_ns[chosen] - origin_ns) / 1e9)


def _within(intervals: Waiting, bounds_s: Floats) -> Floats:
    return np.diff(intervals.until(bounds_s))


def _positive(seconds: Floats) -> Floats:
    """Without the rounding of differences."""
    return np.where(seconds > 1e-9, seconds, 0.0)
