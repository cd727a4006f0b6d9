"""A closed window's operations and collectives as stored bytes: compressed by column, lossless."""

import zlib
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from app.ingest.assembly.op_table import GROUP_TABLE_COLUMNS, GroupTable, OpTable
from app.ingest.wire.collectives import members_of, ranks_of
from app.trace.collectives import RankGroup, RankPlace
from app.trace.window import TABLE_DTYPES

_LEVEL = 1  # twice the size of the best one, for a tenth of the time


def pack_column(values: NDArray[Any]) -> dict[str, Any]:
    """Differences to the least value, in the narrowest integers that hold them, compressed."""
    least = int(values.min()) if values.size else 0
    most = int(values.max()) if values.size else 0
    dtype = np.min_scalar_type(most - least).newbyteorder("<")
    # Modulo 2**64, where the difference of any two values has room.
    offsets = values.view(f"u{values.itemsize}") - np.array(least, values.dtype).view(
        f"u{values.itemsize}"
    )
    data = zstandard.compress(offsets.astype(dtype, copy=False).data, _LEVEL)
    return {"least": least, "dtype": dtype.str, "bytes": data}


def unpack_column(column: dict[str, Any]) -> NDArray[np.int64]:
    """The values that `pack_column` was given, as int64."""
    return unpack_offsets(column, zstandard.decompress(column["bytes"]))


def unpack_offsets(column: dict[str, Any], offsets_bytes: bytes) -> NDArray[np.int64]:
    """The same of a column that was compressed in another way, or not at all."""
    offsets = np.frombuffer(offsets_bytes, dtype=column["dtype"]).astype(np.uint64)
    offsets += np.int64(column["least"]).view(np.uint64)
    return offsets.view(np.int64)


_PLACE_COLUMNS = ("rank", "dp_rank", "stage", "local_rank", "host")


def groups_to_message(table: GroupTable) -> dict[str, Any]:
    """The table as a map that msgpack can hold."""
    hosts = sorted({each.host for each in table.places.values() if each.host is not None})
    host_at = {host: at for at, host in enumerate(hosts)}
    places = [table.places[rank] for rank in sorted(table.places)]
    columns = {
        "rank": [each.rank for each in places],
        "dp_rank": [_or_none(each.dp_rank) for each in places],
        "stage": [_or_none(each.stage) for each in places],
        "local_rank": [_or_none(each.local_rank) for each in places],
        "host": [-1 if each.host is None else host_at[each.host] for each in places],
    }
    return {
        "groups": [
            {"name": each.name, "axis": each.axis, **members_of(each.ranks)}
            for each in table.groups
        ],
        "kinds": list(table.kinds),
        "hosts": hosts,
        "columns": {name: pack_column(values) for name, values in table.columns().items()},
        "places": {
            name: pack_column(np.array(values, np.int64)) for name, values in columns.items()
        },
    }


def groups_of_message(message: dict[str, Any]) -> GroupTable:
    """The table in a map that `groups_to_message` made."""
    hosts = message["hosts"]
    columns = {
        name: unpack_column(message["columns"][name]).astype(np.int64)
        for name in GROUP_TABLE_COLUMNS
    }
    places = [unpack_column(message["places"][name]).tolist() for name in _PLACE_COLUMNS]
    return GroupTable(
        groups=tuple(_group(each) for each in message["groups"]),
        kinds=tuple(message["kinds"]),
        places={
            rank: RankPlace(
                rank,
                None if dp_rank < 0 else dp_rank,
                None if stage < 0 else stage,
                None if host < 0 else hosts[host],
                None if local_rank < 0 else local_rank,
            )
            for rank, dp_rank, stage, local_rank, host in zip(*places, strict=True)
        },
        **columns,
    )


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _group(message: dict[str, Any]) -> RankGroup:
    ranks = ranks_of(message.get("ranks", ()), message.get("runs", ()))
    return RankGroup(message["name"], message["axis"], tuple(ranks))


# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
# Format 1, of the first release, was compressed otherwise and knew no optional columns.
# What else is known of the window stands beside the columns, where older versions do not look.
WINDOW_FORMAT = 2
_ZLIB = b"\x78"


class StoredWindow(NamedTuple):
    """A window's operations, and the collectives inside groups, None where there are none."""

    ops: OpTable
    groups: GroupTable | None


def pack_window(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """The table as bytes, each column compressed, and the collectives inside groups with it."""
    message: dict[str, Any] = {
        "format": WINDOW_FORMAT,
        "columns": {name: pack_column(values) for name, values in table.columns().items()},
    }
    if groups is not None and groups.num_rows:
        message["collectives"] = groups_to_message(groups)
    return msgspec.msgpack.encode(message)


def unpack_ops(blob: bytes) -> OpTable:
    """The operations in bytes that `pack_window` made.

    Raises:
        ValueError: a newer version made them.
    """
    return _operations(_message(blob))


def unpack_window(blob: bytes) -> StoredWindow:
    """All that is in bytes that `pack_window` made; raises as `unpack_ops` does."""
    message = _message(blob)
    groups = message.get("collectives")
    return StoredWindow(_operations(message), None if groups is None else groups_of_message(groups))


def _message(blob: bytes) -> dict[str, Any]:
    while blob[:1] == _ZLIB:  # format 1 was compressed as a whole, and twice
        blob = zlib.decompress(blob)
    message: dict[str, Any] = msgspec.msgpack.decode(blob)
    if message["format"] not in (1, WINDOW_FORMAT):
        raise ValueError(f"stored operations of format {message['format']} are not known here")
    return message


def _operations(message: dict[str, Any]) -> OpTable:
    columns = {}
    for name, column in message["columns"].items():
        is_packed = message["format"] == WINDOW_FORMAT
        offsets = zstandard.decompress(column["bytes"]) if is_packed else column["bytes"]
        columns[name] = unpack_offsets(column, offsets).astype(TABLE_DTYPES[name])
    return OpTable(**columns)
