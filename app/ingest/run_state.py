"""What an assembler knows beside the batches that it still needs, as bytes."""

import msgspec

from app.ingest.cursor import NO_STEP, Cursor
from app.ingest.retained import BatchKey
from app.trace.window import SkippedStep


class RunState(msgspec.Struct):
    """The blob that `RunAssembler.dump` writes.

    `settled` are the steps of the open window, each with why it was skipped, if it was: a
    deadline that has passed cannot be told from the batches.
    """

    cursors: list[Cursor] = []  # msgspec copies these
    settled_through: int = NO_STEP
    closed_through: int = NO_STEP
    longest_span_s: float | None = None
    late_ops: int = 0
    late: list[tuple[BatchKey, list[int]]] = []
    settled: list[tuple[int, SkippedStep | None]] = []

    def write(self) -> bytes:
        """The state as msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, blob: bytes) -> "RunState":
        """The state in bytes that `write` made."""
        return msgspec.msgpack.decode(blob, type=cls)
