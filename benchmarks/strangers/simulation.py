"""Event simulation: when every operation of every step, replica and stage starts and ends."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks.strangers.graph import QUEUED, StepGraph

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Durations:
    """What operations take by themselves, in seconds.

    Shapes: `own` is [steps, ops, dp ranks]: a computation's duration, a communication's transfer;
    NaN for an operation that a replica does not have in a step, for which nobody waits.
    `launch` is the same: from when an operation could start to when it does. `gap` is [steps,
    stages, dp ranks]: from the end of a worker's step before to when it begins the next one. Steps
    follow each other if `is_continuous`; else all workers begin each step together, at 0.
    """

    own: Floats
    launch: Floats
    gap: Floats
    is_continuous: bool

    def copy(self) -> "Durations":
        """The same, to be changed."""
        return replace(self, own=self.own.copy(), launch=self.launch.copy(), gap=self.gap.copy())


@dataclass(frozen=True, slots=True)
class Simulated:
    """[steps, ops, dp ranks], seconds from the job's begin; from the step's if not continuous.

    `is_absent` has the same shape; None where every replica has all operations.
    """

    start_s: Floats
    end_s: Floats
    is_continuous: bool
    is_absent: NDArray[np.bool_] | None = None

    @property
    def step_s(self) -> float:
        """Mean length of a step: the period where steps follow each other."""
        return self.step_s_after(0)

    def step_s_after(self, first: int) -> float:
        """The same without the first steps."""
        ends = self.end_s.max(axis=(1, 2))
        if self.is_continuous:
            begun = ends[first - 1] if first else 0.0
            return float((ends[-1] - begun) / (ends.size - first))
        return float(ends[first:].mean())


def simulate(graph: StepGraph, durations: Durations) -> Simulated:
    """The times of all operations; clocks are perfect."""
    start_s = np.empty_like(durations.own)
    end_s = np.empty_like(durations.own)
    _run(
        (graph.unit_ptr, graph.member, graph.is_synced),
        (graph.dep_ptr, graph.dep, graph.share),
        graph.stage,
        (durations.own, durations.launch, durations.gap),
        durations.is_continuous,
        start_s,
        end_s,
    )
    is_absent = np.isnan(durations.own)
    return Simulated(
        start_s, end_s, durations.is_continuous, is_absent if is_absent.any() else None
    )


def _kernel(function: Any) -> Any:
    """Compiled; kept on disk where that can be written."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:
        return njit(function)


@_kernel
def _run(
    units: Any, deps: Any, stages: Any, times: Any, is_continuous: bool, start: Any, end: Any
) -> None:
    unit_ptr, member, is_synced = units
    dep_ptr, dep, share = deps
    own, launch, gap = times
    num_steps, num_ops, dp = own.shape
    ready = np.zeros((gap.shape[1], dp))
    arrived = np.empty(dp)
    for step in range(num_steps):
        begin = ready + gap[step] if is_continuous else gap[step].copy()
        for unit in range(is_synced.size):
            arrived[:] = -np.inf
            for at in range(unit_ptr[unit], unit_ptr[unit + 1]):
                op = member[at]
                for d in range(dp):
                    time = begin[stages[op], d]
                    held = -np.inf
                    for k in range(dep_ptr[op], dep_ptr[op + 1]):
                        other = dep[k]
                        if share[k] == QUEUED:
                            held = max(held, end[step, other, d])
                            continue
                        if share[k] == 1.0:
                            passed = end[step, other, d]
                        else:
                            passed = (
                                start[step, other, d]
                                + (end[step, other, d] - start[step, other, d]) * share[k]
                            )
                        time = max(time, passed)
                    if np.isnan(own[step, op, d]):
                        start[step, op, d] = time
                        end[step, op, d] = time
                        continue
                    time += launch[step, op, d]
                    start[step, op, d] = time
                    arrived[d] = max(arrived[d], time, held)
            if is_synced[unit]:
                arrived[:] = arrived.max()
            for at in range(unit_ptr[unit], unit_ptr[unit + 1]):
                for d in range(dp):
                    if not np.isnan(own[step, member[at], d]):
                        end[step, member[at], d] = arrived[d] + own[step, member[at], d]
        ready[:] = 0.0
        for op in range(num_ops):
            for d in range(dp):
                ready[stages[op], d] = max(ready[stages[op], d], end[step, op, d])
