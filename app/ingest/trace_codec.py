"""A window's operations as they are stored: small, and nothing lost."""

import zlib
from typing import Any, NamedTuple

import msgspec
import zstandard

from app.ingest import group_codec
from app.ingest.group_table import GroupTable
from app.ingest.op_table import TABLE_DTYPES, OpTable
from app.ingest.packed_column import pack_column, unpacked_offsets

# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
# Format 1, of the first release, was compressed otherwise and knew no optional columns.
# What else is known of the window stands beside the columns, where older versions do not look.
FORMAT = 2
_ZLIB = b"\x78"


class StoredWindow(NamedTuple):
    """A window's operations, and the collectives inside groups, None where there are none."""

    ops: OpTable
    groups: GroupTable | None


def pack(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """The table as bytes, each column compressed, and the collectives inside groups with it."""
    message: dict[str, Any] = {
        "format": FORMAT,
        "columns": {name: pack_column(values) for name, values in table.columns().items()},
    }
    if groups is not None and groups.num_rows:
        message["collectives"] = group_codec.to_message(groups)
    return msgspec.msgpack.encode(message)


def unpack(blob: bytes) -> OpTable:
    """The operations in bytes that `pack` made.

    Raises:
        ValueError: a newer version made them.
    """
    return _operations(_message(blob))


def unpack_window(blob: bytes) -> StoredWindow:
    """All that is in bytes that `pack` made; raises as `unpack` does."""
    message = _message(blob)
    groups = message.get("collectives")
    return StoredWindow(
        _operations(message), None if groups is None else group_codec.of_message(groups)
    )


def _message(blob: bytes) -> dict[str, Any]:
    while blob[:1] == _ZLIB:  # format 1 was compressed as a whole, and twice
        blob = zlib.decompress(blob)
    message: dict[str, Any] = msgspec.msgpack.decode(blob)
    if message["format"] not in (1, FORMAT):
        raise ValueError(f"stored operations of format {message['format']} are not known here")
    return message


def _operations(message: dict[str, Any]) -> OpTable:
    columns = {}
    for name, column in message["columns"].items():
        is_packed = message["format"] == FORMAT
        offsets = zstandard.decompress(column["bytes"]) if is_packed else column["bytes"]
        columns[name] = unpacked_offsets(column, offsets).astype(TABLE_DTYPES[name])
    return OpTable(**columns)
