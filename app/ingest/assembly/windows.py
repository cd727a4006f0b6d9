"""The open window, and closed windows that late operations may still complete.

Late collectives inside groups are taken into the newest windows, too.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import BoundedSemaphore
from typing import Literal

import msgspec

from app.engine.memory import return_freed_memory
from app.ingest.assembly.op_table import (
    GroupRowCounts,
    GroupSlice,
    GroupTable,
    OpTable,
    group_table_of_slices,
)
from app.ingest.assembly.rank_tracker import RankTracker
from app.ingest.assembly.run_table import concatenate_tables
from app.ingest.assembly.steps import OpenStep, SettledStep, StepReport, is_left_out, settle_step
from app.ingest.assembly.window_codec import (
    PackedWindow,
    pack_remainders,
    pack_window,
    unpack_window,
)
from app.ingest.wire.body import LAST_STEP
from app.trace.job import Job
from app.trace.window import (
    PartialSteps,
    SkippedStep,
    Window,
    WindowState,
)

# Evaluations and the like close no window, unless there are this many in a row.
MAX_LEFT_OUT = 256
# A window with more operations would not fit into a consumer's memory: it closes earlier.
MAX_WINDOW_OPS = 16_000_000
LARGE_OPS = 1_000_000


# One at a time, and none waits for another, since each holds a window's times.
_PACKER = ThreadPoolExecutor(1, thread_name_prefix="packer")
_PACKER_IS_FREE = BoundedSemaphore(1)


def _pack(table: OpTable, groups: GroupTable | None, *, can_change: bool) -> PackedWindow:
    remainders = pack_remainders(table, groups) if can_change else None
    packed = PackedWindow(pack_window(table, groups), remainders)
    if table.num_ops > LARGE_OPS:  # a thread has a heap of its own, which keeps what it freed
        return_freed_memory()
    return packed


class OpenWindow:
    """Successive settled steps; full with N complete or N incomplete ones.

    `revision` is the newest one handed out; `has_news` says that there are changes since.
    """

    def __init__(self, job: Job, epoch: int, window_steps: int, *, revision: int = 0) -> None:
        self._job = job
        self._epoch = epoch
        self._window_steps = window_steps
        self._table: OpTable | None = None
        self.settled: list[SettledStep] = []
        self.revision = revision
        self.has_news = False

    def add(self, step: SettledStep) -> None:
        """Append the next step."""
        self.settled.append(step)
        self._table, self.has_news = None, True

    def replace(self, step: SettledStep) -> None:
        """Replace the step of the same number."""
        self.settled = [step if known.step == step.step else known for known in self.settled]
        self._table, self.has_news = None, True

    def skipped(self, number: int) -> SettledStep | None:
        """The step of this number, if it is in the window and was skipped."""
        return next((step for step in self.settled if step.step == number and step.skipped), None)

    @property
    def state(self) -> WindowState:
        """State by the steps so far."""
        num_lacking = sum(_is_incomplete(step) for step in self.settled)
        num_left_out = sum(is_left_out(step.skipped) for step in self.settled)
        num_complete = len(self.settled) - num_lacking - num_left_out
        is_over = num_left_out >= MAX_LEFT_OUT
        if num_complete >= self._window_steps or (num_complete and (is_over or self._is_large())):
            return "complete"
        return "incomplete" if is_over or num_lacking >= self._window_steps else "open"

    @property
    def ended_state(self) -> WindowState:
        """State if no further step follows."""
        is_lacking = any(map(_is_incomplete, self.settled))
        has_no_training = all(is_left_out(step.skipped) for step in self.settled)
        return "incomplete" if is_lacking or has_no_training else "complete"

    @property
    def table(self) -> OpTable:
        """All operations, those of skipped steps included."""
        if self._table is None:
            self._table = concatenate_tables([step.table for step in self.settled])
            # The steps' own copies would take as much again.
            self.settled = [
                replace(step, table=self._table.of_step(step.step)) for step in self.settled
            ]
            if self._table.num_ops > LARGE_OPS:  # its batches lay in small blocks all over
                return_freed_memory()
        return self._table

    @property
    def steps_with_groups(self) -> list[int]:
        """Steps whose collectives inside groups are kept: not those of evaluations."""
        return [step.step for step in self.settled if not is_left_out(step.skipped)]

    def revised(
        self, state: WindowState, tracker: RankTracker, groups: GroupTable | None = None
    ) -> Window:
        """The window for analysis, as a new revision; `tracker` is the run's."""
        steps = tuple(step.step for step in self.settled if step.skipped is None)
        self.revision = max(len(self.settled), self.revision + 1)
        self.has_news = False
        skipped = tuple(step.skipped for step in self.settled if step.skipped)
        origin_ns = self.table.origins_ns(steps)
        lacking = tuple(step for step in skipped if step.kind is None and step.missing)
        return Window(
            job=self._job,
            epoch=self._epoch,
            first_step=self.settled[0].step,
            steps=steps,
            trace=self.table.trace(steps),
            skipped=skipped,
            state=state,
            revision=self.revision,
            hosts=tracker.hosts(),
            places=tracker.workers_by_rank({rank for step in skipped for rank in step.missing}),
            origin_ns=origin_ns,
            collectives=None if groups is None else groups.collectives(steps, origin_ns),
            partial=partial_steps(self.table, groups, steps, lacking) if lacking else None,
        )

    def packing(self, groups: GroupTable | None, *, takes_groups: bool) -> "Future[PackedWindow]":
        """Its operations and collectives; to the nanosecond if late ones may revise it.

        A large window is packed in a thread, while the caller analyses it.
        """
        can_change = takes_groups or any(step.open is not None for step in self.settled)
        if self.table.num_ops > LARGE_OPS:
            table = self.table
            _PACKER_IS_FREE.acquire()
            try:
                packing = _PACKER.submit(_pack, table, groups, can_change=can_change)
            except BaseException:  # no thread can be started
                _PACKER_IS_FREE.release()
                raise
            packing.add_done_callback(lambda _: _PACKER_IS_FREE.release())
            return packing
        packed: Future[PackedWindow] = Future()
        packed.set_result(_pack(self.table, groups, can_change=can_change))
        return packed

    def _is_large(self) -> bool:
        """Whether one more step like the last would exceed the limit."""
        sizes = [step.table.num_ops for step in self.settled]
        return sum(sizes) + sizes[-1] > MAX_WINDOW_OPS


