"""Times of the GPU by CUDA events, which nobody ever waits for.

Training records two events around an operation, on the stream that it uses; the sender's thread
looks later whether the GPU has passed them. Where on the host's clock they were is told by anchors:
events on an idle stream of our own, between two looks at that clock.
"""

from __future__ import annotations

import logging
import sys
import time
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple

from .buffer import Buffer, Pending
from .timed import StepState, TimedOp
from .wire import Op

ANCHOR_EVERY_S = 1.0  # elapsed times are of 24 bits: near anchors keep them to a microsecond
TRIES = 5
QUICK_LOOKS = 50  # an event on an idle stream is passed within 10 us
LONGEST_TRY_S = 0.005
DRIFT = 20e-6  # by which the two clocks may go differently
MOST_EVENTS = 4096  # kept for further use

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
        self._cuda = torch.cuda
        self._free: list[Any] = []
        self._anchor: Anchor | None = None
        self._stream: Any = None
        self._device: int | None = None
        self._is_usable = False
        self._is_capturing = False
        self._next_anchor_s = 0.0
        self._warned = False

    def is_usable(self) -> bool:
        """Whether CUDA has been initialised, which is not for us to do."""
        if not self._is_usable and self._cuda.is_initialized():
            self._device = self._cuda.current_device()
            self._is_usable = True
        return self._is_usable

    def op(
        self,
        buffer: Buffer,
        epoch_ns: int,
        optype: str,
        state: StepState,
        microbatch: int,
        chunk: int,
        told: dict[str, Any],
    ) -> CudaOp:
        """What times an operation."""
        return CudaOp(buffer, epoch_ns, optype, state, microbatch, chunk, told, self)

    def mark(self) -> Any:
        """An event on the current stream; None where there can be none, as in a graph's capture."""
        try:
            self._is_capturing = self._cuda.is_current_stream_capturing()
            if self._is_capturing:
                return None
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record()
            return event
        except Exception as error:
            self._warn(f"no CUDA event could be recorded, the host's clock is used: {error}")
            return None

    def span_ns(self, begin: Any, end: Any) -> tuple[int, int] | None:
        """Start, by the host's monotonic clock, and duration; None while the GPU is not there yet.

        Raises:
            Exception: of any kind: CUDA will not tell.
        """
        if self._is_capturing:  # a look from another thread may end the capture with an error
            return None
        if self._anchor is None:
            self.look()
        anchor = self._anchor
        if anchor is None or not (begin.query() and end.query()):
            return None
        start_ns = anchor.host_ns + round(anchor.event.elapsed_time(begin) * 1e6)
        duration_ns = round(begin.elapsed_time(end) * 1e6)
        if len(self._free) < MOST_EVENTS:
            self._free += (begin, end)
        return start_ns, max(0, duration_ns)

    def look(self) -> None:
        """Anchor the GPU's clock anew when that is due; for the sender's thread."""
        if not self._is_usable or self._is_capturing or time.monotonic() < self._next_anchor_s:
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

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("paceline: %s", message)


class CudaOp(TimedOp):
    """Times one operation by a pair of CUDA events, or by the host's clock where there are none."""

    __slots__ = ("_begin", "_timing")

    def __init__(
        self,
        buffer: Buffer,
        epoch_ns: int,
        optype: str,
        state: StepState,
        microbatch: int,
        chunk: int,
        told: dict[str, Any],
        timing: CudaTiming,
    ) -> None:
        super().__init__(buffer, epoch_ns, optype, state, microbatch, chunk, told)
        self._timing = timing
        self._begin: Any = None

    def __enter__(self) -> CudaOp:
        super().__enter__()
        self._begin = self._timing.mark()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = self._timing.mark() if self._begin is not None else None
        if end is None:
            super().__exit__(kind, error, traceback)
        else:
            self._buffer.add(CudaSpan(self, self._begin, end))


class CudaSpan(Pending):
    """An operation between two events."""

    __slots__ = ("_begin", "_end", "_op", "step")

    def __init__(self, op: CudaOp, begin: Any, end: Any) -> None:
        self.step = op._state.step
        self._op = op
        self._begin = begin
        self._end = end

    def resolved(self) -> Op | None:
        """The operation, once the GPU has passed both events."""
        op = self._op
        span_ns = op._timing.span_ns(self._begin, self._end)
        if span_ns is None:
            return None
        start_ns, duration_ns = op._epoch_ns + span_ns[0], span_ns[1]
        about = op._told or None
        return (
            self.step, op._optype, start_ns, duration_ns, op._seq_id, op._chunk, op._microbatch,
            about,
        )  # fmt: skip


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
