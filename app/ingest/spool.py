"""What one turn took of one run, as bytes: open windows are built from it again after a crash."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import zstandard

_LEVEL = 1


class Taken(NamedTuple):
    """A batch as the queue held it, and the steps in it that it came too late for."""

    body: bytes
    dropped: list[int]


_DECODER = msgspec.msgpack.Decoder(list[Taken])


def pack(batches: Sequence[Taken]) -> bytes:
    """The batches in their order, compressed."""
    return zstandard.compress(msgspec.msgpack.encode(batches), _LEVEL)


def unpack(blob: bytes) -> list[Taken]:
    """The batches in bytes that `pack` made."""
    return _DECODER.decode(zstandard.decompress(blob))
