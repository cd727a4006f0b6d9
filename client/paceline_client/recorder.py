"""Records how long a training worker's operations take; never raises into training or blocks it.

`NULL` is a recorder that records nothing, so that a training script needs no special case.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Iterable
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from . import shutdown
from .guard import give_up
from .recording.buffer import (
    INVALID,
    OUTSIDE,
    Buffer,
    ExactOp,
    MicrobatchAttributes,
    NonTrainingStep,
    evict_oldest_step,
)
from .recording.groups import CollectiveReader, GroupBuffer, TimedGroupOp
from .recording.op_attributes import NO_ATTRIBUTES, WAIT_OP, valid_attributes
from .recording.pauses import DataWaits, GcPauses
from .recording.sampling import RecordingPlans
from .recording.timing import (
    NO_OP,
    STEP_KINDS,
    TRAIN_STEP,
    NoOp,
    StepState,
    TimedOp,
    TimedStep,
    wall_clock_anchor,
)
from .recording.wire import NO_GROUP, Group

if TYPE_CHECKING:
    from .recording.cuda import CudaSpan, CudaTiming
    from .recording.nvml import GpuReadings
    from .recording.wire import Op
    from .sending.annotations import AnnotationOutbox
    from .sending.sender import Sender


EXIT_S = shutdown.EXIT_S
MAX_WAITS = 64  # for data, kept between two steps

# Timed on the host even where GPU timing is on.
HOST_TYPES = frozenset(("gc", "gc-pause", "data-wait"))

log = logging.getLogger("paceline_client")
_new_object = object.__new__
_NO_STEP = StepState(-1, TRAIN_STEP, False)
CallT = TypeVar("CallT", bound=Callable[..., Any])
ItemT = TypeVar("ItemT")
AnyOp = Union[TimedOp, NoOp, TimedGroupOp, "CudaSpan"]


def returns_on_error(fallback: Any) -> Callable[[CallT], CallT]:
    """Decorator: log every exception instead of raising it into training, and return this."""

    def wrapped(method: CallT) -> CallT:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception:
                log.debug("paceline: nothing was recorded", exc_info=True)
                return fallback

        return cast(CallT, call)

    return wrapped


never_raises = returns_on_error(None)


class Recorder:
    """One worker's recorder; `dropped` counts the operations that could not be delivered.

    `is_recording` is False in a step that is not recorded: attributes need not be computed then.
    """

    def __init__(
        self,
        buffer: Buffer,
        sender: Sender | None,
        plans: RecordingPlans | None = None,
        cuda: CudaTiming | None = None,
        readings: GpuReadings | None = None,
        *,
        groups: GroupBuffer | None = None,
        rank: int | None = None,
        annotations: AnnotationOutbox | None = None,
    ) -> None:
        self._annotations = annotations
        if annotations is not None:
            annotations.wake = buffer.wake
        self._buffer = buffer
        self._sender = sender
        self._plans = plans or RecordingPlans()
        self._cuda = cuda
        self._readings = readings
        self._groups = groups or GroupBuffer()
        self._rank = rank
        buffer.groups = self._groups
        self._pauses: GcPauses | None = None
        self._epoch_ns = buffer.epoch_ns = wall_clock_anchor().epoch_ns
        self._current: StepState | None = None
        self._states: dict[int, StepState] = {}
        self._waits: list[tuple[int, int]] = []  # for data, since the last step
        self._begun_ns = 0  # start of the step, by the clock of PyTorch's flight recorder
        self._warned_outside = False
        self._is_off = False
        self.is_recording = True
        if sender is not None:
            shutdown.track(self)

    @property
    def dropped(self) -> int:
        """Number of operations that were dropped."""
        return self._buffer.dropped

    @property
    def dropped_reasons(self) -> dict[str, int]:
        """Number of operations that were dropped, by reason."""
        return dict(self._buffer.dropped_reasons)

    def now_ns(self) -> int:
        """The recorder's clock: nanoseconds since 1970, monotonic."""
        return self._epoch_ns + perf_counter_ns()

    @returns_on_error(False)
    def records(self, step: int) -> bool:
        """Whether the server wants the step recorded."""
        is_on = not self._is_off and not self._groups.is_alone
        return is_on and self._plans.records(operator.index(step))

    def op(
        self,
        optype: str,
        *,
        step: int | None = None,
        microbatch: int = -1,
        chunk: int = -1,
        group: Group | None = None,
        **attributes: Any,
    ) -> AnyOp:
        """Times its `with` block; the step defaults to that of the enclosing `with step(...)`.

        `attributes` are any of `tokens`, `seq_len_sq`, `bytes`, `sm_clock_mhz` and
        `temperature_c`. With a `group` it is a collective of that group, recorded in a sample of
        the steps: `optype` is its kind, and the attributes are `bytes` and `sequence`.
        """
        try:  # no wrapper, which would cost each operation a call
            state = self._current if step is None else self._at(step)
            if state is None:
                self._outside()
                return NO_OP
            if group is not None:
                return self._group_op(optype, group, state, attributes)
            if not state.is_recording:
                return NO_OP
            cuda = self._cuda
            if cuda is None or not self._is_of_gpu(optype, cuda):
                # Calling __init__ would add a seventh to the cost of recording.
                timed = _new_object(TimedOp)
                timed._buffer = self._buffer
                timed._optype = optype
                timed._state = state
                timed._microbatch = microbatch
                timed._chunk = chunk
                timed._attributes = attributes or None
                timed._end_ns = 0
                return timed
            return cuda.op(
                self._buffer, self._epoch_ns, optype, state, microbatch, chunk, attributes
            )
        except Exception as error:
            give_up(error)
            return NO_OP

    @returns_on_error(NO_GROUP)
    def group(self, name: str, axis: str, ranks: Any) -> Group:
        """Declare a group of this rank, to be passed to `op`; every member declares it.

        `axis` is "tp", "cp", "ep", "dp", "pp" or "". `ranks` are global ranks, or a ProcessGroup,
        or a DeviceMesh of one dimension.
        """
        return self._groups.declare(name, axis, ranks, self._rank)

    @returns_on_error(False)
    def records_groups(self, step: int | None = None) -> bool:
        """Whether group collectives are recorded in a step, by default the current one."""
        state = self._current if step is None else self._at(step)
        return state is not None and state.records_groups

    @never_raises
    def record_group(
        self,
        kind: str,
        group: Group,
        step: int,
        duration_ns: int,
        start_ns: int = -1,
        sequence: int | None = None,
        num_bytes: int = -1,
    ) -> None:
        """Record a group collective that was timed elsewhere; its start may be unknown (-1).

        `sequence` numbers the collectives of one kind in the group and step, equally on all
        members; by default they are counted.
        """
        state = self._at(step)
        if not state.records_groups or group.at < 0 or not self._groups.has_room(state.step):
            return
        if sequence is None:
            sequence = next(state.counts[f"{group.at} {kind}"])
        self._groups.add((state.step, group.at, kind, sequence, start_ns, duration_ns, num_bytes))

    def step(self, step: int, kind: str = TRAIN_STEP) -> TimedStep:
        """Context manager of a step; declares it finished at the end of the block.

        `kind` is "train", "eval", "checkpoint" or "first"; only "train" is analysed.
        """
        return TimedStep(self, step, kind)

    def data(self, iterable: Iterable[ItemT]) -> DataWaits[ItemT]:
        """The same items, with each wait for the next one recorded as data-wait.

        A wait between two steps belongs to the second.
        """
        return DataWaits(self, iterable)

    @returns_on_error(NO_OP)
    def begin(
        self,
        optype: str,
        *,
        step: int | None = None,
        microbatch: int = -1,
        chunk: int = -1,
        group: Group | None = None,
        **attributes: Any,
    ) -> AnyOp:
        """Begin an operation now; pass the result to `end`."""
        return self.op(
            optype, step=step, microbatch=microbatch, chunk=chunk, group=group, **attributes
        ).__enter__()

    @never_raises
    def end(self, begun: AnyOp | None, **attributes: Any) -> None:
        """End an operation now; `attributes` as with `op`, added to those of `begin`."""
        if begun is not None:
            if attributes:
                begun.tell(**attributes)
            begun.__exit__(None, None, None)

    @never_raises
    def record(
        self,
        optype: str,
        step: int,
        start_ns: int,
        duration_ns: int,
        seq_id: int | None = None,
        mc: int = -1,
        mb_id: int = -1,
        **attributes: Any,
    ) -> None:
        """Record an operation that was timed elsewhere; in order of start if `seq_id` is None."""
        state = self._at(step)
        if not state.is_recording:
            return
        if seq_id is None:
            seq_id = next(state.counts[optype])
        op = (state.step, optype, start_ns, duration_ns, seq_id, mc, mb_id, attributes or None)
        self._buffer.add(cast("Op", ExactOp(op)))

    @never_raises
    def tell_microbatch(
        self, microbatch: int, *, step: int | None = None, **attributes: Any
    ) -> None:
        """Set attributes of a micro-batch, for its computations that end from now on."""
        state = self._current if step is None else self._at(step)
        if state is not None and state.is_recording:
            valid = valid_attributes(attributes)
            number = operator.index(microbatch)
            self._buffer.add_mark(MicrobatchAttributes(state.step, number, valid))

    @never_raises
    def step_done(self, step: int, kind: str = TRAIN_STEP) -> None:
        """Declare that this worker has recorded all operations of the step."""
        state = self._at(step)
        self._states.pop(state.step, None)
        if self._groups.reader is not None:
            self._report_end(state, self._groups.reader)
        if not state.is_recording:
            self._buffer.at_step = state.step
            self._buffer.has_gone_on = True
            if state.records_groups:
                self._buffer.hurry()
            return
        kind = state.kind if kind == TRAIN_STEP else _is_step_kind(kind)
        self._buffer.step_done(state.step, kind)

    @never_raises
    def annotate(
        self,
        kind: str,
        text: str = "",
        *,
        step: int | None = None,
        host: str | None = None,
        on_every_rank: bool = False,
    ) -> None:
        """Mark an event of the job on its charts; sent in the background, by rank 0 only.

        So every rank may call it. `kind` is "deploy", "checkpoint", "config-change",
        "maintenance", "node-drained", "note" or another one of docs/annotations.md. The step
        defaults to that of the enclosing `with step(...)`, else the server finds it by the time.
        """
        outbox = self._annotations
        if outbox is None or self._is_off or not (on_every_rank or self._rank in (None, 0)):
            return
        current = self._current
        if step is None and current is not None and current.step >= 0:
            step = current.step
        number = None if step is None else operator.index(step)
        outbox.add(kind, text, at_ns=self.now_ns(), step=number, host=host)

    @returns_on_error(False)
    def flush(self, timeout_s: float = EXIT_S) -> bool:
        """Whether everything recorded was delivered (or given up) within the timeout."""
        return self._is_off or self._buffer.flush(timeout_s)

    @never_raises
    def close(self, timeout_s: float = EXIT_S) -> None:
        """Deliver as much as possible within the timeout, and end."""
        shutdown.close_all([self], timeout_s)

    # Internal to this package from here on.

    @returns_on_error(False)
    def read_collectives(self, reader: CollectiveReader) -> bool:
        """Have the sender's thread read group collectives from it; False for `NULL`."""
        if self._is_off or self._sender is None:
            return False
        self._groups.reader, self._groups.is_used = reader, True
        self._begun_ns = time_ns()
        return True

    @never_raises
    def enter(self, step: int, kind: str) -> StepState | None:
        """Begin a step; returns the enclosing one, if any."""
        before = self._current
        state = self._at(step)
        self._current = state
        if state.records_groups:
            self._begun_ns = time_ns()
        self.is_recording = state.is_recording
        if state is not _NO_STEP:
            state.kind = _is_step_kind(kind)
            if state.kind != TRAIN_STEP and state.is_recording:
                self._buffer.add_mark(NonTrainingStep(state.step))
            if self._cuda is not None and state.is_recording:
                self._cuda.follow_device()
        if self._readings is not None and not self._readings.is_placed:
            self._readings.place()
        waits, self._waits = self._waits, []
        for begun_ns, duration_ns in waits:
            self._note("data-wait", state, begun_ns, duration_ns)
        return before

    @never_raises
    def leave(self, step: int, before: StepState | None, *, is_done: bool) -> None:
        """End a step."""
        self._current = before
        self.is_recording = not self._is_off and (before is None or before.is_recording)
        if is_done:
            self.step_done(step)

    @never_raises
    def note_wait(self, begun_ns: int) -> None:
        """Record a wait for data that ends now."""
        duration_ns = self.now_ns() - begun_ns
        state = self._current
        if state is not None:
            self._note("data-wait", state, begun_ns, duration_ns)
        elif len(self._waits) < MAX_WAITS:
            self._waits.append((begun_ns, duration_ns))

    @returns_on_error(None)
    def begin_wait(self) -> CudaSpan | None:
        """Begin a wait of the compute stream; None without GPU timing."""
        state, cuda = self._current, self._cuda
        if cuda is None or state is None or not state.is_recording:
            return None
        if not self._is_of_gpu(WAIT_OP, cuda):
            return None
        span = cuda.op(self._buffer, self._epoch_ns, WAIT_OP, state, -1, -1, NO_ATTRIBUTES)
        return span.__enter__()

    def note_pause(self, begun_ns: int, duration_ns: int) -> None:
        """Record a garbage collection; `begun_ns` is on the monotonic clock."""
        state = self._current
        if state is not None:
            self._note("gc-pause", state, self._epoch_ns + begun_ns, duration_ns)

    def note_pauses(self) -> None:
        """Record garbage collections from now on."""
        self._pauses = GcPauses(self)

    def hurry(self) -> None:
        """Retry at once: the process is about to end."""
        if self._sender is not None:
            self._sender.hurry()

    def begin_closing(self) -> None:
        """Record nothing more."""
        if self._pauses is not None:
            self._pauses.stop()
        if self._sender is not None:
            self._sender.finish()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for the sender's thread to end, at most so long."""
        if self._sender is not None:
            self._sender.join(timeout_s)

    def stop_recording(self) -> None:
        """Record nothing more; what was recorded is sent."""
        self._is_off = True
        self.is_recording = False
        self._current = None

    def turn_off(self) -> None:
        """Record nothing, as in a child process: the sender's thread is in the parent."""
        self._is_off = True
        self.is_recording = False
        self._current = self._sender = None
        self._buffer.turn_off()

    def _report_end(self, state: StepState, reader: CollectiveReader) -> None:
        """Pass on a step that began when it was entered, or when the previous one ended."""
        begun_ns, self._begun_ns = self._begun_ns, time_ns()
        if state.records_groups:
            reader.step_ended(state.step, begun_ns, self._begun_ns)
            self._buffer.wake()

    @returns_on_error(NO_OP)
    def _group_op(
        self, kind: str, group: Group, state: StepState, attributes: dict[str, Any]
    ) -> TimedGroupOp | NoOp:
        if not state.records_groups or group.at < 0:
            return NO_OP
        cuda = self._cuda
        if cuda is not None and not self._is_of_gpu(kind, cuda):
            cuda = None
        return TimedGroupOp(self._groups, self._epoch_ns, kind, group, state, attributes, cuda)

    def _note(self, optype: str, state: StepState, begun_ns: int, duration_ns: int) -> None:
        if state.is_recording:
            seq_id = next(state.counts[optype])
            op = (state.step, optype, begun_ns, duration_ns, seq_id, -1, -1, None)
            self._buffer.add(op)

    def _is_of_gpu(self, optype: str, cuda: CudaTiming) -> bool:
        try:
            return optype not in HOST_TYPES and (cuda.is_ready or cuda.is_usable())
        except Exception:  # broken CUDA, or an invalid name
            return False

    def _at(self, step: int) -> StepState:
        """State of a step; `_NO_STEP` for an invalid number."""
        try:
            state = self._states.get(step)
            if state is not None or self._is_off:
                return state or _NO_STEP
            number = operator.index(step)
            if number < 0:
                raise ValueError("a step number must be 0 or more")
            groups, plans = self._groups, self._plans
            state = StepState(
                number,
                TRAIN_STEP,
                not groups.is_alone and plans.records(number),
                groups.is_used and plans.records_groups(number, groups.every),
            )
            state = self._states.setdefault(number, state)
            evict_oldest_step(self._states)
            return state
        except Exception:
            self._buffer.count_dropped(INVALID)
            return _NO_STEP

    def _outside(self) -> None:
        if self._is_off:
            return
        self._buffer.count_dropped(OUTSIDE)
        if not self._warned_outside:
            self._warned_outside = True
            log.warning(
                "paceline: an operation outside `with recorder.step(...)` and without step= "
                "is not recorded (further ones are counted in dropped_reasons)"
            )


def _is_step_kind(kind: str) -> str:
    return kind if kind in STEP_KINDS else TRAIN_STEP


class NullRecorder(Recorder):
    """A recorder that records nothing."""

    def __init__(self) -> None:
        super().__init__(Buffer(0, 1.0), sender=None)
        shutdown.untrack(self)
        self.turn_off()


NULL = NullRecorder()
