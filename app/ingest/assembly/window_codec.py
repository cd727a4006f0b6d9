"""A closed window's operations and collectives as stored bytes, and back.

Starts and ends are rounded to a microsecond, which keeps their order; a window's results come from
the times as they were recorded. The remainders of a window that late operations may still change
are stored beside it, so that its revised results come from exact times, too. Decoding holds no more
than the bytes claim and `MAX_STORED_ROWS` allows, since a backup may come from an attacker.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.ingest.assembly.int_packing import (
    PIECE_ROWS,
    DamagedRows,
    Ints,
    PackedInts,
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
    RowsPart,
    TimedRows,
    decode_rows,
    encode_rows,
)
from app.ingest.wire.collectives import RankRun, members_of, ranks_of
from app.trace.collectives import GroupAxis, RankGroup, RankPlace
from app.trace.window import OPTIONAL, TABLE_DTYPES

# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
MAX_STORED_ROWS = 1 << 26
UNIT_NS = 1000
_OPS = b"\xc1PW3"  # nothing that msgpack or zlib writes begins like this
_REMAINDERS = b"\xc1PR3"
_HEADER_BYTES = 8
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
    """A `StoredWindow` as bytes: times rounded, and their remainders if late data may revise it."""

    rounded: bytes
    remainders: bytes | None = None


Pieces = list[PackedInts]  # of one column


class _StoredRows(msgspec.Struct, kw_only=True):
    unit_ns: int
    rows: int
    parts: list[RowsPart]


class _StoredOps(_StoredRows, kw_only=True):
    optional: dict[str, Pieces]


class _StoredGroup(msgspec.Struct, omit_defaults=True):
    name: str
    axis: GroupAxis
    ranks: list[int] = []
    runs: list[RankRun] = []


class _StoredGroups(_StoredRows, kw_only=True):
    num_bytes: Pieces
    unknown: list[Any]  # how many rows, and which ones: PackedInts
    groups: list[_StoredGroup]
    kinds: list[str]
    hosts: list[str]
    num_places: int
    places: dict[str, PackedInts]


class _Stored(msgspec.Struct, omit_defaults=True):
    ops: _StoredOps
    collectives: _StoredGroups | None = None


def pack_window(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """The operations, and the collectives inside groups with them, rounded."""
    stored = _Stored(_stored_ops(table))
    if groups is not None and groups.num_rows:
        stored.collectives = _stored_groups(groups)
    return _sealed(_OPS, stored)


def pack_remainders(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """The remainders of the times that `pack_window` rounds."""
    timed: list[OpTable | GroupTable] = [table]
    if groups is not None and groups.num_rows:
        timed.append(groups)
    return _sealed(_REMAINDERS, [_remainders(rows) for rows in timed])


def unpack_window(rounded: bytes, remainders: bytes | None = None) -> StoredWindow:
    """The operations and collectives that were packed; to the nanosecond with `remainders`.

    Raises:
        DamagedRows: the bytes are not ours.
    """
    try:
        packed = _opened(_OPS, rounded, _Stored)
        groups = None if packed.collectives is None else _group_table(packed.collectives)
        stored = StoredWindow(_op_table(packed.ops), groups)
        return stored if remainders is None else _with_remainders(stored, remainders)
    except DamagedRows:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DamagedRows(f"stored operations have no known form: {error!r}") from error
    except msgspec.MsgspecError as error:
        raise DamagedRows(f"stored operations cannot be decoded: {error}") from error


def _sealed(magic: bytes, message: Any) -> bytes:
    body = msgspec.msgpack.encode(message)
    return magic + zlib.crc32(body).to_bytes(4, "little") + body


StoredT = TypeVar("StoredT")


def _opened(magic: bytes, blob: bytes, kind: type[StoredT]) -> StoredT:
    body = memoryview(blob)[_HEADER_BYTES:]
    if blob[:4] != magic or zlib.crc32(body) != int.from_bytes(blob[4:_HEADER_BYTES], "little"):
        raise DamagedRows("stored operations are damaged: their checksum is another")
    return msgspec.msgpack.decode(body, type=kind)


def _unit_ns(start_ns: Ints, duration_ns: Ints) -> int:
    """Unit to which times are rounded: 1 ns where they are too large for a clock's."""
    if not start_ns.size:
        return UNIT_NS
    extremes = (start_ns.min(), start_ns.max(), duration_ns.min(), duration_ns.max())
    return 1 if max(abs(int(time_ns)) for time_ns in extremes) > _LAST_ROUNDED_NS else UNIT_NS


