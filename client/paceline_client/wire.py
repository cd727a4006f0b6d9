"""One batch of operations as the bytes that Paceline reads (wire format 1)."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

CONTENT_TYPE = "application/vnd.paceline.ops+msgpack"
VERSION = 1

# What may be told of an operation beside its times: of its work, and of the GPU when it ended.
TOLD = ("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c")
_LARGEST = 2**53

# step, optype, start_ns, duration_ns, seq_id, mc, mb_id, what is told of it
Op = tuple[int, str, int, int, int, int, int, dict[str, int]]
NOTHING: dict[str, int] = {}  # told of most operations: one for all, never written to

_COLUMNS = (
    ("step", "q", 0),
    ("start_ns", "q", 2),
    ("duration_ns", "q", 3),
    ("seq_id", "i", 4),
    ("mc", "h", 5),
    ("mb_id", "i", 6),
)


class Worker:
    """Who sends: one training process of one run of the job."""

    def __init__(self, rank: int, dp_rank: int, stage: int, host: str | None) -> None:
        self.rank = rank
        self.dp_rank = dp_rank
        self.stage = stage
        self.host = host


def encode_batch(
    worker: Worker,
    epoch: int,
    batch_seq: int,
    steps_done: Sequence[tuple[int, int]],
    ops: Sequence[Op],
) -> bytes:
    """Body of one request.

    Raises:
        Exception: of any kind, for values that the format cannot hold.
    """
    optypes: list[str] = []
    codes: dict[str, int] = {}
    for op in ops:
        if op[1] not in codes:
            codes[op[1]] = len(optypes)
            optypes.append(op[1])
    columns = {name: _column(code, [op[at] for op in ops]) for name, code, at in _COLUMNS}
    columns["optype"] = bytes([codes[op[1]] for op in ops])
    for name in TOLD:
        values = [op[7].get(name, -1) for op in ops]
        if max(values, default=-1) >= 0:
            columns[name] = _column("q", values)
    batch = {
        "version": VERSION,
        "epoch": epoch,
        "rank": worker.rank,
        "dp_rank": worker.dp_rank,
        "stage": worker.stage,
        "batch_seq": batch_seq,
        "steps_done": steps_done,
        "optypes": optypes,
        "columns": columns,
    }
    if worker.host:
        batch["host"] = worker.host[:255]
    return pack(batch)


def told_of(values: Mapping[str, Any]) -> dict[str, int]:
    """Those that the format knows and can hold, as whole numbers.

    One that is none, say of a GPU that does not answer, must not cost the operation its times.
    """
    found = {}
    for name, value in values.items():
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if name in TOLD and 0 <= number <= _LARGEST:
            found[name] = number
    return found or NOTHING


def pack(value: Any) -> bytes:
    """A value as msgpack; only the types that a batch is made of."""
    if isinstance(value, int):
        return _pack_int(value)
    if isinstance(value, str):
        text = value.encode()
        return b"\xdb" + struct.pack(">I", len(text)) + text
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, dict):
        pairs = b"".join(pack(key) + pack(item) for key, item in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(pack(item) for item in value)


def _pack_int(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    return b"\xd3" + struct.pack(">q", value)


def _column(code: str, values: list[Any]) -> bytes:
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
