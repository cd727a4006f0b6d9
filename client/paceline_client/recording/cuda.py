"""Times operations on the GPU by CUDA events, without ever waiting for one.

Training records two events around an operation, on its own stream; the sender's thread later asks
whether the GPU has passed the second. Anchors convert their times to the host's clock: an event on
an idle stream, recorded between two readings of that clock.

Spans are reused with their events, so that a warm operation allocates nothing. Streams are looked
up by number, and only streams that can be captured are asked whether a graph is being captured.
"""

from __future__ import annotations

import logging
import sys
import time
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, cast

from ..guard import guarded
from .buffer import SKIPPED_OP, Buffer, PendingOp, SkippedOp
from .op_attributes import NO_ATTRIBUTES, launch_attributes
from .timing import StepState

if TYPE_CHECKING:
    from .wire import Op


ANCHOR_EVERY_S = 1.0  # elapsed times have 24 bits: a recent anchor keeps them to a microsecond
GPU_ANCHOR_TRIES = 5
QUICK_POLLS = 50  # an event on an idle stream is passed within 10 us
MAX_TRY_S = 0.005
DRIFT = 20e-6  # largest relative drift of the two clocks
MAX_FREE_SPANS = 4096
MAX_STREAMS = 256

log = logging.getLogger("paceline_client")


class GpuAnchor(NamedTuple):
    """An event with its host time, and the uncertainty of that."""

    event: Any
    host_ns: int
    width_ns: int

    def error_ns(self, now_ns: int) -> float:
        """Uncertainty of a time of now computed from this anchor."""
        return self.width_ns + DRIFT * (now_ns - self.host_ns)


