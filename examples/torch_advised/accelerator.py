"""An accelerator on which kernels queue while the host goes on, as on a GPU.

Two cores cannot compute for four ranks, but four ranks can wait on them. The host's own work is
hidden behind the queue, as long as the queue is not empty: a stopped host costs time, a slow one
seldom.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from examples.torch_pipeline.model import LAYER_S, Pace, Stage


class Accelerator(Pace):
    """Computes what is launched, in order; the host waits for it at the end of each pass."""

    def __init__(self, layer_s: float) -> None:
        super().__init__(slowdown=layer_s / LAYER_S)
        self._free_s = 0.0

    def watch(self, stage: Stage) -> None:
        """Let every forward and every backward of a stage end when its kernels have."""
        stage.register_forward_hook(self.synchronise)
        stage.layers[0].register_forward_pre_hook(self._end_backward)

    def compute(self, took_s: float) -> None:
        """Launch a kernel that takes so long."""
        self._free_s = max(self._free_s, time.perf_counter()) + took_s

    def synchronise(self, *_: Any) -> None:
        """Wait until all that was launched has been computed."""
        left_s = self._free_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)

    def _end_backward(self, _layer: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _EndOfBackward.apply(inputs[0], self), *inputs[1:]


class _EndOfBackward(torch.autograd.Function):
    """Identity; the first of the forward is the last of the backward, which waits here."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, accelerator: Accelerator) -> Tensor:
        ctx.accelerator = accelerator
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.accelerator.synchronise()
        return gradient, None
