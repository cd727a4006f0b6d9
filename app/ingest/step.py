"""One training step while its workers' operations arrive, and once it is settled."""

from dataclasses import dataclass, field

import numpy as np

from app.ingest.batch import OpColumns
from app.ingest.trace_codec import NS, OpTable, concatenate
from app.trace.job import Job
from app.trace.window import SkippedStep


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one batch holds of one step."""

    worker: int
    rank: int
    columns: OpColumns


@dataclass(slots=True)
class OpenStep:
    """A step that is not settled: how many operations came, and how many were declared.

    Workers are numbered dp_rank * pp_size + stage.
    """

    step: int
    first_arrival_s: float
    parts: list[Part] = field(default_factory=list)
    num_arrived: dict[int, int] = field(default_factory=dict)  # by worker
    num_declared: dict[int, int] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Take the operations of one batch."""
        self.parts.append(part)
        arrived = self.num_arrived.get(part.worker, 0) + part.columns.num_ops
        self.num_arrived[part.worker] = arrived

    def declare(self, worker: int, num_ops: int) -> None:
        """The worker has finished the step with so many operations."""
        # Never twice in an honest run; the larger one, so that the order of arrival is no matter.
        self.num_declared[worker] = max(num_ops, self.num_declared.get(worker, 0))

    def absent(self, num_workers: int) -> list[int]:
        """Workers that have not declared the step, ascending."""
        if len(self.num_declared) == num_workers:
            return []
        return [worker for worker in range(num_workers) if worker not in self.num_declared]

    def mismatched(self) -> list[int]:
        """Workers of which more or fewer operations came than they declared, ascending."""
        return sorted(
            worker
            for worker, num_ops in self.num_declared.items()
            if self.num_arrived.get(worker, 0) != num_ops
        )

    def table(self, job: Job) -> OpTable:
        """All operations that have come, in canonical order."""
        tables = [_table(part, job.parallelism.pp_size) for part in self.parts]
        table = concatenate(tables)
        order = np.lexsort((table.seq_id, table.optype, table.stage, table.dp_rank))
        return table.select(order)


@dataclass(frozen=True, slots=True, eq=False)
class SettledStep:
    """A step of which the last word is spoken: complete, or skipped for a reason."""

    step: int
    table: OpTable
    skipped: SkippedStep | None = None


def twice_recorded(table: OpTable) -> list[int]:
    """Ranks with two operations of the same type and number, which nothing could tell apart."""
    same = np.ones(max(table.num_ops - 1, 0), dtype=np.bool_)
    for column in (table.dp_rank, table.stage, table.optype, table.seq_id):
        same &= column[1:] == column[:-1]
    return sorted({int(rank) for rank in table.rank[1:][same]})


def longest_span_s(table: OpTable) -> float:
    """Longest time that one worker took for a step, by its own clock: clocks differ by host."""
    if not table.num_ops:
        return 0.0
    is_other = (np.diff(table.dp_rank) != 0) | (np.diff(table.stage) != 0)
    firsts = np.concatenate(([0], np.flatnonzero(is_other) + 1))
    start_ns = np.minimum.reduceat(table.start_ns, firsts)
    end_ns = np.maximum.reduceat(table.start_ns + table.duration_ns, firsts)
    return float((end_ns - start_ns).max() * NS)


def _table(part: Part, pp_size: int) -> OpTable:
    columns = part.columns
    dp_rank, stage = divmod(part.worker, pp_size)
    return OpTable(
        step=columns.step,
        rank=np.full_like(columns.step, part.rank),
        dp_rank=np.full_like(columns.step, dp_rank),
        stage=np.full_like(columns.step, stage),
        optype=columns.optype,
        seq_id=columns.seq_id,
        mc=columns.mc,
        mb_id=columns.mb_id,
        start_ns=columns.start_ns,
        duration_ns=columns.duration_ns,
    )
