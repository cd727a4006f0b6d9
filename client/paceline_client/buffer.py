"""What has been recorded and not yet been sent: bounded, shared by training and the sender.

Training appends to a deque, which takes no lock, so that the sender never keeps it waiting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .told import NOTHING, WAIT, told_of
from .wire import MAX_OPTYPE_CHARS, MAX_OPTYPES, Op, fits

if TYPE_CHECKING:
    from .groups import GroupBuffer

MAX_ROWS = 5_000  # a batch: putting one into order may keep training waiting for a millisecond
MAX_OPEN_STEPS = 1024
GRAIN_NS = 128  # recording an operation takes several times that; finer, it would only be noise
DEFAULT_MAX_OPS = 1 << 18  # about 48 MiB as Python objects
MAX_FLUSH_INTERVAL_S = 60.0
GPU_LOOK_EVERY_S = 0.01  # while an operation at the head is still running on the GPU
# Between batches of finished steps: each one takes the interpreter from training for 0.5 ms.
STEPS_EVERY_S = 0.25

# Why an operation was dropped.
FULL = "buffer full"
CLOSED = "recorder closed"
REFUSED = "refused by the server"
INVALID = "not a valid operation"
OUTSIDE = "outside a step"
NO_GPU_TIME = "no time from the GPU"
UNDELIVERED = "not delivered before the end"
SPOOL_DAMAGED = "spool damaged"


def forget_oldest(by_step: dict[int, Any]) -> None:
    """Keeps a table of unfinished steps small where a worker never says that it finished any."""
    if len(by_step) > MAX_OPEN_STEPS:
        by_step.pop(next(iter(by_step), 0), None)


class StepDone(NamedTuple):
    """Marks, between operations, that the worker has finished a step."""

    step: int
    kind: str = "train"


class Aside(NamedTuple):
    """Marks that a step which begins is no training step."""

    step: int


class Tell(NamedTuple):
    """Marks what is known of a micro-batch; holds for its computations recorded afterwards."""

    step: int
    microbatch: int
    told: dict[str, int]


class Exact(tuple):  # type: ignore[type-arg]
    """An operation with times that are not ours to round."""

    __slots__ = ()


class Skipped(NamedTuple):
    """Stands for an operation that turned out to be none."""


SKIPPED = Skipped()


class Pending:
    """An operation whose times are not known yet."""

    __slots__ = ()

    step: int

    def resolved(self) -> Op | Skipped | None:
        """The operation; None while it is still running.

        Raises:
            Exception: of any kind: its times will never be known.
        """
        raise NotImplementedError

    @staticmethod
    def give_back(held: list[Any]) -> None:
        """It has been resolved: the only element of this list, which alone has it here."""


class Taken(NamedTuple):
    """What goes into one batch."""

    ops: list[Op]
    steps_done: list[tuple[int, int]]
    step_kinds: list[tuple[int, str]]
    waits_done: dict[int, int]  # of the operations of `steps_done`, the `wait` ones

    @property
    def steps(self) -> set[int]:
        """Every step that the batch says something about."""
        return {op[0] for op in self.ops} | {step for step, _ in self.steps_done}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self.ops and not self.steps_done


_NO_OPS = (StepDone, Aside, Tell, Skipped)


def nothing_taken() -> Taken:
    """An empty batch, to be filled."""
    return Taken([], [], [], {})


class Buffer:
    """A queue of operations; when it is full, new ones are dropped and counted.

    A step of which anything was dropped is never declared done: it would look complete.
    """

    def __init__(self, max_ops: int, flush_interval_s: float) -> None:
        self.items: deque[Op | Pending | Skipped | StepDone | Aside | Tell] = deque()
        self.max_items = max_ops  # 0 once closed: one comparison on the way of every operation
        self.readings: Callable[[], dict[str, int]] | None = None  # of the GPU, once a step
        self.groups: GroupBuffer | None = None  # what is sent beside, and waited for together
        self.has_gone_on = False  # training has, in steps that are not recorded
        self.at_step: int | None = None  # the last of these
        self.dropped_reasons: dict[str, int] = {}
        self.asides: dict[int, bool] = {}  # unfinished; a set that remembers the order
        self._flush_interval_s = min(MAX_FLUSH_INTERVAL_S, flush_interval_s)
        self._num_ops: dict[int, int] = {}  # handed out so far, by unfinished step
        self._num_waits: dict[int, int] = {}  # of these, of type `wait`
        self._damaged: dict[int, bool] = {}  # a set that remembers the order
        self._told: dict[tuple[int, int], dict[str, int]] = {}
        self._optypes: set[str] = set()
        self._changed = threading.Condition()  # over a lock that a gc callback may take again
        self._held = nothing_taken()  # taken, while what follows still runs on the GPU
        self._taken_s = self._handed_s = time.monotonic()
        self._spacing_s = min(STEPS_EVERY_S, self._flush_interval_s)
        self._next_steps_s = float("-inf")  # when a batch may go out because a step has ended
        self._has_done = False  # there is one that has ended
        self._in_flight = False
        self._urgent = False
        self._num_flushing = 0  # threads that wait until all is delivered
        self._is_stalled = False
        self._closed = False
        self._is_abandoned = False
        self._closed_for = CLOSED  # why nothing more is taken, once it is not
        self._woken = False
        self._num_settled = 0  # at the head, that wait for nothing but room further on

    @property
    def dropped(self) -> int:
        """Number of operations that were dropped, for whatever reason."""
        return sum(list(self.dropped_reasons.values()))

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken."""
        return self._closed

    @property
    def num_unfinished_steps(self) -> int:
        """Number of steps that something was recorded or dropped of and that are not done."""
        return len(self._num_ops.keys() | self._damaged.keys())

    def add(self, op: Op | Pending) -> None:
        """Keep an operation if there is room."""
        if len(self.items) < self.max_items:
            self.items.append(op)
        else:
            self.drop(op.step if isinstance(op, Pending) else op[0])

    def drop(self, step: int, reason: str | None = None) -> None:
        """An operation of a step is lost; for want of room unless another reason is given."""
        with self._changed:
            self._count(reason or (self._closed_for if self._closed else FULL), 1)
            self._damage(step)
            if reason is None:
                self._make_room()

    def count_dropped(self, reason: str, number: int = 1) -> None:
        """So many operations were lost that belong to no step, or to one given up already."""
        with self._changed:
            self._count(reason, number)

    def tell(self, told: Tell | Aside) -> None:
        """Keep what is known of a micro-batch or a step, if there is room."""
        if len(self.items) < self.max_items:
            self.items.append(told)

    def step_done(self, step: int, kind: str = "train") -> None:
        """Declare a step finished, and send what there is."""
        is_full = len(self.items) >= self.max_items
        with self._changed:
            if self._closed or is_full:
                self._damaged.pop(step, None)
                # What was handed out of it is not to be counted for a step of the same number.
                self._num_ops.pop(step, None)
                self._num_waits.pop(step, None)
                self._make_room()
                return
            self.items.append(StepDone(step, kind))
            self._has_done = True
            if time.monotonic() >= self._next_steps_s:
                self._hurry()

    def hurry(self) -> None:
        """Send what there is."""
        with self._changed:
            self._hurry()

    def wait(self, timeout_s: float | None, *, for_items: bool = True) -> None:
        """Returns when something is due (if that is asked for), at the close, or in time."""
        with self._changed:
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            while not self._closed and not self._woken and not (for_items and self._is_due()):
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return
                self._changed.wait(_least(left_s, self._look_in_s() if for_items else None))
            self._woken = False

    def is_due(self) -> bool:
        """Whether it is time to `take`: a request for each operation would be one too many."""
        with self._changed:
            return self._is_due()

    def take(self) -> Taken | None:
        """What is there, up to a batch; None when that is nothing.

        Until `sent`, it counts as under way.
        """
        with self._changed:
            self._in_flight = True  # before the queue is empty, or a flush would look finished
            self._urgent = self._has_done = False
        taken = self._emptied()
        with self._changed:
            self._taken_s = time.monotonic()
            self._is_stalled = bool(self.items) and isinstance(self.items[0], Pending)
            # What has come meanwhile is no batch's rest: it waits for its own time.
            if self.items and not self._is_stalled and len(taken.ops) >= MAX_ROWS:
                self._urgent = True
            if self._is_early(taken):
                return None
            self._held, self._handed_s = nothing_taken(), self._taken_s
            if not taken.is_empty:
                self._next_steps_s = self._taken_s + self._spacing_s
        return None if taken.is_empty else taken

    def sent(self) -> None:
        """All that was taken is off our hands."""
        with self._changed:
            self._in_flight = False
            self._changed.notify_all()

    def settle(self) -> None:
        """Ask the GPU for times where nothing can be handed out: later they are told badly.

        What was measured an hour ago is told to a quarter of a millisecond, and by a clock that
        has drifted since; and until it is told, two of the GPU's events are held for it.
        """
        for at in range(self._num_settled, len(self.items)):
            item = self.items[at]
            if isinstance(item, Pending):
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
        """A batch that was taken could not be delivered."""
        with self._changed:
            self._count(reason, num_ops)
            for step in steps - steps_done:
                self._damage(step)

    def flush(self, timeout_s: float) -> bool:
        """Whether everything recorded before was delivered (or given up) in time."""
        with self._changed:
            self._num_flushing += 1
            try:
                self._hurry()
                return self._changed.wait_for(self._is_delivered, max(0.0, timeout_s))
            finally:
                self._num_flushing -= 1

    def close(self) -> None:
        """Take nothing more; what is left is still handed out."""
        with self._changed:
            self._closed = True
            self.max_items = 0
            if self.groups is not None:
                self.groups.close()
            self._hurry()

    def abandon(self, reason: str = UNDELIVERED) -> None:
        """Take nothing more, and drop what is left.

        What still comes is counted for the same reason, unless training had closed the recorder.
        """
        with self._changed:
            if not self._closed:
                self._closed_for = reason
        self.close()
        left, self.items = self.items, deque()
        num_left = sum(not isinstance(item, _NO_OPS) for item in left)
        num_left += self.groups.abandon() if self.groups is not None else 0
        self.count_dropped(reason, num_left + len(self._held.ops))
        self._held = nothing_taken()
        self._is_abandoned = True
        self.sent()

    def wake(self) -> None:
        """The sender is to look what there is to do."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def turn_off(self) -> None:
        """Take nothing more, as in a child process: another thread may have held the lock there."""
        self._changed = threading.Condition()
        self.items = deque()
        self._closed, self.max_items, self._in_flight = True, 0, False
        if self.groups is not None:
            self.groups.abandon()

    def _is_delivered(self) -> bool:
        # Training that was about to add something may still do so: nobody comes for it.
        if self._is_abandoned:
            return True
        return not self.items and not self._in_flight and not self._has_groups()

    def _has_groups(self) -> bool:
        return self.groups is not None and self.groups.has_rows

    def _is_early(self, taken: Taken) -> bool:
        """Whether more of the step soon comes from the GPU: not each look is worth a request."""
        if self._closed or not self._is_stalled or taken.steps_done or len(taken.ops) >= MAX_ROWS:
            return False
        return self._taken_s - self._handed_s < self._flush_interval_s

    def _emptied(self) -> Taken:
        taken = self._held
        while self.items and len(taken.ops) < MAX_ROWS:
            item: Any = self.items[0]
            if isinstance(item, Pending):
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
            if isinstance(item, Skipped):
                continue
            if isinstance(item, StepDone):
                self._finish(item, taken)
            elif isinstance(item, Aside):
                self.asides[item.step] = True
                forget_oldest(self.asides)
            elif isinstance(item, Tell):
                self._told[item.step, item.microbatch] = item.told
                if len(self._told) > MAX_OPEN_STEPS:
                    self._told.pop(next(iter(self._told)))
            else:
                self._hand_out_if_good(item, taken)
        return taken

    def _hand_out_if_good(self, op: Op, taken: Taken) -> None:
        try:
            self._hand_out(op, taken)
        except Exception:  # what training said may be anything: it must not end the recording
            self.drop(op[0], INVALID)

    def _hand_out(self, op: Op, taken: Taken) -> None:
        if not fits(op) or not self._is_known(op[1]):
            self.drop(op[0], INVALID)
            return
        about = op[7]
        if op[1] == "optimizer" and self.readings is not None:
            about = {**self.readings(), **(about or NOTHING)}
        if self._told and op[1].endswith("-compute"):
            about = {**self._told.get((op[0], op[6]), NOTHING), **(about or NOTHING)}
        if about:
            about = told_of(about) or None
        if not isinstance(op, Exact):
            start_ns = op[2] & -GRAIN_NS
            end_ns = (op[2] + op[3]) & -GRAIN_NS
            # What took any time at all takes some: a step of none could not be analysed.
            duration_ns = max(end_ns - start_ns, GRAIN_NS if op[3] > 0 else 0)
            op = (op[0], op[1], start_ns, duration_ns, op[4], op[5], op[6], about)
        elif about:
            op = (*op[:7], about)
        taken.ops.append(op)
        self._num_ops[op[0]] = self._num_ops.get(op[0], 0) + 1
        forget_oldest(self._num_ops)
        if op[1] == WAIT:
            self._num_waits[op[0]] = self._num_waits.get(op[0], 0) + 1
            forget_oldest(self._num_waits)

    def _popped(self) -> Any:
        self._num_settled -= self._num_settled > 0
        return self.items.popleft()

    def _is_known(self, optype: str) -> bool:
        """Whether a name can be sent; so many different ones are none."""
        if not isinstance(optype, str) or not 0 < len(optype) <= MAX_OPTYPE_CHARS:
            return False
        if optype in self._optypes:
            return True
        if len(self._optypes) >= MAX_OPTYPES or not _is_text(optype):
            return False
        self._optypes.add(optype)
        return True

    def _finish(self, done: StepDone, taken: Taken) -> None:
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
        for key in [key for key in self._told if key[0] == done.step]:
            del self._told[key]

    def _count(self, reason: str, number: int) -> None:
        if not number:
            return
        self.dropped_reasons[reason] = self.dropped_reasons.get(reason, 0) + number

    def _damage(self, step: int) -> None:
        self._damaged[step] = True
        forget_oldest(self._damaged)

    def _make_room(self) -> None:
        """Have the sender come before its time, as the queue is full."""
        if not self._closed and not self._urgent:
            self._hurry()

    def _hurry(self) -> None:
        self._urgent = bool(self.items) or self._has_groups()
        self._changed.notify_all()

    def _look_in_s(self) -> float:
        """Time until there may be something due."""
        now_s = time.monotonic()
        until_steps_s = self._next_steps_s - now_s
        if self.groups is not None and self.groups.is_stalled:
            return GPU_LOOK_EVERY_S
        if self._is_stalled:
            return max(GPU_LOOK_EVERY_S, 0.0 if self._is_asked() else until_steps_s)
        left_s = self._flush_interval_s - (now_s - self._taken_s)
        left_s = left_s if left_s > 0 else self._flush_interval_s
        return max(GPU_LOOK_EVERY_S, min(left_s, until_steps_s) if until_steps_s > 0 else left_s)

    def _is_due(self) -> bool:
        if self._closed:
            return True
        if not self.items and (self.groups is None or not self.groups.may_look):
            return False
        now_s = time.monotonic()
        since_s = now_s - self._taken_s
        may_send_steps = now_s >= self._next_steps_s
        if self._is_stalled:
            return since_s >= GPU_LOOK_EVERY_S and (may_send_steps or self._is_asked())
        are_steps_due = self._has_done and may_send_steps
        return are_steps_due or self._is_asked() or since_s >= self._flush_interval_s

    def _is_asked(self) -> bool:
        """Whether somebody waits for what is there, or for room."""
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
