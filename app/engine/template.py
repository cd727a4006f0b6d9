"""The operations of one replica in one step, which every replica and every step share."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.trace.job import Parallelism
from app.trace.ops import OP_CODES, OP_NAMES
from app.trace.window import Floats, Ints


@dataclass(frozen=True)
class Template:
    """Operations of one replica, numbered worker by worker in recorded order.

    Order on a worker is by (start, seq_id, op type name), read from the first step of dp rank 0
    (what-if model, section 3).

    Shapes: all [ops]. `start_s` and `end_s` are those of that first step.
    """

    parallelism: Parallelism
    stage: Ints
    optype: NDArray[np.int16]
    seq_id: Ints
    mc: Ints
    start_s: Floats
    end_s: Floats

    @property
    def num_ops(self) -> int:
        """Number of operations of one replica in one step."""
        return int(self.stage.size)

    @cached_property
    def _by_stage_and_type(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for op, key in enumerate(zip(self.stage.tolist(), self.optype.tolist(), strict=True)):
            found.setdefault(key, []).append(op)
        return found

    def ops(self, stage: int, *names: str) -> list[int]:
        """Operations of some types on a stage, in recorded order."""
        per_type = [self._by_stage_and_type.get((stage, OP_CODES[name]), []) for name in names]
        return per_type[0] if len(per_type) == 1 else sorted(op for ops in per_type for op in ops)

    def by_seq_id(self, ops: list[int]) -> list[int]:
        """The same operations, by their number on the worker."""
        return sorted(ops, key=self.seq_id.__getitem__)

    def has(self, name: str) -> bool:
        """Whether any stage has an operation of this type."""
        return bool((self.optype == OP_CODES[name]).any())

    def describe(self, op: int) -> str:
        """One operation in words, for messages."""
        name = OP_NAMES[self.optype[op]]
        return f"{name} {self.seq_id[op]} on stage {self.stage[op]}"
