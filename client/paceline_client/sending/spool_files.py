"""Files of the spool: segments with batches, and the position that the sender has reached.

The position is written to two files in turn, so that one of them is always intact.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..recording.wire import Batch, Group, GroupBatch

MAX_RECORD_BYTES = 64 << 20
_RECORD = struct.Struct("<4sIII")  # mark, bytes, CRC of them, operations
_STATE = struct.Struct("<4sQQQQI")
_RECORD_MARK, _STATE_MARK = b"plr1", b"pls2"


class SpoolDamaged(Exception):
    """The content is not what was written, or is incomplete."""


class SpoolPosition(NamedTuple):
    """Position and number of the first undelivered batch; the highest `turn` is the newest."""

    segment: int
    offset: int
    next_seq: int
    turn: int = 0


def position_bytes(position: SpoolPosition) -> bytes:
    """Encode a position for `position_of`."""
    fields = (_STATE_MARK, *position)
    return _STATE.pack(*fields, zlib.crc32(_STATE.pack(*fields, 0)))


def position_of(content: bytes) -> SpoolPosition:
    """Decode a position.

    Raises:
        SpoolDamaged: it is incomplete or corrupt.
    """
    if len(content) != _STATE.size:
        raise SpoolDamaged
    mark, *fields, crc = _STATE.unpack(content)
    if mark != _STATE_MARK or crc != zlib.crc32(_STATE.pack(mark, *fields, 0)):
        raise SpoolDamaged
    return SpoolPosition(*fields)


def record_of(batch: Batch) -> bytes:
    """A batch, after its length and CRC."""
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


def skip_record(file: BinaryIO) -> int | None:
    """Skip a record; returns its number of operations, None at the end of the file.

    Raises:
        SpoolDamaged: there is no record here.
    """
    size, _, num_ops = _head(file) or (0, 0, None)
    if num_ops is not None:
        file.seek(size, 1)
    return num_ops


def read_record(file: BinaryIO) -> Batch | None:
    """Read a record; None at the end of the file.

    Raises:
        SpoolDamaged: it is incomplete or corrupt.
    """
    head = _head(file)
    if head is None:
        return None
    size, crc, _ = head
    payload = file.read(size)
    if len(payload) != size or zlib.crc32(payload) != crc:
        raise SpoolDamaged
    try:
        return _batch(zlib.decompress(payload))
    except (zlib.error, struct.error, ValueError, KeyError, TypeError) as error:
        raise SpoolDamaged from error


def _head(file: BinaryIO) -> tuple[int, int, int] | None:
    head = file.read(_RECORD.size)
    if not head:
        return None
    if len(head) != _RECORD.size:
        raise SpoolDamaged
    mark, size, crc, num_ops = _RECORD.unpack(head)
    if mark != _RECORD_MARK or size > MAX_RECORD_BYTES:
        raise SpoolDamaged
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
    waits_done = {int(step): int(count) for step, count in about["waits_done"]}
    optypes = about["optypes"]
    groups = _groups(about["groups"]) if "groups" in about else None
    return Batch(done, kinds, dropped, optypes, codes, columns, at_step, asides, waits_done, groups)


def _groups(about: dict[str, Any]) -> GroupBatch:
    return GroupBatch(
        [Group(at, name, axis, tuple(ranks)) for at, name, axis, ranks in about["groups"]],
        about["kinds"],
        {name: array("q", values) for name, values in about["columns"].items()},
    )


# No links: others may write to the directory. Binary: lines must not be translated on Windows.
OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class KnownPosition(NamedTuple):
    """The newest readable position, if any; `is_doubtful` if a newer one may be missing."""

    position: SpoolPosition | None
    is_doubtful: bool


class PositionFiles:
    """Reads and writes the sender's position; nothing is synchronised to disk."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._turn = 0

    def read(self) -> KnownPosition:
        """The position that an earlier process has written."""
        found, num_files = [], 0
        for path in self._paths:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            num_files += 1
            try:
                found.append(position_of(content))
            except SpoolDamaged:
                continue
        newest = max(found, key=lambda position: position.turn, default=None)
        self._turn = newest.turn if newest is not None else 0
        wanted = min(self._turn, len(self._paths))
        return KnownPosition(newest, len(found) < max(wanted, num_files))

    def write(self, position: SpoolPosition) -> None:
        """Overwrite the older of the two files."""
        self._turn += 1
        path = self._paths[self._turn % len(self._paths)]
        file = os.open(path, os.O_WRONLY | os.O_CREAT | OPEN_FLAGS, 0o600)
        try:
            os.write(file, position_bytes(position._replace(turn=self._turn)))
        finally:
            os.close(file)
