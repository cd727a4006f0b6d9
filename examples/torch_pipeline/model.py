"""A small transformer in stages; its layers take the time of a simulated accelerator."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_TOKENS = 128  # different ones
WIDTH = 32
LENGTH = 32  # tokens of a row

# Forward of a layer with usual sequence lengths; backward takes twice as long. Longer than
# scheduling delays on a busy processor, so that a shared laptop gives the same results.
LAYER_S = 0.012
# Share of a layer's time that grows with squared lengths, as attention does.
ATTENTION_SHARE = 0.9
USUAL_SQUARES = 4 * (LENGTH // 4) ** 2


class Pace:
    """Speed of this worker's accelerator; 2.0 takes twice as long."""

    def __init__(self, slowdown: float = 1.0) -> None:
        self.slowdown = slowdown

    def layer_s(self, squares: float) -> float:
        """Seconds of one layer's forward, by the sum of squared lengths of a row."""
        relative = squares / USUAL_SQUARES
        return self.slowdown * LAYER_S * (1 - ATTENTION_SHARE + ATTENTION_SHARE * relative)

    def compute(self, took_s: float) -> None:
        """Compute for so long."""
        time.sleep(took_s)


class _Paced(torch.autograd.Function):
    """Computes for `took_s` in the forward and twice as long in the backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, pace: Pace, took_s: float) -> Tensor:
        ctx.pace, ctx.took_s = pace, took_s
        pace.compute(took_s)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        ctx.pace.compute(2 * ctx.took_s)
        return gradient, None, None


class Layer(nn.Module):
    """Attention within each sequence of a row, and a feed-forward network."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace
        self._before = nn.LayerNorm(WIDTH)
        self._mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self._after = nn.Linear(WIDTH, WIDTH)
        self._apart = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """[rows, LENGTH, WIDTH], for sequence lengths [rows, sequences]."""
        squares = float((lengths.double() ** 2).sum() / max(1, lengths.shape[0]))
        inputs = _Paced.apply(inputs, self._pace, self._pace.layer_s(squares))
        query, key, value = self._mixed(self._before(inputs)).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, key, value, _same_sequence(lengths))
        inputs = inputs + self._after(mixed)
        return inputs + self._apart(inputs)


def _same_sequence(lengths: Tensor) -> Tensor:
    """[rows, LENGTH, LENGTH], whether two tokens of a row are of one sequence."""
    ends = lengths.cumsum(dim=1)
    of_token = (torch.arange(LENGTH)[None, :, None] >= ends[:, None, :]).sum(dim=2)
    return of_token[:, :, None] == of_token[:, None, :]


class Stage(nn.Module):
    """Some layers in a row; the first stage also has the embedding, the last one the output.

    The output takes as long as `output_layers` layers with usual sequence lengths.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        is_first: bool,
        is_last: bool,
        pace: Pace,
        output_layers: float = 0.0,
    ) -> None:
        super().__init__()
        self._pace, self._output_layers = pace, output_layers
        self.embedding = nn.Embedding(NUM_TOKENS, WIDTH) if is_first else None
        self.layers = nn.ModuleList(Layer(pace) for _ in range(num_layers))
        self.output = nn.Linear(WIDTH, NUM_TOKENS) if is_last else None

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Activations for the next stage, or the logits."""
        if self.embedding is not None:
            inputs = self.embedding(inputs)
        for layer in self.layers:
            inputs = layer(inputs, lengths)
        if self.output is None:
            return inputs
        if self._output_layers:
            took_s = self._output_layers * self._pace.layer_s(USUAL_SQUARES)
            inputs = _Paced.apply(inputs, self._pace, took_s)
        return self.output(inputs)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next token."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
