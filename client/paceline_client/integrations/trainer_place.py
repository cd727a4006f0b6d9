"""Where this process of a trainer stands: of ranks that compute the same data, one records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..topology import Topology, from_device_mesh, from_torch, nowhere

# Names that the dimensions of a mesh have in accelerate and in Lightning, outermost first.
_DATA = ("dp_replicate", "dp_shard", "data_parallel")
_TENSOR = ("tp", "tensor_parallel")
_SAME_DATA = ("tp_size", "cp_size", "sp_size")


def placed(find: Callable[[], Topology]) -> Topology:
    """What `find` finds. It never raises: one rank alone that did would keep all others waiting."""
    try:
        return find()
    except Exception as error:
        return nowhere(f"the trainer does not tell where this rank is, give topology=: {error!r}")


def of_hugging_face(trainer: Any, args: Any, model: Any) -> Topology:
    """Of a Trainer's process; the trainer itself may not be known."""
    accelerator = getattr(trainer, "accelerator", None)
    config = getattr(accelerator, "parallelism_config", None) or getattr(
        args, "parallelism_config", None
    )
    sizes = [getattr(config, name, None) for name in _SAME_DATA]
    if not any(_is_several(size) for size in (*sizes, getattr(model, "tp_size", None))):
        return from_torch()
    mesh = getattr(config, "device_mesh", None)
    if mesh is None:
        return nowhere("no mesh tells which ranks compute the same data: give topology=")
    return _of_mesh(mesh)


def of_lightning(strategy: Any) -> Topology:
    """Of a process under one of Lightning's strategies: only ModelParallelStrategy has a mesh."""
    mesh = getattr(strategy, "device_mesh", None)
    return from_torch() if mesh is None else _of_mesh(mesh)


def _of_mesh(mesh: Any) -> Topology:
    names = mesh.mesh_dim_names or ()
    tensor = next((name for name in _TENSOR if name in names), _TENSOR[0])
    return from_device_mesh(mesh, dp=[name for name in _DATA if name in names], tp=tensor)


def _is_several(size: Any) -> bool:
    return isinstance(size, int) and size > 1
