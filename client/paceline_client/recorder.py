"""Records how long a training worker's operations take; never raises or blocks into training."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Iterable
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from . import lifetime
from .buffer import INVALID, OUTSIDE, Aside, Buffer, Exact, Tell, forget_oldest
from .clock import anchored
from .data_waits import DataWaits
from .gc_pauses import GcPauses
from .groups import NO_GROUP, Group, GroupBuffer, TimedGroupOp
from .sampling import Plans
from .timed import KINDS, NO_OP, TRAIN, NoOp, StepState, TimedOp, TimedStep
from .told import NOTHING, WAIT, told_of

if TYPE_CHECKING:
    from .cuda import CudaTiming
    from .cuda_span import CudaSpan
    from .integrations.flight_recorder import FlightRecorder
    from .nvml import Readings
    from .sender import Sender
    from .wire import Op

EXIT_S = lifetime.EXIT_S
MAX_WAITS = 64  # for data, between two steps

# These happen on the host, whatever the GPU does meanwhile.
HOST_TYPES = frozenset(("gc", "gc-pause", "data-wait"))

log = logging.getLogger("paceline_client")
_blank = object.__new__
_NOWHERE = StepState(-1, TRAIN, False)
CallT = TypeVar("CallT", bound=Callable[..., Any])
ItemT = TypeVar("ItemT")
AnyOp = Union[TimedOp, NoOp, TimedGroupOp, "CudaSpan"]


def _answers(in_place: Any) -> Callable[[CallT], CallT]:
    """Makes a method log every error in place of raising it, and answer this."""

    def wrapped(method: CallT) -> CallT:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception:
                log.debug("paceline: nothing was recorded", exc_info=True)
                return in_place

        return cast(CallT, call)

    return wrapped


_harmless = _answers(None)


class Recorder:
    """One worker's recorder; `dropped` counts the operations that could not be delivered.

    `is_recording` is False in a step that is not recorded: what such a step would tell need not
    be looked up.
    """

    def __init__(
        self,
        buffer: Buffer,
        sender: Sender | None,
        plans: Plans | None = None,
        cuda: CudaTiming | None = None,
        readings: Readings | None = None,
        *,
        groups: GroupBuffer | None = None,
        rank: int | None = None,
    ) -> None:
        self._buffer = buffer
        self._sender = sender
        self._plans = plans or Plans()
        self._cuda = cuda
        self._readings = readings
        self._groups = groups or GroupBuffer()
        self._rank = rank
        buffer.groups = self._groups
        self._pauses: GcPauses | None = None
        self._epoch_ns = anchored().epoch_ns
        self._current: StepState | None = None
        self._states: dict[int, StepState] = {}
        self._waits: list[tuple[int, int]] = []  # for data, since the last step
        self._begun_ns = 0  # of the step, by the clock of PyTorch's flight recorder
        self._warned_outside = False
        self._is_off = False
        self.is_recording = True
        if sender is not None:
            lifetime.began(self)

    @property
    def dropped(self) -> int:
        """Number of operations that were dropped."""
        return self._buffer.dropped

    @property
    def dropped_reasons(self) -> dict[str, int]:
        """Number of operations that were dropped, by reason."""
        return dict(self._buffer.dropped_reasons)

    def now_ns(self) -> int:
        """The recorder's own clock: nanoseconds since 1970, never set back."""
        return self._epoch_ns + perf_counter_ns()

    @_answers(in_place=False)
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
        **told: Any,
    ) -> AnyOp:
        """Times what stands in its `with` block; the step is the one of `with step(...)`.

        `told` is any of `tokens`, `seq_len_sq`, `bytes`, `sm_clock_mhz` and `temperature_c`. With a
        `group` it is one of that group's collectives, recorded in a share of the steps: `optype` is
        its kind, and `told` may be `bytes` and `sequence`.
        """
        state = self._current if step is None else self._at(step)
        if state is None:
            self._outside()
            return NO_OP
        if group is not None:
            return self._group_op(optype, group, state, told)
        if not state.is_recording:
            return NO_OP
        cuda = self._cuda
        if cuda is None or not self._is_of_gpu(optype, cuda):
            timed = _blank(TimedOp)  # calling __init__ would cost training a seventh of the whole
            timed._buffer = self._buffer
            timed._epoch_ns = self._epoch_ns
            timed._optype = optype
            timed._state = state
            timed._microbatch = microbatch
            timed._chunk = chunk
            timed._told = told
            timed._seq_id = -1
            return timed
        return cuda.op(self._buffer, self._epoch_ns, optype, state, microbatch, chunk, told)

    @_answers(NO_GROUP)
    def group(self, name: str, axis: str, ranks: Any) -> Group:
        """A group that this rank is in, to be named in `op`; every member declares it.

        `axis` is "tp", "cp", "ep", "dp", "pp" or "". `ranks` are global ranks, or a ProcessGroup,
        or a DeviceMesh of one dimension.
        """
        return self._groups.declare(name, axis, ranks, self._rank)

    @_answers(in_place=False)
    def records_groups(self, step: int | None = None) -> bool:
        """Whether collectives of groups are recorded, in this step or another one."""
        state = self._current if step is None else self._at(step)
        return state is not None and state.records_groups

    @_harmless
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
        """A collective of a group that was timed elsewhere, by a clock of which starts need not be.

        `sequence` numbers those of its kind in the group and step, the same on all members; it is
        counted where it is left out.
        """
        state = self._at(step)
        if not state.records_groups or group.at < 0 or not self._groups.has_room(state.step):
            return
        if sequence is None:
            sequence = next(state.counts[f"{group.at} {kind}"])
        self._groups.add((state.step, group.at, kind, sequence, start_ns, duration_ns, num_bytes))

    def step(self, step: int, kind: str = TRAIN) -> TimedStep:
        """Declares the step finished at the end of its `with` block.

        `kind` is "train", "eval", "checkpoint" or "first": of these only training is analysed.
        """
        return TimedStep(self, step, kind)

    def data(self, iterable: Iterable[ItemT]) -> DataWaits[ItemT]:
        """The same items, each wait for the next recorded as data-wait.

        A wait between two steps belongs to the second one.
        """
        return DataWaits(self, iterable)

    @_answers(NO_OP)
    def begin(
        self,
        optype: str,
        *,
        step: int | None = None,
        microbatch: int = -1,
        chunk: int = -1,
        group: Group | None = None,
        **told: Any,
    ) -> AnyOp:
        """An operation begins now; hand the result to `end`."""
        return self.op(
            optype, step=step, microbatch=microbatch, chunk=chunk, group=group, **told
        ).__enter__()

    @_harmless
    def end(self, begun: AnyOp | None, **told: Any) -> None:
        """The operation ends now; `told` as with `op`, over what was told at its beginning."""
        if begun is not None:
            if told:
                begun.tell(**told)
            begun.__exit__(None, None, None)

    @_harmless
    def record(
        self,
        optype: str,
        step: int,
        start_ns: int,
        duration_ns: int,
        seq_id: int | None = None,
        mc: int = -1,
        mb_id: int = -1,
        **told: Any,
    ) -> None:
        """An operation that was timed elsewhere; in order of start where `seq_id` is left out."""
        state = self._at(step)
        if not state.is_recording:
            return
        if seq_id is None:
            seq_id = next(state.counts[optype])
        op = (state.step, optype, start_ns, duration_ns, seq_id, mc, mb_id, told or None)
        self._buffer.add(cast("Op", Exact(op)))

    @_harmless
    def tell_microbatch(self, microbatch: int, *, step: int | None = None, **told: Any) -> None:
        """What is known of a micro-batch; holds for its computations that end from now on."""
        state = self._current if step is None else self._at(step)
        if state is not None and state.is_recording:
            self._buffer.tell(Tell(state.step, operator.index(microbatch), told_of(told)))

    @_harmless
    def step_done(self, step: int, kind: str = TRAIN) -> None:
        """This worker has recorded all of the step's operations."""
        state = self._at(step)
        self._states.pop(state.step, None)
        if self._groups.beside is not None:
            self._tell_ended(state, self._groups.beside)
        if not state.is_recording:
            self._buffer.at_step = state.step
            self._buffer.has_gone_on = True
            if state.records_groups:
                self._buffer.hurry()
            return
        kind = state.kind if kind == TRAIN else _known(kind)
        self._buffer.step_done(state.step, kind)

    @_answers(in_place=False)
    def flush(self, timeout_s: float = EXIT_S) -> bool:
        """Whether all that was recorded is off our hands, after at most so many seconds."""
        return self._is_off or self._buffer.flush(timeout_s)

    @_harmless
    def close(self, timeout_s: float = EXIT_S) -> None:
        """Deliver what can be delivered in the time, and end."""
        lifetime.close([self], timeout_s)

    # What follows is for this package.

    @_answers(in_place=False)
    def read_beside(self, beside: FlightRecorder) -> bool:
        """Have the sender's thread read what PyTorch knows of collectives; False of `NULL`."""
        if self._is_off or self._sender is None:
            return False
        self._groups.beside, self._groups.is_used = beside, True
        self._begun_ns = time_ns()
        return True

    @_harmless
    def enter(self, step: int, kind: str) -> StepState | None:
        """A step begins; the one that it begins within, if any."""
        before = self._current
        state = self._at(step)
        self._current = state
        if state.records_groups:
            self._begun_ns = time_ns()
        self.is_recording = state.is_recording
        if state is not _NOWHERE:
            state.kind = _known(kind)
            if state.kind != TRAIN and state.is_recording:
                self._buffer.tell(Aside(state.step))
            if self._cuda is not None and state.is_recording:
                self._cuda.follow_device()
        if self._readings is not None and not self._readings.is_placed:
            self._readings.place()
        waits, self._waits = self._waits, []
        for begun_ns, duration_ns in waits:
            self._note("data-wait", state, begun_ns, duration_ns)
        return before

    @_harmless
    def leave(self, step: int, before: StepState | None, *, is_done: bool) -> None:
        """A step ends."""
        self._current = before
        self.is_recording = not self._is_off and (before is None or before.is_recording)
        if is_done:
            self.step_done(step)

    @_harmless
    def note_wait(self, begun_ns: int) -> None:
        """Training has waited for data until now."""
        duration_ns = self.now_ns() - begun_ns
        state = self._current
        if state is not None:
            self._note("data-wait", state, begun_ns, duration_ns)
        elif len(self._waits) < MAX_WAITS:
            self._waits.append((begun_ns, duration_ns))

    @_answers(None)
    def begin_wait(self) -> CudaSpan | None:
        """The compute stream is about to wait; None where the GPU's times are not recorded."""
        state, cuda = self._current, self._cuda
        if cuda is None or state is None or not state.is_recording:
            return None
        if not self._is_of_gpu(WAIT, cuda):
            return None
        span = cuda.op(self._buffer, self._epoch_ns, WAIT, state, -1, -1, NOTHING)
        return span.__enter__()

    def note_pause(self, begun_ns: int, duration_ns: int) -> None:
        """The garbage collector has stopped training, since then on the monotonic clock."""
        state = self._current
        if state is not None:
            self._note("gc-pause", state, self._epoch_ns + begun_ns, duration_ns)

    def note_pauses(self) -> None:
        """Note collections of garbage from now on."""
        self._pauses = GcPauses(self)

    def hurry(self) -> None:
        """The end is near: try at once what waits for another attempt."""
        if self._sender is not None:
            self._sender.hurry()

    def begin_closing(self) -> None:
        """Nothing more is recorded."""
        if self._pauses is not None:
            self._pauses.stop()
        if self._sender is not None:
            self._sender.finish()

    def wait_closed(self, timeout_s: float) -> None:
        """Returns when the sender's thread has ended, or in time."""
        if self._sender is not None:
            self._sender.join(timeout_s)

    def turn_off(self) -> None:
        """Record nothing: as in a child process, whose parent does that and has the sender."""
        self._is_off = True
        self.is_recording = False
        self._current = self._sender = None
        self._buffer.turn_off()

    def _tell_ended(self, state: StepState, beside: FlightRecorder) -> None:
        """A step has ended that began when it was entered, or when the one before it ended."""
        begun_ns, self._begun_ns = self._begun_ns, time_ns()
        if state.records_groups:
            beside.step_ended(state.step, begun_ns, self._begun_ns)
            self._buffer.wake()

    @_answers(NO_OP)
    def _group_op(
        self, kind: str, group: Group, state: StepState, told: dict[str, Any]
    ) -> TimedGroupOp | NoOp:
        if not state.records_groups or group.at < 0:
            return NO_OP
        cuda = self._cuda
        if cuda is not None and not self._is_of_gpu(kind, cuda):
            cuda = None
        return TimedGroupOp(self._groups, self._epoch_ns, kind, group, state, told, cuda)

    def _note(self, optype: str, state: StepState, begun_ns: int, duration_ns: int) -> None:
        if state.is_recording:
            seq_id = next(state.counts[optype])
            op = (state.step, optype, begun_ns, duration_ns, seq_id, -1, -1, None)
            self._buffer.add(op)

    def _is_of_gpu(self, optype: str, cuda: CudaTiming) -> bool:
        try:
            return optype not in HOST_TYPES and (cuda.is_ready or cuda.is_usable())
        except Exception:  # CUDA that is broken, or a name that is none
            return False

    def _at(self, step: int) -> StepState:
        """The step's state, `_NOWHERE` for what is no step."""
        try:
            state = self._states.get(step)
            if state is not None or self._is_off:
                return state or _NOWHERE
            number = operator.index(step)
            if number < 0:
                raise ValueError("no step")
            groups, plans = self._groups, self._plans
            state = StepState(
                number,
                TRAIN,
                not groups.is_alone and plans.records(number),
                groups.is_used and plans.records_groups(number, groups.every),
            )
            state = self._states.setdefault(number, state)
            forget_oldest(self._states)
            return state
        except Exception:
            self._buffer.count_dropped(INVALID)
            return _NOWHERE

    def _outside(self) -> None:
        if self._is_off:
            return
        self._buffer.count_dropped(OUTSIDE)
        if not self._warned_outside:
            self._warned_outside = True
            log.warning(
                "paceline: an operation outside of `with recorder.step(...)` and without step= "
                "is not recorded (further ones are counted in dropped_reasons)"
            )


def _known(kind: str) -> str:
    return kind if kind in KINDS else TRAIN
