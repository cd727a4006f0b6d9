"""Layers that sleep inside autograd for the time an accelerator would take.

Two cores cannot compute for four ranks, but four ranks can sleep on them.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 64
# Forward of a layer; its backward takes twice as long. Much longer than a collective, which takes
# 1 ms on an idle machine and 10 ms on a busy one.
LAYER_S = 0.016
JITTER = 0.02  # of each pass, on both sides


class Pace:
    """Speed of a rank's accelerator (1.6 takes 1.6 times as long), and measured oversleeping."""

    def __init__(self, slowdown: float, seed: int) -> None:
        self._slowdown = slowdown
        self._draw = random.Random(seed)  # noqa: S311
        self._asked_s = 0.0
        self._slept_s = 0.0

    def sleep(self, usual_s: float) -> None:
        """Sleep this long, times slowdown and jitter."""
        asked_s = usual_s * self._slowdown * self._draw.uniform(1 - JITTER, 1 + JITTER)
        began_s = time.perf_counter()
        time.sleep(asked_s)
        self._asked_s += asked_s
        self._slept_s += time.perf_counter() - began_s

    def overslept(self) -> float | None:
        """Share by which sleeps took longer than requested; None without sleeps."""
        return self._slept_s / self._asked_s - 1 if self._asked_s else None


class _Sleeping(torch.autograd.Function):
    """Sleeps in the forward, and twice as long in the backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, pace: Pace, length_s: float) -> Tensor:
        ctx.pace, ctx.length_s = pace, length_s
        pace.sleep(length_s)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        ctx.pace.sleep(2 * ctx.length_s)
        return gradient, None, None


class Layer(nn.Module):
    """A linear layer that sleeps."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        """[rows, WIDTH]."""
        return torch.relu(self.linear(_Sleeping.apply(inputs, self._pace, LAYER_S)))


class _Shared(torch.autograd.Function):
    """Sleeps and then sums over the tensor-parallel peers, in the forward and in the backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: SharedLayer) -> Tensor:
        ctx.layer = layer
        layer.pace.sleep(LAYER_S)
        return layer.mean_of_peers(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.layer.pace.sleep(2 * LAYER_S)
        return ctx.layer.mean_of_peers(gradient), None


class SharedLayer(nn.Module):
    """A layer that tensor-parallel peers compute together; each peer records the collectives."""

    def __init__(self, pace: Pace, recorder: Any, declared: Any, peers: dist.ProcessGroup) -> None:
        super().__init__()
        self.pace = pace
        self._recorder, self._declared, self._peers = recorder, declared, peers
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        """[rows, WIDTH]."""
        return torch.relu(self.linear(_Shared.apply(inputs, self)))

    def mean_of_peers(self, part: Tensor) -> Tensor:
        """The mean over the peers, as of parts of one matrix."""
        total = part.clone()
        with self._recorder.op("all-reduce", group=self._declared):
            dist.all_reduce(total, group=self._peers)
        return total / self._peers.size()


class WithLoss(nn.Module):
    """The layers as transformers' Trainer takes a model: inputs and labels in, a dict out."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The mean square of what is between outputs and labels, both [rows, WIDTH]."""
        outputs = self.layers(inputs)
        return {"loss": ((outputs - labels) ** 2).mean(), "outputs": outputs}


def stack(pace: Pace, num_layers: int) -> nn.Sequential:
    """So many layers in a row, with equal weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(pace) for _ in range(num_layers)))
