"""What an assembler knows beside the batches that it still needs, as bytes."""

import msgspec

from app.ingest.closed_window import ClosedWindow
from app.ingest.cursor import NO_STEP, Cursor
from app.trace.window import SkippedStep


class RunState(msgspec.Struct):
    """The blob that `RunAssembler.dump` writes.

    The cursors have seen all batches up to `turn`. `settled` are the steps of the open window,
    each with why it was skipped, if it was: a deadline that has passed cannot be told from the
    batches. `closed` are windows that late operations may still change. `has_groups` says that
    collectives inside groups have come.
    """

    turn: int = 0
    cursors: list[Cursor] = []  # msgspec copies these
    settled_through: int = NO_STEP
    closed_through: int = NO_STEP
    longest_span_s: float | None = None
    revision: int = 0
    settled: list[tuple[int, SkippedStep | None]] = []
    closed: list[ClosedWindow] = []
    has_groups: bool = False

    def write(self) -> bytes:
        """The state as msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, blob: bytes) -> "RunState":
        """The state in bytes that `write` made, in this version or an earlier one."""
        return msgspec.msgpack.decode(blob, type=cls)
