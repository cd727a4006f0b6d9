"""The hosts of a simulated job: the placement of its workers, and the errors of the hosts' clocks.

`World` has the facts about the job that faults use. `rng_of` gives a fault a random generator per
step number, which depends neither on the steps that are drawn together nor on other faults.
`WHOLE_JOB` takes the place of a step number for values that are drawn once per job.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from app.errors import InvalidRequest
from app.synth.noise import check_amounts
from app.synth.structure import ReplicaStructure
from app.trace.job import Parallelism
from app.trace.ops import OP_SPECS, Axis
from app.trace.window import Floats, Ints

# Larger than any step number.
WHOLE_JOB = 2**63 - 1

Worker = tuple[int, int]  # dp rank, stage
RngOf = Callable[[int], np.random.Generator]


@dataclass(frozen=True, slots=True)
class World:
    """A job's shape, and the host of every worker (dp rank, stage)."""

    parallelism: Parallelism
    num_microbatches: int
    num_chunks: int
    hosts: Mapping[Worker, str]

    @property
    def host_names(self) -> list[str]:
        """The distinct hosts, ascending."""
        return sorted(set(self.hosts.values()))

    def workers_of_host(self, name: str) -> list[Worker]:
        """The host's workers, ascending; none for an unknown host."""
        return sorted(worker for worker, host in self.hosts.items() if host == name)


def rng_of(seed: int, fault: int) -> RngOf:
    """The random generators, by step, of a job's fault number `fault`, from 0."""

    def of_step(step: int) -> np.random.Generator:
        # The noise of a step has the seed [seed, step], of which [seed, step, 0] is a repetition.
        return np.random.default_rng([seed, step, fault + 1])

    return of_step


# In place of the step's and the fault's number beside the seed; no step and no fault has these.
_CLOCK_SEED = (2**63 - 1, 2**31)
_JITTER_SEED = 2**31 + 1

_SYNCHRONISING_OPS = frozenset(spec.name for spec in OP_SPECS if spec.axis is not Axis.NONE)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts of successive ranks, numbered from `first_host` on.

    The clocks are wrong by up to +-`clock_offset_s`, and drift by up to +-`drift_ppm` microseconds
    a second. Workers see the ends of common operations with independent delays, which have a
    half-normal distribution of width `jitter_s`.
    """

    gpus_per_host: int = 8
    clock_offset_s: float = 0.0
    drift_ppm: float = 0.0
    jitter_s: float = 0.0
    first_host: int = 0

    def __post_init__(self) -> None:
        if self.gpus_per_host < 1:
            raise InvalidRequest(f"{self.gpus_per_host} GPUs a host: there is at least 1")
        check_amounts(**asdict(self))

    def hosts(self, parallelism: Parallelism) -> dict[Worker, str]:
        """The host of each worker's lowest rank."""
        return {
            (dp_rank, stage): f"host-{self.first_host + number:03d}"
            for dp_rank, numbers in enumerate(self.host_numbers(parallelism).tolist())
            for stage, number in enumerate(numbers)
        }

    def host_numbers(self, parallelism: Parallelism) -> Ints:
        """[dp ranks, stages], number of the host of the worker's lowest rank."""
        return parallelism.usual_ranks() // self.gpus_per_host

    def clocks(self, parallelism: Parallelism, seed: int) -> tuple[Floats, Floats]:
        """[dp ranks, stages], the offsets in seconds and the drifts (a ratio) of clocks."""
        host = self.host_numbers(parallelism)
        num_hosts = int(host.max()) + 1
        rng = np.random.default_rng([seed, *_CLOCK_SEED])
        offset_s = rng.uniform(-self.clock_offset_s, self.clock_offset_s, num_hosts)
        drift = rng.uniform(-self.drift_ppm, self.drift_ppm, num_hosts) * 1e-6
        return offset_s[host], drift[host]

    def jitter(self, structure: ReplicaStructure, steps: Sequence[int], seed: int) -> Floats | None:
        """[ops, steps, dp ranks], delays in seconds; None without jitter."""
        if self.jitter_s == 0.0:
            return None
        meets = np.flatnonzero([op.optype in _SYNCHRONISING_OPS for op in structure.ops])
        jitter_s = np.zeros((structure.num_ops, len(steps), structure.parallelism.dp_size))
        for position, step in enumerate(steps):
            rng = np.random.default_rng([seed, step, _JITTER_SEED])
            normal = rng.standard_normal((meets.size, structure.parallelism.dp_size))
            jitter_s[meets, position] = self.jitter_s * np.abs(normal)
        return jitter_s
