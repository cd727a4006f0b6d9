"""The operations of one replica in one step, which every replica and every step share."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.trace.job import Parallelism
from app.trace.ops import COMPUTE_STREAM, OpTypes
from app.trace.window import Floats, Ints


@dataclass(frozen=True)
class Template:
    """Operations of one replica, numbered worker by worker in recorded order.

    Order on a worker is by (start, seq_id, op type name), read from the first step of dp rank 0
    (what-if model, section 3).

    Shapes: all [ops]. `start_s` and `end_s` are those of that first step.
    """

    parallelism: Parallelism
    op_types: OpTypes
    stage: Ints
    optype: Ints
    seq_id: Ints
    mc: Ints
    mb_id: Ints
    start_s: Floats
    end_s: Floats

    @property
    def num_ops(self) -> int:
        """Number of operations of one replica in one step."""
        return int(self.stage.size)

    @cached_property
    def present(self) -> list[int]:
        """Codes of the op types that occur, ascending."""
        found: list[int] = np.unique(self.optype).tolist()
        return found

    @cached_property
    def _by_stage_and_type(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for op, key in enumerate(zip(self.stage.tolist(), self.optype.tolist(), strict=True)):
            found.setdefault(key, []).append(op)
        return found

    @cached_property
    def _by_stream(self) -> dict[tuple[int, str], list[int]]:
        stream_of = {code: self.op_types.by_code[code].stream for code in self.present}
        found: dict[tuple[int, str], list[int]] = {}
        for op, (stage, code) in enumerate(
            zip(self.stage.tolist(), self.optype.tolist(), strict=True)
        ):
            found.setdefault((stage, stream_of[code]), []).append(op)
        return found

    def ops(self, stage: int, *names: str) -> list[int]:
        """Operations of some types on a stage, in recorded order."""
        codes = self.op_types.codes
        per_type = [self._by_stage_and_type.get((stage, codes[name]), []) for name in names]
        return per_type[0] if len(per_type) == 1 else sorted(op for ops in per_type for op in ops)

    def stream(self, stage: int, name: str) -> list[int]:
        """Operations of a stream of a stage, in recorded order."""
        return self._by_stream.get((stage, name), [])

    def streams(self, stage: int) -> list[str]:
        """Names of the streams that a stage has operations on; "" is none."""
        return [name for where, name in self._by_stream if where == stage]

    def computes(self, stage: int) -> list[int]:
        """Operations of the compute stream of a stage, in recorded order."""
        return self.stream(stage, COMPUTE_STREAM)

    def by_seq_id(self, ops: list[int]) -> list[int]:
        """The same operations, by their number on the worker."""
        return sorted(ops, key=self.seq_id.__getitem__)

    def has(self, name: str) -> bool:
        """Whether any stage has an operation of this type."""
        return self.op_types.codes[name] in self.present

    def name(self, op: int) -> str:
        """Name of an operation's type."""
        return self.op_types.name(int(self.optype[op]))

    def describe(self, op: int) -> str:
        """One operation in words, for messages."""
        return f"{self.name(op)} {self.seq_id[op]} on stage {self.stage[op]}"
