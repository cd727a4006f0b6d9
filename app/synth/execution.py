"""Simulates the execution of some steps: the starts and ends of all operations.

The arrays' last axes are steps and dp ranks, so one pass over the operations of one replica
simulates all of them. The simulation is direct, and shares no code with the engine's replay.
"""

from collections import deque

import numpy as np

from app.errors import InvalidRequest
from app.synth.drawing import DrawnSteps
from app.synth.schedules import ComputeKind, StageWork
from app.synth.structure import ReplicaOp, ReplicaStructure
from app.trace.ops import Direction
from app.trace.window import Floats


def computation_durations(drawn: DrawnSteps) -> dict[ComputeKind, Floats]:
    """By kind of computation, [stages, chunks, micro-batches, steps, dp ranks] seconds."""
    duration_s = {ComputeKind.FORWARD: drawn.forward_s, ComputeKind.BACKWARD: drawn.backward_s}
    if drawn.weight_share is not None:
        duration_s[ComputeKind.BACKWARD_WEIGHT] = weight_s = drawn.backward_s * drawn.weight_share
        duration_s[ComputeKind.BACKWARD_INPUT] = drawn.backward_s - weight_s
    return duration_s


def launch_delays(drawn: DrawnSteps) -> dict[str, Floats]:
    """By op type, [stages, chunks, micro-batches, ...] or [stages, chunks, ...]."""
    delay_s = {
        ComputeKind.FORWARD.value: drawn.forward_delay_s,
        ComputeKind.BACKWARD.value: drawn.backward_delay_s,
        ComputeKind.BACKWARD_INPUT.value: drawn.backward_delay_s,
        **drawn.p2p_delay_s,
        **drawn.once_delay_s,
    }
    if drawn.weight_delay_s is not None:
        delay_s[ComputeKind.BACKWARD_WEIGHT.value] = drawn.weight_delay_s
    return delay_s


# The axes of [stages, steps, dp ranks] that the members of a collective span.
_ALL_DP_RANKS = (2,)
_ALL_STAGES = (0,)
_ALL_WORKERS = (0, 2)


