"""A closed window's operations and collectives as stored bytes, and back.

Starts and ends are rounded to a microsecond, which keeps their order; a window's results come from
the times as they were recorded. Of a window that late operations may still change, what the
rounding took away is kept beside it, so that these results do, too. Bytes of earlier releases are
read. Nothing more is held than bytes claim and `MAX_STORED_ROWS` allows: a backup may be anybody's.
"""

import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from app.ingest.assembly.int_packing import (
    PIECE_ROWS,
    DamagedRows,
    Ints,
    pack_ints,
    pack_pieces,
    pack_residues,
    unpack_ints,
    unpack_pieces,
)
from app.ingest.assembly.op_table import GROUP_TABLE_COLUMNS, GroupTable, OpTable
from app.ingest.assembly.row_encoding import (
    MAX_PART_ROWS,
    Dtypes,
    TimedRows,
    decode_rows,
    encode_rows,
)
from app.ingest.wire.collectives import members_of, ranks_of
from app.trace.collectives import RankGroup, RankPlace
from app.trace.window import OPTIONAL, TABLE_DTYPES

# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
# Format 1, of the first release, was compressed otherwise and knew no optional columns; format 2
# had every column by itself.
WINDOW_FORMAT = 3
MAX_STORED_ROWS = 1 << 26
UNIT_NS = 1000
_OF_FORMAT_3 = b"\xc1PW3"  # nothing that msgpack or zlib writes begins like this
_REMAINDERS = b"\xc1PR3"
_ZLIB = b"\x78"
_HEADER_BYTES = 8
_MAX_EARLIER_BYTES = 1 << 30  # of format 1
_LAST_ROUNDED_NS = 1 << 61  # beyond, sums might not fit

_OP_KEYS = {name: TABLE_DTYPES[name] for name in ("step", "dp_rank", "stage", "rank")}
_OP_SHAPE = {name: TABLE_DTYPES[name] for name in ("optype", "seq_id", "mc", "mb_id")}
_GROUP_KEYS: Dtypes = dict.fromkeys(("step", "rank"), np.int64)
_GROUP_SHAPE: Dtypes = dict.fromkeys(("kind", "group", "sequence"), np.int64)
_PLACE_COLUMNS = ("rank", "dp_rank", "stage", "local_rank", "host")


class StoredWindow(NamedTuple):
    """A window's operations, and the collectives inside groups, None where there are none."""

    ops: OpTable
    groups: GroupTable | None


class PackedWindow(NamedTuple):
    """The same as bytes: rounded, and what that took away, None where nobody needs it."""

    rounded: bytes
    remainders: bytes | None = None


