"""The published format: what is read, written and refused."""

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.errors import InvalidRequest, InvalidTrace
from app.synth.job import SimulatedJob
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.readers.published import trace_files
from app.trace.window import Trace
from tests.shared_traces import SHARED_TRACES, needs_shared

MADE = SimulatedJob(Parallelism(2, 2), 2, name="small")
FORWARD = OP_CODES["forward-compute"]


def rows_where(trace, **wanted):
    return np.logical_and.reduce([getattr(trace, name) == value for name, value in wanted.items()])


def written(tmp_path, trace, job=MADE.job):
    path = tmp_path / "trace-small.parquet"
    trace_files.write(trace, job, path)
    return path


def changed(tmp_path, change):
    """A small trace whose parquet columns went through `change`."""
    path = written(tmp_path, MADE.make([1]))
    columns = {name: list(v) for name, v in pq.read_table(path).to_pydict().items()}
    change(columns)
    pq.write_table(pa.table(columns), path)
    return path


def put(name, row, value):
    def change(columns):
        columns[name][row] = value

    return change


def repeat_a_row(columns):
    for values in columns.values():
        values.append(values[4])


def test_what_is_written_is_read_back_exactly(tmp_path):
    trace = MADE.make([3, 7])
    window = trace_files.read(written(tmp_path, trace))
    assert (window.job, window.steps, window.skipped) == (MADE.job, (3, 7), ())
    assert (window.id, window.state) == ("1-3", "complete")
    for field in fields(Trace):
        np.testing.assert_array_equal(getattr(window.trace, field.name), getattr(trace, field.name))


def test_a_meta_file_elsewhere_is_taken_when_named(tmp_path):
    meta_path = tmp_path / "about.yaml"
    trace_files.write(MADE.make([1]), MADE.job, tmp_path / "ops.parquet", meta_path)
    assert trace_files.read(tmp_path / "ops.parquet", meta_path).job == MADE.job


def test_without_a_meta_file_the_sizes_are_those_of_the_trace(tmp_path):
    path = written(tmp_path, MADE.make([1]), Job.of("small", Parallelism(2, 2, tp_size=4)))
    assert trace_files.read(path).job.num_gpus == 16
    (tmp_path / "meta-small.yaml").unlink()
    assert trace_files.read(path).job == Job.of("small", Parallelism(2, 2))


def test_op_types_may_be_plain_strings_and_rows_in_many_groups(tmp_path):
    path = written(tmp_path, MADE.make([1]))
    before = trace_files.read(path).trace
    table = pq.read_table(path)
    plain = table.set_column(4, "optype", table.column("optype").cast(pa.string()))
    pq.write_table(plain, path, row_group_size=7)
    np.testing.assert_array_equal(trace_files.read(path).trace.optype, before.optype)


def test_a_step_that_lacks_one_operation_is_skipped_and_named(tmp_path):
    trace = MADE.make([1, 2, 3])
    gone = rows_where(trace, step=2, dp_rank=1, stage=0, optype=FORWARD, seq_id=1)
    window = trace_files.read(written(tmp_path, trace.select(~gone)), is_imputed=False)
    assert window.steps == (1, 3)
    assert set(window.trace.step) == {1, 3}
    (skipped,) = window.skipped
    assert (skipped.step, skipped.missing) == (2, (1,))
    assert skipped.reason == "rank 1 (dp_rank 1, stage 0) lacks forward-compute 1"


