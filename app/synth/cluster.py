"""Hosts of a simulated job: which worker runs where, and how wrong the hosts' clocks are.

`World` is what a fault may know of the job. `rng_of` gives a fault its random generators: a fresh
one for each step number, the same whatever steps are drawn together and whatever other faults
there are. `WHOLE_JOB` stands for a step number where something is drawn once for the whole job.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from app.errors import InvalidRequest
from app.synth.noise import check_amounts
from app.synth.structure import ReplicaStructure
from app.trace.job import Parallelism
from app.trace.ops import OP_SPECS, Axis
from app.trace.window import Floats

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


# Beside the seed, where a step's number and a fault's would stand: no step and no fault has these.
_CLOCK_SEED = (2**63 - 1, 2**31)
_JITTER_SEED = 2**31 + 1

_SYNCHRONISING_OPS = frozenset(spec.name for spec in OP_SPECS if spec.axis is not Axis.NONE)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts of successive ranks, numbered from `first_host` on.

    Each host's clock is wrong by up to `clock_offset_s` either way, and gains or loses up to
    `drift_ppm` microseconds a second. The ends of what several workers do together are seen
    `jitter_s` later or less late in each place (half of a normal distribution of this width).
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
            for (dp_rank, stage), number in np.ndenumerate(self.host_numbers(parallelism))
        }

    def host_numbers(
        self, parallelism: Parallelism
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """[dp ranks, stages]"""
        dp_rank = np.arange(parallelism.dp_size)[:, None]
        stage = np.arange(parallelism.pp_size)
        ranks_each = parallelism.tp_size * parallelism.dsp_size
        return (stage * parallelism.dp_size + dp_rank) * ranks_each // self.gpus_per_host

    def clocks(self, parallelism: Parallelism, seed: int) -> tuple[Floats, Floats]:
        """Offset in seconds and drift as a share of each worker's clock, [dp ranks, stages]."""
        host = self.host_numbers(parallelism)
        num_hosts = int(host.max()) + 1
        rng = np.random.default_rng([seed, *_CLOCK_SEED])
        offset_s = rng.uniform(-self.clock_offset_s, self.clock_offset_s, num_hosts)
        drift = rng.uniform(-self.drift_ppm, self.drift_ppm, num_hosts) * 1e-6
        return offset_s[host], drift[host]

    def jitter(self, structure: ReplicaStructure, steps: Sequence[int], seed: int) -> Floats | None:
        """[ops, steps, dp ranks] seconds, None where everybody sees the end at once."""
        if self.jitter_s == 0.0:
            return None
        meets = np.flatnonzero([op.optype in _SYNCHRONISING_OPS for op in structure.ops])
        jitter_s = np.zeros((structure.num_ops, len(steps), structure.parallelism.dp_size))
        for position, step in enumerate(steps):
            rng = np.random.default_rng([seed, step, _JITTER_SEED])
            normal = rng.standard_normal((meets.size, structure.parallelism.dp_size))
            jitter_s[meets, position] = self.jitter_s * np.abs(normal)
        return jitter_s
