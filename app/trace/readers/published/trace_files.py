"""The published trace format: one parquet file of operations, one YAML file about the job.

`read` returns a window, `write` takes a trace. `write_import` writes the rows of an import, some at
a time, and `PublishedImport` reads a file in the same way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from typing_extensions import override

from app.errors import InvalidRequest, InvalidTrace
from app.trace.collectives import Collectives
from app.trace.completeness import completeness
from app.trace.imputation import impute
from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN, COMPUTE_STREAM
from app.trace.readers.importing import (
    ImportOptions,
    ImportSummary,
    OperationImport,
    RankRows,
    missing_data,
)
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.published import collective_files, columns, meta
from app.trace.readers.published.columns import TracePiece
from app.trace.readers.published.meta import TraceMeta
from app.trace.readers.spooled_import import ImportFacts, SpooledImport
from app.trace.window import OPTIONAL, Floats, Integers, Ints, PartialSteps, Trace, Window


def read(trace_path: Path, meta_path: Path | None = None, *, is_imputed: bool = True) -> Window:
    """A recorded trace as one closed window; steps with lost operations are in `skipped`.

    With `is_imputed`, lost operations are imputed where that is possible (app.trace.imputation).
    `meta_path` is by default meta-NAME.yaml beside trace-NAME.parquet; without this file, the sizes
    are those of the rows, with one GPU a worker. Collectives are read from collectives-NAME.parquet
    beside the trace, if there is one.

    Raises:
        InvalidTrace: a file is wrong, or no step can be analysed.
    """
    meta_path = meta_path or meta.beside(trace_path)
    about = meta.load(meta_path) if meta_path else None
    op_types = about.op_types if about else BUILT_IN
    trace, hosts, origin_ns = columns.load(trace_path, op_types)
    if about is None:
        sizes = {"dp_size": int(trace.dp_rank.max()) + 1, "pp_size": int(trace.stage.max()) + 1}
        about = TraceMeta(None, Parallelism(**sizes, vpp_size=max(int(trace.mc.max()) + 1, 1)))
    try:
        result = completeness(trace, about.parallelism, about.op_types)
    except InvalidTrace as error:
        raise InvalidTrace(f"{trace_path.name}: {error}") from error
    steps, skipped = result.steps, result.skipped
    incomplete, partial = [skip.step for skip in skipped], None
    if skipped:
        partial = PartialSteps(
            skipped,
            trace.select(np.isin(trace.step, incomplete)),
            tuple(origin_ns[step] for step in incomplete) if origin_ns else None,
            collective_files.beside(trace_path, [*steps, *incomplete]),
        )
        trace = trace.select(np.isin(trace.step, steps))
    window = Window(
        job=Job.of(about.name or meta.trace_name(trace_path), about.parallelism, about.op_types),
        epoch=1,
        first_step=min([*steps, *incomplete]),
        steps=steps,
        trace=trace,
        skipped=skipped,
        state="complete",
        hosts=hosts,
        origin_ns=tuple(origin_ns[step] for step in steps) if origin_ns else None,
        collectives=collective_files.beside(trace_path, steps),
        partial=partial,
    )
    window = impute(window) if is_imputed else window
    if not window.steps:
        raise InvalidTrace(
            f"{trace_path.name}: none of its {len(skipped):,} steps is complete; "
            f"in step {skipped[0].step}, {skipped[0].reason}: record all workers of a step"
        )
    return window


def write(
    trace: Trace,
    job: Job,
    trace_path: Path,
    meta_path: Path | None = None,
    *,
    hosts: Mapping[tuple[int, int], str] | None = None,
    origin_ns: Mapping[int, int] | None = None,
    collectives: Collectives | None = None,
) -> None:
    """Write a trace in the format of `read` and of the published analyser.

    `meta_path` is by default meta-NAME.yaml beside trace-NAME.parquet. Additional columns, which
    only `read` uses, have the `hosts` of (dp rank, stage), the starts by the hosts' own clocks if
    `origin_ns` has the origins of the steps' times, and the trace's optional columns. `collectives`
    are written to a file of their own beside it.

    Raises:
        InvalidRequest: a file cannot be written.
    """
    try:
        with trace_path.open("wb") as file, TraceWriter(file, job) as writer:
            writer.add(trace, hosts=hosts, origin_ns=origin_ns)
        beside = collective_files.usual_path(trace_path)
        beside.unlink(missing_ok=True)
        if collectives is not None:
            with beside.open("wb") as file:
                collective_files.write(collectives, file)
        meta_path = meta_path or meta.usual_path(trace_path)
        meta_path.write_text(meta.text(job), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"{trace_path}: cannot be written ({error}): name a file in an existing folder"
        ) from error


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes a trace piece by piece; all pieces have the same columns."""

    def __init__(self, file: BinaryIO, job: Job) -> None:
        self._file = file
        self._job = job
        self._parquet: Any = None

    def add(
        self,
        trace: Trace,
        *,
        hosts: Mapping[tuple[int, int], str] | None = None,
        origin_ns: Mapping[int, int] | None = None,
        gmc: Ints | None = None,
    ) -> None:
        """Append rows; arguments are those of `write`; `gmc` by default follows from the stages."""
        optional = _optional_columns(trace, hosts, origin_ns)
        table = pa.table(_required_columns(trace, self._job, gmc) | optional)
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, table.schema)
        self._parquet.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self._parquet is not None:
            self._parquet.close()