class CudaTiming:
    """Records CUDA events and gives their times in nanoseconds of the host's monotonic clock."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._free: list[CudaSpan] = []
        self._anchor: GpuAnchor | None = None
        self._stream: Any = None
        self._device: int | None = None
        self._raw_stream: Callable[[Any], int] | None = None
        self._streams: dict[int, Any] = {}
        self._marks: list[Any] = []
        self.is_ready = False
        self.is_capturing = False  # a CUDA graph, as of the last operation
        self._next_anchor_s = 0.0
        self._warned = False

    def is_usable(self) -> bool:
        """Whether training has initialised CUDA; the client never does."""
        if not self.is_ready and self._cuda.is_initialized():
            self._device = self._cuda.current_device()
            library = getattr(self._torch, "_C", None)
            self._raw_stream = getattr(library, "_cuda_getCurrentRawStream", None)
            self.is_ready = True
        return self.is_ready

    def follow_device(self) -> None:
        """Check at the start of a step whether training has moved to another device.

        Operations still running on the previous device get no times.
        """
        if not self.is_ready:
            return
        try:
            device = self._cuda.current_device()
        except Exception as error:
            self._warn(f"the current GPU is unknown: {error}")
            return
        if device != self._device:
            self._device = device
            self._stream = self._anchor = None
            self._next_anchor_s = 0.0
            self._free, self._marks, self._streams = [], [], {}

    def op(
        self,
        buffer: Buffer,
        epoch_ns: int,
        optype: str,
        state: StepState,
        microbatch: int,
        chunk: int,
        attributes: dict[str, Any],
    ) -> CudaSpan:
        """A span for an operation, reused if one is free."""
        try:
            span = self._free.pop()
        except IndexError:
            event = self._cuda.Event
            events = event(enable_timing=True), event(enable_timing=True)
            span = CudaSpan(self, *events, self._device)
        span.buffer = buffer
        span.epoch_ns = epoch_ns
        span.optype = optype
        span.state = state
        span.step = state.step
        span.microbatch = microbatch
        span.chunk = chunk
        span.attributes = attributes or NO_ATTRIBUTES
        span.contains_waits = False
        return span

    def give_back(self, held: list[CudaSpan]) -> None:
        """Recycle a span unless something besides this list still refers to it."""
        if held[0].device != self._device or len(self._free) >= MAX_FREE_SPANS:
            return
        if num_references(held) == SOLE_OWNER_REFERENCES:
            self._free.append(held.pop())

    def record(self, event: Any) -> bool:
        """Record an event on the current stream; False if that is impossible, as in a capture."""
        try:
            if self._raw_stream is None:
                self.is_capturing = self._cuda.is_current_stream_capturing()
                if self.is_capturing:
                    return False
                event.record()
                return True
            number = self._raw_stream(self._device)
            # The default stream, 0, cannot be captured.
            self.is_capturing = bool(number) and self._cuda.is_current_stream_capturing()
            if self.is_capturing:
                return False
            stream = self._streams.get(number)
            event.record(self._stream_of(number) if stream is None else stream)
            return True
        except Exception as error:
            self._warn(f"no CUDA event could be recorded, the host's clock is used: {error}")
            return False

    def mark(self) -> Any:
        """An event on the current stream for a group collective; None if it cannot be recorded.

        Operations use spans (`op`); marks are recorded in sampled steps only.
        """
        try:
            event = self._marks.pop()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        return event if self.record(event) else None

    def span_ns(self, begin: Any, end: Any) -> tuple[int, int] | None:
        """Start and duration between two marks; None until the GPU has passed the second.

        Raises:
            Exception: any; CUDA gives no times.
        """
        anchor = self.anchor()
        if anchor is None or not (begin.query() and end.query()):
            return None
        start_ns = anchor.host_ns + round(anchor.event.elapsed_time(begin) * 1e6)
        duration_ns = round(begin.elapsed_time(end) * 1e6)
        if len(self._marks) < MAX_FREE_SPANS:
            self._marks += (begin, end)
        return start_ns, max(0, duration_ns)

    def anchor(self) -> GpuAnchor | None:
        """The current anchor; None while there is none."""
        if self.is_capturing:  # a query from another thread may end the capture with an error
            return None
        if self._anchor is None:
            self.poll()
        return self._anchor

    def poll(self) -> None:
        """Renew the anchor if that is due; runs on the sender's thread."""
        if not self.is_ready or self.is_capturing or time.monotonic() < self._next_anchor_s:
            return
        self._next_anchor_s = time.monotonic() + ANCHOR_EVERY_S
        try:
            with self._cuda.device(self._device):
                found = [
                    anchor for anchor in (self._try() for _ in range(GPU_ANCHOR_TRIES)) if anchor
                ]
        except Exception as error:
            self._warn(f"the GPU's clock cannot be read: {error}")
            return
        now_ns = perf_counter_ns()
        known = [self._anchor] if self._anchor is not None else []
        self._anchor = min(found + known, key=lambda anchor: anchor.error_ns(now_ns), default=None)

    def _try(self) -> GpuAnchor | None:
        """An anchor from an idle stream: on the current one the event would queue behind work."""
        if self._stream is None:
            # Streams come from a pool; high-priority ones are rarely shared with other users.
            self._stream = self._cuda.Stream(device=self._device, priority=-1)
        event = self._cuda.Event(enable_timing=True)
        before_ns = perf_counter_ns()
        event.record(self._stream)
        num_polls = 0
        while not event.query():
            num_polls += 1
            if num_polls > QUICK_POLLS:
                time.sleep(0)  # let training have the interpreter
            if perf_counter_ns() - before_ns > MAX_TRY_S * 1e9:
                return None
        width_ns = perf_counter_ns() - before_ns
        return GpuAnchor(event, before_ns + width_ns // 2, width_ns)

    def _stream_of(self, number: int) -> Any:
        """The current stream, cached under its number."""
        if len(self._streams) >= MAX_STREAMS:  # for scripts that keep creating streams
            self._streams.clear()
        self._streams[number] = stream = self._cuda.current_stream(self._device)
        return stream

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("paceline: %s", message)


def cuda_timing(timing: str) -> CudaTiming | None:
    """GPU timing as chosen by the `timing` option of `start`; None for the host's clock."""
    if timing not in ("auto", "host", "cuda"):
        log.warning('paceline: timing is %r, not one of "auto", "host" and "cuda"', timing)
    if timing == "host":
        return None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return CudaTiming(torch)
    if timing == "cuda":
        log.warning("paceline: no CUDA in this process: import torch first; host clock is used")
    return None


MIN_WAIT_NS = 1_000  # time between two events with no work between them
_FREE, _OPEN, _ENDED, _RESOLVED = range(4)

_getrefcount = cast(Optional[Callable[[object], int]], getattr(sys, "getrefcount", None))


def num_references(held: list[Any]) -> int:
    """Reference count of a list's only element; -1 if this Python does not count."""
    return -1 if _getrefcount is None else _getrefcount(held[0])


# Measured: how many references a call holds differs between Python versions.
SOLE_OWNER_REFERENCES = num_references([object()]) if _getrefcount is not None else 0


class CudaSpan(PendingOp):
    """Times one operation by a pair of CUDA events, or by the host's clock without events.

    `CudaTiming.op` sets the fields of the operation; the two events belong to the span, which is
    recycled once its operation has been taken and nothing else refers to it.

    A wait has a `_cap`: the span for whose end the stream waits. The wait lasts from its own start
    to the end of that span, whenever the stream reaches the wait's own end event, if any.
    """

    __slots__ = (
        *("_begin", "_cap", "_end", "_has_end", "_has_events", "_phase", "_seq_id", "_start_ns"),
        *("_timing", "attributes", "buffer", "chunk", "contains_waits", "device", "epoch_ns"),
        *("microbatch", "optype", "state", "step"),
    )
    attributes: dict[str, Any]
    buffer: Buffer
    chunk: int
    contains_waits: bool  # may include waits that no event shows
    epoch_ns: int
    microbatch: int
    optype: str
    state: StepState
    step: int

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

    def tell(self, **attributes: Any) -> None:
        """Add attributes that were unknown at the start; takes what `Recorder.op` takes."""
        self.attributes = {**self.attributes, **attributes}

    def __enter__(self) -> CudaSpan:
        self._enter()
        return self

    @guarded()
    def _enter(self) -> None:
        try:
            self._seq_id = next(self.state.counts[self.optype])
        except Exception:  # an invalid name: dropped and counted at the end
            self._seq_id = -1
        self._start_ns = perf_counter_ns()
        self._has_events = self._timing.record(self._begin)
        self._phase = _OPEN

    @guarded()
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._phase != _OPEN:  # already ended
            return
        self._phase = _ENDED
        if self._has_events and self._timing.record(self._end):
            self.buffer.add(self)
        elif self._cap is None:
            duration_ns = perf_counter_ns() - self._start_ns
            self.buffer.add(self._op(self._start_ns, duration_ns))

    def end_with(self, cap: CudaSpan, *, at_once: bool = False) -> None:
        """End a wait for another operation: now, or at that operation's end if it is earlier.

        With `at_once` the stream certainly waits for it, so no second event is needed.
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

    def resolved(self) -> Op | SkippedOp | None:
        """The operation, once the GPU has passed its last event.

        Events of one stream pass in order, so the first need not be queried.
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
            return None  # it began on another stream, which has not got there yet
        self._phase = _RESOLVED
        if self._cap is not None and duration_ns < MIN_WAIT_NS:
            return SKIPPED_OP
        launched = NO_ATTRIBUTES
        if self._cap is None:  # a wait does no work that could be launched late
            launched = launch_attributes(start_ns - self._start_ns)
        return self._op(start_ns, max(0, duration_ns), launched)

    @staticmethod
    def give_back(held: list[Any]) -> None:
        """Recycle the only span of this list, and the span that it waited for."""
        timing, cap, held[0]._cap = held[0]._timing, held[0]._cap, None
        held[0]._has_end = True
        held[0].attributes = NO_ATTRIBUTES
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

    def _op(self, start_ns: int, duration_ns: int, launched: dict[str, int] = NO_ATTRIBUTES) -> Op:
        about = {**launched, **self.attributes} if self.attributes else launched
        if self.contains_waits:
            about = {**about, "contains_waits": 1}
        return (
            self.step, self.optype, self.epoch_ns + start_ns, duration_ns, self._seq_id,
            self.chunk, self.microbatch, about or None,
        )  # fmt: skip
