"""One training step while its workers' operations arrive, and once it is settled."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from app.ingest.batch import OpColumns
from app.ingest.op_table import NS, OpTable, Part, of_parts
from app.trace.window import SkippedStep, StepKind


@dataclass(slots=True)
class Sender:
    """What one rank has sent of a step, and with how many operations it said it was done."""

    worker: int
    parts: list[Part] = field(default_factory=list)
    num_arrived: int = 0
    num_declared: int | None = None


class OpenStep:
    """A step of which the last word is not spoken yet.

    Workers are numbered dp_rank * pp_size + stage. Where several ranks speak for one worker
    (tensor-parallel peers record the same work), the lowest one that has declared the step counts.
    """

    def __init__(self, step: int, first_arrival_s: float) -> None:
        self.step = step
        self.first_arrival_s = first_arrival_s
        self.num_ops = 0
        self.kinds: set[StepKind] = set()  # what its ranks call it; of a training step nothing
        self._senders: dict[int, Sender] = {}  # by rank

    @classmethod
    def again(
        cls, table: OpTable, step: int, declared: Mapping[int, tuple[int, int]], pp_size: int
    ) -> "OpenStep":
        """A step whose operations so far are in `table`; `declared` is what `declared()` said."""
        again = cls(step, 0.0)
        ends = [*np.flatnonzero(np.diff(table.rank)) + 1, table.num_ops] if table.num_ops else []
        first = 0
        for end in map(int, ends):
            part = table.select(slice(first, end))
            worker = int(part.dp_rank[0]) * pp_size + int(part.stage[0])
            columns = _columns(part)
            again.add(Part(worker, int(part.rank[0]), columns, 0, columns.num_ops))
            first = end
        for rank, (worker, num_ops) in declared.items():
            again.declare(worker, rank, num_ops)
        return again

    def add(self, part: Part) -> None:
        """Take the operations of one batch."""
        sender = self._sender(part.worker, part.rank)
        sender.parts.append(part)
        sender.num_arrived += part.num_ops
        self.num_ops += part.num_ops

    def declare(self, worker: int, rank: int, num_ops: int) -> None:
        """The rank has finished the step with so many operations."""
        sender = self._sender(worker, rank)
        # Never twice in an honest run; the larger one, so that the order of arrival is no matter.
        sender.num_declared = max(num_ops, sender.num_declared or 0)

    def take(
        self,
        worker: int,
        rank: int,
        part: Part | None,
        num_declared: int | None,
        kind: StepKind | None = None,
    ) -> None:
        """Take what one batch says of the step."""
        if kind is not None:
            self.kinds.add(kind)
        if part is not None:
            self.add(part)
        if num_declared is not None:
            self.declare(worker, rank, num_declared)

    def has_declared(self, rank: int) -> bool:
        """Whether the rank has said that it has finished the step."""
        sender = self._senders.get(rank)
        return sender is not None and sender.num_declared is not None

    def declared(self) -> dict[int, tuple[int, int]]:
        """Worker and number of operations by rank, of those that have finished the step."""
        return {
            rank: (sender.worker, sender.num_declared)
            for rank, sender in self._senders.items()
            if sender.num_declared is not None
        }

    def heard(self) -> dict[int, Sender]:
        """By worker, the rank that counts for it."""
        chosen: dict[int, Sender] = {}
        for _, sender in sorted(self._senders.items()):
            known = chosen.get(sender.worker)
            if known is None or (known.num_declared is None and sender.num_declared is not None):
                chosen[sender.worker] = sender
        return chosen

    def table(self, senders: Mapping[int, Sender], pp_size: int) -> OpTable:
        """The operations of these senders, in canonical order."""
        return of_parts(
            self.step, [part for sender in senders.values() for part in sender.parts], pp_size
        )

    def _sender(self, worker: int, rank: int) -> Sender:
        sender = self._senders.get(rank)
        if sender is None:
            sender = self._senders[rank] = Sender(worker)
        return sender


@dataclass(frozen=True, slots=True, eq=False)
class SettledStep:
    """A step of which the last word is spoken: complete, or skipped for a reason.

    `open` is what it was made from, kept of one that lacks something, for those who come late.
    """

    step: int
    table: OpTable
    skipped: SkippedStep | None = None
    open: OpenStep | None = None

    def wants(self, rank: int) -> bool:
        """Whether it lacks something of this rank, so that what comes late can complete it."""
        if self.skipped is None or self.open is None:
            return False
        return not self.open.has_declared(rank) or self.skipped.lacks(rank)


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


def _columns(table: OpTable) -> OpColumns:
    named = {each.name: getattr(table, each.name) for each in fields(OpColumns)}
    return OpColumns(**named)
