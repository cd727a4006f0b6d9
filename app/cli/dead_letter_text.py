"""A dead letter as text: its header and its first operations."""

from collections.abc import Iterator

from app.errors import PacelineError
from app.ingest.batch import OpBatch
from app.ingest.wire import codec
from app.trace.ops import BUILT_IN, OpTypes

_COLUMNS = ("step", "start_ns", "duration_ns", "seq_id", "mc", "mb_id")


def dead_letter_text(body: bytes, op_types: OpTypes | None, *, max_rows: int) -> Iterator[str]:
    """The readable part of the body, with the job's operation types if known."""
    known = op_types or BUILT_IN
    try:
        batch = codec.read_entry(bytes(codec.open_entry(body)), known)
    except PacelineError as error:
        yield f"cannot be read: {error}"
        yield f"begins with {body[:32].hex(' ')}"
        return
    yield _header(batch)
    yield from _rows(batch, known, max_rows)


def _header(batch: OpBatch) -> str:
    done = ", ".join(f"{step} ({number})" for step, number in batch.steps_done[:10])
    return (
        f"epoch {batch.epoch}, rank {batch.rank} (dp {batch.dp_rank}, stage {batch.stage}), "
        f"host {batch.host or 'unknown'}, batch {batch.batch_seq}, "
        f"steps done with their operations: {done or 'none'}"
    )


def _rows(batch: OpBatch, op_types: OpTypes, max_rows: int) -> Iterator[str]:
    columns = batch.columns
    if max_rows and columns.num_ops:
        yield "  ".join(("optype", *_COLUMNS))
    for row in range(min(max_rows, columns.num_ops)):
        numbers = (str(int(getattr(columns, name)[row])) for name in _COLUMNS)
        yield "  ".join((op_types.name(columns.optype[row]), *numbers))
    if columns.num_ops > max_rows:
        yield f"and {columns.num_ops - max_rows} more"
