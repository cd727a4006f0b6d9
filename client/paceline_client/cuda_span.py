"""One operation between two CUDA events, or one wait of the compute stream."""

from __future__ import annotations

import sys
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional, cast

from .buffer import SKIPPED, Pending, Skipped
from .told import NOTHING

if TYPE_CHECKING:
    from .buffer import Buffer
    from .cuda import CudaTiming
    from .timed import StepState
    from .wire import Op

LEAST_WAIT_NS = 1_000  # what lies between two events with nothing between them
_FREE, _OPEN, _ENDED, _RESOLVED = range(4)

_getrefcount = cast(Optional[Callable[[object], int]], getattr(sys, "getrefcount", None))


def num_references(held: list[Any]) -> int:
    """To the only element of a list; -1 where this Python does not count them."""
    return -1 if _getrefcount is None else _getrefcount(held[0])


# Measured, not assumed: how many references calls take is different in each version of Python.
ALONE = num_references([object()]) if _getrefcount is not None else 0


class CudaSpan(Pending):
    """Times one operation by a pair of CUDA events, or by the host's clock where there are none.

    `CudaTiming.op` sets what belongs to the operation; the two events belong to the span, which is
    used again for another operation once this one has been handed out and nobody else has it.

    A wait has a `_cap`: the span for whose end the stream waits. It lasts from its beginning until
    that end, however late the stream comes to the wait's own end, if it records one at all.
    """

    __slots__ = (
        *("_begin", "_cap", "_end", "_has_end", "_has_events", "_phase", "_seq_id", "_start_ns"),
        *("_timing", "buffer", "chunk", "contains_waits", "device", "epoch_ns", "microbatch"),
        *("optype", "state", "step", "told"),
    )
    buffer: Buffer
    chunk: int
    contains_waits: bool  # may do so, with no event that shows them
    epoch_ns: int
    microbatch: int
    optype: str
    state: StepState
    step: int
    told: dict[str, Any]

    def __init__(self, timing: CudaTiming, begin: Any, end: Any, device: int | None) -> None:
        self._timing = timing
        self._begin = begin
        self._end = end
        self.device = device  # that its events belong to
        self._phase = _FREE
        self._cap: CudaSpan | None = None
        self._has_end = True

    @property
    def has_ended(self) -> bool:
        """Whether the event at its end has been recorded."""
        return self._phase > _OPEN and self._has_end

    def tell(self, **told: Any) -> None:
        """What was not known when it began; takes what `Recorder.op` takes."""
        self.told = {**self.told, **told}

    def __enter__(self) -> CudaSpan:
        try:
            self._seq_id = next(self.state.counts[self.optype])
        except Exception:  # a name that is none: dropped, and counted, when it ends
            self._seq_id = -1
        self._phase = _OPEN
        self._start_ns = perf_counter_ns()
        self._has_events = self._timing.record(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._phase != _OPEN:  # it has ended before
            return
        self._phase = _ENDED
        if self._has_events and self._timing.record(self._end):
            self.buffer.add(self)
        elif self._cap is None:
            duration_ns = perf_counter_ns() - self._start_ns
            self.buffer.add(self._op(self._start_ns, duration_ns))

    def end_with(self, cap: CudaSpan, *, at_once: bool = False) -> None:
        """The wait for another operation is over: here, or at the end of that if it comes first.

        `at_once` says that the stream does wait for it, so that no second event is needed.
        """
        if self._phase != _OPEN or not cap.has_ended:
            return
        self._cap = cap
        if at_once:
            self._phase = _ENDED
            self._has_end = False
            if self._has_events:
                self.buffer.add(self)
        else:
            self.__exit__(None, None, None)

    def resolved(self) -> Op | Skipped | None:
        """The operation, once the GPU has passed its last event.

        Events of one stream are passed in order, so that the first need not be asked.
        """
        anchor = self._timing.anchor()
        if anchor is None or not (self._end if self._has_end else self._begin).query():
            return None
        try:
            start_ns = anchor.host_ns + round(anchor.event.elapsed_time(self._begin) * 1e6)
            duration_ns = self._duration_ns()
        except Exception:
            if self._begin.query():
                raise
            return None  # it began on another stream, which has not come so far
        self._phase = _RESOLVED
        if self._cap is not None and duration_ns < LEAST_WAIT_NS:
            return SKIPPED
        return self._op(start_ns, max(0, duration_ns))

    @staticmethod
    def give_back(held: list[Any]) -> None:
        """Have the span that is in this list alone used again, and the one that it waited for."""
        timing, cap, held[0]._cap = held[0]._timing, held[0]._cap, None
        held[0]._has_end = True
        held[0].told = NOTHING
        timing.give_back(held)
        if cap is not None and cap._phase == _RESOLVED:
            others = [cap]
            del cap
            timing.give_back(others)

    def _duration_ns(self) -> int:
        ends = [self._end] if self._has_end else []
        if self._cap is not None:
            ends.append(self._cap._end)
        shortest_ms: float = min(self._begin.elapsed_time(end) for end in ends)
        return round(shortest_ms * 1e6)

    def _op(self, start_ns: int, duration_ns: int) -> Op:
        about = self.told
        if self.contains_waits:
            about = {**about, "contains_waits": 1}
        return (
            self.step, self.optype, self.epoch_ns + start_ns, duration_ns, self._seq_id,
            self.chunk, self.microbatch, about or None,
        )  # fmt: skip
