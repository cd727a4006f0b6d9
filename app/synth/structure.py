"""The operations of a replica in a step of a simulated job, which are always the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from app.synth.schedules import Schedule, StageWork
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES, Direction
from app.trace.window import Ints


class ReplicaOp(NamedTuple):
    """One operation; -1 is no chunk or no micro-batch."""

    stage: int
    optype: str
    chunk: int = -1
    microbatch: int = -1


@dataclass(frozen=True)
class ReplicaStructure:
    """The computations of all stages, in order, with their transfers and collectives."""

    parallelism: Parallelism
    num_microbatches: int
    orders: tuple[tuple[StageWork, ...], ...]

    @property
    def num_ops(self) -> int:
        """Number of operations of a replica in a step."""
        return len(self.ops)

    @cached_property
    def ops(self) -> list[ReplicaOp]:
        """The operations in the order of stored windows: by stage, op type, seq_id."""
        ops = [op for stage in range(len(self.orders)) for op in self._stage_ops(stage)]
        return sorted(ops, key=lambda op: (op.stage, OP_CODES[op.optype]))

    @cached_property
    def row(self) -> dict[ReplicaOp, int]:
        """Position of each operation."""
        return {op: row for row, op in enumerate(self.ops)}

    @cached_property
    def columns(self) -> dict[str, Ints]:
        """Columns [ops] of a trace, by name."""
        stage = np.array([op.stage for op in self.ops])
        code = np.array([OP_CODES[op.optype] for op in self.ops])
        is_new = np.ones(self.num_ops, np.bool_)
        is_new[1:] = (np.diff(stage) != 0) | (np.diff(code) != 0)
        first = np.maximum.accumulate(np.where(is_new, np.arange(self.num_ops), 0))
        return {
            "stage": stage,
            "optype": code,
            "seq_id": np.arange(self.num_ops) - first,
            "mc": np.array([op.chunk for op in self.ops]),
            "mb_id": np.array([op.microbatch for op in self.ops]),
        }

    def sender_of(self, stage: int, work: StageWork) -> tuple[int, StageWork] | None:
        """The stage that sends a computation's input, and the computation there."""
        return self._neighbour(stage, work, -1)

    def receiver_of(self, stage: int, work: StageWork) -> tuple[int, StageWork] | None:
        """The stage that receives a computation's output, and the computation there."""
        return self._neighbour(stage, work, 1)

    def _neighbour(self, stage: int, work: StageWork, onward: int) -> tuple[int, StageWork] | None:
        pp_size, direction = self.parallelism.pp_size, work.direction
        if pp_size == 1 or direction is Direction.NONE:
            return None
        towards = onward if direction is Direction.FORWARD else -onward
        chunk, peer = divmod(work.chunk * pp_size + stage + towards, pp_size)
        if not 0 <= chunk < self.parallelism.vpp_size:
            return None
        return peer, work if chunk == work.chunk else work._replace(chunk=chunk)

    def _stage_ops(self, stage: int) -> Iterator[ReplicaOp]:
        """The operations of a stage; those of one type in order."""
        for work in self.orders[stage]:
            yield ReplicaOp(stage, work.part.value, work.chunk, work.microbatch)
            if self.sender_of(stage, work):
                yield ReplicaOp(stage, f"{work.direction.value}-recv", work.chunk, work.microbatch)
            if self.receiver_of(stage, work):
                yield ReplicaOp(stage, f"{work.direction.value}-send", work.chunk, work.microbatch)
        if self.parallelism.is_data_parallel:
            for chunk in range(self.parallelism.vpp_size):
                yield ReplicaOp(stage, "params-all-gather", chunk)
                yield ReplicaOp(stage, "grads-reduce-scatter", chunk)
        if stage in self.ends:
            yield ReplicaOp(stage, "embedding-grads-all-reduce")
        for name in ("gc", "layernorm-grads-all-reduce", "optimizer-clip-main-grad", "optimizer"):
            yield ReplicaOp(stage, name)

    @property
    def ends(self) -> list[int]:
        """First and last stage, which exchange gradients of embeddings; none if there is one."""
        last = len(self.orders) - 1
        return [0, last] if last else []


@lru_cache(maxsize=8)
def replica_structure(
    parallelism: Parallelism, num_microbatches: int, schedule: Schedule
) -> ReplicaStructure:
    """The structure of a schedule, which must fit the job."""
    stages = range(parallelism.pp_size)
    orders = (schedule.order(stage, parallelism, num_microbatches) for stage in stages)
    return ReplicaStructure(parallelism, num_microbatches, tuple(map(tuple, orders)))
