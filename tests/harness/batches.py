"""Batches of simulated steps as workers send them, and one batch to send repeatedly."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from app.ingest.batch import OpBatch
from app.ingest.wire.codec import encode
from app.trace.ops import OP_SPECS
from app.trace.window import OpColumns, Trace

_ORIGIN_NS = 10**18
# Placeholders that the sender overwrites: wide enough for any number.
RANK_MARK = 2**31 - 1
SEQ_MARK = 2**53 - 1
OPS_PER_STEP = 100


@dataclass
class Batches:
    """The batches of one run, numbered by worker; each step goes in so many parts a worker."""

    epoch: int
    parts: int
    _next_seq: dict[int, int] = field(default_factory=dict)

    def of_step(self, trace: Trace) -> Iterator[OpBatch]:
        """Every worker's batches, of which the last declares the step."""
        workers = np.unique(np.stack([trace.dp_rank, trace.stage], axis=1), axis=0)
        for dp_rank, stage in workers.tolist():
            yield from self._in_parts(batch_of(trace, self.epoch, dp_rank, stage, 0))

    def _in_parts(self, batch: OpBatch) -> Iterator[OpBatch]:
        rows_of_parts = np.array_split(np.arange(batch.columns.num_ops), self.parts)
        for part, rows in enumerate(rows_of_parts, start=1):
            number = self._next_seq.get(batch.rank, 0)
            self._next_seq[batch.rank] = number + 1
            yield replace(
                batch,
                batch_seq=number,
                steps_done=batch.steps_done if part == self.parts else (),
                columns=batch.columns.select(rows),
            )


def batch_of(trace: Trace, epoch: int, dp_rank: int, stage: int, batch_seq: int) -> OpBatch:
    """One worker's operations of one step as a batch."""
    ops = trace.select(np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage)))
    columns = OpColumns(
        step=ops.step.astype(np.int64),
        start_ns=_ORIGIN_NS + np.rint(ops.start_s * 1e9).astype(np.int64),
        duration_ns=np.rint(ops.duration_s * 1e9).astype(np.int64),
        seq_id=ops.seq_id.astype(np.int64),
        mc=ops.mc.astype(np.int64),
        mb_id=ops.mb_id.astype(np.int64),
        optype=ops.optype.astype(np.int16),
    )
    done = ((int(ops.step[0]), ops.num_ops),)
    return OpBatch(epoch, int(ops.rank[0]), dp_rank, stage, None, batch_seq, done, columns)


def simulated_batch(rows: int) -> OpBatch:
    """This many operations of successive steps of a worker in a one-stage job."""
    number = np.arange(rows, dtype=np.int64)
    in_step = number % OPS_PER_STEP
    columns = OpColumns(
        step=number // OPS_PER_STEP,
        start_ns=1_790_000_000_000_000_000 + 1_000_000 * number,
        duration_ns=900_000 + 17 * in_step,
        seq_id=in_step,
        mc=np.zeros(rows, np.int16),
        mb_id=in_step,
        optype=(in_step % len(OP_SPECS)).astype(np.int16),
    )
    return OpBatch(1, RANK_MARK, RANK_MARK, 0, "node-0", SEQ_MARK, ((0, OPS_PER_STEP),), columns)


def body_of(rows: int) -> bytes:
    """The same in the binary format."""
    return encode(simulated_batch(rows))
