"""Times of a healthy job's operations: base durations and noise around the measured one."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER, P2P, StepGraph
from benchmarks.strangers.measured import MEASURED, NoiseTable
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations

Floats = NDArray[np.float64]
Level = Literal["quiet", "low", "usual", "high", "storm"]
# Noise of each level, as a multiple of what the published traces show.
LEVELS: dict[Level, float] = {"quiet": 0.4, "low": 0.7, "usual": 1.0, "high": 1.8, "storm": 3.5}
MAX_TAIL = 30.0
LAUNCH_SIGMA = 0.7


@dataclass(frozen=True, slots=True)
class Base:
    """What operations take on a perfect machine, in seconds.

    `stage_factor` [stages] multiplies computations: healthy stages are nearly alike. `spread` is
    the distance between the fastest and the slowest GPU of a healthy job, as a share.
    """

    forward_s: float
    backward_ratio: float
    transfer_s: float
    gather_s: float
    reduce_s: float
    small_s: float
    optimizer_s: float
    gap_s: float
    launch_s: float
    stage_factor: tuple[float, ...]
    spread: float

    @classmethod
    def draw(cls, shape: Shape, rng: np.random.Generator) -> "Base":
        """Durations as they occur: from 10 ms to 0.5 s a forward."""
        forward_s = float(np.exp(rng.uniform(np.log(0.01), np.log(0.5))))
        ratio = rng.uniform(1.7, 2.3)
        step_s = (shape.microbatches + shape.pp - 1) * forward_s * (1 + ratio)
        return cls(
            forward_s,
            ratio,
            forward_s * rng.uniform(0.005, 0.06),
            step_s * rng.uniform(0.003, 0.02),
            step_s * rng.uniform(0.005, 0.04),
            forward_s * rng.uniform(0.005, 0.04),
            forward_s * rng.uniform(0.2, 0.7),
            forward_s * rng.uniform(0.002, 0.03),
            min(forward_s * 0.01, float(rng.uniform(2e-5, 1e-4))),
            tuple(rng.uniform(0.996, 1.004, shape.pp)),
            rng.uniform(0.01, 0.03),
        )

    def of_ops(self, graph: StepGraph, chunks: int) -> Floats:
        """[ops], the duration of every operation without noise."""
        found = np.full(graph.num_ops, self.small_s)
        stage = np.array(self.stage_factor)[graph.stage]
        is_forward, is_backward = graph.of(FORWARD), graph.of(BACKWARD)
        found[is_forward] = self.forward_s / chunks * stage[is_forward]
        found[is_backward] = self.forward_s * self.backward_ratio / chunks * stage[is_backward]
        found[graph.of(*P2P)] = self.transfer_s
        found[graph.of(OP_CODES["params-all-gather"])] = self.gather_s / chunks
        found[graph.of(OP_CODES["grads-reduce-scatter"])] = self.reduce_s / chunks
        all_reduce = graph.of(OP_CODES["separate-grads-all-reduce"])
        found[all_reduce] = self.reduce_s / max(1, int(all_reduce.sum()) // len(self.stage_factor))
        found[graph.of(OPTIMIZER)] = self.optimizer_s
        found[graph.of(OP_CODES["gc"])] = min(1e-4, self.small_s)
        return found


@dataclass(frozen=True, slots=True)
class Noise:
    """Random part of the times, `scale` times what was measured."""

    scale: float
    table: NoiseTable = MEASURED

    def durations(
        self,
        shape: Shape,
        graph: StepGraph,
        base: Base,
        num_steps: int,
        rng: np.random.Generator,
        *,
        is_continuous: bool,
    ) -> Durations:
        """All times of a healthy job."""
        own = np.broadcast_to(
            base.of_ops(graph, shape.chunks)[None, :, None], (num_steps, graph.num_ops, shape.dp)
        ).copy()
        is_compute = ~graph.is_communication
        own[:, is_compute] *= self._computing(shape, graph, base, num_steps, rng)[:, is_compute]
        own[:, graph.is_communication] *= self._communicating(shape, graph, num_steps, rng)[
            :, graph.is_communication
        ]
        launch = base.launch_s * np.exp(LAUNCH_SIGMA * rng.standard_normal(own.shape))
        gap = base.gap_s * np.exp(0.2 * rng.standard_normal((num_steps, shape.pp, shape.dp)))
        return Durations(own, launch, gap, is_continuous)

    def _computing(
        self,
        shape: Shape,
        graph: StepGraph,
        base: Base,
        num_steps: int,
        rng: np.random.Generator,
    ) -> Floats:
        """[steps, ops, dp ranks], factors of computations."""
        hosts = np.array([[shape.host(d, p) for d in range(shape.dp)] for p in range(shape.pp)])
        of_gpu = 1 + base.spread * (rng.beta(2, 2, hosts.shape) - 0.5)
        of_host = np.exp(
            self.scale * self.table.host_cv * rng.standard_normal((num_steps, shape.num_hosts))
        )
        of_worker = of_gpu[None] * of_host[:, hosts]
        cv = np.full(graph.num_ops, self.table.compute_cv)
        cv[graph.of(OPTIMIZER, OP_CODES["gc"])] = self.table.optimizer_cv
        single = rng.standard_normal((num_steps, graph.num_ops, shape.dp))
        return np.exp(self.scale * cv[None, :, None] * single) * of_worker[:, graph.stage]

    def _communicating(
        self, shape: Shape, graph: StepGraph, num_steps: int, rng: np.random.Generator
    ) -> Floats:
        """[steps, ops, dp ranks], factors of transfers: those of one unit are one transfer."""
        num_units = graph.is_synced.size
        size = (num_steps, num_units, shape.dp)
        cv = np.full(num_units, self.table.collective_cv)
        cv[graph.unit_of[graph.of(*P2P)]] = self.table.transfer_cv
        factor = np.exp(self.scale * cv[None, :, None] * rng.standard_normal(size))
        has_tail = rng.random(size) < self.table.tail_share * self.scale
        tail = np.minimum(1 + rng.pareto(self.table.tail_index, size), MAX_TAIL)
        factor = np.where(has_tail, factor * tail, factor)
        factor[:, graph.is_synced] = factor[:, graph.is_synced, :1]
        return factor[:, graph.unit_of]
