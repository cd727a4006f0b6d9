"""Reads the columns of a published parquet file as checked arrays.

An optional column has the names of the workers' hosts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.readers.json_stream import why_unreadable
from app.trace.window import OPTIONAL, TRACE_DTYPES, Floats, Ints, Trace

HostsOfWorkers = dict[tuple[int, int], str]
CodedNames = tuple[list[str], NDArray[Any]]


def hosts_of(path: Path, coded_names: CodedNames, trace: Trace) -> HostsOfWorkers:
    """Host by (dp rank, stage), if named; raises InvalidTrace if a worker is on two hosts."""
    names, codes = coded_names
    num_stages, num_names = int(trace.stage.max()) + 1, max(len(names), 1)
    worker = trace.dp_rank.astype(np.int64) * num_stages + trace.stage
    hosts: HostsOfWorkers = {}
    for place in np.unique(worker[codes >= 0] * num_names + codes[codes >= 0]).tolist():
        number, code = divmod(place, num_names)
        dp_rank, stage = divmod(number, num_stages)
        if (dp_rank, stage) in hosts:
            raise InvalidTrace(
                f"{path.name}: column host: dp_rank {dp_rank}, stage {stage} is on "
                f"{hosts[dp_rank, stage]!r} and on {names[code]!r}: give each worker one host"
            )
        hosts[dp_rank, stage] = names[code]
    return hosts


def coded_names(path: Path, column: Any) -> CodedNames:
    """The distinct names, and [rows] the index of each row's, -1 for none; raises InvalidTrace."""
    try:
        encoded = pc.cast(column, pa.string()).combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        names = encoded.dictionary.to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidTrace(f"{path.name}: column host is {column.type}: want names") from error
    return names, encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)


_INTEGERS = ("step", "dp_rank", "stage", "rank", "seq_id", "mc", "mb_id")
_SECONDS = ("start_ts", "duration")
_NEEDED = (*_INTEGERS, *_SECONDS, "optype")
# A chunk's number in the whole model: it follows from other columns, so only imports keep it.
GMC = "gmc"
# Columns that only Paceline writes.
_OPTIONAL_COLUMNS = ("host", "start_ns", *OPTIONAL)
# -1 means no chunk or no micro-batch; no other column goes below 0.
_MIN_VALUES = {"mc": -1, "mb_id": -1, GMC: -1, **dict.fromkeys(OPTIONAL, -1)}
_MAX_SHOWN = 64
_PIECE_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20
# Sums and differences of steps fit into 64 bits, and so does a start plus the duration of a day.
_MAX_VALUES = {
    "step": 2**62,
    "start_ns": 2**63 - 1 - 86_400 * 10**9,
    **dict.fromkeys(OPTIONAL, 2**53),
}
# Seconds. Beyond this a float64 does not resolve a microsecond; no clock shows such times.
_MAX_TIME_S = 1e10


class _Rows(NamedTuple):
    """Successive rows of a file, from row number `first`."""

    path: Path
    table: Any
    first: int = 0


@dataclass(frozen=True, slots=True)
class TracePiece:
    """Checked successive rows of a file; `ints` have the names of a trace's columns.

    `start_ns` is by the hosts' own clocks; without it `start_s` is the start.
    """

    ints: dict[str, NDArray[Any]]
    optype: NDArray[np.int16]
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    more: dict[str, NDArray[Any]]
    start_ns: NDArray[Any] | None
    host: CodedNames | None


