"""The published trace format: one parquet file of operations, one YAML file about the job.

`read` gives a window, `write` takes a trace; `write_import` writes what an import gives, some rows
at a time, and `PublishedImport` reads the same rows so.
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
    """A recorded trace as one closed window; steps that lack operations are in `skipped`.

    With `is_imputed`, lost operations are imputed where that is possible (app.trace.imputation).
    Without `meta_path`, meta-NAME.yaml beside trace-NAME.parquet is taken; where that is missing
    too, the sizes are those seen in the trace, with one GPU a worker. Collectives inside groups are
    those of collectives-NAME.parquet beside it, if it is there.

    Raises:
        InvalidTrace: no step can be analysed; the message says where the files are wrong.
    """
    meta_path = meta_path or meta.beside(trace_path)
    about = meta.load(meta_path) if meta_path else None
    loaded = columns.load(trace_path, about.op_types if about else BUILT_IN)
    trace, origin_ns = loaded.trace, loaded.origin_ns
    about = about or TraceMeta(None, _seen_sizes(trace))
    try:
        found = completeness(trace, about.parallelism, about.op_types)
    except InvalidTrace as error:
        raise InvalidTrace(f"{trace_path.name}: {error}") from error
    lacking = None
    if found.skipped:
        numbers = [skip.step for skip in found.skipped]
        lacking = PartialSteps(
            found.skipped,
            trace.select(np.isin(trace.step, numbers)),
            tuple(origin_ns[step] for step in numbers) if origin_ns else None,
            collective_files.beside(trace_path, [*found.steps, *numbers]),
        )
        trace = trace.select(np.isin(trace.step, found.steps))
    window = Window(
        job=Job.of(about.name or meta.trace_name(trace_path), about.parallelism, about.op_types),
        epoch=1,
        first_step=min([*found.steps[:1], *(skip.step for skip in found.skipped)]),
        steps=found.steps,
        trace=trace,
        skipped=found.skipped,
        state="complete",
        hosts=loaded.hosts,
        origin_ns=tuple(origin_ns[step] for step in found.steps) if origin_ns else None,
        collectives=collective_files.beside(trace_path, found.steps),
        partial=lacking,
    )
    window = impute(window) if is_imputed else window
    if not window.steps:
        first = found.skipped[0]
        raise InvalidTrace(
            f"{trace_path.name}: none of its {len(found.skipped):,} steps is complete; "
            f"in step {first.step}, {first.reason}: record all workers of a step"
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
    """Write a trace so that `read` and the published analyser take it as it is.

    Without `meta_path`, the meta file goes to meta-NAME.yaml beside trace-NAME.parquet. What else
    is known gets columns of its own, which only `read` looks at: `hosts` of (dp rank, stage),
    starts by the hosts' own clocks where `origin_ns` says what each step's times count from, and
    the trace's optional columns. `collectives` go to a file of their own beside it.

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
        meta.save(job, meta_path or meta.usual_path(trace_path))
    except OSError as error:
        raise InvalidRequest(
            f"{trace_path}: cannot be written ({error}): name a file in an existing folder"
        ) from error


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes a trace piece by piece; every piece has the same columns."""

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
        """Some more rows; the rest is as `write` takes it, `gmc` where it is known otherwise."""
        table = _table(trace, self._job, gmc)
        for name, column in _optional_columns(trace, hosts, origin_ns).items():
            table = table.append_column(name, column)
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, table.schema)
        self._parquet.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self._parquet is not None:
            self._parquet.close()


def _seen_sizes(trace: Trace) -> Parallelism:
    return Parallelism(
        dp_size=int(trace.dp_rank.max()) + 1,
        pp_size=int(trace.stage.max()) + 1,
        vpp_size=max(int(trace.mc.max()) + 1, 1),
    )


def _table(trace: Trace, job: Job, gmc: Ints | None = None) -> pa.Table:
    if gmc is None:
        gmc = _model_chunks(trace, job)
    codes, positions = np.unique(trace.optype, return_inverse=True)
    names = pa.array([job.op_types.name(code) for code in codes], pa.string())
    return pa.table(
        {
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
    )


def _model_chunks(trace: Trace, job: Job) -> Ints:
    """[ops], a computation's chunk in the whole model."""
    is_computation = job.op_types.flags(lambda spec: spec.stream == COMPUTE_STREAM)[trace.optype]
    gmc = trace.mc.astype(np.int64) * job.parallelism.pp_size + trace.stage
    return np.where(is_computation & (trace.mc >= 0), gmc, -1)