def pack_window(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """The operations, and the collectives inside groups with them, rounded."""
    message: dict[str, Any] = {"ops": _ops_message(table)}
    if groups is not None and groups.num_rows:
        message["collectives"] = _groups_message(groups)
    return _sealed(_OF_FORMAT_3, message)


def pack_remainders(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """What `pack_window` takes away from the times."""
    timed: list[OpTable | GroupTable] = [table]
    if groups is not None and groups.num_rows:
        timed.append(groups)
    return _sealed(_REMAINDERS, [_remainders(each) for each in timed])


def unpack_window(rounded: bytes, remainders: bytes | None = None) -> StoredWindow:
    """What `pack_window` was given; to the nanosecond with what `pack_remainders` made of it.

    Raises:
        DamagedRows: the bytes are neither ours nor those of an earlier version.
    """
    try:
        if rounded[: len(_OF_FORMAT_3)] != _OF_FORMAT_3:
            return _of_earlier_format(rounded)
        message = _opened(_OF_FORMAT_3, rounded)
        groups = message.get("collectives")
        stored = StoredWindow(
            _ops_of_message(message["ops"]), None if groups is None else _groups_of_message(groups)
        )
        return stored if remainders is None else _with_remainders(stored, remainders)
    except DamagedRows:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DamagedRows(f"stored operations have no known form: {error!r}") from error
    except (msgspec.MsgspecError, zlib.error, zstandard.ZstdError) as error:
        raise DamagedRows(f"stored operations cannot be decoded: {error}") from error


def _sealed(magic: bytes, message: Any) -> bytes:
    body = msgspec.msgpack.encode(message)
    return magic + zlib.crc32(body).to_bytes(4, "little") + body


def _opened(magic: bytes, blob: bytes) -> Any:
    body = memoryview(blob)[_HEADER_BYTES:]
    if blob[:4] != magic or zlib.crc32(body) != int.from_bytes(blob[4:_HEADER_BYTES], "little"):
        raise DamagedRows("stored operations are damaged: their checksum is another")
    return msgspec.msgpack.decode(body)


def _unit_ns(start_ns: Ints, duration_ns: Ints) -> int:
    """What times are rounded to; those that no clock shows keep their nanoseconds."""
    if not start_ns.size:
        return UNIT_NS
    extremes = (start_ns.min(), start_ns.max(), duration_ns.min(), duration_ns.max())
    return 1 if max(abs(int(each)) for each in extremes) > _LAST_ROUNDED_NS else UNIT_NS


def _rounded(unit: int, start_ns: Ints, duration_ns: Ints) -> tuple[Ints, Ints]:
    """Starts and ends in a unit."""
    end_ns = start_ns + duration_ns
    if unit == 1:
        return start_ns, end_ns
    return (start_ns + unit // 2) // unit, (end_ns + unit // 2) // unit


def _exact(unit: int, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Starts and durations, nanoseconds, of times in a unit."""
    return start * unit, (end - start) * unit


def _remainders(table: OpTable | GroupTable) -> list[list[Any]]:
    """What rounding takes from starts and durations, for some rows at a time."""
    unit = _unit_ns(table.start_ns, table.duration_ns)
    pieces = []
    for at in range(0, table.start_ns.size, PIECE_ROWS):
        piece = slice(at, at + PIECE_ROWS)
        start_ns, duration_ns = table.start_ns[piece], table.duration_ns[piece]
        start, duration = _exact(unit, *_rounded(unit, start_ns, duration_ns))
        pieces.append([pack_residues(start_ns - start), pack_residues(duration_ns - duration)])
    return pieces


def _with_remainders(stored: StoredWindow, blob: bytes) -> StoredWindow:
    packed = _opened(_REMAINDERS, blob)
    timed: list[OpTable | GroupTable] = [stored.ops]
    if stored.groups is not None:
        timed.append(stored.groups)
    for table, pieces in zip(timed, packed, strict=True):
        starts = [start for start, _ in pieces]
        table.start_ns[:] += unpack_pieces(starts, table.start_ns.size)
        durations = [duration for _, duration in pieces]
        table.duration_ns[:] += unpack_pieces(durations, table.start_ns.size)
    return stored


def _ops_message(table: OpTable) -> dict[str, Any]:
    # In pieces, since the columns of a large window would take more memory than all its times.
    pieces = (each.columns() for each in table.pieces(MAX_PART_ROWS))
    optional = {name: getattr(table, name) for name in OPTIONAL}
    return {
        **_rows_message(_unit_ns(table.start_ns, table.duration_ns), pieces, _OP_KEYS, _OP_SHAPE),
        "optional": {
            name: pack_pieces(values) for name, values in optional.items() if values is not None
        },
    }


def _rows_message(
    unit: int, pieces: Iterable[Mapping[str, NDArray[Any]]], keys: Dtypes, shape: Dtypes
) -> dict[str, Any]:
    """The rows of a table whose columns come in pieces, in a unit."""
    parts: list[dict[str, Any]] = []
    num_rows = 0
    for columns in pieces:
        rows = TimedRows(
            {name: columns[name] for name in keys},
            {name: columns[name] for name in shape},
            columns["start_ns"],
            columns["duration_ns"],
        )
        parts += encode_rows(rows, partial(_rounded, unit))
        num_rows += rows.num_rows
    return {"unit_ns": unit, "rows": num_rows, "parts": parts}


def _rows_of_message(
    message: Mapping[str, Any], keys: Dtypes, shape: Dtypes
) -> tuple[dict[str, NDArray[Any]], Ints, Ints]:
    """The columns without times, starts, and durations in nanoseconds."""
    unit, num_rows = message["unit_ns"], message["rows"]
    if unit not in (1, UNIT_NS) or not 0 <= num_rows <= MAX_STORED_ROWS:
        raise DamagedRows(f"{num_rows} rows are stored: at most {MAX_STORED_ROWS} are read")
    rows = decode_rows(message["parts"], keys, shape, num_rows)
    return {**rows.keys, **rows.shape}, *_exact(unit, rows.start, rows.end)


def _ops_of_message(message: Mapping[str, Any]) -> OpTable:
    columns, start_ns, duration_ns = _rows_of_message(message, _OP_KEYS, _OP_SHAPE)
    optional = message["optional"]
    for name in OPTIONAL:
        if name in optional:
            columns[name] = unpack_pieces(optional[name], start_ns.size)
    return OpTable(**columns, start_ns=start_ns, duration_ns=duration_ns)


def _groups_message(table: GroupTable) -> dict[str, Any]:
    hosts = sorted({each.host for each in table.places.values() if each.host is not None})
    host_at = {host: at for at, host in enumerate(hosts)}
    places = [table.places[rank] for rank in sorted(table.places)]
    of_places = {
        "rank": [each.rank for each in places],
        "dp_rank": [_or_none(each.dp_rank) for each in places],
        "stage": [_or_none(each.stage) for each in places],
        "local_rank": [_or_none(each.local_rank) for each in places],
        "host": [-1 if each.host is None else host_at[each.host] for each in places],
    }
    # What a rank did in a step stands together, and is the same in every step.
    order = np.lexsort((table.rank, table.step))
    named = {name: values[order] for name, values in table.columns().items()}
    unknown = np.flatnonzero(named["start_ns"] == -1)
    named["start_ns"][unknown] = 0
    return {
        **_rows_message(
            _unit_ns(named["start_ns"], named["duration_ns"]), [named], _GROUP_KEYS, _GROUP_SHAPE
        ),
        "num_bytes": pack_pieces(named["num_bytes"]),
        "unknown": [unknown.size, *pack_ints(unknown)],
        "groups": [
            {"name": each.name, "axis": each.axis, **members_of(each.ranks)}
            for each in table.groups
        ],
        "kinds": list(table.kinds),
        "hosts": hosts,
        "num_places": len(places),
        "places": {
            name: pack_ints(np.array(values, np.int64)) for name, values in of_places.items()
        },
    }


def _groups_of_message(message: Mapping[str, Any]) -> GroupTable:
    columns, start_ns, duration_ns = _rows_of_message(message, _GROUP_KEYS, _GROUP_SHAPE)
    num_rows = start_ns.size
    num_unknown, *unknown = message["unknown"]
    num_places = message["num_places"]
    if not (0 <= num_unknown <= num_rows and 0 <= num_places <= MAX_STORED_ROWS):
        raise DamagedRows("stored collectives have more ranks than rows")
    start_ns[unpack_ints(unknown, num_unknown)] = -1
    columns |= {"start_ns": start_ns, "duration_ns": duration_ns}
    columns["num_bytes"] = unpack_pieces(message["num_bytes"], num_rows)
    for name, named in (("group", message["groups"]), ("kind", message["kinds"])):
        if num_rows and not 0 <= columns[name].min() <= columns[name].max() < len(named):
            raise DamagedRows(f"stored collectives are of a {name} that is not there")
    order = np.lexsort([columns[name] for name in ("rank", "sequence", "kind", "group", "step")])
    of_places = [
        unpack_ints(message["places"][name], num_places).tolist() for name in _PLACE_COLUMNS
    ]
    return GroupTable(
        groups=tuple(_group(each) for each in message["groups"]),
        kinds=tuple(message["kinds"]),
        places=_places(of_places, message["hosts"]),
        **{name: columns[name][order] for name in GROUP_TABLE_COLUMNS},
    )


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _group(message: dict[str, Any]) -> RankGroup:
    if sum(number for _, number, _ in message.get("runs", ())) > MAX_STORED_ROWS:
        raise DamagedRows("a stored group has more members than there are ranks")
    ranks = ranks_of(message.get("ranks", ()), message.get("runs", ()))
    return RankGroup(message["name"], message["axis"], tuple(ranks))


def _places(columns: list[list[int]], hosts: list[str]) -> dict[int, RankPlace]:
    return {
        rank: RankPlace(
            rank,
            None if dp_rank < 0 else dp_rank,
            None if stage < 0 else stage,
            None if host < 0 else hosts[host],
            None if local_rank < 0 else local_rank,
        )
        for rank, dp_rank, stage, local_rank, host in zip(*columns, strict=True)
    }


def _of_earlier_format(blob: bytes) -> StoredWindow:
    """Formats 1 and 2: each column as differences to its least value."""
    while blob[:1] == _ZLIB:  # format 1 was compressed as a whole, and twice
        inflater = zlib.decompressobj()
        blob = inflater.decompress(blob, _MAX_EARLIER_BYTES)
        if not inflater.eof:
            raise DamagedRows(f"stored operations are more than {_MAX_EARLIER_BYTES} bytes")
    message: dict[str, Any] = msgspec.msgpack.decode(blob)
    if message["format"] not in (1, 2):
        raise DamagedRows(f"stored operations of format {message['format']} are not known here")
    is_packed = message["format"] == 2
    columns = {
        name: _earlier_column(column, is_packed=is_packed).astype(TABLE_DTYPES[name])
        for name, column in message["columns"].items()
    }
    groups = message.get("collectives")
    return StoredWindow(OpTable(**columns), None if groups is None else _earlier_groups(groups))


def _earlier_column(column: Mapping[str, Any], *, is_packed: bool = True) -> Ints:
    data = column["bytes"]
    if is_packed:
        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_STORED_ROWS * np.dtype(column["dtype"]).itemsize:
            raise DamagedRows(f"a stored column has {size} bytes: more than is read")
        data = zstandard.decompress(data)
    offsets = np.frombuffer(data, dtype=column["dtype"]).astype(np.uint64)
    offsets += np.int64(column["least"]).view(np.uint64)
    return offsets.view(np.int64)


def _earlier_groups(message: Mapping[str, Any]) -> GroupTable:
    columns = {name: _earlier_column(message["columns"][name]) for name in GROUP_TABLE_COLUMNS}
    places = [_earlier_column(message["places"][name]).tolist() for name in _PLACE_COLUMNS]
    return GroupTable(
        groups=tuple(_group(each) for each in message["groups"]),
        kinds=tuple(message["kinds"]),
        places=_places(places, message["hosts"]),
        **columns,
    )