def partial_steps(
    table: OpTable,
    groups: GroupTable | None,
    complete: Sequence[int],
    lacking: tuple[SkippedStep, ...],
) -> PartialSteps:
    """The recorded part of the steps that lack operations, ascending."""
    numbers = [step.step for step in lacking]
    every = sorted([*complete, *numbers])
    collectives = None if groups is None else groups.collectives(every, table.origins_ns(every))
    return PartialSteps(lacking, table.trace(numbers), table.origins_ns(numbers), collectives)


def _is_incomplete(step: SettledStep) -> bool:
    return step.skipped is not None and step.skipped.kind is None


MAX_DECLARED = 1_000_000  # declarations of all windows: beyond, the oldest windows are final
# A window closes once its workers have declared their steps; other members of groups may send
# later. Each revision analyses the window anew, so their number is limited.
MAX_GROUP_WINDOWS = 8
MAX_GROUP_REVISIONS = 4

RecallOps = Callable[[int], PackedWindow]  # stored operations of the window with this first step


class ClosedWindow(msgspec.Struct):
    """State of a closed window beside its stored operations.

    `declared` is `OpenStep.declared()` of every skipped step; late collectives inside groups can
    revise the window `group_revisions` times.
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

    def can_use(self, step: int, rank: int) -> bool:
        """Whether the rank's data of this step is missing, so that a late batch can complete it."""
        if step not in self.declared:
            return False
        if rank not in self.declared[step]:
            return True
        skipped = dict(self.steps)[step]
        return skipped is not None and skipped.is_missing(rank)

    def takes_groups(self, step: int) -> bool:
        """Whether late collectives inside groups of this step can be taken in."""
        if not self.group_revisions:
            return False
        return any(number == step and not is_left_out(skipped) for number, skipped in self.steps)

    @property
    def size(self) -> int:
        """Number of declarations held."""
        return sum(map(len, self.declared.values()))


@dataclass(frozen=True, slots=True)
class WindowRevision:
    """A window as it is now, to be saved in place of its earlier revision.

    `packing` encodes the operations of a closed window; None while it is open, and where
    `RunAssembler.keeps_ops` is false.
    """

    window: Window
    packing: Future[PackedWindow] | None = None

    @property
    def ops(self) -> PackedWindow | None:
        """All operations of a closed window; waits until they are packed."""
        return None if self.packing is None else self.packing.result()

    def finish_packing(self) -> None:
        """Wait until `ops` is there, which takes too long for a transaction; raises what failed."""
        if self.packing is not None:
            self.packing.result()


