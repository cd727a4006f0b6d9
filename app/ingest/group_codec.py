"""A window's collectives inside groups as they are stored beside its operations."""

from typing import Any

import numpy as np

from app.ingest.group_table import TABLE_COLUMNS, GroupTable
from app.ingest.group_wire import members_of, ranks_of
from app.ingest.packed_column import pack_column, unpack_column
from app.trace.collectives import RankGroup, RankPlace

_PLACE = ("rank", "dp_rank", "stage", "local_rank", "host")


def to_message(table: GroupTable) -> dict[str, Any]:
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


def of_message(message: dict[str, Any]) -> GroupTable:
    """The table in a map that `to_message` made."""
    hosts = message["hosts"]
    columns = {
        name: unpack_column(message["columns"][name]).astype(np.int64) for name in TABLE_COLUMNS
    }
    places = [unpack_column(message["places"][name]).tolist() for name in _PLACE]
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
