"""Experts with uneven loads; the simulated jobs of the command line have no experts."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, Share, affected_steps, log_normal_around
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class UnevenExperts(Fault):
    """Experts get uneven numbers of tokens, so the ranks of a block compute longer or shorter.

    The loads of a block's ranks are drawn for every stage and micro-batch, with a standard
    deviation of `spread` around a mean of 1.
    """

    name = "expert-imbalance"
    cause = "expert-imbalance"

    spread: Share = 0.3

    @override
    def check(self, world: World) -> None:
        if world.parallelism.ep_size < 2:
            raise InvalidRequest("uneven experts in a job without experts: its ep_size is 1")

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        sizes = world.parallelism
        shape = (
            *(sizes.pp_size, world.num_microbatches),
            *(sizes.dp_size // sizes.ep_size, sizes.ep_size),
        )
        sigma = np.sqrt(np.log(1 + self.spread**2))
        for at, step in affected_steps(drawn, lasts):
            load = log_normal_around(1.0, sigma, rng_of(step), shape)
            load /= load.mean(axis=3, keepdims=True)
            load = load.reshape(*shape[:2], sizes.dp_size)
            drawn.forward_s[..., at, :] *= load[:, None]
            drawn.backward_s[..., at, :] *= load[:, None]