def _optional_columns(
    trace: Trace,
    hosts: Mapping[tuple[int, int], str] | None,
    origin_ns: Mapping[int, int] | None,
) -> dict[str, pa.Array]:
    """Paceline's own columns, where they are known."""
    found = {name: getattr(trace, name) for name in OPTIONAL}
    more = {name: pa.array(values) for name, values in found.items() if values is not None}
    if hosts:
        workers = zip(trace.dp_rank.tolist(), trace.stage.tolist(), strict=True)
        names = pa.array([hosts.get(worker) for worker in workers], pa.string())
        more["host"] = names.dictionary_encode()
    if origin_ns is not None:
        steps, position = np.unique(trace.step, return_inverse=True)
        began_ns = np.array([origin_ns[step] for step in steps.tolist()], np.int64)
        start_ns = np.rint(trace.start_s * 1e9).astype(np.int64)
        more["start_ns"] = pa.array(began_ns[position] + start_ns)
    return more


_ROWS_AT_ONCE = 1 << 16


def write_import(
    opened: OperationImport,
    job: Job,
    file: BinaryIO,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write every row as parquet, some at a time; `progress` gets the number of rows of each write.

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

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    def of_each(name: str) -> NDArray[Any]:
        return np.repeat([getattr(piece, name) for piece in pieces], sizes)

    seconds = [piece.seconds or _times_s(piece, described) for piece in pieces]
    more = [name for name in described.more if name in OPTIONAL]
    return Trace(
        **{name: of_each(name) for name in ("rank", "dp_rank", "stage")},
        **{name: all_of(name) for name in ("step", "optype", "seq_id", "mc", "mb_id")},
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
    """Clock origins of these rows' steps."""
    if described.origin_ns is None:
        return None
    at = np.unique(np.searchsorted(described.steps, step))
    return dict(zip(described.steps[at].tolist(), described.origin_ns[at].tolist(), strict=True))


def _row_groups(chunks: Iterator[RankRows]) -> Iterator[list[RankRows]]:
    """Chunks joined to the size of a row group."""
    found: list[RankRows] = []
    num_rows = 0
    for chunk in chunks:
        found.append(chunk)
        num_rows += chunk.step.size
        if num_rows >= _ROWS_AT_ONCE:
            yield found
            found, num_rows = [], 0
    if found:
        yield found


class PublishedImport(SpooledImport):
    """One parquet file in rows of seconds, or with a clock of its own where Paceline wrote it.

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
        there = columns.names(self.paths[0])
        return tuple(name for name in (*OPTIONAL, "gmc") if name in there)

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
    ints = piece.ints
    if piece.start_ns is None:
        times = [
            np.ascontiguousarray(column).view(np.int64)
            for column in (piece.start_s, piece.duration_s)
        ]
    else:
        times = [piece.start_ns, np.rint(piece.duration_s * 1e9).astype(np.int64)]
    spool.add_rows(
        ints["rank"],
        ints["step"],
        optype=piece.optype,
        start_ns=times[0],
        duration_ns=times[1],
        seq_id=ints["seq_id"],
        mc=ints["mc"],
        mb_id=ints["mb_id"],
        **piece.more,
    )


def _place_all(spool: OpSpool, piece: TracePiece) -> None:
    """Each rank is at one place, on one host."""
    ints = piece.ints
    names, codes = piece.host or ([], np.full_like(ints["rank"], -1))
    where = np.stack([ints["rank"], ints["dp_rank"], ints["stage"], codes], axis=1)
    begins = np.any(np.diff(where, axis=0, prepend=-2), axis=1)  # of rows that are alike
    for rank, dp_rank, stage, code in np.unique(where[begins], axis=0).tolist():
        spool.place(rank, dp_rank, stage, host=names[code] if code >= 0 else None)