def load(
    path: Path, op_types: OpTypes = BUILT_IN
) -> tuple[Trace, HostsOfWorkers, dict[int, int] | None]:
    """All rows of the file, in its order; `op_types` are those of the job.

    Returns:
        The trace; hosts by (dp rank, stage), as far as known; and by step the time from which its
        starts count, None if the file has no times by the hosts' own clocks.

    Raises:
        InvalidTrace: the file cannot be read, or has invalid values; the message names the column
            and the rows.
    """
    with _translated(path):
        file = _opened(path)
        table = file.read(columns=_wanted(path, file))
    if table.num_rows == 0:
        raise InvalidTrace(f"{path.name}: has no rows: record at least one step")
    piece = _checked(_Rows(path, table), op_types)
    start_s, origin_ns = piece.start_s, None
    if piece.start_ns is not None:
        start_s, origin_ns = _since_began(piece.ints["step"], piece.start_ns)
    trace = Trace(
        **piece.ints,
        **piece.more,
        optype=piece.optype,
        start_s=start_s,
        duration_s=piece.duration_s,
    )
    return trace, hosts_of(path, piece.host, trace) if piece.host else {}, origin_ns


def names(path: Path) -> list[str]:
    """Names of the columns that `pieces` reads; raises InvalidTrace if one is missing."""
    with _translated(path):
        return _wanted(path, _opened(path), GMC)


