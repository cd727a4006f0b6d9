"""Import of the published trace format, row by row: parquet and its meta file."""

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from app.errors import InvalidTrace
from app.trace.readers.importing import ImportOptions, MissingData, OperationImport
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.published import columns, meta
from app.trace.readers.published.columns import TracePiece
from app.trace.readers.published.meta import TraceMeta
from app.trace.readers.sample_job import DP_SIZE, PP_SIZE, sample_ops
from app.trace.readers.spooled_import import ImportFacts, SpooledImport
from app.trace.window import OPTIONAL

NAME = "published"


def open_files(paths: Sequence[Path], options: ImportOptions) -> OperationImport:
    """The import of one parquet file; its meta file is beside it, or named in the options."""
    if len(paths) != 1:
        raise InvalidTrace(
            f"{paths[0].name} and {len(paths) - 1:,} more: a published trace is one file"
        )
    return PublishedImport(paths, options)


class PublishedImport(SpooledImport):
    """One parquet file in rows of seconds, or with a clock of its own where Paceline wrote it."""

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
            missing=_missing_data(about, num_rows, has_clock=has_clock),
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
            np.ascontiguousarray(each).view(np.int64) for each in (piece.start_s, piece.duration_s)
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


def _missing_data(about: TraceMeta | None, num_rows: int, *, has_clock: bool) -> list[MissingData]:
    found = []
    if about is None:
        found.append(
            MissingData(
                f"sizes: {num_rows:,} rows and no meta file",
                "they are those seen in the rows, with one GPU a worker: GPU hours are too low "
                "where a worker has several",
            )
        )
    if not has_clock:
        found.append(
            MissingData(
                f"clocks: {num_rows:,} starts count from the beginning of their step",
                "time between steps is not seen; a push lays the steps end to end",
            )
        )
    return found


def sample() -> dict[str, bytes]:
    """The tiny job as its two files."""
    ops = sample_ops()
    first_ns = {op.step: min(each.start_ns for each in ops if each.step == op.step) for op in ops}
    table = pa.table(
        {
            **{
                name: pa.array([getattr(op, name) for op in ops], pa.int32())
                for name in ("dp_rank", "stage", "rank", "step", "seq_id", "mb_id")
            },
            "mc": pa.array([0 if op.mb_id >= 0 else -1 for op in ops], pa.int32()),
            "optype": pa.array([op.optype for op in ops]).dictionary_encode(),
            "start_ts": [(op.start_ns - first_ns[op.step]) * 1e-9 for op in ops],
            "duration": [op.duration_ns * 1e-9 for op in ops],
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file)
    about = f"trial_name: sample\nrun_id: 3\ndp_size: {DP_SIZE}\npp_size: {PP_SIZE}\n"
    return {"trace-sample.parquet": file.getvalue(), "meta-sample.yaml": about.encode()}
