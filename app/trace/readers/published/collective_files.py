"""The file of collectives beside a published trace: collectives-NAME.parquet, one row a rank.

Columns: `step`, `group` (a name), `group_axis`, `group_ranks` (a list of global ranks), `kind`,
`sequence`, `rank`, `duration` (seconds), and, null where unknown, `start_ts` (seconds, with the
origin of the step's starts in the trace), `bytes`, `dp_rank`, `stage`, `host`, `local_rank`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.collectives import Collectives, GroupAxis, RankGroup, RankPlace
from app.trace.readers.published.meta import trace_name
from app.trace.window import Ints

MAX_ROWS = 100_000_000
MAX_MEMBERS = 1 << 20  # of all groups together
AXES = get_args(GroupAxis)
_RANKS = pa.list_(pa.int64())
_PLACE = ("dp_rank", "stage", "host", "local_rank")
_NEEDED = {
    "step": pa.int64(),
    "group": pa.string(),
    "group_axis": pa.string(),
    "group_ranks": _RANKS,
    "kind": pa.string(),
    "sequence": pa.int64(),
    "rank": pa.int64(),
    "duration": pa.float64(),
}
_OPTIONAL = {
    "start_ts": pa.float64(),
    **dict.fromkeys(("bytes", "dp_rank", "stage"), pa.int64()),
    "host": pa.string(),
    "local_rank": pa.int64(),
}


def usual_path(trace_path: Path) -> Path:
    """Path of a trace's collectives: collectives-NAME.parquet beside trace-NAME.parquet."""
    return trace_path.with_name(f"collectives-{trace_name(trace_path)}.parquet")


def beside(trace_path: Path, steps: Sequence[int]) -> Collectives | None:
    """The steps' collectives, None without any; raises InvalidTrace if they are not readable."""
    path = usual_path(trace_path)
    if not path.is_file():
        return None
    table = _read(path)
    table = table.filter(pc.is_in(table["step"], pa.array(np.array(steps, np.int64))))
    return _collectives(table, path) if table.num_rows else None


def write(collectives: Collectives, file: BinaryIO) -> None:
    """Write the file that `beside` reads."""
    pq.write_table(_table(collectives), file)


def _read(path: Path) -> pa.Table:
    try:
        parquet = pq.ParquetFile(path)
        if parquet.metadata.num_rows > MAX_ROWS:
            raise InvalidTrace(f"{path.name}: has more than {MAX_ROWS:,} rows: split the trace")
        names = set(parquet.schema_arrow.names)
        if missing := sorted(_NEEDED.keys() - names):
            raise InvalidTrace(
                f"{path.name}: column {missing[0]} is missing: write the columns of docs/feeds/"
                "files.md, or remove the file"
            )
        kinds = _NEEDED | {name: kind for name, kind in _OPTIONAL.items() if name in names}
        read = parquet.read(columns=list(kinds))
        table = pa.table({name: read[name].cast(kind) for name, kind in kinds.items()})
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidTrace(f"{path.name}: cannot be read: {reason}") from error
    for name in _NEEDED:
        if table[name].null_count:
            raise InvalidTrace(f"{path.name}: column {name} has nulls: every row needs one")
    return table


def _collectives(table: pa.Table, path: Path) -> Collectives:
    # A group is a distinct combination of name, axis and ranks.
    keys, codes = _coded(
        zip(
            table["group"].to_pylist(),
            table["group_axis"].to_pylist(),
            map(tuple, table["group_ranks"].to_pylist()),
            strict=True,
        )
    )
    groups = tuple(RankGroup(*key) for key in keys)
    if sum(len(group.ranks) for group in groups) > MAX_MEMBERS:
        raise InvalidTrace(f"{path.name}: group_ranks has more than {MAX_MEMBERS:,} members")
    for group in groups:
        if group.axis not in AXES:
            raise InvalidTrace(f"{path.name}: group_axis {group.axis!r:.40} is none that is known")
    kinds, kind_codes = _coded(table["kind"].to_pylist())
    start_s, stay_s = _column(table, "start_ts", np.nan), _column(table, "duration", np.nan)
    if not np.isfinite(stay_s).all() or (stay_s < 0).any():
        raise InvalidTrace(f"{path.name}: duration has numbers that no duration is")
    return Collectives(
        groups=groups,
        kinds=tuple(kinds),
        group=codes,
        kind=kind_codes,
        step=_column(table, "step", -1),
        sequence=_column(table, "sequence", -1),
        rank=_column(table, "rank", -1),
        start_s=start_s,
        stay_s=stay_s,
        num_bytes=_column(table, "bytes", -1),
        places=_places(table),
    )


def _coded(values: Any) -> tuple[list[Any], Ints]:
    known: dict[Any, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], np.int64)
    return list(known), codes


def _column(table: pa.Table, name: str, unknown: float) -> NDArray[Any]:
    """[rows], with `unknown` for nulls, and for all rows if the column is missing."""
    if name not in table.column_names:
        return np.full(table.num_rows, unknown)
    values: NDArray[Any] = table[name].fill_null(unknown).to_numpy()
    return values.astype(np.asarray(unknown).dtype)


def _places(table: pa.Table) -> dict[int, RankPlace]:
    _, first = np.unique(_column(table, "rank", -1), return_index=True)
    names = [name for name in ("rank", *_PLACE) if name in table.column_names]
    places = table.select(names).take(pa.array(first)).to_pylist()
    return {place["rank"]: RankPlace(**place) for place in places}


def _table(collectives: Collectives) -> pa.Table:
    groups = collectives.groups
    places = [collectives.place(rank) for rank in collectives.rank.tolist()]
    at = pa.array(collectives.group)
    return pa.table(
        {
            "step": collectives.step,
            "group": pa.array([group.name for group in groups], pa.string()).take(at),
            "group_axis": pa.array([group.axis for group in groups], pa.string()).take(at),
            "group_ranks": pa.array([list(group.ranks) for group in groups], _RANKS).take(at),
            "kind": pa.array(list(collectives.kinds), pa.string()).take(pa.array(collectives.kind)),
            "sequence": collectives.sequence,
            "rank": collectives.rank,
            "duration": collectives.stay_s,
            "start_ts": pa.array(collectives.start_s, from_pandas=True),  # NaN becomes null
            "bytes": pa.array(collectives.num_bytes, mask=collectives.num_bytes < 0),
            **{
                name: pa.array([getattr(place, name) for place in places], _OPTIONAL[name])
                for name in _PLACE
            },
        }
    )
