"""The durations and launch delays that chance hands to one step."""

from dataclasses import dataclass

import numpy as np

from app.synth.costs import Costs, noisy
from app.synth.faults import Fault
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of one step's operations, waiting left out.

    Shapes: computations and transfers between stages [stages, micro-batches, dp ranks], a
    transfer under its receiver's stage; operations at the step's ends [stages, dp ranks].
    """

    forward_s: Floats
    backward_s: Floats
    forward_transfer_s: Floats
    backward_transfer_s: Floats
    once_s: dict[str, Floats]

    @classmethod
    def drawn(
        cls,
        costs: Costs,
        faults: tuple[Fault, ...],
        parallelism: Parallelism,
        num_microbatches: int,
        rng: np.random.Generator,
    ) -> "Durations":
        """One step's durations, the same for the same state of `rng`."""
        shape = (parallelism.pp_size, num_microbatches, parallelism.dp_size)
        forward_s, backward_s = (
            costs.computation_s(direction, parallelism, faults)[:, None, :]
            for direction in (Direction.FORWARD, Direction.BACKWARD)
        )
        return cls(
            noisy(forward_s, costs.noise, shape, rng),
            noisy(backward_s, costs.noise, shape, rng),
            noisy(costs.stage_transfer_s, costs.transfer_noise, shape, rng),
            noisy(costs.stage_transfer_s, costs.transfer_noise, shape, rng),
            _once(costs, parallelism, rng),
        )


def _once(costs: Costs, parallelism: Parallelism, rng: np.random.Generator) -> dict[str, Floats]:
    stages, dp_ranks = parallelism.pp_size, parallelism.dp_size
    # A collective has one duration for all its members: its size is 1 along the axes it spans.
    everyone, stage, dp_rank, job = (stages, dp_ranks), (stages, 1), (1, dp_ranks), (1, 1)
    compute, transfer = costs.noise, costs.transfer_noise
    means = (
        ("params-all-gather", costs.params_all_gather_s, transfer, stage),
        ("gc", costs.gc_s, compute, everyone),
        ("layernorm-grads-all-reduce", costs.layernorm_all_reduce_s, transfer, everyone),
        ("embedding-grads-all-reduce", costs.embedding_all_reduce_s, transfer, dp_rank),
        ("grads-reduce-scatter", costs.grads_reduce_scatter_s, transfer, stage),
        ("optimizer-clip-main-grad", costs.clip_s, transfer, job),
        ("optimizer", costs.optimizer_s, compute, everyone),
    )
    return {name: noisy(mean_s, noise, shape, rng) for name, mean_s, noise, shape in means}