def _rounded(unit: int, start_ns: Ints, duration_ns: Ints) -> tuple[Ints, Ints]:
    """Starts and ends in a unit."""
    end_ns = start_ns + duration_ns
    if unit == 1:
        return start_ns, end_ns
    return (start_ns + unit // 2) // unit, (end_ns + unit // 2) // unit


def _exact(unit: int, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Starts and durations, nanoseconds, of times in a unit."""
    return start * unit, (end - start) * unit


def _remainders(table: OpTable | GroupTable) -> list[tuple[PackedInts, PackedInts]]:
    """The remainders of starts and durations after rounding, for some rows at a time."""
    unit = _unit_ns(table.start_ns, table.duration_ns)
    pieces = []
    for at in range(0, table.start_ns.size, PIECE_ROWS):
        piece = slice(at, at + PIECE_ROWS)
        start_ns, duration_ns = table.start_ns[piece], table.duration_ns[piece]
        start, duration = _exact(unit, *_rounded(unit, start_ns, duration_ns))
        pieces.append((pack_residues(start_ns - start), pack_residues(duration_ns - duration)))
    return pieces


def _with_remainders(stored: StoredWindow, blob: bytes) -> StoredWindow:
    packed = _opened(_REMAINDERS, blob, list[list[tuple[PackedInts, PackedInts]]])
    timed: list[OpTable | GroupTable] = [stored.ops]
    if stored.groups is not None:
        timed.append(stored.groups)
    for table, pieces in zip(timed, packed, strict=True):
        starts = [start for start, _ in pieces]
        table.start_ns[:] += unpack_pieces(starts, table.start_ns.size)
        durations = [duration for _, duration in pieces]
        table.duration_ns[:] += unpack_pieces(durations, table.start_ns.size)
    return stored


def _stored_ops(table: OpTable) -> _StoredOps:
    # In pieces, since the columns of a large window would take more memory than all its times.
    pieces = (piece.columns() for piece in table.pieces(MAX_PART_ROWS))
    optional = {name: getattr(table, name) for name in OPTIONAL}
    unit = _unit_ns(table.start_ns, table.duration_ns)
    return _StoredOps(
        unit_ns=unit,
        rows=table.num_ops,
        parts=_stored_parts(unit, pieces, _OP_KEYS, _OP_SHAPE),
        optional={
            name: pack_pieces(values) for name, values in optional.items() if values is not None
        },
    )


def _stored_parts(
    unit: int, pieces: Iterable[Mapping[str, NDArray[Any]]], keys: Dtypes, shape: Dtypes
) -> list[RowsPart]:
    """The rows of a table whose columns come in pieces, in a unit."""
    parts: list[RowsPart] = []
    for columns in pieces:
        rows = TimedRows(
            {name: columns[name] for name in keys},
            {name: columns[name] for name in shape},
            columns["start_ns"],
            columns["duration_ns"],
        )
        parts += encode_rows(rows, partial(_rounded, unit))
    return parts


def _columns_of(
    stored: _StoredRows, keys: Dtypes, shape: Dtypes
) -> tuple[dict[str, NDArray[Any]], Ints, Ints]:
    """The columns without times, starts, and durations in nanoseconds."""
    unit, num_rows = stored.unit_ns, stored.rows
    if unit not in (1, UNIT_NS) or not 0 <= num_rows <= MAX_STORED_ROWS:
        raise DamagedRows(f"{num_rows} rows are stored: at most {MAX_STORED_ROWS} are read")
    rows = decode_rows(stored.parts, keys, shape, num_rows)
    return {**rows.keys, **rows.shape}, *_exact(unit, rows.start, rows.end)


def _op_table(stored: _StoredOps) -> OpTable:
    columns, start_ns, duration_ns = _columns_of(stored, _OP_KEYS, _OP_SHAPE)
    for name in OPTIONAL:
        if name in stored.optional:
            columns[name] = unpack_pieces(stored.optional[name], start_ns.size)
    return OpTable(**columns, start_ns=start_ns, duration_ns=duration_ns)


def _stored_groups(table: GroupTable) -> _StoredGroups:
    hosts = sorted({place.host for place in table.places.values() if place.host is not None})
    host_at = {host: at for at, host in enumerate(hosts)}
    places = [table.places[rank] for rank in sorted(table.places)]
    of_places = {name: [getattr(place, name) for place in places] for name in _PLACE_COLUMNS}
    of_places["host"] = [host_at.get(host) for host in of_places["host"]]
    # What a rank did in a step stands together, and is the same in every step.
    order = np.lexsort((table.rank, table.step))
    columns = {name: values[order] for name, values in table.columns().items()}
    unknown = np.flatnonzero(columns["start_ns"] == -1)
    columns["start_ns"][unknown] = 0
    unit = _unit_ns(columns["start_ns"], columns["duration_ns"])
    return _StoredGroups(
        unit_ns=unit,
        rows=table.num_rows,
        parts=_stored_parts(unit, [columns], _GROUP_KEYS, _GROUP_SHAPE),
        num_bytes=pack_pieces(columns["num_bytes"]),
        unknown=[unknown.size, *pack_ints(unknown)],
        groups=[
            _StoredGroup(group.name, group.axis, *members_of(group.ranks)) for group in table.groups
        ],
        kinds=list(table.kinds),
        hosts=hosts,
        num_places=len(places),
        places={name: pack_ints(_known_or_minus_1(of_places[name])) for name in _PLACE_COLUMNS},
    )


def _group_table(stored: _StoredGroups) -> GroupTable:
    columns, start_ns, duration_ns = _columns_of(stored, _GROUP_KEYS, _GROUP_SHAPE)
    num_rows, num_places = start_ns.size, stored.num_places
    num_unknown, *unknown = stored.unknown
    if not (0 <= num_unknown <= num_rows and 0 <= num_places <= MAX_STORED_ROWS):
        raise DamagedRows("stored collectives have more ranks than rows")
    start_ns[unpack_ints(unknown, num_unknown)] = -1
    columns |= {"start_ns": start_ns, "duration_ns": duration_ns}
    columns["num_bytes"] = unpack_pieces(stored.num_bytes, num_rows)
    for name, size in (("group", len(stored.groups)), ("kind", len(stored.kinds))):
        if num_rows and not 0 <= columns[name].min() <= columns[name].max() < size:
            raise DamagedRows(f"stored collectives are of a {name} that is not there")
    order = np.lexsort([columns[name] for name in ("rank", "sequence", "kind", "group", "step")])
    of_places = [unpack_ints(stored.places[name], num_places).tolist() for name in _PLACE_COLUMNS]
    return GroupTable(
        groups=tuple(_group(group) for group in stored.groups),
        kinds=tuple(stored.kinds),
        places=_places(of_places, stored.hosts),
        **{name: columns[name][order] for name in GROUP_TABLE_COLUMNS},
    )


def _known_or_minus_1(numbers: Sequence[int | None]) -> Ints:
    return np.array([-1 if number is None else number for number in numbers], np.int64)


def _group(stored: _StoredGroup) -> RankGroup:
    if sum(number for _, number, _ in stored.runs) > MAX_STORED_ROWS:
        raise DamagedRows("a stored group has more members than there are ranks")
    return RankGroup(stored.name, stored.axis, tuple(ranks_of(stored.ranks, stored.runs)))


def _places(columns: list[list[int]], hosts: list[str]) -> dict[int, RankPlace]:
    places = {}
    for rank, *numbers in zip(*columns, strict=True):
        dp_rank, stage, local_rank, host_at = (n if n >= 0 else None for n in numbers)
        host = None if host_at is None else hosts[host_at]
        places[rank] = RankPlace(rank, dp_rank, stage, host, local_rank)
    return places
