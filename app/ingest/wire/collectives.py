"""The collectives that a rank recorded inside its groups, in a batch: read, checked, written.

Beside the operations, in the batch's `collectives`: a table of groups, and one row per collective
of a tensor-, context- or expert-parallel group (docs/wire-format.md, section 9).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from app.errors import InvalidRequest, TooLarge
from app.ingest.batch import (
    GROUP_COLUMNS,
    LAST_START_NS,
    MAX_DURATION_NS,
    GroupRows,
    RowError,
    column_length,
    out_of_range,
    refused_rows,
    starts_last,
    unpack_values,
)
from app.ingest.wire.body import (
    LAST_INT32,
    LAST_STEP,
    UNDECODABLE,
    Column,
    Int64,
    PlacementName,
    Small,
    columns_struct,
    count_byte,
    format_error,
    format_error_at,
)
from app.trace.collectives import GroupAxis, RankGroup
from app.trace.window import Ints

MAX_GROUPS = 256  # a batch; a position in the table is one byte
MAX_MEMBERS = 1 << 16  # of all groups of a batch together
MAX_KINDS = 256
MAX_GROUP_ROWS = 20_000  # a batch
MAX_LOCAL_RANK = 4096

GROUP_DTYPES = {
    "step": "<i8",
    "group": "u1",
    "kind": "u1",
    "sequence": "<i4",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "bytes": "<i8",
}
OPTIONAL_GROUP_COLUMNS = ("start_ns", "bytes")  # then -1 in every row: not known

Positive = Annotated[int, msgspec.Meta(ge=1, le=LAST_INT32)]
# First, how many, distance.
RankRun = tuple[Small, Positive, Positive]
CollectiveKind = Annotated[
    str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*\Z")
]
LocalRank = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOCAL_RANK)]


class GroupIn(msgspec.Struct, forbid_unknown_fields=True):
    """A group: its members one by one in `ranks`, or as ranks at equal distances in `runs`."""

    name: PlacementName
    axis: GroupAxis = ""
    ranks: Annotated[list[Small], msgspec.Meta(max_length=MAX_MEMBERS)] = []
    runs: Annotated[list[RankRun], msgspec.Meta(max_length=MAX_MEMBERS)] = []


class _GroupsHeader(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    groups: Annotated[list[GroupIn], msgspec.Meta(max_length=MAX_GROUPS)] = []
    local_rank: LocalRank | None = None
    alone: bool = False


class _BinaryColumns(
    columns_struct(GROUP_DTYPES, Column, OPTIONAL_GROUP_COLUMNS, None)  # type: ignore[misc]
):
    """Raw little-endian buffers or packed ones, one a column."""


class BinaryGroups(_GroupsHeader, forbid_unknown_fields=True, kw_only=True):
    """The `collectives` of a msgpack batch."""

    kinds: Annotated[list[CollectiveKind], msgspec.Meta(max_length=MAX_KINDS)] = []
    columns: _BinaryColumns | None = None


_MAX_LENGTH = msgspec.Meta(max_length=MAX_GROUP_ROWS)
_Ints = Annotated[list[Int64], _MAX_LENGTH]
_Kinds = Annotated[list[CollectiveKind], _MAX_LENGTH]


class _JsonColumns(
    columns_struct(GROUP_DTYPES, _Ints, OPTIONAL_GROUP_COLUMNS, None, kind=_Kinds)  # type: ignore[misc]
):
    """Lists, one a column."""


class _GroupRow(
    columns_struct(GROUP_DTYPES, Int64, OPTIONAL_GROUP_COLUMNS, -1, kind=CollectiveKind)  # type: ignore[misc]
):
    """One collective."""


class _JsonGroups(_GroupsHeader, forbid_unknown_fields=True, kw_only=True):
    columns: _JsonColumns | None = None
    rows: Annotated[list[_GroupRow], _MAX_LENGTH] | None = None


_BINARY = msgspec.msgpack.Decoder(BinaryGroups)
_JSON = msgspec.json.Decoder(_JsonGroups)
_MAX_COMMAS = 8 * MAX_GROUP_ROWS + 4 * MAX_MEMBERS


class GroupCache:
    """One object for groups that are the same, so that what every batch repeats is read once."""

    def __init__(self, max_members: int = 1 << 21) -> None:
        self._max_members = max_members
        self._num_members = 0
        self._groups: dict[
            tuple[str, str, tuple[int, ...], tuple[tuple[int, int, int], ...]], RankGroup
        ] = {}

    def of(self, group: GroupIn) -> RankGroup:
        """The group with its members one by one.

        Raises:
            InvalidRequest: it has no members, or one of them twice, or one too large.
        """
        key = (group.name, group.axis, tuple(group.ranks), tuple(group.runs))
        known = self._groups.get(key)
        if known is None:
            known = RankGroup(group.name, group.axis, _members(group))
            if self._num_members > self._max_members:
                self._groups, self._num_members = {}, 0
            self._groups[key] = known
            self._num_members += len(known.ranks) + len(key[2]) + len(key[3])
        return known


_GROUP_CACHE = GroupCache()


def groups_from_binary(raw: msgspec.Raw) -> GroupRows | None:
    """The `collectives` of a msgpack batch, None if it has none; raises PacelineError if wrong."""
    if bytes(memoryview(raw)) == b"\xc0":
        return None
    wire = _decoded(_BINARY, raw)
    groups = _groups(wire)
    columns = wire.columns
    if columns is None:
        return _rows(wire, groups, (), {name: np.empty(0, np.int64) for name in GROUP_DTYPES})
    named: dict[str, Column] = {
        name: column for name in GROUP_DTYPES if (column := getattr(columns, name)) is not None
    }
    _check_lengths(
        {
            name: column_length(name, column, np.dtype(GROUP_DTYPES[name]), "collectives: ")
            for name, column in named.items()
        }
    )
    arrays: dict[str, Ints] = {}
    for name in starts_last(named):
        column = named[name]
        arrays[name] = (
            np.frombuffer(column, GROUP_DTYPES[name]).astype(np.int64)
            if isinstance(column, memoryview)
            else unpack_values(name, column, arrays.get("duration_ns"))
        )
    return _rows(wire, groups, tuple(wire.kinds), arrays)


def groups_from_json(raw: msgspec.Raw) -> GroupRows | None:
    """The `collectives` of a JSON batch; raises as `groups_from_binary` does."""
    if bytes(memoryview(raw)[:5]).strip() == b"null":
        return None
    if count_byte(raw, b",") > _MAX_COMMAS:
        raise TooLarge("collectives has more values than a batch may have: split it")
    wire = _decoded(_JSON, raw)
    groups = _groups(wire)
    if wire.columns is not None and wire.rows is not None:
        raise format_error("it may have `columns` or `rows`, not both - at `$.collectives`")
    rows = wire.rows or []
    columns = {
        name: [getattr(row, name) for row in rows]
        if wire.columns is None
        else getattr(wire.columns, name)
        for name in GROUP_DTYPES
    }
    columns = {name: values for name, values in columns.items() if values is not None}
    _check_lengths({name: len(values) for name, values in columns.items()})
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(columns["kind"]))}
    columns["kind"] = [kinds[kind] for kind in columns["kind"]]
    if len(kinds) > MAX_KINDS:
        raise TooLarge(f"collectives has at most {MAX_KINDS} kinds: split it")
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    return _rows(wire, groups, tuple(kinds), arrays)


def check_group_rows(
    rows: GroupRows, rank: int, last_step: int
) -> tuple[GroupRows, list[RowError]]:
    """The rows that keep to every rule, and why the others do not; `last_step` is the newest taken.

    The errors are as many as the rows that were left out.
    """
    bounds = (
        ("step", rows.step, 0, min(LAST_STEP, last_step)),
        ("group", rows.group, 0, len(rows.groups) - 1),
        ("kind", rows.kind, 0, len(rows.kinds) - 1),
        ("sequence", rows.sequence, 0, LAST_INT32),
        ("start_ns", rows.start_ns, -1, LAST_START_NS),
        ("duration_ns", rows.duration_ns, 0, MAX_DURATION_NS),
        ("bytes", rows.num_bytes, -1, LAST_STEP),
    )
    breaches = [out_of_range(values, name, least, most) for name, values, least, most in bounds]
    has_rank = np.array([*(_is_member(rank, group) for group in rows.groups), False])
    is_known = (rows.group >= 0) & (rows.group < len(rows.groups))
    is_outside = is_known & ~has_rank[np.where(is_known, rows.group, -1)]
    breaches.append((is_outside, "rank_not_in_group", f"row rank {rank} is no member of the group"))
    is_refused, errors = refused_rows(breaches)
    if not errors:
        return rows, []
    return rows.select(~is_refused), [
        RowError(error.index, f"collectives_{error.code}", f"collectives: {error.message}")
        for error in errors
    ]


def groups_to_wire(rows: GroupRows) -> BinaryGroups:
    """The rows as the binary format has them."""
    arrays = {name: getattr(rows, name) for name in GROUP_COLUMNS}
    arrays["bytes"] = arrays.pop("num_bytes")
    columns = {
        name: memoryview(values.astype(GROUP_DTYPES[name]).tobytes())
        for name, values in arrays.items()
        if name not in OPTIONAL_GROUP_COLUMNS or (values >= 0).any()
    }
    return BinaryGroups(
        groups=[GroupIn(group.name, group.axis, *members_of(group.ranks)) for group in rows.groups],
        kinds=list(rows.kinds),
        columns=_BinaryColumns(**columns),
        local_rank=rows.local_rank,
        alone=rows.is_alone,
    )


def members_of(ranks: Sequence[int]) -> tuple[list[int], list[RankRun]]:
    """Members as the format has them: `ranks`, or `runs` where these are short; else empty."""
    runs: list[RankRun] = []
    for rank in ranks:
        if runs:
            first, number, distance = runs[-1]
            if number == 1 and rank > first:
                runs[-1] = (first, 2, rank - first)
                continue
            if number > 1 and rank == first + number * distance:
                runs[-1] = (first, number + 1, distance)
                continue
        runs.append((rank, 1, 1))
    return ([], runs) if 3 * len(runs) < len(ranks) else (list(ranks), [])


def ranks_of(ranks: Sequence[int], runs: Sequence[RankRun]) -> list[int]:
    """Members one by one."""
    members = list(ranks)
    for first, number, distance in runs:
        members += range(first, first + number * distance, distance)
    return members


def _members(group: GroupIn) -> tuple[int, ...]:
    ranks = ranks_of(group.ranks, group.runs)
    if not ranks:
        raise InvalidRequest(f"group {group.name!r} has no members: give ranks, or runs of them")
    if len(set(ranks)) < len(ranks) or max(ranks) > LAST_INT32:
        raise InvalidRequest(
            f"group {group.name!r}: each rank is in it once, and at most {LAST_INT32}"
        )
    # Of a pair of pipeline stages the first rank sends.
    return tuple(ranks if group.axis == "pp" else sorted(ranks))


def _is_member(rank: int, group: RankGroup) -> bool:
    if group.axis == "pp":
        return rank in group.ranks
    at = bisect_left(group.ranks, rank)
    return at < len(group.ranks) and group.ranks[at] == rank


def _decoded(decoder: Any, raw: msgspec.Raw) -> Any:
    try:
        return decoder.decode(raw)
    except UNDECODABLE as error:
        raise format_error_at("$.collectives", error) from error


def _groups(wire: _GroupsHeader) -> tuple[RankGroup, ...]:
    # Before runs of ranks are expanded, which may claim any number.
    num_members = sum(
        len(group.ranks) + sum(number for _, number, _ in group.runs) for group in wire.groups
    )
    if num_members > MAX_MEMBERS:
        raise TooLarge(f"the groups of a batch have at most {MAX_MEMBERS:,} members together")
    return tuple(_GROUP_CACHE.of(group) for group in wire.groups)


def _rows(
    wire: _GroupsHeader,
    groups: tuple[RankGroup, ...],
    kinds: tuple[str, ...],
    arrays: dict[str, Ints],
) -> GroupRows:
    num = arrays["step"].size
    for name in OPTIONAL_GROUP_COLUMNS:
        arrays.setdefault(name, np.full(num, -1, np.int64))
    arrays["num_bytes"] = arrays.pop("bytes")
    return GroupRows(
        groups=groups, kinds=kinds, local_rank=wire.local_rank, is_alone=wire.alone, **arrays
    )


def _check_lengths(lengths: dict[str, int]) -> None:
    if max(lengths.values()) > MAX_GROUP_ROWS:
        raise TooLarge(f"collectives has at most {MAX_GROUP_ROWS:,} rows a batch: split it")
    if len(set(lengths.values())) > 1:
        raise InvalidRequest(f"collectives: columns must be of equal length, got {lengths}")
