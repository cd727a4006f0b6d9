"""Times operations and steps by the host's monotonic clock, anchored once to the wall clock.

`TimedOp` and `TimedStep` are the context managers that a training script uses.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..guard import give_up
from .op_attributes import NO_ATTRIBUTES

if TYPE_CHECKING:
    from .wire import Op


ANCHOR_TRIES = 9


class WallClockAnchor(NamedTuple):
    """Offset from the monotonic to the wall clock, and its uncertainty."""

    epoch_ns: int
    width_ns: int


def wall_clock_anchor() -> WallClockAnchor:
    """The wall clock read between two readings of the monotonic one; the best of several tries.

    There is one anchor per recorder, since the wall clock may be set meanwhile.
    """
    return min((_read_anchor() for _ in range(ANCHOR_TRIES)), key=lambda anchor: anchor.width_ns)


def _read_anchor() -> WallClockAnchor:
    before_ns = time.perf_counter_ns()
    wall_ns = time.time_ns()
    width_ns = time.perf_counter_ns() - before_ns
    return WallClockAnchor(wall_ns - before_ns - width_ns // 2, width_ns)


TRAIN_STEP = "train"
STEP_KINDS = (TRAIN_STEP, "eval", "checkpoint", "first")


class StepState:
    """A step in progress: whether it is recorded, and its operations so far by type."""

    __slots__ = ("counts", "is_recording", "kind", "records_groups", "step")

    def __init__(
        self, step: int, kind: str, is_recording: bool, records_groups: bool = False
    ) -> None:
        self.step = step
        self.kind = kind
        self.is_recording = is_recording
        self.records_groups = records_groups
        self.counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


class OpQueue(Protocol):
    """What ended operations are added to, while there is room."""

    items: deque[Any]
    max_items: int

    def drop(self, step: int) -> None:
        """Count an operation that there is no room for."""


class TimedOp:
    """Times one operation by the host's clock, and waits in the buffer to be sent.

    Every line here costs training about 30 ns, so the sender's thread makes an operation of it, by
    `op`. `Recorder.op` sets the fields itself instead of calling `__init__`.
    """

    __slots__ = (
        "_again",
        "_attributes",
        "_buffer",
        "_chunk",
        "_end_ns",
        "_microbatch",
        "_optype",
        "_seq_id",
        "_start_ns",
        "_state",
    )

    def __init__(
        self,
        buffer: OpQueue,
        optype: str,
        state: StepState,
        microbatch: int,
        chunk: int,
        attributes: dict[str, Any] | None,
    ) -> None:
        self._buffer = buffer
        self._optype = optype
        self._state = state
        self._microbatch = microbatch
        self._chunk = chunk
        self._attributes = attributes
        self._end_ns = 0

    @property
    def step(self) -> int:
        """The step that it belongs to."""
        return self._state.step

    def op(self, epoch_ns: int) -> Op:
        """The operation, once it has ended."""
        return (
            self._state.step,
            self._optype,
            self._start_ns + epoch_ns,
            self._end_ns - self._start_ns,
            self._seq_id,
            self._chunk,
            self._microbatch,
            self._attributes,
        )

    def tell(self, **attributes: Any) -> None:
        """Add attributes that were unknown at the start; takes what `Recorder.op` takes."""
        if not self._end_ns:
            self._attributes = {**(self._attributes or NO_ATTRIBUTES), **attributes}

    def __enter__(self) -> TimedOp:
        if self._end_ns:
            return self._begin_again()
        try:
            self._seq_id = next(self._state.counts[self._optype])
        except Exception:  # an invalid name: dropped and counted at the end
            self._seq_id = -1
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._end_ns:
                self._end_again()
                return
            self._end_ns = perf_counter_ns()
            buffer = self._buffer
            if len(buffer.items) < buffer.max_items:
                buffer.items.append(self)
            else:
                buffer.drop(self._state.step)
        except Exception as broken:
            give_up(broken)

    def _begin_again(self) -> TimedOp:
        """Another one, as this one may still wait to be sent."""
        self._again = TimedOp(
            *(self._buffer, self._optype, self._state, self._microbatch),
            *(self._chunk, self._attributes),
        )
        return self._again.__enter__()

    def _end_again(self) -> None:
        again = getattr(self, "_again", None)
        if again is not None:  # else it has ended twice
            again.__exit__(None, None, None)


class NoOp:
    """Stands in for an operation that is not recorded."""

    __slots__ = ()

    def tell(self, **attributes: Any) -> None:
        """Does nothing."""

    def __enter__(self) -> NoOp:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


NO_OP = NoOp()


class StepOwner(Protocol):
    """The recorder of a step."""

    def enter(self, step: int, kind: str) -> StepState | None:
        """Begin a step; returns the enclosing one, if any."""

    def leave(self, step: int, before: StepState | None, *, is_done: bool) -> None:
        """End a step."""


class TimedStep:
    """Context manager of one training step."""

    __slots__ = ("_before", "_kind", "_recorder", "_step")

    def __init__(self, recorder: StepOwner, step: int, kind: str) -> None:
        self._recorder = recorder
        self._step = step
        self._kind = kind
        self._before: StepState | None = None

    def __enter__(self) -> TimedStep:
        self._before = self._recorder.enter(self._step, self._kind)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A step that raised is not done.
        self._recorder.leave(self._step, self._before, is_done=kind is None)
