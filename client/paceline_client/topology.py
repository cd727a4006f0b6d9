"""The position of this process in the job.

Nothing here raises: an invalid topology is logged, has a `problem`, and records nothing.
"""

from __future__ import annotations

import logging
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from .run_keys import is_initialised, run_key

log = logging.getLogger("paceline_client")

# Names of mesh dimensions in torchtitan, veScale, Lightning and others.
_SEQUENCE = ("cp", "sp", "dsp", "context_parallel", "sequence_parallel")
_EXPERT = ("ep", "expert_parallel")


class Topology:
    """Position of a process; of tensor- and context-parallel peers only the first records."""

    def __init__(
        self,
        *,
        rank: int,
        dp_rank: int,
        stage: int,
        dp_size: int,
        pp_size: int,
        tp_size: int = 1,
        vpp_size: int = 1,
        dsp_size: int = 1,
        ep_size: int = 1,
        records: bool = True,
        host: str | None = None,
        problem: str | None = None,
    ) -> None:
        self.rank: int = _number(rank)
        self.dp_rank: int = _number(dp_rank)
        self.stage: int = _number(stage)
        self.dp_size: int = _number(dp_size)
        self.pp_size: int = _number(pp_size)
        self.tp_size: int = _number(tp_size)
        self.vpp_size: int = _number(vpp_size)
        self.dsp_size: int = _number(dsp_size)
        self.ep_size: int = _number(ep_size)
        self.host = host
        self.problem = problem or self._contradiction()
        self.records = records and self.problem is None
        if self.problem is not None:
            log.warning("paceline: this process records nothing: %s", self.problem)

    @classmethod
    def given(cls, **fields: Any) -> Topology:
        """A topology from the constructor's fields; invalid if one is missing."""
        try:
            return cls(**fields)
        except TypeError as error:
            return invalid_topology(f"the topology is incomplete: {error}")

    @property
    def world_size(self) -> int:
        """Number of processes of the job."""
        return self.dp_size * self.pp_size * self.tp_size * self.dsp_size

    def run_key(self) -> str | None:
        """The key of this run, as `start` determines it by default."""
        return run_key(1 if self.problem is not None else self.world_size)

    def __repr__(self) -> str:
        """One line for logs."""
        if self.problem is not None:
            return f"unknown position: {self.problem}"
        text = f"rank {self.rank} of {self.world_size}: dp rank {self.dp_rank} of {self.dp_size}, "
        text += f"stage {self.stage} of {self.pp_size}"
        sizes = {"tp": self.tp_size, "vpp": self.vpp_size, "dsp": self.dsp_size, "ep": self.ep_size}
        text += "".join(f", {name} {size}" for name, size in sizes.items() if size != 1)
        return text if self.records else f"{text} (another rank records for it)"

    def _contradiction(self) -> str | None:
        """What is wrong, if anything."""
        sizes = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")
        for name in ("rank", "dp_rank", "stage", *sizes):
            value, minimum = getattr(self, name), 1 if name in sizes else 0
            if not isinstance(value, int) or value < minimum:
                return f"{name} is {value!r}, not a whole number from {minimum}"
        for name, size in (("dp_rank", "dp_size"), ("stage", "pp_size"), ("rank", "world_size")):
            value, limit = getattr(self, name), getattr(self, size)
            if value >= limit:
                return f"{name} is {value}, but must be less than {size}, {limit}"
        return None


def invalid_topology(problem: str) -> Topology:
    """A topology with a problem; it records nothing."""
    return Topology(rank=0, dp_rank=0, stage=0, dp_size=1, pp_size=1, problem=problem)


def from_torch(pp_size: int = 1, vpp_size: int = 1, tp_size: int = 1) -> Topology:
    """Topology from torch.distributed, or from torchrun's variables before its initialisation.

    Assumes the rank order of torchtitan and Megatron: tensor-parallel ranks are adjacent, then
    those of a stage. For any other order, use `from_device_mesh`.
    """
    for name, value in (("pp_size", pp_size), ("tp_size", tp_size)):
        if not isinstance(_number(value), int):
            return invalid_topology(f"{name} is {value!r}, not a whole number from 1")
    try:
        rank, world_size = _rank_of_world()
    except Exception as error:
        return invalid_topology(f"torch.distributed does not tell the rank: {error}")
    dp_size, odd = divmod(world_size, max(1, pp_size * tp_size))
    if odd or pp_size < 1 or tp_size < 1:
        return invalid_topology(
            f"{world_size} ranks cannot be {pp_size} stages x {tp_size} tensor-parallel"
        )
    return Topology(
        rank=rank,
        dp_rank=rank // tp_size % dp_size,
        stage=rank // (tp_size * dp_size),
        dp_size=dp_size,
        pp_size=pp_size,
        tp_size=tp_size,
        vpp_size=vpp_size,
        records=rank % tp_size == 0,
    )


