"""The operations of one replica in one step, which every replica and every step share."""

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain

import numpy as np

from app.trace.job import Parallelism
from app.trace.ops import COMPUTE_STREAM, OpTypes
from app.trace.window import Floats, Ints

Edge = tuple[int, int]  # operation before, operation after

# Two ends of one worker's clock nearer than this are the same moment.
SAME_MOMENT_S = 1e-6

# Nearer than this, one operation follows the other without the worker having waited.
AT_ONCE_S = 50e-6


@dataclass(frozen=True, slots=True)
class ListedOps:
    """Columns of a template as lists, of which single values are read several times as fast."""

    stage: list[int]
    optype: list[int]
    seq_id: list[int]
    mc: list[int]
    mb_id: list[int]
    start_s: list[float]
    end_s: list[float]


@dataclass(frozen=True)
class Template:
    """Operations of one replica, numbered worker by worker in recorded order.

    Order on a worker is by (start, seq_id, op type name), read from one step of one dp rank: the
    first step of dp rank 0, unless some of it was not recorded (docs/replay.md).

    Shapes: all [ops]. `start_s` and `end_s` are those of that step of `dp_rank`; `step_at` is its
    position in the window.
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
    dp_rank: int = 0
    step_at: int = 0

    @cached_property
    def num_ops(self) -> int:
        """Number of operations of one replica in one step."""
        return int(self.stage.size)

    @cached_property
    def listed(self) -> ListedOps:
        """The columns for rules that look at one operation at a time."""
        return ListedOps(*(getattr(self, column.name).tolist() for column in fields(ListedOps)))

    @cached_property
    def present(self) -> list[int]:
        """Codes of the op types that occur, ascending."""
        return list(np.flatnonzero(np.bincount(self.optype)).tolist())

    @cached_property
    def type_names(self) -> frozenset[str]:
        """Names of the op types that occur."""
        return frozenset(self.op_types.by_code[code].name for code in self.present)

    @cached_property
    def of_stage(self) -> tuple[dict[str, list[int]], ...]:
        """Per stage, the operations of every known op type, in recorded order."""
        names = {code: spec.name for code, spec in self.op_types.by_code.items()}
        by_type: tuple[dict[str, list[int]], ...] = tuple(
            {name: [] for name in self.op_types.codes} for _ in range(self.parallelism.pp_size)
        )
        for op, (stage, code) in enumerate(zip(self.listed.stage, self.listed.optype, strict=True)):
            by_type[stage][names[code]].append(op)
        return by_type

    @cached_property
    def streams(self) -> tuple[dict[str, list[int]], ...]:
        """Per stage, the operations of each stream in recorded order; "" is no stream."""
        of_stages: tuple[dict[str, list[int]], ...] = tuple({} for _ in self.of_stage)
        for code in self.present:
            spec = self.op_types.by_code[code]
            for streams, of_type in zip(of_stages, self.of_stage, strict=True):
                if of_type[spec.name]:
                    streams[spec.stream] = sorted(streams.get(spec.stream, []) + of_type[spec.name])
        return of_stages

    @cached_property
    def computes(self) -> tuple[list[int], ...]:
        """Per stage, the operations of the compute stream in recorded order."""
        return tuple(streams.get(COMPUTE_STREAM, []) for streams in self.streams)

    def ops(self, stage: int, *names: str) -> list[int]:
        """Operations of some types on a stage, in recorded order."""
        return sorted(chain.from_iterable(self.of_stage[stage][name] for name in names))

    def name(self, op: int) -> str:
        """Name of an operation's type."""
        return self.op_types.name(int(self.optype[op]))

    def describe(self, op: int) -> str:
        """One operation in words, for messages."""
        return f"{self.name(op)} {self.seq_id[op]} on stage {self.stage[op]}"
