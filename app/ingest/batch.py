"""One batch of operations of one worker, as columns."""

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from app.trace.window import Ints


@dataclass(frozen=True, slots=True, eq=False)
class OpColumns:
    """The operations of a batch as parallel columns, in the order they came.

    Shapes: all [ops]. `optype` is a code of the job's `OpTypes`; times are nanoseconds of
    the worker's own clock.
    """

    step: Ints
    start_ns: Ints
    duration_ns: Ints
    seq_id: Ints
    mc: Ints
    mb_id: Ints
    optype: NDArray[np.int16]

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def select(self, rows: NDArray[np.bool_] | Ints) -> "OpColumns":
        """The columns with only some of their rows."""
        return OpColumns(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class OpBatch:
    """What one worker sent at once.

    `steps_done` holds (step, number of its operations in all batches so far) for every step that
    the worker has finished. `wire` is the body as it came, when it says exactly this batch.
    """

    epoch: int
    rank: int
    dp_rank: int
    stage: int
    host: str | None
    batch_seq: int
    steps_done: tuple[tuple[int, int], ...]
    columns: OpColumns
    wire: bytes | None = field(default=None, repr=False)
