"""What stands around an operation or a step in the training script."""

from __future__ import annotations

import itertools
from collections import defaultdict
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .buffer import Buffer
    from .recorder import Recorder

TRAIN = "train"
KINDS = (TRAIN, "eval", "checkpoint", "first")


class StepState:
    """A step that is going on: is it recorded, and how many operations of each type has it had?"""

    __slots__ = ("counts", "is_recording", "kind", "records_groups", "step")

    def __init__(
        self, step: int, kind: str, is_recording: bool, records_groups: bool = False
    ) -> None:
        self.step = step
        self.kind = kind
        self.is_recording = is_recording
        self.records_groups = records_groups
        self.counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


class TimedOp:
    """Times one operation by the host's clock. Every line here costs training some 30 ns.

    `Recorder.op` sets what `__init__` does without calling it.
    """

    __slots__ = (
        "_buffer",
        "_chunk",
        "_epoch_ns",
        "_microbatch",
        "_optype",
        "_seq_id",
        "_start_ns",
        "_state",
        "_told",
    )

    def __init__(
        self,
        buffer: Buffer,
        epoch_ns: int,
        optype: str,
        state: StepState,
        microbatch: int,
        chunk: int,
        told: dict[str, Any],
    ) -> None:
        self._buffer = buffer
        self._epoch_ns = epoch_ns
        self._optype = optype
        self._state = state
        self._microbatch = microbatch
        self._chunk = chunk
        self._told = told
        self._seq_id = -1

    def tell(self, **told: Any) -> None:
        """What was not known when it began; takes what `Recorder.op` takes."""
        self._told = {**self._told, **told}

    def __enter__(self) -> TimedOp:
        try:
            self._seq_id = next(self._state.counts[self._optype])
        except Exception:  # a name that is none: dropped, and counted, when it ends
            self._seq_id = -1
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        duration_ns = perf_counter_ns() - self._start_ns
        buffer = self._buffer
        if len(buffer.items) < buffer.max_items:
            buffer.items.append(
                (
                    self._state.step,
                    self._optype,
                    self._start_ns + self._epoch_ns,
                    duration_ns,
                    self._seq_id,
                    self._chunk,
                    self._microbatch,
                    self._told or None,
                )
            )
        else:
            buffer.drop(self._state.step)


class NoOp:
    """Stands where an operation is not recorded."""

    __slots__ = ()

    def tell(self, **told: Any) -> None:
        """Nobody listens."""

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


class TimedStep:
    """Context manager of one training step."""

    __slots__ = ("_before", "_kind", "_recorder", "_step")

    def __init__(self, recorder: Recorder, step: int, kind: str) -> None:
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
        # A step that was broken off is not done.
        self._recorder.leave(self._step, self._before, is_done=kind is None)