class Execution:
    """Starts and ends of operations as their workers record them.

    `start_s` and `end_s` [ops, steps, dp ranks] are in the order of `structure.ops` and count from
    the beginning of the step. `jitter_s`, of that shape, is the delay with which a worker sees the
    end of a common operation.
    """

    def __init__(
        self, structure: ReplicaStructure, drawn: DrawnSteps, jitter_s: Floats | None = None
    ) -> None:
        lanes = drawn.is_silent.shape[1:]
        stages = structure.parallelism.pp_size
        self.start_s = np.empty((structure.num_ops, *lanes))
        self.end_s = np.empty((structure.num_ops, *lanes))
        self._structure = structure
        self._drawn = drawn
        self._jitter_s = jitter_s
        self._orders = structure.orders
        self._row = structure.row
        self._duration_s = computation_durations(drawn)
        self._delay_s = launch_delays(drawn)
        # When the compute streams are free, [stages, steps, dp ranks].
        self._free_s = np.zeros((stages, *lanes))
        self._gathered_s: list[Floats] = []
        # The ends of computations, and by stage and direction the end of the last one.
        self._done_s: dict[tuple[int, StageWork], Floats] = {}
        self._last_s: dict[tuple[int, Direction], Floats] = {}
        # Sends of one direction run in order: the remaining ones, and the end of the last one.
        self._sends: dict[tuple[int, Direction], deque[StageWork]] = {}
        self._sent_s: dict[tuple[int, Direction], Floats] = {}

    def run(self) -> None:
        """Fill `start_s` and `end_s`."""
        self.finish(self.run_pipeline())

    def run_pipeline(self) -> Floats:
        """Run all but the ends of the steps.

        Returns:
            [stages, steps, dp ranks], seconds: when the worker has computed its micro-batches.
        """
        if self._structure.parallelism.is_data_parallel:
            free_s = np.zeros_like(self._free_s)
            for chunk in range(self._structure.parallelism.vpp_size):
                self._once("params-all-gather", free_s, chunk=chunk, meets=_ALL_DP_RANKS)
                self._gathered_s.append(free_s.copy())
        self._run_computations()
        return self._free_s

    def _run_computations(self) -> None:
        for stage, order in enumerate(self._orders):
            for direction in (Direction.FORWARD, Direction.BACKWARD):
                self._sends[stage, direction] = deque(
                    work
                    for work in order
                    if work.direction is direction and self._structure.receiver_of(stage, work)
                )
        todo = [deque(order) for order in self._orders]
        while any(todo):
            if not sum(self._run_stage(stage, works) for stage, works in enumerate(todo)):
                raise InvalidRequest("this schedule never ends: every stage waits for another one")

    def _run_stage(self, stage: int, todo: deque[StageWork]) -> int:
        """Run a stage's computations until an input is missing; returns their number."""
        before = len(todo)
        while todo and self._has_input(stage, todo[0]):
            self._compute(stage, todo.popleft())
        return before - len(todo)

    def _has_input(self, stage: int, work: StageWork) -> bool:
        sender = self._structure.sender_of(stage, work)
        if sender is None:
            return True
        peer, given = sender
        return sender in self._done_s and self._sends[peer, work.direction][0] == given

    def _compute(self, stage: int, work: StageWork) -> None:
        ready_s = self._free_s[stage]
        if (sender := self._structure.sender_of(stage, work)) is not None:
            ready_s = np.maximum(ready_s, self._receive(stage, work, *sender))
        if work.part is ComputeKind.FORWARD and self._gathered_s:
            ready_s = np.maximum(ready_s, self._gathered_s[work.chunk][stage])
        at = stage, work.chunk, work.microbatch
        row = self._row[ReplicaOp(stage, work.part.value, work.chunk, work.microbatch)]
        start_s, end_s = self.start_s[row], self.end_s[row]
        np.add(ready_s, self._delay_s[work.part.value][at], out=start_s)
        np.add(start_s, self._duration_s[work.part][at], out=end_s)
        self._free_s[stage] = end_s
        self._done_s[stage, work] = self._last_s[stage, work.direction] = end_s

    def _receive(self, stage: int, work: StageWork, peer: int, given: StageWork) -> Floats:
        direction = work.direction
        name, (chunk, k) = direction.value, (work.chunk, work.microbatch)
        send = self._row[ReplicaOp(peer, f"{name}-send", given.chunk, k)]
        recv = self._row[ReplicaOp(stage, f"{name}-recv", chunk, k)]
        given_s = self._done_s[peer, given]
        if (peer, direction) in self._sent_s:
            given_s = np.maximum(given_s, self._sent_s[peer, direction])
        self.start_s[send] = given_s
        self.start_s[recv] = self._posted(stage, direction)
        if self._drawn.p2p_delay_s:
            self.start_s[send] += self._delay_s[f"{name}-send"][peer, given.chunk, k]
            self.start_s[recv] += self._delay_s[f"{name}-recv"][stage, chunk, k]
        end_s: Floats = np.maximum(self.start_s[send], self.start_s[recv])
        drawn = self._drawn
        is_forward = direction is Direction.FORWARD
        transfer_s = drawn.forward_transfer_s if is_forward else drawn.backward_transfer_s
        end_s += transfer_s[stage, chunk, k]
        self.end_s[send] = self._sent_s[peer, direction] = self._seen(send, end_s)
        self.end_s[recv] = self._seen(recv, end_s)
        self._sends[peer, direction].popleft()
        return self._seen(recv, end_s)

    def _posted(self, stage: int, direction: Direction) -> Floats:
        """The time at which a receive is posted: after the previous computation.

        The first backward receive is posted one computation earlier.
        """
        if (stage, direction) in self._last_s:
            return self._last_s[stage, direction]
        if direction is Direction.BACKWARD:
            done = [work for work in self._orders[stage] if (stage, work) in self._done_s]
            if len(done) >= 2:
                return self._done_s[stage, done[-2]]
        return np.zeros_like(self._free_s[0])

    def _seen(self, row: int, end_s: Floats) -> Floats:
        return end_s if self._jitter_s is None else end_s + self._jitter_s[row]

    def finish(self, computed_s: Floats) -> None:
        """Run the ends of the steps, after the computations of micro-batches.

        `computed_s` [stages, steps, dp ranks], seconds, is replaced by the ends of the steps.
        """
        free_s = computed_s
        self._once("gc", free_s)
        self._once("layernorm-grads-all-reduce", free_s)
        if ends := self._structure.ends:
            self._once("embedding-grads-all-reduce", free_s, stages=ends, meets=_ALL_STAGES)
        if self._structure.parallelism.is_data_parallel:
            for chunk in range(self._structure.parallelism.vpp_size):
                self._once("grads-reduce-scatter", free_s, chunk=chunk, meets=_ALL_DP_RANKS)
        self._once("optimizer-clip-main-grad", free_s, meets=_ALL_WORKERS)
        self._once("optimizer", free_s)

    def _once(
        self,
        name: str,
        free_s: Floats,
        *,
        stages: list[int] | None = None,
        chunk: int = -1,
        meets: tuple[int, ...] = (),
    ) -> None:
        """Run an operation that a stage or chunk has once, and move `free_s` to its end."""
        at = max(chunk, 0)
        on = list(range(len(free_s))) if stages is None else stages
        duration_s = self._drawn.once_s[name][:, at]
        start_s = free_s[on] + self._delay_s[name][on, at]
        met_s = start_s.max(axis=meets, keepdims=True) if meets else start_s
        end_s = np.broadcast_to(met_s + duration_s, start_s.shape)
        for stage, began_s, ended_s in zip(on, start_s, end_s, strict=True):
            row = self._row[ReplicaOp(stage, name, chunk)]
            self.start_s[row] = began_s
            self.end_s[row] = free_s[stage] = self._seen(row, ended_s) if meets else ended_s
