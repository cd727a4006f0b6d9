"""What can be wrong with a made job, and which computations it slows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats

# Measured in production where the last stage also computes the loss (Lin et al., OSDI 2025).
LOSS_FORWARD = 2.07
LOSS_BACKWARD = 1.41


class Fault(ABC):
    """Something that makes computations take longer than they should."""

    @abstractmethod
    def factor(self, direction: Direction, parallelism: Parallelism) -> Floats:
        """How many times longer each worker computes, [stages, dp ranks]; 1 where it is well."""


@dataclass(frozen=True, slots=True)
class SlowWorker(Fault):
    """One worker is slower than its peers: a throttled GPU, a busy host."""

    dp_rank: int
    stage: int
    slowdown: float

    @override
    def factor(self, direction: Direction, parallelism: Parallelism) -> Floats:
        _refuse_outside("dp rank", self.dp_rank, parallelism.dp_size)
        _refuse_outside("stage", self.stage, parallelism.pp_size)
        _refuse_nonsense(self.slowdown)
        factor = _well(parallelism)
        factor[self.stage, self.dp_rank] = self.slowdown
        return factor


@dataclass(frozen=True, slots=True)
class SlowStage(Fault):
    """One stage has more work than the others, in every replica."""

    stage: int
    slowdown: float

    @override
    def factor(self, direction: Direction, parallelism: Parallelism) -> Floats:
        _refuse_outside("stage", self.stage, parallelism.pp_size)
        _refuse_nonsense(self.slowdown)
        factor = _well(parallelism)
        factor[self.stage] = self.slowdown
        return factor


@dataclass(frozen=True, slots=True)
class LongLastStage(Fault):
    """The last stage computes the loss on top of its layers."""

    forward: float = LOSS_FORWARD
    backward: float = LOSS_BACKWARD

    @override
    def factor(self, direction: Direction, parallelism: Parallelism) -> Floats:
        factor = _well(parallelism)
        factor[-1] = self.forward if direction is Direction.FORWARD else self.backward
        return factor


def _well(parallelism: Parallelism) -> Floats:
    return np.ones((parallelism.pp_size, parallelism.dp_size))


def _refuse_outside(axis: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise InvalidRequest(f"the fault is on {axis} {index}: this job has 0 to {size - 1}")


def _refuse_nonsense(slowdown: float) -> None:
    if not (np.isfinite(slowdown) and slowdown > 0):
        raise InvalidRequest(f"a fault of {slowdown} times is none: give a number above 0")
