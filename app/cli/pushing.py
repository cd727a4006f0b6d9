"""Pushes recorded operations as training workers would: each at its end, at a chosen speed.

`gapless_timeline` puts the steps of a trace end to end on one clock; `push` passes each operation
to its worker's recorder when it is due.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import paceline_client
from numpy.typing import NDArray

from app.errors import InvalidRequest, Unavailable
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.window import OPTIONAL, Floats, Ints, Trace, Window

# Time between checks for ended operations; the recorder batches them anyway.
TICK_S = 0.05
_MAX_ROWS_AT_ONCE = 20_000


class WallClock:
    """The monotonic clock of this machine; tests replace it."""

    def now_s(self) -> float:
        """Seconds since any beginning."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Return after these seconds."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class PushTimeline:
    """Operations sorted by end.

    Shapes: all [ops]. `worker` is dp_rank * pp_size + stage; `start_ns` and `end_ns` count from
    the start of the first step; `closes_step` marks each worker's last operation of a step.
    """

    trace: Trace
    worker: Ints
    start_ns: Ints
    end_ns: Ints
    closes_step: NDArray[np.bool_]


def gapless_timeline(window: Window) -> PushTimeline:
    """The window's operations, with its steps moved together without gaps.

    Successive steps that overlap in the recording overlap by as much here.
    """
    trace = window.trace
    step_index = np.searchsorted(np.asarray(window.steps), trace.step)
    first_s = np.full(len(window.steps), np.inf)
    np.minimum.at(first_s, step_index, trace.start_s)
    start_ns = _nanoseconds(trace.start_s - first_s[step_index])
    end_ns = start_ns + _nanoseconds(trace.duration_s)
    length_ns = np.zeros(len(window.steps), dtype=np.int64)
    np.maximum.at(length_ns, step_index, end_ns)
    begins_ns = _step_starts_ns(window, first_s, length_ns)[step_index]
    return ordered_timeline(
        trace,
        start_ns=begins_ns + start_ns,
        end_ns=begins_ns + end_ns,
        pp_size=window.job.parallelism.pp_size,
    )


def _step_starts_ns(window: Window, first_s: Floats, length_ns: Ints) -> Ints:
    """[steps], start of each step, from the start of the earliest."""
    after_ns = length_ns[:-1].copy()
    if window.origin_ns is not None:
        recorded_ns = np.diff(np.asarray(window.origin_ns) + _nanoseconds(first_s))
        overlaps = (np.diff(window.steps) == 1) & (recorded_ns < after_ns)
        after_ns[overlaps] = recorded_ns[overlaps]
    begins_ns = np.concatenate(([0], np.cumsum(after_ns)))
    return np.asarray(begins_ns - begins_ns.min())


def ordered_timeline(trace: Trace, *, start_ns: Ints, end_ns: Ints, pp_size: int) -> PushTimeline:
    """Operations with their times [ops] on one clock, sorted by end."""
    worker = trace.dp_rank.astype(np.int64) * pp_size + trace.stage
    steps = np.unique(trace.step)
    step_index = np.searchsorted(steps, trace.step)
    order = np.argsort(end_ns, kind="stable")
    return PushTimeline(
        trace=trace.select(order),
        worker=worker[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        closes_step=_is_last((worker * steps.size + step_index)[order]),
    )


def due_rows(
    timeline: PushTimeline, speed: float, clock: WallClock, began_s: float | None = None
) -> Iterator[slice]:
    """Slices of rows as they end, at `speed` times real time.

    At infinite speed all rows are due at once, but still come in slices. The first step begins at
    `began_s` of the clock, by default now.
    """
    num_ops = ended = timeline.end_ns.size
    sent = 0
    began_s = clock.now_s() if began_s is None else began_s
    while sent < num_ops:
        if np.isfinite(speed):
            now_ns = (clock.now_s() - began_s) * speed * 1e9
            ended = int(np.searchsorted(timeline.end_ns, now_ns, side="right"))
        if ended == sent:
            left_s = float(timeline.end_ns[sent] - now_ns) * 1e-9 / speed
            clock.wait(max(left_s, TICK_S))
            continue
        until = min(ended, sent + _MAX_ROWS_AT_ONCE)
        yield slice(sent, until)
        sent = until


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)


def _is_last(key: Ints) -> NDArray[np.bool_]:
    _, from_end = np.unique(key[::-1], return_index=True)
    is_last = np.zeros(key.size, dtype=np.bool_)
    is_last[key.size - 1 - from_end] = True
    return is_last


# The server may be busy or restarting; pushing fails once so long no worker's rest was accepted.
_MAX_DELIVERY_S = 120.0
_POLL_EVERY_S = 0.1


def push(
    timeline: PushTimeline,
    recorders: Sequence[paceline_client.Recorder],
    *,
    begin_ns: int,
    speed: float,
    clock: WallClock,
    progress: Callable[[int], None],
    op_types: OpTypes = BUILT_IN,
    began_s: float | None = None,
) -> None:
    """Pass every operation to its worker's recorder when it is due.

    `begin_ns` is the epoch time of the first step's start, `began_s` the same by `clock` (default:
    now). `progress` gets the number of operations passed on. `op_types` names the operations.
    """
    names = {code: spec.name for code, spec in op_types.by_code.items()}
    trace = timeline.trace
    duration_ns = timeline.end_ns - timeline.start_ns
    for rows in due_rows(timeline, speed, clock, began_s):
        columns = (
            timeline.worker, timeline.closes_step, trace.optype, trace.step,
            timeline.start_ns + begin_ns, duration_ns, trace.seq_id, trace.mc, trace.mb_id,
        )  # fmt: skip
        attributes = _optional_values(trace, rows)
        for worker, closes, code, step, *rest in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            recorders[worker].record(names[code], step, *rest, **next(attributes))
            if closes:
                recorders[worker].step_done(step)
        progress(rows.stop - rows.start)


def _optional_values(trace: Trace, rows: slice) -> Iterator[dict[str, int]]:
    """Attributes of each row, from the trace's optional columns."""
    columns = {name: getattr(trace, name) for name in OPTIONAL}
    known = {name: values[rows].tolist() for name, values in columns.items() if values is not None}
    if not known:
        yield from repeat({}, rows.stop - rows.start)
    for values in zip(*known.values(), strict=True):
        yield {name: value for name, value in zip(known, values, strict=True) if value >= 0}


def deliver(recorders: Sequence[paceline_client.Recorder], warnings: Sequence[str]) -> None:
    """Wait until the server has accepted everything."""
    for recorder in recorders:
        until_s = time.monotonic() + _MAX_DELIVERY_S
        while not recorder.flush(_POLL_EVERY_S):
            if time.monotonic() > until_s:
                raise Unavailable(
                    f"the server did not take the rest of a worker within {_MAX_DELIVERY_S:.0f} s: "
                    f"{_first_message(warnings)}"
                )
    if lost := sum(recorder.dropped for recorder in recorders):
        raise InvalidRequest(f"{lost:,} operations were not accepted: {_first_message(warnings)}")


class _Collector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def client_warnings() -> Iterator[list[str]]:
    """What the client package logs in the block."""
    messages: list[str] = []
    collector, log = _Collector(messages), logging.getLogger(paceline_client.__name__)
    propagated = log.propagate
    log.addHandler(collector)
    log.propagate = False  # else it would also be printed across the progress bar
    try:
        yield messages
    finally:
        log.removeHandler(collector)
        log.propagate = propagated


def _first_message(warnings: Sequence[str]) -> str:
    return warnings[0].removeprefix("paceline: ") if warnings else "the server gave no reason"
