"""Where in the job this process stands.

Nothing here raises: a topology that cannot be is logged, carries its `problem`, and records
nothing.
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

# Names that mesh dimensions of one meaning have in torchtitan, veScale, Lightning and others.
_SEQUENCE = ("cp", "sp", "dsp", "context_parallel", "sequence_parallel")
_EXPERT = ("ep", "expert_parallel")


class Topology:
    """One process's place: of tensor- and context-parallel peers, only the first records."""

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
        """The topology that these fields tell, which are those of the constructor."""
        try:
            return cls(**fields)
        except TypeError as error:
            return nowhere(f"the topology is not told whole: {error}")

    @property
    def world_size(self) -> int:
        """Number of processes of the job."""
        return self.dp_size * self.pp_size * self.tp_size * self.dsp_size

    def run_key(self) -> str | None:
        """The key of this run, as `start` finds it out where none is told."""
        return run_key(1 if self.problem is not None else self.world_size)

    def __repr__(self) -> str:
        """One line for people."""
        if self.problem is not None:
            return f"nowhere: {self.problem}"
        text = f"rank {self.rank} of {self.world_size}: dp rank {self.dp_rank} of {self.dp_size}, "
        text += f"stage {self.stage} of {self.pp_size}"
        sizes = {"tp": self.tp_size, "vpp": self.vpp_size, "dsp": self.dsp_size, "ep": self.ep_size}
        text += "".join(f", {name} {size}" for name, size in sizes.items() if size != 1)
        return text if self.records else f"{text} (another rank records for it)"

    def _contradiction(self) -> str | None:
        """What cannot be, if anything."""
        sizes = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")
        for name in ("rank", "dp_rank", "stage", *sizes):
            value, least = getattr(self, name), 1 if name in sizes else 0
            if not isinstance(value, int) or value < least:
                return f"{name} is {value!r}: a whole number from {least} is wanted"
        for name, size in (("dp_rank", "dp_size"), ("stage", "pp_size"), ("rank", "world_size")):
            value, limit = getattr(self, name), getattr(self, size)
            if value >= limit:
                return f"{name} is {value}, and {size} {limit}: it has to be less"
        return None


def nowhere(problem: str) -> Topology:
    """A topology that could not be found out: it records nothing."""
    return Topology(rank=0, dp_rank=0, stage=0, dp_size=1, pp_size=1, problem=problem)


def alone() -> Topology:
    """The topology of a job of one process."""
    return Topology(rank=0, dp_rank=0, stage=0, dp_size=1, pp_size=1)


def from_torch(pp_size: int = 1, vpp_size: int = 1, tp_size: int = 1) -> Topology:
    """What torch.distributed says, or torchrun's variables where it is not initialised yet.

    Ranks are taken to be numbered as torchtitan and Megatron do: those of one tensor-parallel
    group side by side, those of one stage next. For any other order, use `from_device_mesh`.
    """
    for name, value in (("pp_size", pp_size), ("tp_size", tp_size)):
        if not isinstance(_number(value), int):
            return nowhere(f"{name} is {value!r}: a whole number from 1 is wanted")
    try:
        rank, world_size = _rank_of_world()
    except Exception as error:
        return nowhere(f"torch.distributed does not tell the rank: {error}")
    dp_size, odd = divmod(world_size, max(1, pp_size * tp_size))
    if odd or pp_size < 1 or tp_size < 1:
        return nowhere(f"{world_size} ranks cannot be {pp_size} stages x {tp_size} tensor-parallel")
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
    """What a DeviceMesh over all ranks says; a dimension that it does not have is of size 1.

    `dp` may be several dimensions, the outermost first: ("dp_replicate", "dp_shard").
    """
    try:
        dps = (dp,) if isinstance(dp, str) else tuple(dp)
        names = tuple(mesh.mesh_dim_names or ())
        place = mesh.get_coordinate()
        if place is None:
            return nowhere("this rank is not in the mesh")
        sizes = {name: int(mesh.size(at)) for at, name in enumerate(names)}
        places = {name: int(place[at]) for at, name in enumerate(names)}
        rank, world_size = int(mesh.get_rank()), int(mesh.size())
        is_whole_world = world_size == _rank_of_world()[1]
    except Exception as error:
        return nowhere(f"the mesh does not tell where this rank is: {error}")
    if world_size > 1 and not names:
        return nowhere("the mesh's dimensions have no names: give them as mesh_dim_names=")
    unknown = [
        name
        for name, size in sizes.items()
        if size > 1 and name not in (*dps, pp, tp, *_SEQUENCE, *_EXPERT)
    ]
    if unknown:
        return nowhere(
            f"mesh dimension {unknown[0]!r} is none that is known: name it by dp=, pp=, tp="
        )
    dp_rank, dp_size = _flat(dps, places, sizes)
    # Experts are spread over ranks that are data-parallel for all else.
    ep_rank, ep_size = _flat(_EXPERT, places, sizes)
    dsp_rank, dsp_size = _flat(_SEQUENCE, places, sizes)
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
        return nowhere(f"the mesh holds {world_size} ranks, and the job more: give the whole mesh")
    return Topology(**found, vpp_size=vpp_size, records=places.get(tp, 0) == 0 and dsp_rank == 0)


def from_megatron(parallel_state: Any = None) -> Topology:
    """What Megatron's parallel state says, once `initialize_model_parallel` has been called."""
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
        return nowhere(f"Megatron's parallel state does not tell: {error!r}")


def local_rank() -> int | None:
    """Number of this process on its host, as torchrun, Slurm or Open MPI tell it."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit() and len(text) <= 4:
            return int(text)
    return None


def group_ranks(group: Any) -> list[int]:
    """Global ranks of a ProcessGroup, of a DeviceMesh of one dimension, or those of a sequence.

    Raises:
        Exception: of any kind: they are not known.
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
    """The number as Python's own, as also one of numpy may be; what is none stays as it is."""
    try:
        return operator.index(value)
    except TypeError:
        return value


def _flat(
    names: Iterable[str], places: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[int, int]:
    """Place along several dimensions taken as one, and its size."""
    at, size = 0, 1
    for name in names:
        at, size = at * sizes.get(name, 1) + places.get(name, 0), size * sizes.get(name, 1)
    return at, size
