"""One batch of operations of one worker, as columns."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.ingest.group_rows import GroupRows
from app.trace.placement import Placement
from app.trace.window import Ints, StepKind

# As narrow as they came: int16, int32 or int64.
Narrow = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class OpColumns:
    """The operations of a batch as parallel columns, in the order they came; not to be written.

    Shapes: all [ops]. `optype` is a code of the job's `OpTypes`; times are nanoseconds of
    the worker's own clock. Those that may be None are what `app.trace.window.OPTIONAL` says:
    -1 where an operation has none, None where no operation has.
    """

    step: Ints
    start_ns: Ints
    duration_ns: Ints
    seq_id: Narrow
    mc: Narrow
    mb_id: Narrow
    optype: NDArray[np.int16]
    tokens: Ints | None = None
    seq_len_sq: Ints | None = None
    bytes: Ints | None = None
    sm_clock_mhz: Ints | None = None
    temperature_c: Ints | None = None
    power_w: Ints | None = None
    xid: Ints | None = None
    contains_waits: Ints | None = None

    @property
    def num_ops(self) -> int:
        """Number of rows."""
        return int(self.step.size)

    def select(self, rows: NDArray[np.bool_] | Ints | slice) -> "OpColumns":
        """The columns with only some of their rows."""
        chosen: list[Any] = []
        for column in fields(self):
            values = getattr(self, column.name)
            chosen.append(None if values is None else values[rows])
        return OpColumns(*chosen)


@dataclass(frozen=True, slots=True, eq=False)
class OpBatch:
    """What one worker sent at once.

    `steps_done` holds (step, number of its operations in all batches so far) for every step that
    the worker has finished, `step_kinds` which of them are no training steps. `dropped` is how many
    operations its recorder has dropped since it began, `placement` where its host stands, `at_step`
    a step that it has come to and does not record; None where it does not say. `collectives` are
    those that it recorded inside its groups. `wire` is the body as it came, when it says exactly
    this batch.
    """

    epoch: int
    rank: int
    dp_rank: int
    stage: int
    host: str | None
    batch_seq: int
    steps_done: tuple[tuple[int, int], ...]
    columns: OpColumns
    dropped: int | None = None
    step_kinds: tuple[tuple[int, StepKind], ...] = ()
    placement: Placement | None = None
    at_step: int | None = None
    collectives: GroupRows | None = None
    wire: bytes | None = field(default=None, repr=False)

    @property
    def is_alone(self) -> bool:
        """Whether its rank records nothing but what happens inside its groups."""
        return self.collectives is not None and self.collectives.is_alone

    @property
    def num_group_rows(self) -> int:
        """Number of collectives inside groups."""
        return 0 if self.collectives is None else self.collectives.num_rows

    @property
    def newest_step(self) -> int | None:
        """The newest step that the worker is known by it to have come to."""
        recorded = int(self.columns.step.max()) if self.columns.num_ops else None
        return max((step for step in (recorded, self.at_step) if step is not None), default=None)
