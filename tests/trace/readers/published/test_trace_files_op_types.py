"""Traces with operation types of the job's own, written and read as published files."""

from dataclasses import fields, replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.errors import InvalidTrace
from app.synth.job import SimulatedJob
from app.trace import ops
from app.trace.job import Job, Parallelism
from app.trace.readers.published import trace_files
from app.trace.window import Trace

SIZES = Parallelism(4, 2, ep_size=2)
OP_TYPES = ops.parse_op_types(
    [
        {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"},
        {"name": "kv-send", "kind": "p2p", "pairs_with": "kv-recv", "towards": "next"},
        {"name": "kv-recv", "kind": "p2p", "stream": "kv"},
        {"name": "router", "kind": "compute"},
    ]
)
JOB = Job.of("own", SIZES, OP_TYPES)


def trace():
    """Made steps, in which operations of the first micro-batch are of the job's own types."""
    made = SimulatedJob(SIZES, 2).make([3, 5])
    optype = made.optype.copy()
    for name, own in (
        ("optimizer-clip-main-grad", "moe-all-to-all"),
        ("forward-send", "kv-send"),
        ("forward-recv", "kv-recv"),
        ("optimizer", "router"),
    ):
        optype[optype == OP_TYPES.codes[name]] = OP_TYPES.codes[own]
    return replace(made, optype=optype)


def written(tmp_path):
    path = tmp_path / "trace-own.parquet"
    trace_files.write(trace(), JOB, path)
    return path


def test_own_types_and_ids_come_back_as_they_were_written(tmp_path):
    window = trace_files.read(written(tmp_path))
    assert window.job == JOB
    assert (window.steps, window.skipped) == ((3, 5), ())
    for field in fields(Trace):
        before, after = (getattr(each, field.name) for each in (trace(), window.trace))
        np.testing.assert_array_equal(after, before)
        assert before is None or after.dtype == before.dtype
    sends = window.trace.select(window.trace.optype == OP_TYPES.codes["kv-send"])
    assert set(sends.mb_id.tolist()) == {0, 1}
    assert set(sends.mc.tolist()) == {0}


def test_the_files_hold_names_and_the_chunk_in_the_whole_model(tmp_path):
    table = pq.read_table(written(tmp_path)).to_pydict()
    assert {"moe-all-to-all", "kv-send", "kv-recv", "router"} <= set(table["optype"])
    assert "optimizer" not in table["optype"]
    rows = zip(table["optype"], table["stage"], table["gmc"], strict=True)
    of_computes = {(stage, gmc) for name, stage, gmc in rows if name == "forward-compute"}
    assert of_computes == {(0, 0), (1, 1)}
    assert table["gmc"][table["optype"].index("kv-send")] == -1


def test_without_its_meta_file_an_own_type_is_unknown(tmp_path):
    path = written(tmp_path)
    (tmp_path / "meta-own.yaml").unlink()
    with pytest.raises(
        InvalidTrace, match=r"^trace-own.parquet: column optype: rows \d+, .* are of"
    ):
        trace_files.read(path)
