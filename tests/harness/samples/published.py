"""The tiny job as StragglerAnalysis would have published it."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness.samples.job import DP_SIZE, PP_SIZE, sample_ops


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
