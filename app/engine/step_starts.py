"""When each step of a window started, by the wall clock.

Workers record times by their own clocks. A step has started when its first worker did, after the
clocks were brought together as far as they could be measured.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from app.engine.clocks.measure import Clocks
from app.trace.runs import RunTrace
from app.trace.window import Floats, Window

# Recorders whose clock counts from another origin than 1970 give no time of day.
_FIRST_VALID_S = 946_684_800.0  # the year 2000
_LAST_VALID_S = 4_102_444_800.0  # the year 2100


def step_starts_s(
    window: Window, clocks: Clocks | None = None, *, now_s: float | None = None
) -> dict[int, float]:
    """Unix time at which each step started, in seconds; steps of unknown time are left out.

    Args:
        window: after `impute` or before.
        clocks: those of the window's hosts. Times are by the median of the hosts' clocks, as no
            single one is known to be right.
        now_s: a step that started more than a minute later is none of this clock's: recorded
            faster than it ran, or by a wrong clock. None where nothing is known of that.
    """
    if window.origin_ns is None or not window.steps:
        return {}
    latest_s = _LAST_VALID_S if now_s is None else now_s + 60.0
    first_s = _first_starts_s(window, {} if clocks is None else clocks.offset_s)
    # The origin alone would lose its fraction of a microsecond beside a large number: unimportant.
    starts_s = [ns * 1e-9 + since_s for ns, since_s in zip(window.origin_ns, first_s, strict=True)]
    return {
        step: at_s
        for step, at_s in zip(window.steps, starts_s, strict=True)
        if _FIRST_VALID_S <= at_s <= latest_s
    }


def _first_starts_s(window: Window, ahead_s: Mapping[str, float]) -> Sequence[float]:
    """[steps] first start by the median clock, from each step's origin."""
    if not ahead_s:
        return [0.0] * len(window.steps)
    trace, steps = window.trace, np.asarray(window.steps, np.int64)
    sizes = window.job.parallelism
    usual_s = float(np.median(list(ahead_s.values())))
    correction_s: Floats = np.zeros((sizes.dp_size, sizes.pp_size))
    for worker, host in window.hosts.items():
        correction_s[worker] = usual_s - ahead_s.get(host, usual_s)
    first_s = np.full(steps.size, np.inf)
    if isinstance(trace, RunTrace):
        # The earliest start of a worker stays the earliest, to the last bit.
        runs = trace.runs
        start_s = np.minimum.reduceat(trace.start_s, runs.first_row[:-1])
        place = runs.step, runs.dp_rank, runs.stage
    else:
        start_s, place = trace.start_s, (trace.step, trace.dp_rank, trace.stage)
    start_s = start_s + correction_s[place[1], place[2]]
    np.minimum.at(first_s, np.searchsorted(steps, place[0]), start_s)
    return list(first_s.tolist())
