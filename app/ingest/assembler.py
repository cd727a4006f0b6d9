"""Batches in any order become steps, and steps windows. Nothing is read, saved or waited for."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from app.ingest.batch import OpBatch
from app.ingest.cursor import NO_STEP
from app.ingest.open_window import OpenWindow
from app.ingest.retained import BatchKey, Retained
from app.ingest.roll import Roll
from app.ingest.run_state import RunState
from app.ingest.step import OpenStep, Part, SettledStep, longest_span_s
from app.ingest.trace_codec import pack
from app.ingest.verdict import settled
from app.trace.job import Job
from app.trace.window import Window, WindowState

FIRST_STEP_PATIENCE = 10  # workers do not start at once, and nobody knows yet how long a step is
SPAN_PATIENCE = 3
MOST_PATIENCE = 60  # half an hour, where the deadline is 30 s


@dataclass(frozen=True, slots=True)
class Change:
    """A window as it is now, to be saved in place of its earlier revision.

    `released` are the batches (rank, batch_seq) that no open window needs any more, `late_ops`
    the run's operations so far that came after their step was settled. `ops` is there once the
    window is closed: all its operations, packed by `trace_codec`.
    """

    window: Window
    released: list[BatchKey]
    late_ops: int
    ops: bytes | None = None


class RunAssembler:
    """All of one run of a job: what has come, what is settled, what is still waited for.

    Steps settle in ascending order, so that a closed window never changes. `now_s` is any clock
    that never goes back. A step is settled once every worker's word on it is final, or when it
    has been waited for long enough since its first batch.
    """

    def __init__(self, job: Job, epoch: int, *, window_steps: int, deadline_s: float) -> None:
        self.job = job
        self._deadline_s = deadline_s
        self._roll = Roll(job.parallelism)
        self._retained = Retained()
        self._window = OpenWindow(job, epoch, window_steps)
        self._steps: dict[int, OpenStep] = {}
        self._heap: list[int] = []  # the same steps, the lowest first
        self._settled_through = NO_STEP
        self._closed_through = NO_STEP
        self._longest_span_s: float | None = None
        self._late_ops = 0

    @classmethod
    def restore(
        cls,
        job: Job,
        epoch: int,
        blob: bytes | None,
        batches: Iterable[OpBatch],
        now_s: float,
        *,
        window_steps: int,
        deadline_s: float,
    ) -> "RunAssembler":
        """The assembler whose `dump` is `blob`, from the batches that it had not released.

        Only the waiting for unsettled steps begins anew.
        """
        run = cls(job, epoch, window_steps=window_steps, deadline_s=deadline_s)
        state = RunState() if blob is None else RunState.read(blob)
        run._roll = Roll(job.parallelism, state.cursors)
        run._retained = Retained(state.late)
        # As if the steps of the open window were not settled yet: they are put in again.
        run._settled_through = run._closed_through = state.closed_through
        for batch in batches:
            if (worker := run._roll.worker(batch)) is not None:
                run._roll.see(batch, worker)
                run._take(batch, worker, now_s)
        for number, skipped in state.settled:
            step = run._steps.get(number) or OpenStep(number, now_s)
            run._put(SettledStep(number, step.table(job), skipped))
        run._settled_through = state.settled_through
        run._longest_span_s = state.longest_span_s
        run._late_ops = state.late_ops
        run._window.announced = len(state.settled)
        return run

    def dump(self) -> bytes:
        """What the batches not yet released cannot tell; save it with the changes of `settle`."""
        state = RunState(
            cursors=self._roll.cursors,
            settled_through=self._settled_through,
            closed_through=self._closed_through,
            longest_span_s=self._longest_span_s,
            late_ops=self._late_ops,
            late=self._retained.late_after(self._closed_through),
            settled=[(step.step, step.skipped) for step in self._window.settled],
        )
        return state.write()

    @property
    def late_ops(self) -> int:
        """Operations so far that came after their step was settled, and were dropped."""
        return self._late_ops

    def hosts(self) -> dict[tuple[int, int], str]:
        """Host by (dp_rank, stage), as far as the workers have said."""
        return self._roll.hosts()

    def add(self, batch: OpBatch, now_s: float) -> Literal["new", "duplicate"]:
        """Take a batch; of two with the same number the first wins."""
        worker = self._roll.worker(batch)
        if worker is None:  # of a job of other sizes: no step can ever use it
            self._late_ops += batch.columns.num_ops
            self._retained.add((batch.rank, batch.batch_seq), set(), [])
            return "new"
        if not self._roll.see(batch, worker):
            return "duplicate"
        self._take(batch, worker, now_s)
        return "new"

    def settle(self, now_s: float) -> list[Change]:
        """The newest revision of each window that has changed since the last call."""
        changes = self._settle_due(now_s)
        if self._window.has_news:
            changes.append(self._change("open"))
        return changes

    def finish(self, now_s: float, state: Literal["complete", "superseded"]) -> list[Change]:
        """The last revisions: the job has ended ("complete"), or a newer run has registered."""
        changes = self._settle_due(now_s)
        while self._heap:
            changes += self._settle(self._steps[self._heap[0]], "before the run ended")
        if self._window.settled:
            ended: WindowState = "superseded" if state == "superseded" else self._window.ended_state
            changes.append(self._close(ended))
        return changes

    def next_deadline_s(self) -> float | None:
        """When `settle` is due even if nothing comes; None if nothing is waited for."""
        if not self._heap:
            return None
        return self._steps[self._heap[0]].first_arrival_s + self._patience_s()

    def _take(self, batch: OpBatch, worker: int, now_s: float) -> None:
        key = (batch.rank, batch.batch_seq)
        parts = _parts(batch, worker)
        declared = dict(batch.steps_done)
        touched = {*parts, *declared}
        late = {step for step in touched if step <= self._settled_through}
        late.update(self._retained.late_steps(key))
        self._late_ops += sum(parts[step].columns.num_ops for step in late & parts.keys())
        for number in sorted(touched - late):
            step = self._open(number, now_s)
            if number in parts:
                step.add(parts[number])
            if number in declared:
                step.declare(worker, declared[number])
        self._retained.add(key, touched - late, sorted(late))

    def _open(self, number: int, now_s: float) -> OpenStep:
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = OpenStep(number, now_s)
            heappush(self._heap, number)
        return step

    def _patience_s(self) -> float:
        if self._longest_span_s is None:
            return FIRST_STEP_PATIENCE * self._deadline_s
        # One step that took a day must not make us wait for days ever after.
        most_s = MOST_PATIENCE * self._deadline_s
        return min(max(self._deadline_s, SPAN_PATIENCE * self._longest_span_s), most_s)

    def _settle_due(self, now_s: float) -> list[Change]:
        changes: list[Change] = []
        while self._heap:
            step = self._steps[self._heap[0]]
            is_final = self._roll.watermark() >= step.step
            is_late = now_s - step.first_arrival_s >= self._patience_s()
            if not is_final and not is_late:
                break
            if not is_final:
                self._roll.give_up_to(step.step)
            changes += self._settle(step, "at all" if is_final else "in time")
        return changes

    def _settle(self, step: OpenStep, when: str) -> list[Change]:
        verdict = settled(step, self.job, self._roll, when)
        if verdict.skipped is None:
            span_s = longest_span_s(verdict.table)
            self._longest_span_s = max(span_s, self._longest_span_s or 0.0)
        self._put(verdict)
        state = self._window.state
        return [] if state == "open" else [self._close(state)]

    def _put(self, step: SettledStep) -> None:
        while self._heap and self._heap[0] <= step.step:
            del self._steps[heappop(self._heap)]
        self._settled_through = step.step
        self._window.add(step)

    def _close(self, state: WindowState) -> Change:
        self._closed_through = self._settled_through
        self._retained.close(step.step for step in self._window.settled)
        change = self._change(state, ops=pack(self._window.table()))
        self._window.clear()
        return change

    def _change(self, state: WindowState, *, ops: bytes | None = None) -> Change:
        window = self._window.revised(state)
        return Change(window, self._retained.take_released(), self._late_ops, ops)


def _parts(batch: OpBatch, worker: int) -> dict[int, Part]:
    """The batch's operations by step."""
    columns = batch.columns
    steps = np.unique(columns.step).tolist()
    if len(steps) == 1:
        return {steps[0]: Part(worker, batch.rank, columns)}
    return {step: Part(worker, batch.rank, columns.select(columns.step == step)) for step in steps}
