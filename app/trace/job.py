"""A training job: its name, its parallel sizes, and the placement of its hosts.

The service's own name of a job is "project/job"; requests and answers only have "job".
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.trace.ops import BUILT_IN, OpTypes

DEFAULT_PROJECT = "default"
# The project of the jobs by which the service checks itself; no user's project can have this name.
CANARY_PROJECT = "_canary"
MAX_JOB_CHARS = 96
MAX_PROJECT_CHARS = 31
JOB_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_JOB_CHARS - 1}}}$"
PROJECT_PATTERN = rf"^[a-z0-9][a-z0-9-]{{0,{MAX_PROJECT_CHARS - 1}}}$"

_JOB = re.compile(JOB_PATTERN)
_PROJECT = re.compile(PROJECT_PATTERN)


def job_key(project: str, job: str) -> str:
    """The key under which the store, the queue and the consumers know this job."""
    return f"{project}/{job}"


def project_of(key: str) -> str:
    """Project of a job's key; the default project if the key has none."""
    project, slash, _ = key.partition("/")
    return project if slash else DEFAULT_PROJECT


def job_of(key: str) -> str:
    """A job's name within its project."""
    return key.partition("/")[2] or key


def shard_of(key: str, num_shards: int) -> int:
    """The shard of the event queue that holds all batches of a job."""
    return crc32(key.encode()) % num_shards


def is_job_name(text: str) -> bool:
    """Whether a text is a valid job name."""
    return _JOB.fullmatch(text) is not None


def is_project_name(text: str) -> bool:
    """Whether a text is a valid project name."""
    return _PROJECT.fullmatch(text) is not None


class Placement(NamedTuple):
    """The rack that a host is in, and the switch that it is connected to; None where unknown."""

    rack: str | None = None
    switch: str | None = None


UNKNOWN_PLACEMENT = Placement()


# Limits of a trace's columns. A chunk of the whole model is a stage times a chunk: 31 bits.
MAX_STAGES = 2**15
_MAX_RANKS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the parallel axes; a worker is one (dp_rank, stage) pair.

    `vpp_size` is the number of model chunks on a stage, `dsp_size` the number of ranks among
    which one replica's sequence is sharded, `ep_size` the number of successive dp ranks that
    share their experts.
    """

    dp_size: int
    pp_size: int
    tp_size: int = 1
    vpp_size: int = 1
    dsp_size: int = 1
    ep_size: int = 1

    def __post_init__(self) -> None:
        for name in self.__slots__:
            size = getattr(self, name)
            if size < 1:
                raise InvalidRequest(f"{name} is {size}: every parallel size is at least 1")
            most = MAX_STAGES if name == "pp_size" else _MAX_RANKS
            if size > most:
                raise InvalidRequest(f"{name} is {str(size)[:40]}: give at most {most:,}")
        if self.dp_size % self.ep_size:
            raise InvalidRequest(
                f"ep_size is {self.ep_size}, which does not divide dp_size {self.dp_size}: "
                "expert-parallel blocks are of successive dp ranks"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks, one GPU each."""
        return self.dp_size * self.pp_size * self.tp_size * self.dsp_size

    @property
    def num_workers(self) -> int:
        """Number of (dp_rank, stage) pairs that record their operations."""
        return self.dp_size * self.pp_size

    @property
    def is_data_parallel(self) -> bool:
        """Whether parameters and gradients are exchanged at all."""
        return self.dp_size * self.dsp_size > 1

    def usual_rank(self, dp_rank: int, stage: int) -> int:
        """Lowest global rank of a worker in Megatron's usual order (tp, dsp, dp, pp)."""
        return (stage * self.dp_size + dp_rank) * self.tp_size * self.dsp_size

    def usual_ranks(self) -> NDArray[np.int64]:
        """[dp ranks, stages], `usual_rank` of every worker."""
        worker = np.arange(self.num_workers).reshape(self.pp_size, self.dp_size).T
        return worker * (self.tp_size * self.dsp_size)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as results name it."""

    name: str
    parallelism: Parallelism
    num_gpus: int
    op_types: OpTypes = field(default=BUILT_IN)

    @classmethod
    def of(cls, name: str, parallelism: Parallelism, op_types: OpTypes = BUILT_IN) -> "Job":
        """A job with one GPU a rank."""
        return cls(name, parallelism, parallelism.world_size, op_types)