def _required_columns(trace: Trace, job: Job, gmc: Ints | None) -> dict[str, Any]:
    codes, positions = np.unique(trace.optype, return_inverse=True)
    names = pa.array([job.op_types.name(code) for code in codes], pa.string())
    if gmc is None:  # a computation's chunk in the whole model
        is_computation = job.op_types.flags(lambda spec: spec.stream == COMPUTE_STREAM)
        gmc = trace.mc.astype(np.int64) * job.parallelism.pp_size + trace.stage
        gmc = np.where(is_computation[trace.optype] & (trace.mc >= 0), gmc, -1)
    return {
        "dp_rank": trace.dp_rank,
        "stage": trace.stage,
        "rank": trace.rank,
        "step": trace.step,
        "optype": pa.DictionaryArray.from_arrays(positions.astype(np.int8), names),
        "start_ts": trace.start_s,
        "duration": trace.duration_s,
        "seq_id": trace.seq_id,
        "mc": trace.mc,
        "mb_id": trace.mb_id,
        "gmc": gmc.astype(np.int32),
    }


def _optional_columns(
    trace: Trace, hosts: Mapping[tuple[int, int], str] | None, origin_ns: Mapping[int, int] | None
) -> dict[str, Any]:
    """Paceline's own columns, as far as their values are known."""
    held = {name: getattr(trace, name) for name in OPTIONAL}
    optional: dict[str, Any] = {name: values for name, values in held.items() if values is not None}
    if hosts:
        workers = zip(trace.dp_rank.tolist(), trace.stage.tolist(), strict=True)
        names = pa.array([hosts.get(worker) for worker in workers], pa.string())
        optional["host"] = names.dictionary_encode()
    if origin_ns is not None:
        steps, position = np.unique(trace.step, return_inverse=True)
        began_ns = np.array([origin_ns[step] for step in steps.tolist()], np.int64)
        optional["start_ns"] = began_ns[position] + np.rint(trace.start_s * 1e9).astype(np.int64)
    return optional


_ROWS_AT_ONCE = 1 << 16


