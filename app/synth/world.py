"""What a fault may know of the job that it strikes.

`MadeJob` draws some successive steps at a time, a block, and then calls for each of its faults

    fault.strike(drawn, world, rng_of)

once a block. `drawn` holds all steps of the block: `drawn.steps` are their numbers, and the step
axis of every array is in their order. A fault changes the arrays in place, and only for the steps
in which it lasts. How steps are split into blocks must not show: chance comes from `rng_of(step)`
alone, a fresh generator for a step's number (not its position), the same whatever the block and
whatever other faults there are. `rng_of(WHOLE_JOB)` is for what is drawn once for the whole job.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from app.trace.job import Parallelism

# In place of a step: no job trains for so long.
WHOLE_JOB = 2**63 - 1

Worker = tuple[int, int]  # dp rank, stage
RngOf = Callable[[int], np.random.Generator]


@dataclass(frozen=True, slots=True)
class World:
    """A job's shape, and on which host each worker (dp rank, stage) runs."""

    parallelism: Parallelism
    num_microbatches: int
    num_chunks: int
    hosts: Mapping[Worker, str]

    @property
    def host_names(self) -> list[str]:
        """Every host once, ascending."""
        return sorted(set(self.hosts.values()))

    def workers_of_host(self, name: str) -> list[Worker]:
        """The host's workers, ascending; none if there is no such host."""
        return sorted(worker for worker, host in self.hosts.items() if host == name)


def rng_of(seed: int, fault: int) -> RngOf:
    """The chance of a job's fault of this number, from 0."""

    def of_step(step: int) -> np.random.Generator:
        # The base noise of a step comes from [seed, step]; a third number of 0 would repeat it.
        return np.random.default_rng([seed, step, fault + 1])

    return of_step
