"""Run one step of a made job: who computes, sends and waits when?

Every dp rank is a lane of the arrays, so one pass over one replica's operations runs them all.
This is the obvious simulation of a training step; it knows nothing of the engine's.
"""

from collections import deque

import numpy as np

from app.errors import InvalidRequest
from app.synth.durations import Durations
from app.synth.schedules.schedule import Schedule, Work
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats

_ALL_DP_RANKS = (1,)
_BOTH_STAGES = (0,)
_EVERYBODY = (0, 1)
_NOBODY: tuple[int, ...] = ()


class Execution:
    """One step as its workers recorded it.

    `start_s` and `end_s` hold one array [stages, ops, dp ranks] for each op type, NaN where a
    stage has no such operation; both count from the beginning of the step.
    """

    def __init__(
        self,
        parallelism: Parallelism,
        schedule: Schedule,
        durations: Durations,
        launch_delay_s: float,
        rng: np.random.Generator,
    ) -> None:
        self.start_s: dict[str, Floats] = {}
        self.end_s: dict[str, Floats] = {}
        self._parallelism = parallelism
        self._durations = durations
        self._launch_delay_s = launch_delay_s
        self._rng = rng
        self._delay_s: dict[str, Floats] = {}
        self._orders = [
            schedule.order(
                stage,
                pp_size=parallelism.pp_size,
                num_microbatches=durations.forward_s.shape[1],
            )
            for stage in range(parallelism.pp_size)
        ]
        # When each worker's compute stream is free, [stages, dp ranks].
        self._free_s = np.zeros((parallelism.pp_size, parallelism.dp_size))

    def run(self) -> None:
        """Fill `start_s` and `end_s`."""
        if self._parallelism.is_data_parallel:
            self._once("params-all-gather", meets=_ALL_DP_RANKS)
        self._run_pipeline()
        self._finish()

    def _run_pipeline(self) -> None:
        for direction in ("forward", "backward"):
            for part in ("compute", "send", "recv"):
                self._reserve(f"{direction}-{part}")
        todo = [deque(order) for order in self._orders]
        while any(todo):
            stage = self._next_stage(todo)
            self._compute(stage, todo[stage].popleft())

    def _next_stage(self, todo: list[deque[Work]]) -> int:
        for stage, works in enumerate(todo):
            if works and self._has_input(stage, works[0]):
                return stage
        raise InvalidRequest("this schedule never ends: every stage waits for another one")

    def _has_input(self, stage: int, work: Work) -> bool:
        peer = self._giver(stage, work.direction)
        if peer is None:
            return True
        return bool(np.isfinite(self._computed(peer, work)[0]))

    def _giver(self, stage: int, direction: Direction) -> int | None:
        peer = stage - 1 if direction is Direction.FORWARD else stage + 1
        return peer if 0 <= peer < self._parallelism.pp_size else None

    def _compute(self, stage: int, work: Work) -> None:
        ready_s = self._free_s[stage]
        if (peer := self._giver(stage, work.direction)) is not None:
            ready_s = np.maximum(ready_s, self._receive(stage, peer, work))
        name = f"{work.direction.value}-compute"
        at = stage, work.microbatch
        is_forward = work.direction is Direction.FORWARD
        duration_s = self._durations.forward_s if is_forward else self._durations.backward_s
        self.start_s[name][at] = ready_s + self._delay_s[name][at]
        self.end_s[name][at] = self._free_s[stage] = self.start_s[name][at] + duration_s[at]

    def _receive(self, stage: int, peer: int, work: Work) -> Floats:
        direction, k = work.direction.value, work.microbatch
        recv, send = f"{direction}-recv", f"{direction}-send"
        given_s = self._computed(peer, work)
        if k > 0:  # sends of one direction leave in order
            given_s = np.maximum(given_s, self.end_s[send][peer, k - 1])
        self.start_s[recv][stage, k] = self._posted(stage, work) + self._delay_s[recv][stage, k]
        self.start_s[send][peer, k] = given_s + self._delay_s[send][peer, k]
        is_forward = work.direction is Direction.FORWARD
        durations = self._durations
        transfer_s = durations.forward_transfer_s if is_forward else durations.backward_transfer_s
        met_s = np.maximum(self.start_s[recv][stage, k], self.start_s[send][peer, k])
        end_s: Floats = met_s + transfer_s[stage, k]
        self.end_s[recv][stage, k] = self.end_s[send][peer, k] = end_s
        return end_s

    def _posted(self, stage: int, work: Work) -> Floats:
        """A receive is posted after the computation before it; the first backward one earlier."""
        if work.microbatch > 0:
            return self._computed(stage, Work(work.direction, work.microbatch - 1))
        before = self._orders[stage].index(work)
        if before < 2 or work.direction is Direction.FORWARD:
            return np.zeros(self._parallelism.dp_size)
        return self._computed(stage, self._orders[stage][before - 2])

    def _computed(self, stage: int, work: Work) -> Floats:
        end_s: Floats = self.end_s[f"{work.direction.value}-compute"][stage, work.microbatch]
        return end_s

    def _finish(self) -> None:
        self._once("gc")
        self._once("layernorm-grads-all-reduce")
        if self._parallelism.pp_size > 1:
            ends = [0, self._parallelism.pp_size - 1]
            self._once("embedding-grads-all-reduce", stages=ends, meets=_BOTH_STAGES)
        if self._parallelism.is_data_parallel:
            self._once("grads-reduce-scatter", meets=_ALL_DP_RANKS)
        self._once("optimizer-clip-main-grad", meets=_EVERYBODY)
        self._once("optimizer")

    def _once(
        self, name: str, *, stages: list[int] | None = None, meets: tuple[int, ...] = _NOBODY
    ) -> None:
        self._reserve(name, num_ops=1)
        rows = list(range(self._parallelism.pp_size)) if stages is None else stages
        start_s = self._free_s[rows] + self._delay_s[name][rows, 0]
        met_s = start_s.max(axis=meets, keepdims=True) if meets else start_s
        self.start_s[name][rows, 0] = start_s
        self.end_s[name][rows, 0] = met_s + self._durations.once_s[name]
        self._free_s[rows] = self.end_s[name][rows, 0]

    def _reserve(self, name: str, num_ops: int | None = None) -> None:
        stages, num_microbatches, dp_ranks = self._durations.forward_s.shape
        shape = stages, num_ops or num_microbatches, dp_ranks
        self.start_s[name] = np.full(shape, np.nan)
        self.end_s[name] = np.full(shape, np.nan)
        self._delay_s[name] = self._rng.exponential(self._launch_delay_s, shape)