def from_device_mesh(
    mesh: Any,
    dp: str | Iterable[str] = "dp",
    pp: str = "pp",
    tp: str = "tp",
    vpp_size: int = 1,
) -> Topology:
    """Topology from a DeviceMesh over all ranks; missing dimensions have size 1.

    `dp` may be several dimensions, outermost first: ("dp_replicate", "dp_shard").
    """
    try:
        dps = (dp,) if isinstance(dp, str) else tuple(dp)
        names = tuple(mesh.mesh_dim_names or ())
        place = mesh.get_coordinate()
        if place is None:
            return invalid_topology("this rank is not in the mesh")
        sizes = {name: int(mesh.size(at)) for at, name in enumerate(names)}
        places = {name: int(place[at]) for at, name in enumerate(names)}
        rank, world_size = int(mesh.get_rank()), int(mesh.size())
        is_whole_world = world_size == _rank_of_world()[1]
    except Exception as error:
        return invalid_topology(f"the mesh does not tell where this rank is: {error}")
    if world_size > 1 and not names:
        return invalid_topology("the mesh's dimensions have no names: give them as mesh_dim_names=")
    unknown = [
        name
        for name, size in sizes.items()
        if size > 1 and name not in (*dps, pp, tp, *_SEQUENCE, *_EXPERT)
    ]
    if unknown:
        return invalid_topology(
            f"mesh dimension {unknown[0]!r} is unknown: name it by dp=, pp= or tp="
        )
    dp_rank, dp_size = _flattened(dps, places, sizes)
    # Expert-parallel ranks are data-parallel for everything else.
    ep_rank, ep_size = _flattened(_EXPERT, places, sizes)
    dsp_rank, dsp_size = _flattened(_SEQUENCE, places, sizes)
    found: dict[str, Any] = {
        "rank": rank,
        "dp_rank": dp_rank * ep_size + ep_rank,
        "stage": places.get(pp, 0),
        "dp_size": dp_size * ep_size,
        "pp_size": sizes.get(pp, 1),
        "tp_size": sizes.get(tp, 1),
        "dsp_size": dsp_size,
        "ep_size": ep_size,
    }
    if not is_whole_world:
        return invalid_topology(
            f"the mesh has {world_size} ranks, but the job has more: give the whole mesh"
        )
    return Topology(**found, vpp_size=vpp_size, records=places.get(tp, 0) == 0 and dsp_rank == 0)


def from_megatron(parallel_state: Any = None) -> Topology:
    """Topology from Megatron's parallel state, after `initialize_model_parallel`."""
    try:
        state = parallel_state or import_module("megatron.core.parallel_state")
        cp_rank, tp_rank = (
            state.get_context_parallel_rank(),
            state.get_tensor_model_parallel_rank(),
        )
        return Topology(
            rank=_rank_of_world()[0],
            dp_rank=state.get_data_parallel_rank(with_context_parallel=False),
            stage=state.get_pipeline_model_parallel_rank(),
            dp_size=state.get_data_parallel_world_size(with_context_parallel=False),
            pp_size=state.get_pipeline_model_parallel_world_size(),
            tp_size=state.get_tensor_model_parallel_world_size(),
            vpp_size=state.get_virtual_pipeline_model_parallel_world_size() or 1,
            dsp_size=state.get_context_parallel_world_size(),
            ep_size=state.get_expert_model_parallel_world_size() or 1,
            records=tp_rank == 0 and cp_rank == 0,
        )
    except Exception as error:
        return invalid_topology(f"Megatron's parallel state does not tell: {error!r}")


def local_rank() -> int | None:
    """Number of this process on its host, from torchrun, Slurm or Open MPI."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit() and len(text) <= 4:
            return int(text)
    return None


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a ProcessGroup, a DeviceMesh of one dimension, or a sequence.

    Raises:
        Exception: any; the ranks are unknown.
    """
    if hasattr(group, "get_group") and hasattr(group, "mesh_dim_names"):
        group = group.get_group()
    if isinstance(group, Iterable):
        return [operator.index(rank) for rank in group]
    dist: Any = sys.modules["torch.distributed"]
    return [int(rank) for rank in dist.get_process_group_ranks(group)]


def _rank_of_world() -> tuple[int, int]:
    if is_initialised():
        dist = sys.modules["torch.distributed"]
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def _number(value: Any) -> Any:
    """A Python int, also from numpy; anything else unchanged."""
    try:
        return operator.index(value)
    except TypeError:
        return value


def _flattened(
    names: Iterable[str], places: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[int, int]:
    """Coordinate along several dimensions flattened into one, and its size."""
    at, size = 0, 1
    for name in names:
        at, size = at * sizes.get(name, 1) + places.get(name, 0), size * sizes.get(name, 1)
    return at, size