def test_a_trace_without_one_whole_step_is_refused(tmp_path):
    made = SimulatedJob(Parallelism(1, 2), 3)
    trace = made.make([1])
    path = written(tmp_path, trace.select(~rows_where(trace, rank=0)), made.job)
    with pytest.raises(InvalidTrace, match=r"none of its 1 steps is complete.*rank 0"):
        trace_files.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda columns: columns.pop("seq_id"), "column seq_id is missing"),
        (put("duration", 5, None), "column duration: rows 5 are null"),
        (put("step", 0, None), "column step: rows 0 are null"),
        (put("duration", 5, -0.5), "column duration: rows 5 are negative"),
        (put("duration", 6, float("nan")), "column duration: rows 6 are not finite"),
        (put("start_ts", 7, float("inf")), "column start_ts: rows 7 are not finite"),
        (
            put("optype", 3, "coffee-break"),
            r"rows 3 are of an unknown type \('coffee-break'\): use one of forward-compute, .*, or "
            "register it in op_types of the meta file",
        ),
        (put("optype", 3, None), "column optype: rows 3 are null"),
        (put("mb_id", 2, -2), "column mb_id: rows 2 are below -1"),
        (put("step", 2, 0.5), "column step is double: want whole numbers"),
        (put("step", 2, 2**62 + 1), r"column step: rows 2 are above \d+: that is no step"),
        (put("stage", 2, 2**15), "column stage: rows 2 are above 32767: that is no stage"),
        (put("mc", 2, 2**15), "column mc: rows 2 are above 32767: that is no mc"),
        (put("dp_rank", 2, 2**31), "column dp_rank: rows 2 are above 2147483647"),
        (put("rank", 2, 2**31), "column rank: rows 2 are above 2147483647"),
        (put("seq_id", 2, 2**31), "column seq_id: rows 2 are above 2147483647"),
        (put("mb_id", 2, 2**62), "column mb_id: rows 2 are above 2147483647"),
        (put("mc", 1, 1), "vpp_size is 1, but the trace has model chunk 1"),
        (put("dp_rank", 1, 4), "dp_size is 2, but the trace's highest dp_rank is 4"),
        (put("seq_id", 1, 2**30), "count from 0"),
        (repeat_a_row, r"column seq_id: row \d+ repeats row 4"),
        (lambda columns: [values.clear() for values in columns.values()], "want|has no rows"),
    ],
)
def test_a_bad_trace_is_refused_by_file_column_and_row(tmp_path, change, message):
    path = changed(tmp_path, change)
    with pytest.raises(InvalidTrace, match=message) as refusal:
        trace_files.read(path)
    assert str(refusal.value).startswith("trace-small.parquet: ")
    assert "\n" not in str(refusal.value)


def test_many_bad_rows_are_counted(tmp_path):
    path = changed(tmp_path, lambda c: c.update(duration=[-1.0] * len(c["duration"])))
    with pytest.raises(InvalidTrace, match=r"rows 0, 1, 2 and \d+ more are negative"):
        trace_files.read(path)


@pytest.mark.parametrize("size", [0, 10, 500, -9])
def test_a_cut_off_file_is_refused(tmp_path, size):
    path = written(tmp_path, MADE.make([1]))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InvalidTrace, match="copy or record it again"):
        trace_files.read(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidTrace, match="cannot be read"):
        trace_files.read(tmp_path / "trace-none.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp_size: 2\n", "pp_size is missing"),
        ("dp_size: two\npp_size: 2\n", "dp_size is 'two'"),
        ("dp_size: 2\npp_size: 0\n", "pp_size is 0"),
        (f"dp_size: 2\npp_size: {'1' * 400}\n", "pp_size is 1{40}: give at most 32,768"),
        ("dp_size: 9000000000\npp_size: 2\n", "dp_size is 9000000000: give at most 2,147,483,647"),
        ("dp_size: 2\npp_size: 2\nworld_size: 5\n", "world_size is 5, but .* is 4"),
        ("dp_size: 2\npp_size: 4\n", "pp_size is 4, but the trace's highest stage is 1"),
        ("dp_size: 2\npp_size: 2\nep_size: 3\n", "ep_size is 3, which does not divide dp_size 2"),
        ("dp_size: 2\npp_size: 2\nep_size: no\n", "ep_size is False: give a whole number"),
        ("dp_size: 2\npp_size: 2\nop_types: 1\n", "op_types is no list"),
        ("dp_size: 2\npp_size: 2\nop_types: [a]\n", r"op_types\[0\] is no set of fields"),
        (
            "dp_size: 2\npp_size: 2\nop_types: [{name: a, kind: none}]\n",
            r"op_types\[0\] \(a\): kind is 'none'",
        ),
        ("dp_size: [2\n", "is no YAML"),
        ("nothing\n", "want lines"),
        ("", "want lines"),
    ],
)
def test_a_bad_meta_file_is_refused(tmp_path, text, message):
    path = written(tmp_path, MADE.make([1]))
    (tmp_path / "meta-small.yaml").write_text(text)
    with pytest.raises(InvalidTrace, match=message) as refusal:
        trace_files.read(path)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path):
    with pytest.raises(InvalidRequest, match="existing folder"):
        trace_files.write(MADE.make([1]), MADE.job, tmp_path / "none" / "trace-a.parquet")


@pytest.mark.parametrize(
    ("name", "num_steps"),
    [("AR", 44), ("ST", 32), ("flap", 10), ("inter", 5), ("ovlp", 6), ("puredp", 8), ("purepp", 6)],
)
@needs_shared
def test_the_published_traces_are_whole(name, num_steps):
    window = trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")
    assert (len(window.steps), window.skipped, window.job.name) == (num_steps, (), name)
