"""What has been recorded and not yet been sent: bounded, shared by training and the sender."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from .wire import Op

MAX_ROWS = 20_000  # a batch; well below what the server takes
MAX_OPEN_STEPS = 1024
DEFAULT_MAX_OPS = 1 << 18  # about 64 MiB as Python objects


def forget_oldest(by_step: dict[int, Any]) -> None:
    """Keeps a table of unfinished steps small where a worker never says that it finished any."""
    if len(by_step) > MAX_OPEN_STEPS:
        del by_step[next(iter(by_step))]


class StepDone(NamedTuple):
    """Marks, between operations, that the worker has finished a step."""

    step: int


class Taken(NamedTuple):
    """What goes into one batch."""

    ops: list[Op]
    steps_done: list[tuple[int, int]]

    @property
    def steps(self) -> set[int]:
        """Every step that the batch says something about."""
        return {op[0] for op in self.ops} | {step for step, _ in self.steps_done}


class Buffer:
    """A queue of operations; when it is full, new ones are dropped and counted.

    A step of which anything was dropped is never declared done: it would look complete.
    """

    def __init__(self, max_ops: int, flush_interval_s: float) -> None:
        self.dropped = 0
        self._max_ops = max_ops
        self._flush_interval_s = flush_interval_s
        self._items: deque[Op | StepDone] = deque()
        self._num_ops: dict[int, int] = {}  # recorded so far, by unfinished step
        self._damaged: dict[int, bool] = {}  # a set that remembers the order
        self._changed = threading.Condition()
        self._since_s = 0.0  # when the oldest item came
        self._in_flight = False
        self._urgent = False
        self._closed = False

    @property
    def num_unfinished_steps(self) -> int:
        """Number of steps that something was recorded or dropped of and that are not done."""
        return len(self._num_ops.keys() | self._damaged.keys())

    def add(self, op: Op) -> None:
        """Keep an operation if there is room."""
        with self._changed:
            if self._closed or len(self._items) >= self._max_ops:
                self.dropped += 1
                self._damage(op[0])
                return
            self._num_ops[op[0]] = self._num_ops.get(op[0], 0) + 1
            forget_oldest(self._num_ops)
            self._put(op)
            if len(self._items) == MAX_ROWS:
                self._hurry()

    def step_done(self, step: int) -> None:
        """Declare a step finished, and send what there is."""
        with self._changed:
            is_full = len(self._items) >= self._max_ops
            if self._closed or is_full or step in self._damaged:
                self._num_ops.pop(step, None)
                self._damaged.pop(step, None)
                return
            self._put(StepDone(step))
            self._hurry()

    def take(self) -> Taken | None:
        """What is due, once something is; None when the buffer is closed and empty."""
        with self._changed:
            while not self._is_due():
                if self._closed and not self._items:
                    return None
                self._changed.wait(self._wait_s())
            taken = self._take()
            self._in_flight = True
            self._urgent = len(self._items) >= MAX_ROWS or (self._urgent and bool(self._items))
            return taken

    def sent(self) -> None:
        """The batch that was taken last is off our hands."""
        with self._changed:
            self._in_flight = False
            self._changed.notify_all()

    def lost(self, taken: Taken) -> None:
        """The batch that was taken last could not be delivered."""
        with self._changed:
            self.dropped += len(taken.ops)
            for step in taken.steps - {step for step, _ in taken.steps_done}:
                self._damage(step)
            self._in_flight = False
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Whether everything recorded before was delivered (or given up) in time."""
        with self._changed:
            self._hurry()
            return self._changed.wait_for(
                lambda: not self._items and not self._in_flight, timeout_s
            )

    def refused(self, num_ops: int) -> None:
        """So many operations of a batch that was sent were not wanted."""
        with self._changed:
            self.dropped += num_ops

    def close(self) -> None:
        """Take nothing more; what is left is still handed out."""
        with self._changed:
            self._closed = True
            self._hurry()

    def abandon(self) -> None:
        """Take nothing more, and drop what is left."""
        with self._changed:
            self._closed = True
            self.dropped += sum(not isinstance(item, StepDone) for item in self._items)
            self._items.clear()
            self._in_flight = False
            self._changed.notify_all()

    def is_closed_within(self, delay_s: float) -> bool:
        """Waits out a delay, or less if the buffer is closed meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, delay_s)

    def _put(self, item: Op | StepDone) -> None:
        if not self._items:
            self._since_s = time.monotonic()
            self._changed.notify_all()
        self._items.append(item)

    def _damage(self, step: int) -> None:
        self._damaged[step] = True
        forget_oldest(self._damaged)

    def _hurry(self) -> None:
        self._urgent = bool(self._items)
        self._changed.notify_all()

    def _wait_s(self) -> float | None:
        """Time until the oldest item is due; no limit while there is none."""
        if not self._items:
            return None
        return max(0.0, self._since_s + self._flush_interval_s - time.monotonic())

    def _is_due(self) -> bool:
        return bool(self._items) and (self._urgent or self._wait_s() == 0.0)

    def _take(self) -> Taken:
        taken = Taken([], [])
        while self._items and len(taken.ops) < MAX_ROWS:
            item = self._items.popleft()
            if not isinstance(item, StepDone):
                taken.ops.append(item)
                continue
            num_ops = self._num_ops.pop(item.step, 0)
            if item.step not in self._damaged:
                taken.steps_done.append((item.step, num_ops))
            self._damaged.pop(item.step, None)
        self._since_s = time.monotonic()
        return taken
