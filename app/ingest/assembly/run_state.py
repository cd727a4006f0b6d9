"""What rebuilds an assembler after a crash: its stored state and the batches it still needs."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import zstandard

from app.ingest.assembly.rank_tracker import NO_STEP, RankCursor
from app.ingest.assembly.windows import ClosedWindow
from app.trace.window import SkippedStep

_SPOOL_LEVEL = 1


class SpooledBatch(NamedTuple):
    """A queue entry's batch, and the steps for which it was too late."""

    body: bytes
    dropped: list[int]


_DECODER = msgspec.msgpack.Decoder(list[SpooledBatch])


def pack_spool(batches: Sequence[SpooledBatch]) -> bytes:
    """The batches in their order, compressed."""
    return zstandard.compress(msgspec.msgpack.encode(batches), _SPOOL_LEVEL)


def unpack_spool(blob: bytes) -> list[SpooledBatch]:
    """The batches in bytes that `pack_spool` made."""
    return _DECODER.decode(zstandard.decompress(blob))


class RunState(msgspec.Struct):
    """The blob that `RunAssembler.dump` writes.

    The cursors have seen all batches up to `turn`. `settled` are the steps of the open window,
    each with why it was skipped, if it was: a deadline that has passed cannot be told from the
    batches. `closed` are windows that late operations may still change. `has_groups` says that
    collectives inside groups have come.
    """

    turn: int = 0
    cursors: list[RankCursor] = []  # msgspec copies these
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
