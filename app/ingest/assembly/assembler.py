"""Assembles batches in any order into steps, and steps into windows. Does no I/O.

After a crash an assembler is rebuilt from its stored `RunState` and the spooled batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import zstandard

from app.ingest.assembly.op_table import NO_GROUPS, GroupCounts, GroupRecords, group_slices
from app.ingest.assembly.rank_tracker import NO_STEP, BatchVerdict, RankCursor, RankTracker
from app.ingest.assembly.run_table import KnownShapes
from app.ingest.assembly.steps import (
    OpenStep,
    OpenSteps,
    SettledStep,
    StepReport,
    longest_span_s,
    restore_settled_step,
    settle_step,
)
from app.ingest.assembly.windows import (
    MAX_GROUP_REVISIONS,
    ClosedWindow,
    ClosedWindows,
    OpenWindow,
    RecallOps,
    WindowRevision,
)
from app.ingest.batch import OpBatch
from app.trace.job import Job, Placement
from app.trace.window import SkippedStep, WindowState

_SPOOL_LEVEL = -1  # faster than 1, and columns of batches become smaller


class SpooledBatch(NamedTuple):
    """A queue entry's batch, and the steps for which it was too late."""

    body: bytes
    dropped: list[int]


_DECODER = msgspec.msgpack.Decoder(list[SpooledBatch])


def pack_spool(batches: Sequence[SpooledBatch]) -> bytes:
    """The batches in their order, compressed."""
    return zstandard.compress(msgspec.msgpack.encode(batches), _SPOOL_LEVEL)


def unpack_spool(blob: bytes) -> list[SpooledBatch]:
    """The batches in bytes that `pack_spool` made."""
    return _DECODER.decode(zstandard.decompress(blob))


class RunState(msgspec.Struct):
    """The blob that `RunAssembler.dump` writes.

    The cursors have seen all batches up to `turn`. `settled` are the steps of the open window,
    each with why it was skipped, if it was: a deadline that has passed cannot be told from the
    batches. `closed` are windows that late operations may still change. `has_groups` says that
    collectives inside groups have come.
    """

    turn: int = 0
    cursors: list[RankCursor] = []  # msgspec copies these
    settled_through: int = NO_STEP
    closed_through: int = NO_STEP
    longest_span_s: float | None = None
    revision: int = 0
    settled: list[tuple[int, SkippedStep | None]] = []
    closed: list[ClosedWindow] = []
    has_groups: bool = False

    @classmethod
    def read(cls, blob: bytes) -> "RunState":
        """The state in bytes that `dump` made, in this version or an earlier one."""
        return msgspec.msgpack.decode(blob, type=cls)


FIRST_STEP_PATIENCE = 10  # workers do not start at once, and the length of a step is not known yet
SPAN_PATIENCE = 3
LONGEST_SPAN_S = 86_400.0  # clocks may say anything
MAX_PATIENCE = 60  # half an hour, where the deadline is 30 s


@dataclass(frozen=True, slots=True)
class WindowRules:
    """When windows are full, and how long is waited for what is missing."""

    window_steps: int
    deadline_s: float
    revise_for_s: float = 600.0


class AddedBatch(NamedTuple):
    """Outcome of a batch.

    It came too late for the steps in `dropped`, with `num_late` operations of training; `last_step`
    is the last of its other steps. `groups` counts its collectives inside groups.
    """

    verdict: BatchVerdict
    dropped: list[int]
    num_late: int
    last_step: int
    groups: GroupCounts = NO_GROUPS


class EarlierBatch(NamedTuple):
    """A batch that was added before a crash, in the given turn; too late for steps `dropped`."""

    turn: int
    batch: OpBatch
    digest: int
    dropped: list[int]


