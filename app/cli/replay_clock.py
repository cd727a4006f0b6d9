"""A trace on one clock: its steps laid end to end, each operation due when it ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.trace.window import Floats, Ints, Trace, Window

# How often a worker's finished operations are looked for; the recorder gathers them anyway.
TICK_S = 0.05
_AT_ONCE = 20_000


class Clock(Protocol):
    """Tells the time and lets it pass."""

    def now_s(self) -> float:
        """Seconds since any beginning."""

    def wait(self, seconds: float) -> None:
        """Returns later."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Operations in the order in which they end.

    Shapes: all [ops]. `worker` is dp_rank * pp_size + stage; `start_ns` and `end_ns` count from
    the beginning of the first step; `closes_step` marks each worker's last operation of a step.
    """

    trace: Trace
    worker: Ints
    start_ns: Ints
    end_ns: Ints
    closes_step: NDArray[np.bool_]

    @property
    def length_s(self) -> float:
        """Seconds from the first operation's start to the last one's end."""
        return float(self.end_ns[-1]) * 1e-9


def end_to_end(window: Window) -> Timeline:
    """The window's operations as if its steps had followed each other without a gap.

    Successive steps that overlapped as they were recorded do so here, by as much.
    """
    trace = window.trace
    step_index = np.searchsorted(np.asarray(window.steps), trace.step)
    first_s = np.full(len(window.steps), np.inf)
    np.minimum.at(first_s, step_index, trace.start_s)
    start_ns = _nanoseconds(trace.start_s - first_s[step_index])
    end_ns = start_ns + _nanoseconds(trace.duration_s)
    length_ns = np.zeros(len(window.steps), dtype=np.int64)
    np.maximum.at(length_ns, step_index, end_ns)
    begins_ns = _begins_ns(window, first_s, length_ns)[step_index]
    return laid_out(
        trace,
        start_ns=begins_ns + start_ns,
        end_ns=begins_ns + end_ns,
        pp_size=window.job.parallelism.pp_size,
    )


def _begins_ns(window: Window, first_s: Floats, length_ns: Ints) -> Ints:
    """[steps], when the first operation of each begins, from that of the earliest one."""
    after_ns = length_ns[:-1].copy()
    if window.origin_ns is not None:
        recorded_ns = np.diff(np.asarray(window.origin_ns) + _nanoseconds(first_s))
        overlaps = (np.diff(window.steps) == 1) & (recorded_ns < after_ns)
        after_ns[overlaps] = recorded_ns[overlaps]
    begins_ns = np.concatenate(([0], np.cumsum(after_ns)))
    return np.asarray(begins_ns - begins_ns.min())


def laid_out(trace: Trace, *, start_ns: Ints, end_ns: Ints, pp_size: int) -> Timeline:
    """Operations with their times [ops] on the one clock, in the order in which they end."""
    worker = trace.dp_rank.astype(np.int64) * pp_size + trace.stage
    steps = np.unique(trace.step)
    step_index = np.searchsorted(steps, trace.step)
    order = np.argsort(end_ns, kind="stable")
    return Timeline(
        trace=trace.select(order),
        worker=worker[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        closes_step=_is_last((worker * steps.size + step_index)[order]),
    )


def due(
    timeline: Timeline, speed: float, clock: Clock, began_s: float | None = None
) -> Iterator[slice]:
    """The rows that have ended since the last ones, as time goes by `speed` times as fast.

    With an infinite speed everything is due at once, and comes in parts all the same. The first
    step begins at `began_s` of the clock, or now.
    """
    num_ops, sent = timeline.end_ns.size, 0
    began_s = clock.now_s() if began_s is None else began_s
    while sent < num_ops:
        ended = num_ops
        if np.isfinite(speed):
            now_ns = (clock.now_s() - began_s) * speed * 1e9
            ended = int(np.searchsorted(timeline.end_ns, now_ns, side="right"))
        if ended == sent:
            left_s = float(timeline.end_ns[sent] - now_ns) * 1e-9 / speed
            clock.wait(max(left_s, TICK_S))
            continue
        until = min(ended, sent + _AT_ONCE)
        yield slice(sent, until)
        sent = until


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)


def _is_last(key: Ints) -> NDArray[np.bool_]:
    _, from_end = np.unique(key[::-1], return_index=True)
    is_last = np.zeros(key.size, dtype=np.bool_)
    is_last[key.size - 1 - from_end] = True
    return is_last
