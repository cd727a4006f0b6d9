"""Synthetic text: each token is the previous one plus one, in sequences of given lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from .model import LENGTH, NUM_TOKENS

NUM_SEQUENCES = 4  # in a row
USUAL = (LENGTH // NUM_SEQUENCES,) * NUM_SEQUENCES
LONG = (LENGTH - NUM_SEQUENCES + 1,) + (1,) * (NUM_SEQUENCES - 1)
# Of the rows of a rank with long sequences.
LONG_SHARE = 0.4


@dataclass(frozen=True)
class Batch:
    """A step's rows of one replica: `inputs` and `targets` [rows, LENGTH].

    `lengths` are those of the sequences of each row, [rows, NUM_SEQUENCES].
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor


def batch(step: int, dp_rank: int, num_rows: int, *, are_uneven: bool) -> Batch:
    """The same on all stages of a replica."""
    seed = 1000 * step + dp_rank
    draw = random.Random(seed)  # noqa: S311
    is_long = [are_uneven and draw.random() < LONG_SHARE for _ in range(num_rows)]
    made = torch.Generator().manual_seed(seed)
    first = torch.randint(NUM_TOKENS, (num_rows, 1), generator=made)
    inputs = (first + torch.arange(LENGTH)) % NUM_TOKENS
    lengths = torch.tensor([LONG if each else USUAL for each in is_long])
    return Batch(inputs, (inputs + 1) % NUM_TOKENS, lengths)