class ClosedWindows:
    """The closed windows of one run that can still be revised, the oldest first."""

    def __init__(self, windows: Iterable[ClosedWindow], now_s: float) -> None:
        self._windows = {window.first_step: (window, now_s) for window in windows}
        self._late: dict[int, list[tuple[int, StepReport]]] = {}  # with their steps
        self._late_groups: dict[int, list[GroupSlice]] = {}
        self._late_rows = GroupRowCounts()  # of windows that can still be revised
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
        declared = {step.step: step.open.declared() for step in steps if step.open is not None}
        if declared or group_revisions:
            named = [(step.step, step.skipped) for step in steps]
            window = ClosedWindow(state, revision, named, declared, group_revisions)
            self._windows[window.first_step] = (window, now_s)
            self._windows = dict(sorted(self._windows.items()))
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Make the oldest windows final while there are too many; not those due for revision."""
        with_groups = self._first_steps_with_groups()
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

    def _first_steps_with_groups(self) -> list[int]:
        return [first for first, (window, _) in self._windows.items() if window.group_revisions]

    def forget(self, before_s: float) -> None:
        """Windows closed before this moment become final, unless late data has just come."""
        old = [first for first, (_, at_s) in self._windows.items() if at_s < before_s]
        for first in old:
            if first not in self._late and first not in self._late_groups:
                del self._windows[first]
        final_through = min(self._first_steps_with_groups(), default=LAST_STEP + 1) - 1
        if final_through != self._final_through:
            self._final_through = final_through
            self._late_rows.remove_through(final_through)

    def take_group(self, number: int, part: GroupSlice) -> Literal["accepted", "late", "refused"]:
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

    def take(self, number: int, report: StepReport) -> bool:
        """Whether a late report of this step can still be used; if so, `revise` will."""
        for first, (window, _) in self._windows.items():
            if window.can_use(number, report.rank):
                self._late.setdefault(first, []).append((number, report))
                return True
        return False

    def revise(
        self, job: Job, epoch: int, tracker: RankTracker, recall: RecallOps
    ) -> list[WindowRevision]:
        """The windows that late data has changed, each closed again."""
        revised = [
            self._revised(first, job, epoch, tracker, recall)
            for first in sorted(self._late.keys() | self._late_groups.keys())
        ]
        self._late, self._late_groups = {}, {}
        return [revision for revision in revised if revision is not None]

    def _revised(
        self, first: int, job: Job, epoch: int, tracker: RankTracker, recall: RecallOps
    ) -> WindowRevision | None:
        late, late_groups = self._late.get(first, []), self._late_groups.get(first, [])
        window, at_s = self._windows[first]
        stored = unpack_window(*recall(first))
        groups = group_table_of_slices(late_groups, stored.groups) if late_groups else stored.groups
        # Comparing costs as much where nothing is new: that counts as a revision, too.
        remaining = max(0, window.group_revisions - bool(late_groups))
        if not late and _num_rows(groups) == _num_rows(stored.groups):
            window.group_revisions = remaining
            if not remaining and not window.declared:
                del self._windows[first]
            return None
        del self._windows[first]
        reopened = OpenWindow(job, epoch, len(window.steps), revision=window.revision)
        for number, skipped in window.steps:
            table = stored.ops.of_step(number)
            if skipped is None or is_left_out(skipped):
                reopened.add(SettledStep(number, table, skipped))
                continue
            step = OpenStep.restored(
                table, number, window.declared[number], job.parallelism.pp_size
            )
            for late_number, report in late:
                if late_number == number:
                    step.add_report(report)
            reopened.add(settle_step(step, job, tracker, "in time"))
        # An incomplete window is complete once nothing is missing in it any more.
        state = reopened.ended_state if window.state == "incomplete" else window.state
        self.add(reopened.settled, state, window.revision + 1, at_s, group_revisions=remaining)
        return WindowRevision(
            reopened.revised(state, tracker, groups),
            reopened.packing(groups, takes_groups=remaining > 0),
        )


def _num_rows(groups: GroupTable | None) -> int:
    return 0 if groups is None else groups.num_rows
