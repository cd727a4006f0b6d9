"""Closed windows with skipped steps: for a while, late operations may still complete them."""

from collections.abc import Callable, Iterable

import msgspec

from app.ingest.op_table import OpTable, Part
from app.ingest.open_window import OpenWindow
from app.ingest.roll import Roll
from app.ingest.step import OpenStep, SettledStep
from app.ingest.verdict import settled
from app.trace.job import Job
from app.trace.window import SkippedStep, StepKind, WindowState

MAX_DECLARED = 1_000_000  # of all that is remembered: beyond, the oldest windows are final

Recall = Callable[[int], OpTable]  # stored operations of the window with this first step
# Step, and what `OpenStep.take` wants: worker, rank, operations, number of declared ones, kind.
Late = tuple[int, int, int, Part | None, int | None, StepKind | None]


class ClosedWindow(msgspec.Struct):
    """What is known of a closed window beside its stored operations.

    `declared` holds for every skipped step what its `OpenStep.declared()` said.
    """

    state: WindowState
    revision: int
    steps: list[tuple[int, SkippedStep | None]]
    declared: dict[int, dict[int, tuple[int, int]]]

    @property
    def first_step(self) -> int:
        """The first step in it, complete or skipped."""
        return self.steps[0][0]

    def wants(self, step: int, rank: int) -> bool:
        """Whether it lacks something of this rank in this step."""
        if step not in self.declared:
            return False
        if rank not in self.declared[step]:
            return True
        skipped = dict(self.steps)[step]
        return skipped is not None and skipped.lacks(rank)

    @property
    def size(self) -> int:
        """How much there is to remember."""
        return sum(map(len, self.declared.values()))


class ClosedWindows:
    """The closed windows of one run that can still be revised, the oldest first."""

    def __init__(self, windows: Iterable[ClosedWindow], now_s: float) -> None:
        self._windows = {window.first_step: (window, now_s) for window in windows}
        self._late: dict[int, list[Late]] = {}

    @property
    def kept(self) -> list[ClosedWindow]:
        """All of them, for storing."""
        return [window for window, _ in self._windows.values()]

    def add(
        self, steps: list[SettledStep], state: WindowState, revision: int, now_s: float
    ) -> None:
        """A window has been closed; without skipped steps it is final."""
        declared = {each.step: each.open.declared() for each in steps if each.open is not None}
        if declared:
            named = [(each.step, each.skipped) for each in steps]
            window = ClosedWindow(state, revision, named, declared)
            self._windows[window.first_step] = (window, now_s)
            self._windows = dict(sorted(self._windows.items()))
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remember no more than there is room for, but the newest and what is to be revised."""
        size = sum(window.size for window, _ in self._windows.values())
        for first in list(self._windows)[:-1]:
            if size > MAX_DECLARED and first not in self._late:
                size -= self._windows.pop(first)[0].size

    def forget(self, before_s: float) -> None:
        """Windows that were closed before this moment are final, unless something has just come."""
        old = [first for first, (_, at_s) in self._windows.items() if at_s < before_s]
        for first in old:
            if first not in self._late:
                del self._windows[first]

    def take(
        self,
        number: int,
        worker: int,
        rank: int,
        part: Part | None,
        num_declared: int | None,
        kind: StepKind | None = None,
    ) -> bool:
        """Whether what a batch says of this step can still be used; if so, `revise` will."""
        for first, (window, _) in self._windows.items():
            if window.wants(number, rank):
                said = self._late.setdefault(first, [])
                said.append((number, worker, rank, part, num_declared, kind))
                return True
        return False

    def revise(
        self, job: Job, epoch: int, roll: Roll, recall: Recall
    ) -> list[tuple[OpenWindow, WindowState]]:
        """The windows that something has come for, with it in them; each is closed again."""
        revised = [
            self._revised(first, late, job, epoch, roll, recall)
            for first, late in sorted(self._late.items())
        ]
        self._late = {}
        return revised

    def _revised(
        self, first: int, late: list[Late], job: Job, epoch: int, roll: Roll, recall: Recall
    ) -> tuple[OpenWindow, WindowState]:
        window, at_s = self._windows.pop(first)
        stored = recall(first)
        again = OpenWindow(job, epoch, len(window.steps), revision=window.revision)
        for number, skipped in window.steps:
            table = stored.of_step(number)
            if skipped is None or skipped.kind is not None:
                again.add(SettledStep(number, table, skipped))
                continue
            step = OpenStep.again(table, number, window.declared[number], job.parallelism.pp_size)
            for each, worker, rank, part, num_declared, kind in late:
                if each == number:
                    step.take(worker, rank, part, num_declared, kind)
            again.add(settled(step, job, roll, "in time"))
        state = _state(window.state, again)
        self.add(again.settled, state, window.revision + 1, at_s)
        return again, state


def _state(before: WindowState, window: OpenWindow) -> WindowState:
    """An incomplete window is complete once nothing is missing in it any more."""
    return window.ended_state if before == "incomplete" else before
