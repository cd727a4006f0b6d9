"""Measures the noise of published traces: what `measured.MEASURED` holds.

Variation is that of the logarithm of what operations take by themselves, around the median of the
same operation of the same worker over all steps. Robust: 1.4826 x the median distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from app.trace.ops import OP_CODES
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER, P2P
from benchmarks.strangers.measured import Measure, NoiseTable
from benchmarks.strangers.published import Published
from benchmarks.strangers.simulation import Floats

GPUS_PER_HOST = 8
TAIL_FROM = 5.0  # variations above the median
COLLECTIVES = (OP_CODES["params-all-gather"], OP_CODES["grads-reduce-scatter"])
SMALL = tuple(
    OP_CODES[name]
    for name in (
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "optimizer-clip-main-grad",
    )
)
LEAST_S = 1e-7  # of what operations take; the traces have float32 of times up to 50 s


@dataclass(frozen=True, slots=True)
class Residuals:
    """[steps, ops, dp ranks] of one trace: logarithms less their operation's median over steps."""

    trace: Published
    values: Floats
    levels: Floats

    @classmethod
    def of(cls, trace: Published) -> "Residuals":
        """Of everything that the trace's operations take by themselves."""
        logs = np.log(np.maximum(trace.durations().own, LEAST_S))
        levels = np.median(logs, axis=0)
        return cls(trace, logs - levels, levels)

    def of_types(self, *optypes: int) -> Floats:
        """[steps, those operations, dp ranks]."""
        found: Floats = self.values[:, self.trace.graph.of(*optypes)]
        return found

    def of_workers(self) -> Floats:
        """[steps, stages, dp ranks], mean of a worker's forwards and backwards."""
        graph = self.trace.graph
        stages = range(self.trace.shape.pp)
        computes = graph.of(FORWARD, BACKWARD)
        return np.stack(
            [self.values[:, computes & (graph.stage == p)].mean(axis=1) for p in stages], axis=1
        )

    def spread(self) -> Floats:
        """[stages], distance between the fastest and the slowest replica that is no straggler."""
        graph = self.trace.graph
        found = []
        for stage in range(self.trace.shape.pp):
            level = self.levels[graph.of(FORWARD) & (graph.stage == stage)].mean(axis=0)
            usual = level[np.abs(level - np.median(level)) < 0.1]
            found.append(np.ptp(usual))
        return np.array(found)


def measure(traces: Sequence[Published]) -> NoiseTable:
    """The mean of the traces, each counted once."""
    each = [Residuals.of(trace) for trace in traces]
    shared = np.mean([_shared(of) for of in each], axis=0)
    return NoiseTable(
        forward=_measure([of.of_types(FORWARD) for of in each], is_compute=True),
        backward=_measure([of.of_types(BACKWARD) for of in each], is_compute=True),
        optimizer=_measure([of.of_types(OPTIMIZER) for of in each]),
        transfer=_measure([of.of_types(*P2P) for of in each]),
        collective=_measure([of.of_types(*COLLECTIVES) for of in each]),
        small=_measure([of.of_types(*SMALL) for of in each]),
        step_cv=_rounded(shared[0]),
        host_cv=_rounded(shared[1]),
        worker_cv=_rounded(shared[2]),
        spread=_rounded(np.mean([of.spread().mean() for of in each])),
    )


def _shared(of: Residuals) -> Floats:
    """Variation of all workers in a step, of a host in a step, of a worker in a step."""
    workers = of.of_workers()
    num_steps, pp, dp = workers.shape
    workers = workers.reshape(num_steps, pp * dp) - workers.mean(axis=0).reshape(1, pp * dp)
    host = np.arange(pp * dp) * of.trace.shape.tp // GPUS_PER_HOST
    covariance = workers.T @ workers / num_steps
    pairs = list(combinations(range(pp * dp), 2))
    same = [covariance[i, j] for i, j in pairs if host[i] == host[j]]
    other = [covariance[i, j] for i, j in pairs if host[i] != host[j]]
    # All workers of a job on one host: its share cannot be told from that of the whole job.
    by_step = max(float(np.mean(other)), 0.0) if other else max(float(np.mean(same)), 0.0)
    by_host = max(float(np.mean(same)) - by_step, 0.0) if same and other else 0.0
    rest = max(float(np.mean(np.diag(covariance))) - by_step - by_host, 0.0)
    return np.sqrt([by_step, by_host, rest])


def _measure(of_traces: Sequence[Floats], *, is_compute: bool = False) -> Measure:
    """Variation and upper tail of one group of types, mean of the traces."""
    cvs, tails, indices = [], [], []
    for values in of_traces:
        single = values - values.mean(axis=1, keepdims=True) if is_compute else values
        cv = 1.4826 * float(np.median(np.abs(single - np.median(single))))
        above = single[single > TAIL_FROM * cv] - TAIL_FROM * cv
        cvs.append(cv)
        tails.append(above.size / single.size)
        if above.size:
            indices.append(1 / max(float(above.mean()), 1e-3))  # Hill's estimate
    index = float(np.median(indices)) if indices else 10.0
    return Measure(_rounded(np.mean(cvs)), _rounded(np.mean(tails)), round(index, 2))


def _rounded(value: float | np.floating) -> float:
    return round(float(value), 4)
