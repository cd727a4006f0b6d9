"""Integers as bytes of equal weight, compressed: what stored windows are made of.

Stored bytes may come from an attacker's backup, so decoding holds no more than the caller expects.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# What is left of times is nearly random: higher levels gain 1 % and take three times as long.
_LEVEL = 1
# Bytes of one weight have a table of frequencies of their own; it does not pay for few.
_MIN_PLANE_ROWS = 2048
_SAMPLE_ROWS = 1 << 16
_FEW_ROWS = 256
PIECE_ROWS = 1 << 20
_MAX_WIDTH = 8
_OF_THREAD = threading.local()

# [whether they are differences, bytes of each, compressed bytes]
PackedInts = list[Any]


class DamagedRows(ValueError):
    """Stored bytes that Paceline cannot have written."""


def pack_ints(values: Ints) -> PackedInts:
    """The values, or their differences if these take less room."""
    steps = np.diff(values, prepend=np.int64(0)) if values.size else values
    if values.size <= _FEW_ROWS:  # to try both would take longer than all else
        is_steps = _width(_zigzag(steps)) < _width(_zigzag(values))
        return [is_steps, *_pack(steps if is_steps else values)]
    sample = slice(0, _SAMPLE_ROWS)
    packed = [_pack(values[sample]), _pack(steps[sample])]
    is_steps = _num_bytes(packed[1]) < _num_bytes(packed[0])
    if values.size <= _SAMPLE_ROWS:
        return [is_steps, *packed[is_steps]]
    return [is_steps, *_pack(steps if is_steps else values)]


def pack_residues(values: Ints) -> PackedInts:
    """The values as they are: small, of either sign, in no order."""
    return [False, *_pack(values)]


def pack_pieces(values: Ints) -> list[PackedInts]:
    """A long column in pieces, so that its copies are small beside it."""
    return [pack_ints(values[at : at + PIECE_ROWS]) for at in range(0, values.size, PIECE_ROWS)]


def unpack_pieces(packed: Sequence[PackedInts], size: int) -> Ints:
    """[size] what `pack_pieces` was given; raises as `unpack_ints` does."""
    sizes = [min(PIECE_ROWS, size - at) for at in range(0, size, PIECE_ROWS)]
    pieces = [unpack_ints(*piece) for piece in zip(packed, sizes, strict=True)]
    return np.concatenate([np.empty(0, np.int64), *pieces])


def unpack_ints(packed: PackedInts, size: int) -> Ints:
    """[size] what was packed; raises DamagedRows if it is not this many values."""
    is_steps, width, *frames = packed
    if width not in range(_MAX_WIDTH + 1) or len(frames) not in (0, 1, width):
        raise DamagedRows("stored numbers have no known form")
    plane_bytes = size * width // max(len(frames), 1)
    data = b"".join(_inflate(frame, plane_bytes) for frame in frames)
    if len(data) != size * width:
        raise DamagedRows(f"{len(data)} bytes are stored for {size} numbers of {width} bytes")
    wide = np.zeros((size, _width_held(width)), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(width, size).T
    zigzag = wide.view(f"<u{wide.shape[1]}").reshape(size).astype(np.uint64)
    signs = -(zigzag & np.uint64(1)).view(np.int64)
    values: Ints = (zigzag >> np.uint64(1)).view(np.int64) ^ signs
    return np.cumsum(values) if is_steps else values


def _pack(values: Ints) -> tuple[Any, ...]:
    zigzag = _zigzag(values)
    width = _width(zigzag)
    if not width:
        return (0,)
    narrow = zigzag.astype(f"<u{_width_held(width)}")
    planes = np.ascontiguousarray(
        narrow.view(np.uint8).reshape(values.size, narrow.itemsize)[:, :width].T
    )
    if values.size < _MIN_PLANE_ROWS:
        return (width, _zstd().compress(planes.data))
    return (width, *(_zstd().compress(plane.data) for plane in planes))


def _zigzag(values: Ints) -> NDArray[np.uint64]:
    """Small numbers of either sign as small ones without."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _width(zigzag: NDArray[np.uint64]) -> int:
    """Bytes that the largest one takes."""
    return (int(zigzag.max()).bit_length() + 7) // 8 if zigzag.size else 0


def _zstd() -> zstandard.ZstdCompressor:
    """This thread's compressor: to make one takes longer than to compress a short column."""
    compressor: zstandard.ZstdCompressor | None = getattr(_OF_THREAD, "compressor", None)
    if compressor is None:
        compressor = _OF_THREAD.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return compressor


def _width_held(width: int) -> int:
    """Bytes of the integer type that holds this many."""
    return next(size for size in (1, 2, 4, 8) if size >= width)


def _num_bytes(packed: Sequence[Any]) -> int:
    return sum(len(frame) for frame in packed[1:])


def _inflate(frame: bytes, num_bytes: int) -> bytes:
    """Exactly this many bytes; a frame that claims another size is not inflated."""
    try:
        if zstandard.get_frame_parameters(frame).content_size != num_bytes:
            raise DamagedRows(f"stored bytes are not the {num_bytes} that they should be")
        return zstandard.decompress(frame)
    except zstandard.ZstdError as error:
        raise DamagedRows(f"stored bytes cannot be inflated: {error}") from error
