"""The published trace format: one parquet file of operations, one YAML file about the job."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import InvalidRequest, InvalidTrace
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES, OP_NAMES
from app.trace.readers import columns, meta
from app.trace.readers.completeness import completeness
from app.trace.window import Trace, Window

_COMPUTATIONS = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]


def read(trace_path: Path, meta_path: Path | None = None) -> Window:
    """A recorded trace as one closed window; steps that lack operations are in `skipped`.

    Without `meta_path`, meta-NAME.yaml beside trace-NAME.parquet is taken; where that is missing
    too, the sizes are those seen in the trace, with one GPU a worker.

    Raises:
        InvalidTrace: no step can be analysed; the message says where the files are wrong.
    """
    trace = columns.load(trace_path)
    meta_path = meta_path or meta.beside(trace_path)
    about = meta.load(meta_path) if meta_path else meta.Meta(None, _seen_sizes(trace))
    try:
        found = completeness(trace, about.parallelism)
    except InvalidTrace as error:
        raise InvalidTrace(f"{trace_path.name}: {error}") from error
    if not found.steps:
        first = found.skipped[0]
        raise InvalidTrace(
            f"{trace_path.name}: none of its {len(found.skipped):,} steps is complete; "
            f"in step {first.step}, {first.reason}: record all workers of a step"
        )
    if found.skipped:
        trace = trace.select(np.isin(trace.step, found.steps))
    return Window(
        job=Job.of(about.name or meta.trace_name(trace_path), about.parallelism),
        epoch=1,
        first_step=min([found.steps[0], *(skip.step for skip in found.skipped)]),
        steps=found.steps,
        trace=trace,
        skipped=found.skipped,
        state="complete",
    )


def write(trace: Trace, job: Job, trace_path: Path, meta_path: Path | None = None) -> None:
    """Write a trace so that `read` and the published analyser take it as it is.

    Without `meta_path`, the meta file goes to meta-NAME.yaml beside trace-NAME.parquet.

    Raises:
        InvalidRequest: a file cannot be written.
    """
    try:
        pq.write_table(_table(trace, job.parallelism), trace_path)
        meta.save(job, meta_path or meta.usual_path(trace_path))
    except OSError as error:
        raise InvalidRequest(
            f"{trace_path}: cannot be written ({error}): name a file in an existing folder"
        ) from error


def _seen_sizes(trace: Trace) -> Parallelism:
    return Parallelism(
        dp_size=int(trace.dp_rank.max()) + 1,
        pp_size=int(trace.stage.max()) + 1,
        vpp_size=max(int(trace.mc.max()) + 1, 1),
    )


def _table(trace: Trace, parallelism: Parallelism) -> pa.Table:
    has_chunk = np.isin(trace.optype, _COMPUTATIONS) & (trace.mc >= 0)
    gmc = np.where(has_chunk, trace.mc * parallelism.pp_size + trace.stage, -1)
    names = pa.DictionaryArray.from_arrays(trace.optype.astype(np.int8), list(OP_NAMES))
    return pa.table(
        {
            "dp_rank": trace.dp_rank.astype(np.int32),
            "stage": trace.stage.astype(np.int16),
            "rank": trace.rank.astype(np.int32),
            "step": trace.step,
            "optype": names,
            "start_ts": trace.start_s,
            "duration": trace.duration_s,
            "seq_id": trace.seq_id.astype(np.int32),
            "mc": trace.mc.astype(np.int16),
            "mb_id": trace.mb_id.astype(np.int32),
            "gmc": gmc.astype(np.int16),
        }
    )