def pieces(path: Path, op_types: OpTypes = BUILT_IN) -> Iterator[TracePiece]:
    """The rows of `load`, in pieces of bounded size; raises InvalidTrace as it does."""
    first = 0
    with _translated(path):
        file = _opened(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        for batch in file.iter_batches(_PIECE_ROWS, columns=_wanted(path, file, GMC)):
            yield _checked(_Rows(path, pa.Table.from_batches([batch]), first), op_types)
            first += batch.num_rows
    if not first:
        raise InvalidTrace(f"{path.name}: has no rows: record at least one step")


def _checked(rows: _Rows, op_types: OpTypes) -> TracePiece:
    available = rows.table.column_names
    ints = {name: _integers(rows, name) for name in _INTEGERS}
    start_s, duration_s = (_seconds(rows, name) for name in _SECONDS)
    if duration_s.min() < 0:
        _refuse(rows, "duration", duration_s < 0, "are negative: an operation ends after its start")
    return TracePiece(
        ints=ints,
        optype=_optypes(rows, op_types),
        start_s=start_s,
        duration_s=duration_s,
        more={name: _integers(rows, name) for name in (*OPTIONAL, GMC) if name in available},
        start_ns=_integers(rows, "start_ns") if "start_ns" in available else None,
        host=coded_names(rows.path, rows.table.column("host")) if "host" in available else None,
    )


def _since_began(step: Ints, start_ns: Ints) -> tuple[Floats, dict[int, int]]:
    """[rows] seconds since the first start of the row's step, and by step that first start."""
    steps, position = np.unique(step, return_inverse=True)
    first_ns = np.full(steps.size, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, position, start_ns)
    # Subtracted as integers, which are exact.
    start_s = (start_ns - first_ns[position]) * 1e-9
    return start_s, dict(zip(steps.tolist(), first_ns.tolist(), strict=True))


def _wanted(path: Path, file: Any, *also: str) -> list[str]:
    available = file.schema_arrow.names
    more = [name for name in (*_OPTIONAL_COLUMNS, *also) if name in available]
    for name in sorted([*_NEEDED, *more]):
        count = available.count(name)
        if count == 0:
            raise InvalidTrace(f"{path.name}: column {name} is missing: add it")
        if count > 1:
            raise InvalidTrace(f"{path.name}: column {name} is there {count} times: keep one")
    return [*_NEEDED, *more]


def _begins_as_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return b"PAR1".startswith(file.read(4))  # or of a file cut off before


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn errors of the parquet reader into `InvalidTrace`."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidTrace(f"{path.name}: is no name in UTF-8: rename the file") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        advice = "is no whole parquet file: copy or record it again"
        if not _begins_as_parquet(path):
            advice = (
                "is no parquet file: give a recording; `paceline analyze` takes files of "
                "torch.profiler, too"
            )
        raise InvalidTrace(f"{path.name}: {advice}") from error
    except OSError as error:
        why = why_unreadable(path, error, "parquet file")
        raise InvalidTrace(f"{path}: cannot be read: {why}") from error


def _opened(path: Path, **options: Any) -> Any:
    try:
        return pq.ParquetFile(path, read_dictionary=["optype"], **options)
    except KeyError:  # the column is missing or of lists: `_optypes` refuses it by its type
        return pq.ParquetFile(path, **options)


def _integers(rows: _Rows, name: str) -> NDArray[Any]:
    """The column as a trace holds it."""
    column = _without_nulls(rows, name)
    if not pa.types.is_integer(column.type):
        raise InvalidTrace(f"{rows.path.name}: column {name} is {column.type}: want whole numbers")
    values: NDArray[Any] = column.to_numpy()
    lowest, dtype = _MIN_VALUES.get(name, 0), np.dtype(TRACE_DTYPES.get(name, np.int64))
    if values.min() < lowest:
        _refuse(rows, name, values < lowest, f"are below {lowest}: number from {lowest} up")
    highest = _MAX_VALUES.get(name, int(np.iinfo(dtype).max))
    if np.iinfo(values.dtype).max > highest and values.max() > highest:
        too_large = f"are above {highest}: that is no {name}, number from {lowest} up"
        _refuse(rows, name, values > highest, too_large)
    # A copy: Arrow's arrays are read-only, for which kernels would be compiled again.
    return values.astype(dtype)


def _seconds(rows: _Rows, name: str) -> NDArray[np.float64]:
    column = _without_nulls(rows, name)
    if not pa.types.is_floating(column.type):
        raise InvalidTrace(
            f"{rows.path.name}: column {name} is {column.type}: want seconds as floats"
        )
    read = column.to_numpy()
    values: NDArray[np.float64] = read.astype(np.float64)
    # NaN fails these comparisons as well. Only then is it worth locating the rows.
    if not (float(read.min()) >= -_MAX_TIME_S and float(read.max()) <= _MAX_TIME_S):
        _refuse(rows, name, ~np.isfinite(values), "are not finite: give seconds")
        too_large = f"are beyond {_MAX_TIME_S:,.0f} seconds: give seconds from a nearer origin"
        _refuse(rows, name, np.abs(values) > _MAX_TIME_S, too_large)
    return values


def _optypes(rows: _Rows, op_types: OpTypes) -> NDArray[np.int16]:
    column = _without_nulls(rows, "optype")
    if not pa.types.is_dictionary(column.type):
        raise InvalidTrace(f"{rows.path.name}: column optype is {column.type}: want names")
    codes = np.concatenate([_codes(rows, chunk, op_types) for chunk in column.chunks])
    if codes.min() < 0:
        name = str(column[int(codes.argmin())].as_py())[:_MAX_SHOWN]
        unknown = (
            f"are of an unknown type ({name!r}): use one of {', '.join(op_types.codes)}, or "
            "register it in op_types of the meta file"
        )
        _refuse(rows, "optype", codes < 0, unknown)
    return codes


def _codes(rows: _Rows, chunk: Any, op_types: OpTypes) -> NDArray[np.int16]:
    try:
        names = chunk.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        reason = "column optype has names that are no text: copy or record it again"
        raise InvalidTrace(f"{rows.path.name}: {reason}") from error
    code_of = np.array([op_types.codes.get(name, -1) for name in names], dtype=np.int16)
    indices = chunk.indices.to_numpy()
    if indices.size and not 0 <= indices.min() <= indices.max() < code_of.size:
        raise InvalidTrace(
            f"{rows.path.name}: column optype is damaged: copy or record the file again"
        )
    codes: NDArray[np.int16] = code_of.take(indices)
    return codes


def _without_nulls(rows: _Rows, name: str) -> Any:
    column = rows.table.column(name)
    if column.null_count:
        _refuse(rows, name, column.is_null().to_numpy(), "are null: give every row a value")
    return column


def _refuse(rows: _Rows, name: str, bad: NDArray[np.bool_], problem: str) -> None:
    numbers = np.flatnonzero(bad) + rows.first
    if numbers.size:
        shown = ", ".join(map(str, numbers[:3]))
        more = f" and {numbers.size - 3:,} more" if numbers.size > 3 else ""
        raise InvalidTrace(f"{rows.path.name}: column {name}: rows {shown}{more} {problem}")
