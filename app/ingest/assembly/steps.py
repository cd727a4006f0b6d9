"""One training step while operations arrive, and once settled: complete, or skipped and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from app.engine.step_rows import longest_span_ns
from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.rank_tracker import RankTracker
from app.ingest.assembly.run_table import BatchSlice, KnownShapes, RunTable, table_of_slices
from app.trace.job import Job
from app.trace.window import S_PER_NS, SkippedStep, StepKind


@dataclass(slots=True)
class RankReport:
    """Data of one rank for a step, and the number of operations that it declared."""

    worker: int
    parts: list[BatchSlice] = field(default_factory=list)
    num_arrived: int = 0
    num_declared: int | None = None


class StepReport(NamedTuple):
    """The part of one batch that is about one step."""

    worker: int
    rank: int
    part: BatchSlice | None
    num_declared: int | None
    kind: StepKind | None


class OpenStep:
    """A step that is still open for operations.

    Workers are numbered dp_rank * pp_size + stage. If several ranks record one worker's work
    (tensor-parallel peers), the lowest one that has declared the step counts.
    """

    def __init__(
        self, step: int, first_arrival_s: float, shapes: KnownShapes | None = None
    ) -> None:
        self.step = step
        self.first_arrival_s = first_arrival_s
        self._shapes = shapes or KnownShapes()
        self.num_ops = 0
        self.kinds: set[StepKind] = set()  # as its ranks say; empty for a training step
        self._senders: dict[int, RankReport] = {}  # by rank

    @classmethod
    def restored(
        cls, table: OpTable, step: int, declared: Mapping[int, tuple[int, int]], pp_size: int
    ) -> "OpenStep":
        """The step as saved before a crash: its operations, and the result of `declared()`."""
        open_step = cls(step, 0.0)
        ends = [*np.flatnonzero(np.diff(table.rank)) + 1, table.num_ops] if table.num_ops else []
        first = 0
        for end in map(int, ends):
            part = table.select(slice(first, end))
            worker = int(part.dp_rank[0]) * pp_size + int(part.stage[0])
            slices = open_step._shapes.slices_of(worker, int(part.rank[0]), part.recorded())
            open_step.add(slices[step])
            first = end
        for rank, (worker, num_ops) in declared.items():
            open_step.declare(worker, rank, num_ops)
        return open_step

    def add(self, part: BatchSlice) -> None:
        """Add the operations of one batch."""
        sender = self._senders.setdefault(part.rank, RankReport(part.worker))
        sender.parts.append(part)
        sender.num_arrived += part.num_ops
        self.num_ops += part.num_ops

    def declare(self, worker: int, rank: int, num_ops: int) -> None:
        """The rank has finished the step with so many operations."""
        sender = self._senders.setdefault(rank, RankReport(worker))
        # A rank declares a step once; the larger of two numbers counts in any order of arrival.
        sender.num_declared = max(num_ops, sender.num_declared or 0)

    def add_report(self, report: StepReport) -> None:
        """Add the data of one batch for the step."""
        if report.kind is not None:
            self.kinds.add(report.kind)
        if report.part is not None:
            self.add(report.part)
        if report.num_declared is not None:
            self.declare(report.worker, report.rank, report.num_declared)

    def has_declared(self, rank: int) -> bool:
        """Whether the rank has declared the step finished."""
        sender = self._senders.get(rank)
        return sender is not None and sender.num_declared is not None

    def declared(self) -> dict[int, tuple[int, int]]:
        """Worker and number of operations by rank, of those that have finished the step."""
        return {
            rank: (sender.worker, sender.num_declared)
            for rank, sender in self._senders.items()
            if sender.num_declared is not None
        }

    def reports_by_worker(self) -> dict[int, RankReport]:
        """The report that counts, by worker."""
        chosen: dict[int, RankReport] = {}
        for _, sender in sorted(self._senders.items()):
            known = chosen.get(sender.worker)
            if known is None or (known.num_declared is None and sender.num_declared is not None):
                chosen[sender.worker] = sender
        return chosen

    def table(self, senders: Mapping[int, RankReport], pp_size: int) -> RunTable:
        """The operations of these senders, in canonical order."""
        parts = [part for sender in senders.values() for part in sender.parts]
        return table_of_slices(self.step, parts, pp_size, self._shapes)


@dataclass(frozen=True, slots=True, eq=False)
class SettledStep:
    """A closed step: complete, or skipped for a reason.

    `open` is the open step of an incomplete one, kept for late batches.
    """

    step: int
    table: OpTable
    skipped: SkippedStep | None = None
    open: OpenStep | None = None

    def can_use(self, rank: int) -> bool:
        """Whether late data of this rank can complete the step."""
        if self.skipped is None or self.open is None:
            return False
        return not self.open.has_declared(rank) or self.skipped.is_missing(rank)


def ranks_with_duplicates(table: RunTable) -> list[int]:
    """Ranks with two operations of the same type and number."""
    has_twins = np.array([shape.has_twins for shape in table.runs.shapes], np.bool_)
    ranks: list[int] = np.unique(table.runs.rank[has_twins[table.runs.shape_at]]).tolist()
    return ranks


def longest_span_s(table: OpTable) -> float:
    """Longest time that one worker took for a step, by its own clock: clocks differ by host."""
    if not table.num_ops:
        return 0.0
    bounds = np.append(table.run_firsts, table.num_ops)
    return longest_span_ns(bounds, table.start_ns, table.duration_ns) * S_PER_NS


# Limits of memory for a worker far ahead; beyond, the lowest step is settled as it is.
MAX_OPEN_STEPS = 10_000
MAX_OPEN_OPS = 32_000_000


class OpenSteps:
    """Steps by their numbers."""

    def __init__(self, shapes: KnownShapes) -> None:
        self._shapes = shapes
        self._steps: dict[int, OpenStep] = {}
        self._heap: list[int] = []
        self._num_ops = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def lowest(self) -> OpenStep | None:
        """The one that settles next."""
        return self._steps[self._heap[0]] if self._heap else None

    @property
    def are_too_many(self) -> bool:
        """Whether the limits of memory are exceeded."""
        return len(self._heap) > MAX_OPEN_STEPS or self._num_ops > MAX_OPEN_OPS

    def get(self, number: int) -> OpenStep | None:
        """The step of this number, if any of its data has arrived."""
        return self._steps.get(number)

    def put(self, number: int, now_s: float, report: StepReport) -> None:
        """Add the data of one batch for a step."""
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = OpenStep(number, now_s, self._shapes)
            heappush(self._heap, number)
        step.add_report(report)
        self._num_ops += report.part.num_ops if report.part else 0

    def remove_through(self, number: int) -> None:
        """Remove this step and all lower ones."""
        while self._heap and self._heap[0] <= number:
            self._num_ops -= self._steps.pop(heappop(self._heap)).num_ops


MAX_NAMED = 8
LEFT_OUT_REASONS: dict[StepKind, str] = {
    "checkpoint": "a checkpoint was saved in it",
    "eval": "it was an evaluation, no training",
    "first": "it was among the first, which have start-up work in them",
}


def settle_step(step: OpenStep, job: Job, tracker: RankTracker, when: str) -> SettledStep:
    """Settle a step with the data so far; `when` ends the sentence about missing ranks."""
    senders = step.reports_by_worker()
    kind = min(step.kinds, default=None)
    # Operations of steps that are not analysed are dropped: there may be thousands.
    table = step.table({} if kind else senders, job.parallelism.pp_size)
    absent = tracker.ranks(_absent(senders, job.parallelism.num_workers))
    mismatched = tracker.ranks(_mismatched(senders))
    reasons = [LEFT_OUT_REASONS[kind] for kind in sorted(step.kinds)]
    if absent:
        reasons.append(f"{_named_ranks(absent)} did not report the step {when}")
    if mismatched:
        reasons.append(
            f"{_named_ranks(mismatched)} sent another number of operations than declared"
        )
    if not reasons and (ranks := tuple(ranks_with_duplicates(table))):
        reasons.append(f"{_named_ranks(ranks)} sent two operations of the same type and seq_id")
    if not reasons:
        return SettledStep(step.step, table)
    missing = tuple(sorted({*absent, *mismatched}))
    skipped = SkippedStep(step.step, "; ".join(reasons), missing, kind)
    return SettledStep(step.step, table, skipped, None if kind else step)


def restore_settled_step(step: OpenStep, job: Job, skipped: SkippedStep | None) -> SettledStep:
    """A settled step as saved before a crash."""
    senders = {} if is_left_out(skipped) else step.reports_by_worker()
    table = step.table(senders, job.parallelism.pp_size)
    is_open = skipped is not None and not is_left_out(skipped)
    return SettledStep(step.step, table, skipped, step if is_open else None)


def is_left_out(skipped: SkippedStep | None) -> bool:
    """Whether a step was skipped because it is no training step; nothing of it is missing."""
    return skipped is not None and skipped.kind is not None


def _absent(senders: Mapping[int, RankReport], num_workers: int) -> list[int]:
    """Workers that have not declared the step, ascending."""
    declared = {worker for worker, sent in senders.items() if sent.num_declared is not None}
    if len(declared) == num_workers:
        return []
    return [worker for worker in range(num_workers) if worker not in declared]


def _mismatched(senders: Mapping[int, RankReport]) -> list[int]:
    """Workers of which more or fewer operations came than they declared, ascending."""
    return sorted(
        worker
        for worker, sent in senders.items()
        if sent.num_declared is not None and sent.num_arrived != sent.num_declared
    )


def _named_ranks(ranks: tuple[int, ...]) -> str:
    names = ", ".join(str(rank) for rank in ranks[:MAX_NAMED])
    others = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{others}"
