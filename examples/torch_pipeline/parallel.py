"""The model of one worker in its pipeline: stages, schedule and how gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from paceline_client.integrations import ddp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

from .model import Pace, Stage, loss_of

LAYERS = 2  # of a rank, unless the fault says otherwise


@dataclass
class Parallel:
    """Stages and schedule of one worker."""

    modules: list[nn.Module]
    schedule: Any
    group: dist.ProcessGroup

    def reduce_gradients(self, recorder: Any) -> None:
        """Average gradients over the replicas, unless DDP has done it."""
        for chunk, module in enumerate(self.modules):
            if isinstance(module, DistributedDataParallel):
                continue
            gradients = [each.grad for each in module.parameters() if each.grad is not None]
            flat = torch.cat([each.flatten() for each in gradients])
            with recorder.op("grads-reduce-scatter", chunk=chunk):
                dist.all_reduce(flat, group=self.group)
            flat /= self.group.size()
            parts = flat.split([each.numel() for each in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def zero_gradients(self) -> None:
        """Reset gradients before the next step."""
        for module in self.modules:
            module.zero_grad(set_to_none=False)


def one_stage(mesh: DeviceMesh, recorder: Any, pace: Pace, last_layers: int, rows: int) -> Parallel:
    """1F1B with one stage on each rank, under DDP."""
    rank, size = mesh.get_local_rank("pp"), mesh.size(0)
    is_last = rank == size - 1
    layers = last_layers if is_last else LAYERS
    module: nn.Module = Stage(layers, is_first=rank == 0, is_last=is_last, pace=pace)
    group = mesh.get_group("dp")
    module = DistributedDataParallel(module, process_group=group, bucket_cap_mb=1)
    if recorder is not None:
        ddp.attach(recorder, module, chunk=0, computes=False)
    stage = PipelineStage(module, rank, size, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=rows, loss_fn=loss_of)
    return Parallel([module], schedule, group)


def two_stages(mesh: DeviceMesh, pace: Pace, rows: int) -> Parallel:
    """Interleaved, two stages on each rank; gradients are reduced after the schedule.

    Not under DDP: its reducer fails with this schedule (PyTorch 2.13, an internal assertion).
    """
    rank, size = mesh.get_local_rank("pp"), mesh.size(0)
    numbers = [rank, rank + size]
    modules: list[nn.Module] = [
        Stage(LAYERS // 2, is_first=each == 0, is_last=each == 2 * size - 1, pace=pace)
        for each in numbers
    ]
    stages = [
        PipelineStage(module, each, 2 * size, torch.device("cpu"), group=mesh.get_group("pp"))
        for each, module in zip(numbers, modules, strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=rows, loss_fn=loss_of)
    return Parallel(modules, schedule, mesh.get_group("dp"))
