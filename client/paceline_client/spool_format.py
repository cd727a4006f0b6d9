"""Batches and the place reached in them, as they lie on disk."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from typing import Any, BinaryIO, NamedTuple

from .groups import Group, GroupBatch
from .wire import Batch

MAX_RECORD_BYTES = 64 << 20
_RECORD = struct.Struct("<4sIII")  # mark, bytes, CRC of them, operations
_STATE = struct.Struct("<4sQQQQI")
_RECORD_MARK, _STATE_MARK = b"plr1", b"pls2"


class Damaged(Exception):
    """Not what was written there, or not all of it."""


class Position(NamedTuple):
    """Where the first batch lies that is not off our hands, and its number.

    The newest one is the one of the highest `turn`.
    """

    segment: int
    offset: int
    next_seq: int
    turn: int = 0


def position_bytes(position: Position) -> bytes:
    """What `position_of` reads."""
    fields = (_STATE_MARK, *position)
    return _STATE.pack(*fields, zlib.crc32(_STATE.pack(*fields, 0)))


def position_of(content: bytes) -> Position:
    """The position that was written.

    Raises:
        Damaged: it was not written whole.
    """
    if len(content) != _STATE.size:
        raise Damaged
    mark, *fields, crc = _STATE.unpack(content)
    if mark != _STATE_MARK or crc != zlib.crc32(_STATE.pack(mark, *fields, 0)):
        raise Damaged
    return Position(*fields)


def record_of(batch: Batch) -> bytes:
    """A batch with its length and CRC in front."""
    about = {
        "steps_done": batch.steps_done,
        "step_kinds": batch.step_kinds,
        "dropped": batch.dropped,
        "at_step": batch.at_step,
        "asides": sorted(batch.asides),
        "waits_done": sorted(batch.waits_done.items()),
        "optypes": batch.optypes,
        "columns": list(batch.columns),
    }
    if batch.groups is not None:
        about["groups"] = {
            "groups": [list(group) for group in batch.groups.groups],
            "kinds": batch.groups.kinds,
            "columns": {name: list(values) for name, values in batch.groups.columns.items()},
        }
    head = json.dumps(about).encode()
    raw = b"".join([batch.codes, *(column.tobytes() for column in batch.columns.values())])
    payload = zlib.compress(struct.pack("<II", len(head), batch.num_ops) + head + raw, 1)
    return _RECORD.pack(_RECORD_MARK, len(payload), zlib.crc32(payload), batch.num_ops) + payload


def skipped(file: BinaryIO) -> int | None:
    """Operations of the record that the file is at, which it is then after; None at the end.

    Raises:
        Damaged: there is no record there.
    """
    size, _, num_ops = _head(file) or (0, 0, None)
    if num_ops is not None:
        file.seek(size, 1)
    return num_ops


def read_record(file: BinaryIO) -> Batch | None:
    """The batch that the file is at; None at the end.

    Raises:
        Damaged: it was not written whole, or something else since.
    """
    head = _head(file)
    if head is None:
        return None
    size, crc, _ = head
    payload = file.read(size)
    if len(payload) != size or zlib.crc32(payload) != crc:
        raise Damaged
    try:
        return _batch(zlib.decompress(payload))
    except (zlib.error, struct.error, ValueError, KeyError, TypeError) as error:
        raise Damaged from error


def _head(file: BinaryIO) -> tuple[int, int, int] | None:
    head = file.read(_RECORD.size)
    if not head:
        return None
    if len(head) != _RECORD.size:
        raise Damaged
    mark, size, crc, num_ops = _RECORD.unpack(head)
    if mark != _RECORD_MARK or size > MAX_RECORD_BYTES:
        raise Damaged
    return size, crc, num_ops


def _batch(content: bytes) -> Batch:
    head_size, num_ops = struct.unpack_from("<II", content)
    about = json.loads(content[8 : 8 + head_size])
    at = 8 + head_size
    codes, at = content[at : at + num_ops], at + num_ops
    columns = {}
    for name in about["columns"]:
        columns[name] = array("q")
        columns[name].frombytes(content[at : at + 8 * num_ops])
        at += 8 * num_ops
    done = [(int(step), int(count)) for step, count in about["steps_done"]]
    kinds = [(int(step), str(kind)) for step, kind in about["step_kinds"]]
    dropped, at_step = int(about["dropped"]), about["at_step"]
    asides = {int(step) for step in about["asides"]}
    # Earlier versions have written none.
    waits_done = {int(step): int(count) for step, count in about.get("waits_done", ())}
    optypes = about["optypes"]
    groups = _groups(about["groups"]) if "groups" in about else None
    return Batch(done, kinds, dropped, optypes, codes, columns, at_step, asides, waits_done, groups)


def _groups(about: dict[str, Any]) -> GroupBatch:
    return GroupBatch(
        [Group(at, name, axis, tuple(ranks)) for at, name, axis, ranks in about["groups"]],
        about["kinds"],
        {name: array("q", values) for name, values in about["columns"].items()},
    )
