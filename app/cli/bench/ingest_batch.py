"""A batch to send again and again, made once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.ingest.batch import OpBatch

# Placeholders that the sender writes over: so large that any number has room in their place.
RANK_MARK = 2**31 - 1
SEQ_MARK = 2**53 - 1
OPS_A_STEP = 100


def made_batch(rows: int) -> "OpBatch":
    """So many operations of successive steps, as a worker of a one-stage job would have them."""
    import numpy as np

    from app.ingest.batch import OpBatch, OpColumns
    from app.trace.ops import OP_SPECS

    number = np.arange(rows, dtype=np.int64)
    in_step = number % OPS_A_STEP
    columns = OpColumns(
        step=number // OPS_A_STEP,
        start_ns=1_790_000_000_000_000_000 + 1_000_000 * number,
        duration_ns=900_000 + 17 * in_step,
        seq_id=in_step,
        mc=np.zeros(rows, np.int16),
        mb_id=in_step,
        optype=(in_step % len(OP_SPECS)).astype(np.int16),
    )
    return OpBatch(1, RANK_MARK, RANK_MARK, 0, "node-0", SEQ_MARK, ((0, OPS_A_STEP),), columns)


def body_of(rows: int) -> bytes:
    """The same in the binary format."""
    from app.ingest.codec import encode

    return encode(made_batch(rows))
