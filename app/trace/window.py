"""A window: successive training steps of one job, as columns with one row per operation."""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.trace.job import Job

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WindowState = Literal["open", "complete", "incomplete", "superseded"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded operations as parallel columns, in any order.

    Shapes: all [ops]. `optype` is a code of `app.trace.ops.OP_SPECS`. `start_s` counts from any
    origin that the operations of one step share; `mc` is -1 where an operation has no model
    chunk, `mb_id` -1 where it has no micro-batch.
    """

    step: Ints
    dp_rank: Ints
    stage: Ints
    rank: Ints
    optype: NDArray[np.int16]
    seq_id: Ints
    mc: Ints
    mb_id: Ints
    start_s: Floats
    duration_s: Floats

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def select(self, rows: NDArray[np.bool_] | Ints) -> "Trace":
        """The trace with only some of its rows."""
        return Trace(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that is not analysed, with the reason in words; nothing is guessed in its place."""

    step: int
    reason: str
    missing: tuple[int, ...] = ()  # global ranks


@dataclass(frozen=True, slots=True)
class Window:
    """Successive complete steps of one epoch of a job, and what is known about the others.

    `id` is "{epoch}-{first step}". `steps` are ascending; every worker reported every op of each.
    """

    job: Job
    epoch: int
    first_step: int
    steps: tuple[int, ...]
    trace: Trace
    skipped: tuple[SkippedStep, ...] = ()
    state: WindowState = "open"
    revision: int = 1

    @property
    def id(self) -> str:
        """Name of the window in routes."""
        return f"{self.epoch}-{self.first_step}"

    @property
    def missing(self) -> list[int]:
        """Global ranks that did not report some step of the window, ascending."""
        return sorted({rank for step in self.skipped for rank in step.missing})
