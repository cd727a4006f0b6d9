"""Real faults of a rank: host work, garbage collection and slow data loading."""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .layers import WIDTH

SLOWDOWN = 1.6  # of a slow rank
HOST_WORK_S = 0.030  # in each micro-batch of a late host
PAUSE_S = 0.015  # of one collection of garbage
PAUSES = 4  # of a step in a storm
SLOW_ITEM_S = 0.015  # of a slow dataset; 4 items are a batch
SLOW_COLLATE_S = 0.060


def work_on_host(seconds: float) -> int:
    """Busy Python code for this long, like logging between operations."""
    total, until_s = 0, time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        total += sum(range(200))
    return total


class _Cycle:
    """Cyclic garbage that is slow to collect."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(PAUSE_S)


class GcStorm:
    """Garbage collections in random forwards and backwards of every step."""

    def __init__(self, layers: Any, seed: int) -> None:
        self._draw = random.Random(seed)  # noqa: S311
        self._places = 2 * len(layers)
        self._left: set[int] = set()
        self._at = 0
        for layer in layers:
            layer.register_forward_pre_hook(self._pass)
            layer.register_full_backward_pre_hook(self._pass)

    def begin_step(self, num_microbatches: int) -> None:
        """Draw the positions of this step's collections."""
        self._at = 0
        self._left = set(self._draw.sample(range(self._places * num_microbatches), PAUSES))

    def _pass(self, *_: Any) -> None:
        self._at += 1
        if self._at - 1 in self._left:
            _Cycle()
            gc.collect(0)  # generation 0, without PyTorch's modules


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Synthetic rows, each with a loading time of `item_s`."""

    def __init__(self, num_rows: int, item_s: float = 0.0) -> None:
        self._inputs = torch.rand(num_rows, WIDTH)
        self._labels = torch.zeros(WIDTH)
        self._item_s = item_s

    def __len__(self) -> int:
        """Number of rows."""
        return self._inputs.shape[0]

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels, both [WIDTH]."""
        if self._item_s:
            time.sleep(self._item_s)
        return self._inputs[row], self._labels


class Collate:
    """Collate function for transformers' Trainer that first sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Inputs and labels, both [rows, WIDTH]."""
        if self._seconds:
            time.sleep(self._seconds)
        return {
            "inputs": torch.stack([inputs for inputs, _ in rows]),
            "labels": torch.stack([labels for _, labels in rows]),
        }
