"""Recorded operations as plain objects, and their dependencies."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from app.trace.ops import COMPUTE_STREAM, OP_NAMES, OpKind, OpSpec
from app.trace.window import Window


class Key(NamedTuple):
    """One operation of a replica's step, whichever the replica and the step."""

    stage: int
    optype: str
    seq_id: int


@dataclass(frozen=True, eq=False)
class Op:
    """One recorded operation; equal to itself only."""

    step: int
    dp_rank: int
    key: Key
    spec: OpSpec
    rank: int
    mc: int
    mb_id: int
    start_s: float
    duration_s: float

    @property
    def optype(self) -> str:
        return self.key.optype

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def worker(self) -> tuple[int, int]:
        return self.dp_rank, self.key.stage

    @property
    def chunk(self) -> int:
        """Where micro-batches are matched, an operation without a chunk is of the first."""
        return max(self.mc, 0)


@dataclass
class Dependencies:
    """Dependencies of each operation of a replica, and operations that end together."""

    waits_for: dict[Key, set[Key]] = field(default_factory=dict)
    shares: dict[Key, set[tuple[Key, float]]] = field(default_factory=dict)
    pairs: list[tuple[Key, Key]] = field(default_factory=list)
    groups: list[tuple[Key, ...]] = field(default_factory=list)

    def add(self, before: Key, after: Key) -> None:
        self.waits_for[after].add(before)

    def add_share(self, before: Key, share: float, after: Key) -> None:
        """`after` waits until this share of `before` has passed."""
        self.shares[after].add((before, share))

    def chain(self, ops: list[Op]) -> None:
        for before, after in pairwise(ops):
            self.add(before.key, after.key)


def ops_of(window: Window) -> list[Op]:
    """The window's rows as objects, annotations left out."""
    trace, types = window.trace, window.job.op_types
    found = []
    for row in range(trace.num_ops):
        spec = types.by_code[int(trace.optype[row])]
        if spec.kind is not OpKind.ANNOTATION:
            found.append(
                Op(
                    int(trace.step[row]),
                    int(trace.dp_rank[row]),
                    Key(int(trace.stage[row]), spec.name, int(trace.seq_id[row])),
                    spec,
                    int(trace.rank[row]),
                    int(trace.mc[row]),
                    int(trace.mb_id[row]),
                    float(trace.start_s[row]),
                    float(trace.duration_s[row]),
                )
            )
    return found


def in_recorded_order(ops: Iterable[Op]) -> list[Op]:
    return sorted(ops, key=lambda op: (op.start_s, op.key.seq_id, op.optype))


def of(ops: list[Op], *optypes: str) -> list[Op]:
    return [op for op in ops if op.optype in optypes]


def numbered(ops: list[Op], *optypes: str) -> list[Op]:
    return sorted(of(ops, *optypes), key=lambda op: op.key.seq_id)


def last_to_end(ops: list[Op]) -> list[Op]:
    """The operation that ends last, the later one of a tie; None without operations."""
    return sorted(ops, key=lambda op: op.end_s)[-1:]


def is_on_compute_stream(op: Op) -> bool:
    return op.spec.stream == COMPUTE_STREAM


def passes(ops: list[Op], direction: str) -> list[Op]:
    """The forward or backward computations that sends and receives serve."""
    if direction == "forward":
        return of(ops, "forward-compute")
    return of(ops, "backward-compute", "backward-input-compute")


def backwards(ops: list[Op]) -> list[Op]:
    """Backward computations, weights included."""
    return of(ops, "backward-compute", "backward-input-compute", "backward-weight-compute")


def is_own(op: Op) -> bool:
    """Whether its type was registered by the job."""
    return op.optype not in OP_NAMES