def write_import(
    opened: OperationImport,
    job: Job,
    file: BinaryIO,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write all rows as parquet, some at a time; `progress` is called with their number.

    Raises:
        InvalidTrace: rows are wrong.
        OSError: the file cannot be written.
    """
    described = opened.describe()
    hosts = {
        (place.dp_rank, place.stage): place.host
        for place in described.places.values()
        if place.host is not None
    }
    with TraceWriter(file, job) as writer:
        for pieces in _row_groups(opened.chunks()):
            trace, gmc = trace_of(pieces, described), None
            if "gmc" in described.more:
                gmc = np.concatenate([piece.more["gmc"] for piece in pieces])
            origin_ns = _origins_ns(described, trace.step)
            writer.add(trace, hosts=hosts or None, origin_ns=origin_ns, gmc=gmc)
            progress(trace.num_ops)


def import_meta_text(described: ImportSummary, job: Job) -> str:
    """Text of the meta file of an import."""
    run_id: int | str = described.run_key or 0
    if isinstance(run_id, str) and run_id.isascii() and run_id.isdecimal() and len(run_id) < 19:
        run_id = int(run_id)
    return meta.text(job, run_id=run_id, labels=described.labels)


def trace_of(pieces: Sequence[RankRows], described: ImportSummary) -> Trace:
    """The pieces' rows as a trace; starts count from the beginning of their step."""
    sizes = [piece.step.size for piece in pieces]

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    def repeated(name: str) -> NDArray[Any]:
        return np.repeat([getattr(piece, name) for piece in pieces], sizes)

    seconds = [piece.seconds or _times_s(piece, described) for piece in pieces]
    more = [name for name in described.more if name in OPTIONAL]
    return Trace(
        **{name: repeated(name) for name in ("rank", "dp_rank", "stage")},
        **{name: joined(name) for name in ("step", "optype", "seq_id", "mc", "mb_id")},
        **{name: np.concatenate([piece.more[name] for piece in pieces]) for name in more},
        start_s=np.concatenate([start_s for start_s, _ in seconds]),
        duration_s=np.concatenate([duration_s for _, duration_s in seconds]),
    )


def _times_s(piece: RankRows, described: ImportSummary) -> tuple[Floats, Floats]:
    start_ns = piece.start_ns
    if described.origin_ns is not None:
        start_ns = start_ns - described.origin_ns[np.searchsorted(described.steps, piece.step)]
    return np.multiply(start_ns, 1e-9), np.multiply(piece.duration_ns, 1e-9)


def _origins_ns(described: ImportSummary, step: Integers) -> dict[int, int] | None:
    """The clock origins of these rows' steps."""
    if described.origin_ns is None:
        return None
    at = np.unique(np.searchsorted(described.steps, step))
    return dict(zip(described.steps[at].tolist(), described.origin_ns[at].tolist(), strict=True))


def _row_groups(chunks: Iterator[RankRows]) -> Iterator[list[RankRows]]:
    """The chunks, grouped to the size of a row group."""
    group: list[RankRows] = []
    num_rows = 0
    for chunk in chunks:
        group.append(chunk)
        num_rows += chunk.step.size
        if num_rows >= _ROWS_AT_ONCE:
            yield group
            group, num_rows = [], 0
    if group:
        yield group


class PublishedImport(SpooledImport):
    """An import of one parquet file, with times in seconds, or by the hosts' clocks from Paceline.

    Its meta file is beside it, or named in the options.
    """

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        if len(paths) != 1:
            raise InvalidTrace(
                f"{paths[0].name} and {len(paths) - 1:,} more: a published trace is one file"
            )
        super().__init__(paths, options)

    @override
    def more_columns(self) -> tuple[str, ...]:
        names = columns.names(self.paths[0])
        return tuple(name for name in (*OPTIONAL, "gmc") if name in names)

    @override
    def read(self, spool: OpSpool) -> ImportFacts:
        path = self.paths[0]
        spool.checks_times = False  # `columns` has checked them
        meta_path = self.options.meta or meta.beside(path)
        about = meta.load(meta_path) if meta_path else None
        has_clock, highest_chunk, num_rows = False, 0, 0
        for piece in columns.pieces(path, about.op_types if about else self.options.op_types):
            has_clock = piece.start_ns is not None
            highest_chunk = max(highest_chunk, int(piece.ints["mc"].max()))
            num_rows += piece.optype.size
            _place_all(spool, piece)
            _add(spool, piece)
        return ImportFacts(
            missing=missing_data(
                (
                    about is None,
                    f"sizes: {num_rows:,} rows and no meta file",
                    "they are those seen in the rows, with one GPU a worker: GPU hours are too low "
                    "where a worker has several",
                ),
                (
                    not has_clock,
                    f"clocks: {num_rows:,} starts count from the beginning of their step",
                    "time between steps is not seen; a push lays the steps end to end",
                ),
            ),
            sizes=asdict(about.parallelism) if about else {"vpp_size": highest_chunk + 1},
            name=(about and about.name) or meta.trace_name(path),
            run_key=None if about is None or about.run_id is None else str(about.run_id),
            labels=about.labels if about else {},
            op_types=about.op_types if about else None,
            has_clock=has_clock,
            holds_seconds=not has_clock,
        )


def _add(spool: OpSpool, piece: TracePiece) -> None:
    start_ns = piece.start_ns
    if start_ns is None:
        seconds = (np.ascontiguousarray(times) for times in (piece.start_s, piece.duration_s))
        start_ns, duration_ns = (times.view(np.int64) for times in seconds)
    else:
        duration_ns = np.rint(piece.duration_s * 1e9).astype(np.int64)
    names = ("rank", "step", "seq_id", "mc", "mb_id")
    values = {name: piece.ints[name] for name in names} | {"optype": piece.optype} | piece.more
    spool.add_rows(**values, start_ns=start_ns, duration_ns=duration_ns)


def _place_all(spool: OpSpool, piece: TracePiece) -> None:
    """Declare the places and hosts of the ranks."""
    ints = piece.ints
    names, codes = piece.host or ([], np.full_like(ints["rank"], -1))
    where = np.stack([ints["rank"], ints["dp_rank"], ints["stage"], codes], axis=1)
    begins = np.any(np.diff(where, axis=0, prepend=-2), axis=1)  # of stretches of equal rows
    for rank, dp_rank, stage, code in np.unique(where[begins], axis=0).tolist():
        spool.place(rank, dp_rank, stage, host=names[code] if code >= 0 else None)
