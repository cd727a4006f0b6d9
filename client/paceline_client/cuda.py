"""Times of the GPU by CUDA events, which nobody ever waits for.

Training records two events around an operation, on the stream that it uses; the sender's thread
looks later whether the GPU has passed the second one. Where on the host's clock they were is told
by anchors: events on an idle stream of our own, between two looks at that clock.

Spans are used again with their events, so that a warm operation creates nothing; a stream is looked
up by its number, and whether a graph is being captured is asked only on streams that can be.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from .buffer import Buffer
from .cuda_span import ALONE, CudaSpan, num_references
from .timed import StepState
from .told import NOTHING

ANCHOR_EVERY_S = 1.0  # elapsed times are of 24 bits: near anchors keep them to a microsecond
TRIES = 5
QUICK_LOOKS = 50  # an event on an idle stream is passed within 10 us
LONGEST_TRY_S = 0.005
DRIFT = 20e-6  # by which the two clocks may go differently
MAX_FREE_SPANS = 4096
MAX_STREAMS = 256

log = logging.getLogger("paceline_client")


class Anchor(NamedTuple):
    """An event of which the host's time is known, and by how much that may be wrong."""

    event: Any
    host_ns: int
    width_ns: int

    def doubt_ns(self, now_ns: int) -> float:
        """By how much a time of now, told by this anchor, may be wrong."""
        return self.width_ns + DRIFT * (now_ns - self.host_ns)


class CudaTiming:
    """Marks moments of the GPU, and tells them in nanoseconds of the host's monotonic clock."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._free: list[CudaSpan] = []
        self._anchor: Anchor | None = None
        self._stream: Any = None
        self._device: int | None = None
        self._raw_stream: Callable[[Any], int] | None = None
        self._streams: dict[int, Any] = {}
        self._marks: list[Any] = []
        self.is_ready = False
        self.is_capturing = False  # a graph, as far as the last operation has shown
        self._next_anchor_s = 0.0
        self._warned = False

    def is_usable(self) -> bool:
        """Whether CUDA has been initialised, which is not for us to do."""
        if not self.is_ready and self._cuda.is_initialized():
            self._device = self._cuda.current_device()
            library = getattr(self._torch, "_C", None)
            self._raw_stream = getattr(library, "_cuda_getCurrentRawStream", None)
            self.is_ready = True
        return self.is_ready

    def follow_device(self) -> None:
        """A step begins: training may have moved to another device since CUDA was initialised.

        What is still under way on the one before has no times that could be told any more.
        """
        if not self.is_ready:
            return
        try:
            device = self._cuda.current_device()
        except Exception as error:
            self._warn(f"the current GPU is not known: {error}")
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
        told: dict[str, Any],
    ) -> CudaSpan:
        """What times an operation: one whose last operation has been handed out, or a new one."""
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
        span.told = told or NOTHING
        span.contains_waits = False
        return span

    def give_back(self, held: list[CudaSpan]) -> None:
        """Use a span again, unless somebody beside the list, its only element's owner, has it."""
        if held[0].device != self._device or len(self._free) >= MAX_FREE_SPANS:
            return
        if num_references(held) == ALONE:
            self._free.append(held.pop())

    def record(self, event: Any) -> bool:
        """Record an event on the current stream; False where that cannot be, as in a capture."""
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
            event.record(self._seen(number) if stream is None else stream)
            return True
        except Exception as error:
            self._warn(f"no CUDA event could be recorded, the host's clock is used: {error}")
            return False

    def mark(self) -> Any:
        """An event on the current stream, for a collective of a group; None where there is none.

        Operations have spans of their own (`op`); these are recorded in sampled steps only.
        """
        try:
            event = self._marks.pop()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        return event if self.record(event) else None

    def span_ns(self, begin: Any, end: Any) -> tuple[int, int] | None:
        """Start and duration between two marks; None while the GPU has not come to the second.

        Raises:
            Exception: of any kind: CUDA gives no times.
        """
        anchor = self.anchor()
        if anchor is None or not (begin.query() and end.query()):
            return None
        start_ns = anchor.host_ns + round(anchor.event.elapsed_time(begin) * 1e6)
        duration_ns = round(begin.elapsed_time(end) * 1e6)
        if len(self._marks) < MAX_FREE_SPANS:
            self._marks += (begin, end)
        return start_ns, max(0, duration_ns)

    def anchor(self) -> Anchor | None:
        """By which the GPU's times are told; None while none can be."""
        if self.is_capturing:  # a look from another thread may end the capture with an error
            return None
        if self._anchor is None:
            self.look()
        return self._anchor

    def look(self) -> None:
        """Anchor the GPU's clock anew when that is due; for the sender's thread."""
        if not self.is_ready or self.is_capturing or time.monotonic() < self._next_anchor_s:
            return
        self._next_anchor_s = time.monotonic() + ANCHOR_EVERY_S
        try:
            with self._cuda.device(self._device):
                found = [anchor for anchor in (self._try() for _ in range(TRIES)) if anchor]
        except Exception as error:
            self._warn(f"the GPU's clock cannot be read: {error}")
            return
        now_ns = perf_counter_ns()
        known = [self._anchor] if self._anchor is not None else []
        self._anchor = min(found + known, key=lambda anchor: anchor.doubt_ns(now_ns), default=None)

    def _try(self) -> Anchor | None:
        """An event on an idle stream of our own: on the current one it would queue behind work."""
        if self._stream is None:
            # Of high priority, since streams come from a pool and others rarely ask for those.
            self._stream = self._cuda.Stream(device=self._device, priority=-1)
        event = self._cuda.Event(enable_timing=True)
        before_ns = perf_counter_ns()
        event.record(self._stream)
        looks = 0
        while not event.query():
            looks += 1
            if looks > QUICK_LOOKS:
                time.sleep(0)  # let training have the interpreter
            if perf_counter_ns() - before_ns > LONGEST_TRY_S * 1e9:
                return None
        width_ns = perf_counter_ns() - before_ns
        return Anchor(event, before_ns + width_ns // 2, width_ns)

    def _seen(self, number: int) -> Any:
        """The current stream, which is kept under its number."""
        if len(self._streams) >= MAX_STREAMS:  # of somebody who creates one after the other
            self._streams.clear()
        self._streams[number] = stream = self._cuda.current_stream(self._device)
        return stream

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("paceline: %s", message)


def cuda_timing(timing: str) -> CudaTiming | None:
    """As `start` is told by `timing`: None for the host's clock."""
    if timing not in ("auto", "host", "cuda"):
        log.warning('paceline: timing is %r: one of "auto", "host" and "cuda"', timing)
    if timing == "host":
        return None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return CudaTiming(torch)
    if timing == "cuda":
        log.warning("paceline: no CUDA in this process: import torch first; host clock is used")
    return None
