"""Bounded buffer of unsent operations, shared by training and the sender's thread.

Training appends to a deque, which takes no lock, so the sender never blocks it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .op_attributes import NO_ATTRIBUTES, WAIT_OP, MeasuredAttributes, valid_attributes
from .timing import TimedOp
from .wire import MAX_OPTYPE_CHARS, MAX_OPTYPES, GroupBatch, Op, fits

MAX_ROWS = 5_000  # per batch; sorting one may hold the interpreter for a millisecond
MAX_OPEN_STEPS = 1024
ROUNDING_NS = 128  # recording an operation takes several times that; finer would be noise
DEFAULT_MAX_OPS = 1 << 18  # about 48 MiB as Python objects
MAX_FLUSH_INTERVAL_S = 60.0
GPU_POLL_EVERY_S = 0.01  # while the operation at the head is still running on the GPU
# Between batches of finished steps: each one holds the interpreter for 0.5 ms.
STEPS_DONE_EVERY_S = 0.25

# Why an operation was dropped.
FULL = "buffer full"
CLOSED = "recorder closed"
REFUSED = "refused by the server"
INVALID = "not a valid operation"
OUTSIDE = "outside a step"
NO_GPU_TIME = "no time from the GPU"
UNDELIVERED = "not delivered before the end"
SPOOL_DAMAGED = "spool damaged"


def evict_oldest_step(by_step: dict[int, Any]) -> None:
    """Bound a table of unfinished steps, for workers that never declare a step done."""
    if len(by_step) > MAX_OPEN_STEPS:
        by_step.pop(next(iter(by_step), 0), None)


class GroupRows(Protocol):
    """Group collectives that are sent and flushed together with the operations."""

    dropped: dict[str, int]

    @property
    def has_rows(self) -> bool:
        """Whether rows wait to be sent."""

    @property
    def is_stalled(self) -> bool:
        """Whether the oldest row is still running on the GPU."""

    @property
    def may_poll(self) -> bool:
        """Whether a `take` may find rows."""

    @property
    def has_unread(self) -> bool:
        """Whether the flight recorder has to be read soon."""

    def poll_reader(self) -> bool:
        """Read the flight recorder if due; whether it had rows."""

    def take(self) -> GroupBatch | None:
        """Rows for one batch."""

    def close(self) -> None:
        """Accept no more rows."""

    def abandon(self) -> int:
        """Accept no more rows and drop the unsent ones; returns their number."""


class StepDone(NamedTuple):
    """Marks, between operations, that the worker has finished a step."""

    step: int
    kind: str = "train"


class NonTrainingStep(NamedTuple):
    """Marks that the step that begins is not a training step."""

    step: int


class MicrobatchAttributes(NamedTuple):
    """Attributes of a micro-batch; they apply to its computations recorded afterwards."""

    step: int
    microbatch: int
    attributes: dict[str, int]


class ExactOp(tuple):  # type: ignore[type-arg]
    """An operation that was timed elsewhere; its times are not rounded."""

    __slots__ = ()


class SkippedOp(NamedTuple):
    """Placeholder for a wait that turned out to be no wait."""


SKIPPED_OP = SkippedOp()


class PendingOp:
    """An operation whose times are not yet known."""

    __slots__ = ()

    step: int

    def resolved(self) -> Op | SkippedOp | None:
        """The operation; None while it is still running.

        Raises:
            Exception: any; its times will never be known.
        """
        raise NotImplementedError

    @staticmethod
    def give_back(held: list[Any]) -> None:
        """Recycle a resolved operation: the only element of this list, which owns it here."""


class BatchContent(NamedTuple):
    """Content of one batch."""

    ops: list[Op]
    steps_done: list[tuple[int, int]]
    step_kinds: list[tuple[int, str]]
    waits_done: dict[int, int]  # `wait` operations by step, among those of `steps_done`

    @property
    def steps(self) -> set[int]:
        """Steps with operations in the batch or declared done by it."""
        return {op[0] for op in self.ops} | {step for step, _ in self.steps_done}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self.ops and not self.steps_done


_NO_OPS = (StepDone, NonTrainingStep, MicrobatchAttributes, SkippedOp)


def empty_content() -> BatchContent:
    """An empty batch, to be filled."""
    return BatchContent([], [], [], {})


class Buffer:
    """A queue of operations; when it is full, new ones are dropped and counted.

    A step with dropped operations is never declared done: it would look complete.
    """

    def __init__(self, max_ops: int, flush_interval_s: float) -> None:
        self.items: deque[
            Op | TimedOp | PendingOp | SkippedOp | StepDone | NonTrainingStep | MicrobatchAttributes
        ] = deque()
        self.epoch_ns = 0  # of the clock by which host operations are timed
        self.max_items = max_ops  # 0 once closed, so that adding an operation takes one comparison
        self.readings: Callable[[], dict[str, int]] | None = None  # of the GPU, once a step
        self.groups: GroupRows | None = None  # sent and flushed together with the operations
        self.has_gone_on = False  # whether an unrecorded step has ended since the last heartbeat
        self.at_step: int | None = None  # the last unrecorded step
        self.dropped_reasons: dict[str, int] = {}
        self.asides: dict[int, bool] = {}  # unfinished non-training steps; an ordered set
        self._flush_interval_s = min(MAX_FLUSH_INTERVAL_S, flush_interval_s)
        self._num_ops: dict[int, int] = {}  # taken so far, by unfinished step
        self._num_waits: dict[int, int] = {}  # of these, of type `wait`
        self._damaged: dict[int, bool] = {}  # steps with dropped operations; an ordered set
        self._attributes: dict[tuple[int, int], dict[str, int]] = {}
        self._optypes: set[str] = set()
        self._changed = threading.Condition()  # over an RLock: a gc callback may take it again
        self._held = empty_content()  # taken, while the next operation still runs on the GPU
        self._taken_s = self._sent_s = time.monotonic()
        self._spacing_s = min(STEPS_DONE_EVERY_S, self._flush_interval_s)
        self._next_steps_s = float("-inf")  # when the next batch of ended steps may go out
        self._has_done = False  # whether a step has ended since the last `take`
        self._in_flight = False
        self._urgent = False
        self._num_flushing = 0  # threads inside `flush`
        self._is_stalled = False
        self._closed = False
        self._is_abandoned = False
        self._closed_for = CLOSED  # reason counted for operations after the close
        self._woken = False
        self._num_settled = 0  # items at the head whose times are known

    @property
    def dropped(self) -> int:
        """Number of dropped operations, for all reasons."""
        return sum(list(self.dropped_reasons.values()))

    @property
    def closed(self) -> bool:
        """Whether the buffer accepts nothing more."""
        return self._closed

    @property
    def num_unfinished_steps(self) -> int:
        """Number of steps with recorded or dropped operations that are not done."""
        return len(self._num_ops.keys() | self._damaged.keys())

    def add(self, op: Op | PendingOp) -> None:
        """Add an operation if there is room."""
        if len(self.items) < self.max_items:
            self.items.append(op)
        else:
            self.drop(op.step if isinstance(op, PendingOp) else op[0])

    def drop(self, step: int, reason: str | None = None) -> None:
        """Count a lost operation of a step; by default because the buffer is full."""
        with self._changed:
            self._count(reason or (self._closed_for if self._closed else FULL), 1)
            self._damage(step)
            if reason is None:
                self._make_room()

    def count_dropped(self, reason: str, number: int = 1) -> None:
        """Count lost operations that belong to no step, or to a step already damaged."""
        with self._changed:
            self._count(reason, number)

    def add_mark(self, mark: MicrobatchAttributes | NonTrainingStep) -> None:
        """Add attributes of a micro-batch or the kind of a step, if there is room."""
        if len(self.items) < self.max_items:
            self.items.append(mark)

    def step_done(self, step: int, kind: str = "train") -> None:
        """Declare a step finished and send the queue."""
        is_full = len(self.items) >= self.max_items
        with self._changed:
            if self._closed or is_full:
                self._damaged.pop(step, None)
                # Its operations must not count for a later step of the same number.
                self._num_ops.pop(step, None)
                self._num_waits.pop(step, None)
                self._make_room()
                return
            self.items.append(StepDone(step, kind))
            self._has_done = True
            if time.monotonic() >= self._next_steps_s:
                self._hurry()

    def hurry(self) -> None:
        """Send the queue now."""
        with self._changed:
            self._hurry()

    def wait(self, timeout_s: float | None, *, for_items: bool = True) -> None:
        """Return when a batch is due (with `for_items`), at close, or after the timeout."""
        with self._changed:
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            while not self._closed and not self._woken and not (for_items and self._is_due()):
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return
                self._changed.wait(_least(left_s, self._next_check_s() if for_items else None))
            self._woken = False

    def is_due(self) -> bool:
        """Whether it is time to `take` a batch."""
        with self._changed:
            return self._is_due()

    def take(self) -> BatchContent | None:
        """Up to one batch; None if there is nothing to send.

        It counts as in flight until `sent`.
        """
        with self._changed:
            self._in_flight = True  # before the queue is empty, or a flush would look finished
            self._urgent = self._has_done = False
        taken = self._drained()
        with self._changed:
            self._taken_s = time.monotonic()
            self._is_stalled = bool(self.items) and isinstance(self.items[0], PendingOp)
            # Only the rest of a full batch is urgent; newer items wait until they are due.
            if self.items and not self._is_stalled and len(taken.ops) >= MAX_ROWS:
                self._urgent = True
            if self._is_early(taken):
                return None
            self._held, self._sent_s = empty_content(), self._taken_s
            if not taken.is_empty:
                self._next_steps_s = self._taken_s + self._spacing_s
        return None if taken.is_empty else taken

    def sent(self) -> None:
        """Everything taken has been delivered or given up."""
        with self._changed:
            self._in_flight = False
            self._changed.notify_all()

    def settle(self) -> None:
        """Resolve GPU times while nothing can be sent: the error grows with their age.

        After an hour it is a quarter of a millisecond plus clock drift, and every unresolved
        operation holds two CUDA events.
        """
        for at in range(self._num_settled, len(self.items)):
            item = self.items[at]
            if isinstance(item, PendingOp):
                try:
                    op = item.resolved()
                except Exception:  # noqa: S112 - `take` asks again, and drops it
                    continue
                if op is None:
                    return
                self.items[at] = op
                held = [item]
                del item
                held[0].give_back(held)
            self._num_settled = at + 1

    def lost(self, steps: set[int], steps_done: set[int], num_ops: int, reason: str) -> None:
        """Count a taken batch that could not be delivered."""
        with self._changed:
            self._count(reason, num_ops)
            for step in steps - steps_done:
                self._damage(step)

    def flush(self, timeout_s: float) -> bool:
        """Whether everything recorded so far was delivered (or given up) in time."""
        with self._changed:
            self._num_flushing += 1
            try:
                self._hurry()
                return self._changed.wait_for(self._is_delivered, max(0.0, timeout_s))
            finally:
                self._num_flushing -= 1

    def close(self) -> None:
        """Accept nothing more; the queue is still sent."""
        with self._changed:
            self._closed = True
            self.max_items = 0
            if self.groups is not None:
                self.groups.close()
            self._hurry()

    def abandon(self, reason: str = UNDELIVERED) -> None:
        """Accept nothing more, and drop the queue.

        Later operations are counted for the same reason, unless training had closed the recorder.
        """
        with self._changed:
            if not self._closed:
                self._closed_for = reason
        self.close()
        left, self.items = self.items, deque()
        num_left = sum(not isinstance(item, _NO_OPS) for item in left)
        num_left += self.groups.abandon() if self.groups is not None else 0
        self.count_dropped(reason, num_left + len(self._held.ops))
        self._held = empty_content()
        self._is_abandoned = True
        self.sent()

    def wake(self) -> None:
        """Wake the sender's thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def turn_off(self) -> None:
        """Accept nothing more, in a child process: the lock may have been held at the fork."""
        self._changed = threading.Condition()
        self.items = deque()
        self._closed, self.max_items, self._in_flight = True, 0, False
        if self.groups is not None:
            self.groups.abandon()

    def _is_delivered(self) -> bool:
        # Training may still add an operation after `abandon`; it will not be sent.
        if self._is_abandoned:
            return True
        return not self.items and not self._in_flight and not self._has_groups()

    def _has_groups(self) -> bool:
        return self.groups is not None and self.groups.has_rows

    def _is_early(self, taken: BatchContent) -> bool:
        """Whether to wait for more of the step from the GPU before sending."""
        if self._closed or not self._is_stalled or taken.steps_done or len(taken.ops) >= MAX_ROWS:
            return False
        return self._taken_s - self._sent_s < self._flush_interval_s

    def _drained(self) -> BatchContent:
        taken = self._held
        while self.items and len(taken.ops) < MAX_ROWS:
            item: Any = self.items[0]
            if isinstance(item, PendingOp):
                try:
                    item = item.resolved()
                except Exception:
                    self.drop(self._popped().step, NO_GPU_TIME)
                    continue
                if item is None:
                    break
                held = [self._popped()]
                held[0].give_back(held)
            else:
                self._popped()
            if isinstance(item, SkippedOp):
                continue
            if isinstance(item, StepDone):
                self._finish(item, taken)
            elif isinstance(item, NonTrainingStep):
                self.asides[item.step] = True
                evict_oldest_step(self.asides)
            elif isinstance(item, MicrobatchAttributes):
                self._attributes[item.step, item.microbatch] = item.attributes
                if len(self._attributes) > MAX_OPEN_STEPS:
                    self._attributes.pop(next(iter(self._attributes)))
            else:
                self._append_if_valid(item, taken)
        return taken

    def _append_if_valid(self, op: Op | TimedOp, taken: BatchContent) -> None:
        try:
            self._append(op.op(self.epoch_ns) if isinstance(op, TimedOp) else op, taken)
        except Exception:  # arguments of training may be anything and must not end the recording
            self.drop(op.step if isinstance(op, TimedOp) else op[0], INVALID)

    def _append(self, op: Op, taken: BatchContent) -> None:
        if not fits(op) or not self._is_known(op[1]):
            self.drop(op[0], INVALID)
            return
        about = op[7]
        if op[1] == "optimizer" and self.readings is not None:
            about = {**self.readings(), **(about or NO_ATTRIBUTES)}
        if self._attributes and op[1].endswith("-compute"):
            about = {
                **self._attributes.get((op[0], op[6]), NO_ATTRIBUTES),
                **(about or NO_ATTRIBUTES),
            }
        if about and type(about) is not MeasuredAttributes:
            about = valid_attributes(about) or None
        if not isinstance(op, ExactOp):
            start_ns = op[2] & -ROUNDING_NS
            end_ns = (op[2] + op[3]) & -ROUNDING_NS
            # Rounding must not make a duration 0: such a step could not be analysed.
            duration_ns = max(end_ns - start_ns, ROUNDING_NS if op[3] > 0 else 0)
            op = (op[0], op[1], start_ns, duration_ns, op[4], op[5], op[6], about)
        elif about:
            op = (*op[:7], about)
        taken.ops.append(op)
        self._num_ops[op[0]] = self._num_ops.get(op[0], 0) + 1
        evict_oldest_step(self._num_ops)
        if op[1] == WAIT_OP:
            self._num_waits[op[0]] = self._num_waits.get(op[0], 0) + 1
            evict_oldest_step(self._num_waits)

    def _popped(self) -> Any:
        self._num_settled -= self._num_settled > 0
        return self.items.popleft()

    def _is_known(self, optype: str) -> bool:
        """Whether a type's name can be sent; at most `MAX_OPTYPES` different ones."""
        if not isinstance(optype, str) or not 0 < len(optype) <= MAX_OPTYPE_CHARS:
            return False
        if optype in self._optypes:
            return True
        if len(self._optypes) >= MAX_OPTYPES or not _is_text(optype):
            return False
        self._optypes.add(optype)
        return True

    def _finish(self, done: StepDone, taken: BatchContent) -> None:
        with self._changed:
            num_ops = self._num_ops.pop(done.step, 0)
            num_waits = self._num_waits.pop(done.step, 0)
            if not self._damaged.pop(done.step, False):
                self.asides.pop(done.step, None)
                taken.steps_done.append((done.step, num_ops))
                if num_waits:
                    before = taken.waits_done.get(done.step, 0)
                    taken.waits_done[done.step] = before + num_waits
                if done.kind != "train":
                    taken.step_kinds.append((done.step, done.kind))
        for key in [key for key in self._attributes if key[0] == done.step]:
            del self._attributes[key]

    def _count(self, reason: str, number: int) -> None:
        if not number:
            return
        self.dropped_reasons[reason] = self.dropped_reasons.get(reason, 0) + number

    def _damage(self, step: int) -> None:
        self._damaged[step] = True
        evict_oldest_step(self._damaged)

    def _make_room(self) -> None:
        """Have the sender empty the full queue early."""
        if not self._closed and not self._urgent:
            self._hurry()

    def _hurry(self) -> None:
        self._urgent = bool(self.items) or self._has_groups()
        self._changed.notify_all()

    def _next_check_s(self) -> float:
        """Seconds until a batch may be due."""
        now_s = time.monotonic()
        until_steps_s = self._next_steps_s - now_s
        if self.groups is not None and self.groups.is_stalled:
            return GPU_POLL_EVERY_S
        if self._is_stalled:
            return max(GPU_POLL_EVERY_S, 0.0 if self._is_asked() else until_steps_s)
        left_s = self._flush_interval_s - (now_s - self._taken_s)
        left_s = left_s if left_s > 0 else self._flush_interval_s
        return max(GPU_POLL_EVERY_S, min(left_s, until_steps_s) if until_steps_s > 0 else left_s)

    def _is_due(self) -> bool:
        if self._closed:
            return True
        if not self.items and (self.groups is None or not self.groups.may_poll):
            return False
        now_s = time.monotonic()
        since_s = now_s - self._taken_s
        may_send_steps = now_s >= self._next_steps_s
        if self._is_stalled:
            return since_s >= GPU_POLL_EVERY_S and (may_send_steps or self._is_asked())
        are_steps_due = self._has_done and may_send_steps
        return are_steps_due or self._is_asked() or since_s >= self._flush_interval_s

    def _is_asked(self) -> bool:
        """Whether a flush waits, or the queue is long."""
        return self._urgent or self._num_flushing > 0 or len(self.items) >= MAX_ROWS


def _is_text(name: str) -> bool:
    try:
        name.encode()
        return True
    except UnicodeEncodeError:  # half a character
        return False


def _least(first: float | None, second: float | None) -> float | None:
    given = [value for value in (first, second) if value is not None]
    return min(given) if given else None
