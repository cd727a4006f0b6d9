"""Simulated jobs of DDP: gradients all-reduced by a ring, or by StragglAR.

The simulator draws what a ring takes. StragglAR is applied to that from outside, by when the
simulated ranks really arrive and by the network that made the ring's time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from app.advice.all_reduce import Network
from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault
from app.synth.job import SimulatedJob
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Window

ALL_REDUCE, GATHER = "grads-reduce-scatter", "params-all-gather"


def with_all_reduce(job: SimulatedJob, num_bytes: int, network: Network) -> SimulatedJob:
    """The job with gradients of this size, all-reduced by a ring; nothing is gathered."""
    ring = network.ring_s(job.parallelism.dp_size, num_bytes)
    sizes = ((ALL_REDUCE, num_bytes),)
    costs = replace(job.costs, grads_reduce_scatter_s=ring, params_all_gather_s=0.0, sizes=sizes)
    return replace(job, costs=costs)


def ddp_window(job: SimulatedJob, steps: Sequence[int]) -> Window:
    """The recorded window, in which no parameters are gathered."""
    window = job.record(steps).window()
    return replace(window, trace=window.trace.select(window.trace.optype != OP_CODES[GATHER]))


def with_straggl_ar(
    job: SimulatedJob, steps: Sequence[int], dp_rank: int, num_bytes: int, network: Network
) -> SimulatedJob:
    """The job with StragglAR in these steps; `dp_rank` is the rank that it waits for."""
    trace, sizes = job.make(steps), job.parallelism
    chosen = trace.optype == OP_CODES[ALL_REDUCE]
    start_s = np.full((len(steps), sizes.pp_size, sizes.dp_size), np.nan)
    at = np.searchsorted(np.asarray(steps), trace.step[chosen])
    start_s[at, trace.stage[chosen], trace.dp_rank[chosen]] = trace.start_s[chosen]
    delay_s = start_s[..., dp_rank] - np.delete(start_s, dp_rank, axis=2).max(axis=2)
    ring = network.ring_s(sizes.dp_size, num_bytes)
    factors = network.straggl_ar_s(sizes.dp_size, num_bytes, delay_s) / ring
    by_step = dict(zip(steps, factors, strict=True))
    return replace(job, faults=(*job.faults, _ScaledAllReduce(by_step)))


@dataclass(frozen=True, slots=True)
class _ScaledAllReduce(Fault):
    """The gradients' all-reduce takes `factors[step]` [stages] times as long."""

    name = "scaled-all-reduce"
    cause = None

    factors: Mapping[int, Floats]

    @override
    def check(self, world: World) -> None:
        pass

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for at, step in enumerate(drawn.steps.tolist()):
            drawn.once_s[ALL_REDUCE][:, :, at, 0] *= self.factors[step][:, None]

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()
