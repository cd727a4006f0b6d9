"""Closed windows with skipped steps: for a while, late operations may still complete them.

Collectives inside groups may come late, too: of the newest windows they are taken in.
"""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import msgspec

from app.ingest.group_records import RowCounts
from app.ingest.group_table import GroupPart, GroupTable, of_parts
from app.ingest.op_table import Part
from app.ingest.open_window import OpenWindow, has_groups
from app.ingest.roll import Roll
from app.ingest.step import OpenStep, SettledStep
from app.ingest.trace_codec import unpack_window
from app.ingest.verdict import settled
from app.ingest.wire import LAST_STEP
from app.trace.job import Job
from app.trace.window import SkippedStep, StepKind, WindowState

MAX_DECLARED = 1_000_000  # of all that is remembered: beyond, the oldest windows are final
# Members of groups send beside the workers whose last word closes a window. Each revision analyses
# the window anew: what trickles in for longer is too late.
MAX_GROUP_WINDOWS = 8
MAX_GROUP_REVISIONS = 4

Recall = Callable[[int], bytes]  # what `trace_codec` packed of the window with this first step
# Step, and what `OpenStep.take` wants: worker, rank, operations, number of declared ones, kind.
Late = tuple[int, int, int, Part | None, int | None, StepKind | None]


class ClosedWindow(msgspec.Struct):
    """What is known of a closed window beside its stored operations.

    `declared` holds for every skipped step what its `OpenStep.declared()` said; it can be revised
    `group_revisions` times for late collectives inside groups.
    """

    state: WindowState
    revision: int
    steps: list[tuple[int, SkippedStep | None]]
    declared: dict[int, dict[int, tuple[int, int]]]
    group_revisions: int = 0

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

    def takes_groups(self, step: int) -> bool:
        """Whether late collectives inside groups of this step can be taken in."""
        if not self.group_revisions:
            return False
        return any(number == step and has_groups(skipped) for number, skipped in self.steps)

    @property
    def size(self) -> int:
        """How much there is to remember."""
        return sum(map(len, self.declared.values()))


class Revised(NamedTuple):
    """A closed window with what has come for it."""

    window: OpenWindow
    state: WindowState
    groups: GroupTable | None


class ClosedWindows:
    """The closed windows of one run that can still be revised, the oldest first."""

    def __init__(self, windows: Iterable[ClosedWindow], now_s: float) -> None:
        self._windows = {window.first_step: (window, now_s) for window in windows}
        self._late: dict[int, list[Late]] = {}
        self._late_groups: dict[int, list[GroupPart]] = {}
        self._late_rows = RowCounts()  # of windows that can still be revised
        self._final_through = -1  # what comes late of steps up to this one is not counted any more

    @property
    def kept(self) -> list[ClosedWindow]:
        """All of them, for storing."""
        return [window for window, _ in self._windows.values()]

    def add(
        self,
        steps: list[SettledStep],
        state: WindowState,
        revision: int,
        now_s: float,
        *,
        group_revisions: int = 0,
    ) -> None:
        """A window has been closed; without skipped steps and groups it is final."""
        declared = {each.step: each.open.declared() for each in steps if each.open is not None}
        if declared or group_revisions:
            named = [(each.step, each.skipped) for each in steps]
            window = ClosedWindow(state, revision, named, declared, group_revisions)
            self._windows[window.first_step] = (window, now_s)
            self._windows = dict(sorted(self._windows.items()))
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remember no more than there is room for, but the newest and what is to be revised."""
        with_groups = [first for first, (each, _) in self._windows.items() if each.group_revisions]
        for first in with_groups[:-MAX_GROUP_WINDOWS]:
            window = self._windows[first][0]
            window.group_revisions = 0
            if not window.declared and first not in self._late_groups:
                del self._windows[first]
        size = sum(window.size for window, _ in self._windows.values())
        for first, (window, _) in list(self._windows.items())[:-1]:
            is_due = first in self._late or first in self._late_groups
            if size > MAX_DECLARED and window.size and not is_due:
                del self._windows[first]
                size -= window.size

    def forget(self, before_s: float) -> None:
        """Windows that were closed before this moment are final, unless something has just come."""
        old = [first for first, (_, at_s) in self._windows.items() if at_s < before_s]
        for first in old:
            if first not in self._late and first not in self._late_groups:
                del self._windows[first]
        with_groups = [first for first, (each, _) in self._windows.items() if each.group_revisions]
        final_through = min(with_groups, default=LAST_STEP + 1) - 1
        if final_through != self._final_through:
            self._final_through = final_through
            self._late_rows.remove_through(final_through)

    def take_group(self, number: int, part: GroupPart) -> Literal["accepted", "late", "refused"]:
        """Whether collectives inside groups of this step can be taken in, or are too many.

        `revise` will take them in.
        """
        for first, (window, _) in self._windows.items():
            if window.takes_groups(number):
                if not self._late_rows.add(number, part):
                    return "refused"
                self._late_groups.setdefault(first, []).append(part)
                return "accepted"
        return "late"

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

    def revise(self, job: Job, epoch: int, roll: Roll, recall: Recall) -> list[Revised]:
        """The windows that something has come for, with it in them; each is closed again."""
        revised = [
            self._revised(first, job, epoch, roll, recall)
            for first in sorted(self._late.keys() | self._late_groups.keys())
        ]
        self._late, self._late_groups = {}, {}
        return [each for each in revised if each is not None]

    def _revised(
        self, first: int, job: Job, epoch: int, roll: Roll, recall: Recall
    ) -> Revised | None:
        late, late_groups = self._late.get(first, []), self._late_groups.get(first, [])
        window, at_s = self._windows[first]
        stored = unpack_window(recall(first))
        groups = of_parts(late_groups, stored.groups) if late_groups else stored.groups
        # Looking costs as much where all of it was there: that counts as a revision, too.
        left = max(0, window.group_revisions - bool(late_groups))
        if not late and _num_rows(groups) == _num_rows(stored.groups):
            window.group_revisions = left
            if not left and not window.declared:
                del self._windows[first]
            return None
        del self._windows[first]
        again = OpenWindow(job, epoch, len(window.steps), revision=window.revision)
        for number, skipped in window.steps:
            table = stored.ops.of_step(number)
            if skipped is None or skipped.kind is not None:
                again.add(SettledStep(number, table, skipped))
                continue
            step = OpenStep.again(table, number, window.declared[number], job.parallelism.pp_size)
            for each, worker, rank, part, num_declared, kind in late:
                if each == number:
                    step.take(worker, rank, part, num_declared, kind)
            again.add(settled(step, job, roll, "in time"))
        state = _state(window.state, again)
        self.add(again.settled, state, window.revision + 1, at_s, group_revisions=left)
        return Revised(again, state, groups)


def _num_rows(groups: GroupTable | None) -> int:
    return 0 if groups is None else groups.num_rows


def _state(before: WindowState, window: OpenWindow) -> WindowState:
    """An incomplete window is complete once nothing is missing in it any more."""
    return window.ended_state if before == "incomplete" else before