class RunAssembler:
    """One run of a job: open steps, settled steps and windows.

    Steps settle in ascending order. `now_s` is any clock that never goes back. A step is settled
    once every worker has declared it, or a deadline after its first batch. Later operations still
    complete a skipped step, for `revise_for_s`. `recall` gives the stored operations of a closed
    window.
    """

    def __init__(self, job: Job, epoch: int, rules: WindowRules, recall: RecallOps) -> None:
        self.job = job
        self._epoch = epoch
        self._rules = rules
        self._recall = recall
        self.tracker = RankTracker(job.parallelism)  # ranks seen and their watermarks
        self._window = OpenWindow(job, epoch, rules.window_steps)
        self._closed = ClosedWindows((), 0.0)
        self._shapes = KnownShapes()
        self._steps = OpenSteps(self._shapes)
        self._groups = GroupRecords()
        self._resettle: set[int] = set()
        self._settled_through = NO_STEP
        self.closed_through = NO_STEP
        self.longest_span_s: float | None = None
        self.is_dirty = False  # whether something was settled since the last `dump`
        self.turn = 0  # the last one that the restored state knew of
        # Whether the caller stores operations of windows that close from now on. Without them a
        # closed window is final, since none can be revised.
        self.keeps_ops = True

    @classmethod
    def restore(
        cls,
        job: Job,
        epoch: int,
        rules: WindowRules,
        recall: RecallOps,
        *,
        blob: bytes | None,
        before: Iterable[EarlierBatch],
        hosts: Mapping[tuple[int, int], str],
        placements: Mapping[tuple[int, int], Placement] | None = None,
        now_s: float,
    ) -> "RunAssembler":
        """The assembler whose last `dump` is `blob`, from all batches with a step not closed then.

        Only the waiting for unsettled and late steps begins anew.
        """
        run = cls(job, epoch, rules, recall)
        state = RunState() if blob is None else RunState.read(blob)
        run.tracker = RankTracker(job.parallelism, state.cursors, hosts, placements)
        run._closed = ClosedWindows(state.closed, now_s)
        run.closed_through = state.closed_through
        run.longest_span_s = state.longest_span_s
        run.turn = state.turn
        run._groups.were_seen = state.has_groups
        for turn, batch, digest, dropped in before:
            if (worker := run.tracker.worker(batch)) is not None:
                if turn > state.turn:
                    run.tracker.add(batch, worker, digest)
                run._take_again(batch, worker, set(dropped), now_s)
        for number, skipped in state.settled:
            step = run._steps.get(number) or OpenStep(number, now_s, run._shapes)
            run._put(restore_settled_step(step, job, skipped))
        run._settled_through = state.settled_through
        run._window.revision = state.revision
        run._window.has_news = state.revision < len(state.settled)
        run.is_dirty = False
        return run

    @property
    def first_revisable(self) -> int | None:
        """The first step of the oldest closed window that late operations may still change."""
        return min((window.first_step for window in self._closed.kept), default=None)

    def dump(self, turn: int) -> bytes:
        """State that the batches of open windows do not hold; to be saved whenever it `is_dirty`.

        `turn` numbers the last batches that were added.
        """
        self.is_dirty = False
        state = RunState(
            turn=turn,
            cursors=self.tracker.cursors,
            settled_through=self._settled_through,
            closed_through=self.closed_through,
            longest_span_s=self.longest_span_s,
            revision=self._window.revision,
            settled=[(step.step, step.skipped) for step in self._window.settled],
            closed=self._closed.kept,
            has_groups=self._groups.were_seen,
        )
        return msgspec.msgpack.encode(state)

    @property
    def has_unreported_steps(self) -> bool:
        """Whether the open window has steps that were not handed out."""
        return self._window.has_news

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing, so that it can leave the memory until new data arrives."""
        return not self._steps

    def add(self, batch: OpBatch, now_s: float, digest: int = 0) -> AddedBatch:
        """Take a batch; of two with the same number the first wins."""
        worker = self.tracker.worker(batch)
        if worker is None:  # of a job of other sizes: no step can ever use it
            return AddedBatch("stranger", [], batch.columns.num_ops, NO_STEP)
        verdict = self.tracker.add(batch, worker, digest)
        if verdict != "new":
            num_late = batch.columns.num_ops if verdict == "stranger" else 0
            return AddedBatch(verdict, [], num_late, NO_STEP)
        return self._take(batch, worker, now_s)

    def settle(self, now_s: float, *, tells_open: bool = True) -> list[WindowRevision]:
        """The newest revision of each window that has changed since the last call.

        Without `tells_open` the open window is left for a later call.
        """
        self._closed.forget(now_s - self._rules.revise_for_s)
        changes = self._revise() + self._settle_again(now_s) + self._settle_due(now_s)
        if self._window.has_news and tells_open:
            groups = self._groups.open_table(self._window.steps_with_groups)
            changes.append(WindowRevision(self._window.revised("open", self.tracker, groups)))
        return changes

    def finish(
        self, now_s: float, state: Literal["complete", "superseded"]
    ) -> list[WindowRevision]:
        """The last revisions: the job has ended ("complete"), or a newer run has registered."""
        self.tracker.give_up()
        changes = self._revise() + self._settle_again(now_s) + self._settle_due(now_s)
        while step := self._steps.lowest:
            changes += self._settle(step, "before the run ended", now_s)
        if self._window.settled:
            ended: WindowState = "superseded" if state == "superseded" else self._window.ended_state
            changes.append(self._close(ended, now_s))
        return changes

    def next_deadline_s(self) -> float | None:
        """When `settle` is due even without new data; None if nothing is waited for."""
        lowest = self._steps.lowest
        return None if lowest is None else lowest.first_arrival_s + self._patience_s()

    def _take(self, batch: OpBatch, worker: int, now_s: float) -> AddedBatch:
        dropped: list[int] = []
        num_late, last_step = 0, NO_STEP
        for number, report in _step_reports(batch, worker, self._shapes).items():
            if number > self.closed_through:
                last_step = number
            if number > self._settled_through:
                self._steps.put(number, now_s, report)
            elif not self._take_late(number, report):
                dropped.append(number)
                # Data of steps that are not analysed is dropped anyway, and does not count as late.
                num_late += report.part.num_ops if report.part and report.kind is None else 0
        if batch.collectives is None:
            return AddedBatch("new", dropped, num_late, last_step)
        groups, last_group_step = self._take_groups(batch)
        return AddedBatch("new", dropped, num_late, max(last_step, last_group_step), groups)

    def _take_groups(self, batch: OpBatch) -> tuple[GroupCounts, int]:
        """Outcome of a batch's collectives inside groups, and the last step not yet closed."""
        counts = {"accepted": 0, "late": 0, "refused": 0}
        last_step = NO_STEP
        for number, part in group_slices(batch):
            self._groups.were_seen = True
            if number <= self.closed_through:
                fate = self._closed.take_group(number, part)
            elif self._groups.put(number, part):
                fate, last_step = "accepted", number
            else:
                fate = "refused"
            counts[fate] += part.rows.num_rows
        return GroupCounts(**counts), last_step

    def _take_again(self, batch: OpBatch, worker: int, dropped: set[int], now_s: float) -> None:
        for number, report in _step_reports(batch, worker, self._shapes).items():
            if number > self.closed_through and number not in dropped:
                self._steps.put(number, now_s, report)
        for number, part in group_slices(batch):
            if number > self.closed_through:
                self._groups.put(number, part)

    def _take_late(self, number: int, report: StepReport) -> bool:
        """Whether a skipped step of the open window, or of a closed one, can still use it."""
        if number <= self.closed_through:
            return self._closed.take(number, report)
        skipped = self._window.skipped(number)
        if skipped is None or skipped.open is None or not skipped.can_use(report.rank):
            return False
        skipped.open.add_report(report)
        self._resettle.add(number)
        return True

    def _patience_s(self) -> float:
        deadline_s = self._rules.deadline_s
        if self.longest_span_s is None:
            return FIRST_STEP_PATIENCE * deadline_s
        # One step that took a day must not make us wait for days ever after.
        return min(max(deadline_s, SPAN_PATIENCE * self.longest_span_s), MAX_PATIENCE * deadline_s)

    def _revise(self) -> list[WindowRevision]:
        revised = self._closed.revise(self.job, self._epoch, self.tracker, self._recall)
        self.is_dirty |= bool(revised)
        return revised

    def _settle_again(self, now_s: float) -> list[WindowRevision]:
        for number in sorted(self._resettle):
            skipped = self._window.skipped(number)
            if skipped is not None and skipped.open is not None:
                self._window.replace(settle_step(skipped.open, self.job, self.tracker, "in time"))
                self.is_dirty = True
        self._resettle.clear()
        state = self._window.state if self._window.settled else "open"
        return [] if state == "open" else [self._close(state, now_s)]

    def _settle_due(self, now_s: float) -> list[WindowRevision]:
        changes: list[WindowRevision] = []
        watermark = self.tracker.watermark()
        while step := self._steps.lowest:
            is_final = watermark >= step.step
            is_late = now_s - step.first_arrival_s >= self._patience_s()
            if not (is_final or is_late or self._steps.are_too_many):
                break
            if not is_final:
                self.tracker.give_up_to(step.step)
                watermark = self.tracker.watermark()
            changes += self._settle(step, "at all" if is_final else "in time", now_s)
        return changes

    def _settle(self, step: OpenStep, when: str, now_s: float) -> list[WindowRevision]:
        verdict = settle_step(step, self.job, self.tracker, when)
        if verdict.skipped is None:
            span_s = min(longest_span_s(verdict.table), LONGEST_SPAN_S)
            self.longest_span_s = max(span_s, self.longest_span_s or 0.0)
        self._put(verdict)
        state = self._window.state
        return [] if state == "open" else [self._close(state, now_s)]

    def _put(self, step: SettledStep) -> None:
        self._steps.remove_through(step.step)
        self._settled_through = step.step
        self._window.add(step)
        self.is_dirty = True

    def _close(self, state: WindowState, now_s: float) -> WindowRevision:
        window = self._window
        self.closed_through = self._settled_through
        self.is_dirty = True
        groups = self._groups.table(window.steps_with_groups)
        self._groups.remove_through(self.closed_through)
        takes_groups = self._groups.were_seen
        packing = window.packing(groups, takes_groups=takes_groups) if self.keeps_ops else None
        change = WindowRevision(window.revised(state, self.tracker, groups), packing)
        if self.keeps_ops:
            self._closed.add(
                window.settled,
                state,
                window.revision,
                now_s,
                group_revisions=MAX_GROUP_REVISIONS if takes_groups else 0,
            )
        self._window = OpenWindow(self.job, self._epoch, self._rules.window_steps)
        return change


def _step_reports(batch: OpBatch, worker: int, shapes: KnownShapes) -> dict[int, StepReport]:
    """The reports of a batch by step, ascending."""
    parts = shapes.slices_of(worker, batch.rank, batch.columns)
    declared = dict(batch.steps_done)
    kinds = dict(batch.step_kinds)
    return {
        number: StepReport(
            worker, batch.rank, parts.get(number), declared.get(number), kinds.get(number)
        )
        for number in sorted({*parts, *declared})
    }
