"""Times of a healthy job's operations: base durations and noise around the measured one."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER, P2P, StepGraph
from benchmarks.strangers.measured import MEASURED, Measure, NoiseTable
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations

Floats = NDArray[np.float64]
Level = Literal["quiet", "low", "usual", "high", "storm"]
# Noise of each level, as a multiple of what the published traces show.
LEVELS: dict[Level, float] = {"quiet": 0.4, "low": 0.7, "usual": 1.0, "high": 1.8, "storm": 3.5}
MAX_TAIL = 30.0
MAX_TAIL_SHARE = 0.2
# The traces show no correlation within hosts, with two workers a host in one of them. Jobs have
# some, so that nothing may rely on independence.
ASSUMED_HOST_SHARE = 0.7
LARGE_COLLECTIVES = tuple(
    OP_CODES[name]
    for name in ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
)
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
            forward_s / shape.chunks * rng.uniform(0.003, 0.03),
            step_s * rng.uniform(0.003, 0.02),
            step_s * rng.uniform(0.005, 0.04),
            forward_s * rng.uniform(0.005, 0.04),
            forward_s * rng.uniform(0.2, 0.7),
            forward_s * rng.uniform(0.002, 0.03),
            min(forward_s * 0.01, float(rng.uniform(2e-5, 1e-4))),
            tuple(rng.uniform(0.996, 1.004, shape.pp)),
            rng.uniform(MEASURED.spread, 0.03),
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
        return found * graph.weight


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
        of_step = self._factors(self.table.step_cv, (num_steps, 1, 1), rng)
        of_host = self._factors(
            max(self.table.host_cv, ASSUMED_HOST_SHARE * self.table.worker_cv),
            (num_steps, shape.num_hosts),
            rng,
        )
        of_worker = of_gpu * of_step * of_host[:, hosts]
        of_worker *= self._factors(self.table.worker_cv, (num_steps, *hosts.shape), rng)
        found = np.ones((num_steps, graph.num_ops, shape.dp))
        for optypes, measure in (
            ((FORWARD,), self.table.forward),
            ((BACKWARD,), self.table.backward),
            ((OPTIMIZER, OP_CODES["gc"]), self.table.optimizer),
        ):
            ops = np.flatnonzero(graph.of(*optypes))
            single = self._single(measure, (num_steps, ops.size, shape.dp), rng)
            found[:, ops] = single * of_worker[:, graph.stage[ops]]
        return found

    def _communicating(
        self, shape: Shape, graph: StepGraph, num_steps: int, rng: np.random.Generator
    ) -> Floats:
        """[steps, ops, dp ranks], factors of transfers: those of one unit are one transfer."""
        factor = np.ones((num_steps, graph.is_synced.size, shape.dp))
        large = graph.of(*LARGE_COLLECTIVES)
        for ops, measure in (
            (graph.of(*P2P), self.table.transfer),
            (large, self.table.collective),
            (graph.is_communication & ~graph.of(*P2P) & ~large, self.table.small),
        ):
            units = np.unique(graph.unit_of[ops])
            factor[:, units] = self._single(measure, (num_steps, units.size, shape.dp), rng)
        factor[:, graph.is_synced] = factor[:, graph.is_synced, :1]
        found: Floats = factor[:, graph.unit_of]
        return found

    def _factors(self, cv: float, size: tuple[int, ...], rng: np.random.Generator) -> Floats:
        found: Floats = np.exp(self.scale * cv * rng.standard_normal(size))
        return found

    def _single(self, measure: Measure, size: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Factors of single operations; the more noise, the more and the longer the tails."""
        factor = self._factors(measure.cv, size, rng)
        is_tail = rng.random(size) < min(measure.tail_share * self.scale, MAX_TAIL_SHARE)
        index = max(measure.tail_index / max(self.scale, 1.0), 1.2)
        tail = np.exp(5 * measure.cv * self.scale) * (1 + rng.pareto(index, size))
        found: Floats = np.where(is_tail, np.minimum(tail, MAX_TAIL), factor)
        return found
