"""Files that say more than published ones: hosts, their own clocks, what operations worked on."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.engine.report import analyse
from app.errors import InvalidTrace
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.engine.clocks.pipeline_job import simulated_pipeline
from tests.engine.clocks.shifted_windows import Clock, recorded, worker_is_host

JOB = simulated_pipeline(2, 2, num_steps=3)
CLOCKS = {worker_is_host(1, 0): Clock(70_000_123, 150.0), worker_is_host(0, 1): Clock(-3_000_000)}


def a_window() -> Window:
    shown = recorded(JOB, CLOCKS)
    tokens = np.where(shown.trace.mb_id >= 0, 4096 + shown.trace.mb_id, -1)
    return replace(shown, trace=replace(shown.trace, tokens=tokens, temperature_c=tokens % 90))


def write(window: Window, path):
    origin_ns = dict(zip(window.steps, window.origin_ns or (), strict=True))
    trace_files.write(window.trace, window.job, path, hosts=window.hosts, origin_ns=origin_ns)
    return path


def with_column(path, name, values):
    table = pq.read_table(path)
    if name in table.column_names:
        table = table.drop_columns([name])
    pq.write_table(table.append_column(name, values), path)
    return path


def test_hosts_clocks_and_optional_columns_round_trip(tmp_path):
    window = a_window()
    again = trace_files.read(write(window, tmp_path / "trace-a.parquet"))
    assert again.hosts == window.hosts
    assert again.origin_ns == window.origin_ns
    np.testing.assert_array_equal(again.trace.start_s, window.trace.start_s)
    np.testing.assert_array_equal(again.trace.tokens, window.trace.tokens)
    np.testing.assert_array_equal(again.trace.temperature_c, window.trace.temperature_c)
    assert (again.trace.bytes, again.trace.sm_clock_mhz) == (None, None)


def test_clocks_are_measured_by_a_file_as_by_what_workers_send(tmp_path):
    window = a_window()
    live, read = analyse(window), analyse(trace_files.read(write(window, tmp_path / "a.parquet")))
    assert read.clocks == live.clocks
    assert read.slowdown == live.slowdown
    assert live.clocks.residual_s is not None


def test_a_file_without_hosts_or_clocks_is_a_published_one(tmp_path):
    path = tmp_path / "trace-a.parquet"
    trace_files.write(JOB.trace, JOB.job, path)
    assert set(pq.read_table(path).column_names) == {
        *("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration"),
        *("seq_id", "mc", "mb_id", "gmc"),
    }
    again = trace_files.read(path)
    assert (again.hosts, again.origin_ns) == ({}, None)


def test_skipped_steps_have_no_origin(tmp_path):
    window = a_window()
    lacking = (window.trace.step == 1) & (window.trace.dp_rank == 1) & (window.trace.stage == 0)
    path = write(replace(window, trace=window.trace.select(~lacking)), tmp_path / "a.parquet")
    again = trace_files.read(path, is_imputed=False)
    assert window.origin_ns is not None
    assert again.steps == (0, 2)
    assert again.origin_ns == (window.origin_ns[0], window.origin_ns[2])
    # Without the earliest operations of its step, its times count from the next ones.
    assert trace_files.read(path).steps == (0, 1, 2)


NUM_OPS = JOB.trace.num_ops


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("host", [f"h{row % 2}" for row in range(NUM_OPS)], "on 'h0' and on 'h1': give each"),
        ("host", pa.array([[1]] * NUM_OPS), "column host is list.*want names"),
        ("start_ns", np.arange(NUM_OPS) - 1, r"start_ns: rows 0 are below 0"),
        ("start_ns", np.full(NUM_OPS, 2**63 - 1), "start_ns: rows .* are above"),
        ("start_ns", np.full(NUM_OPS, 0.5), "start_ns is double: want whole numbers"),
        ("tokens", np.full(NUM_OPS, -2), "tokens: rows .* are below -1"),
        ("tokens", [None] * (NUM_OPS - 1) + [3], "tokens: rows .* are null"),
        ("sm_clock_mhz", ["fast"] * NUM_OPS, "sm_clock_mhz is string: want whole numbers"),
    ],
)
def test_columns_that_make_no_sense_are_named(tmp_path, name, values, words):
    path = write(a_window(), tmp_path / "trace-a.parquet")
    column = values if isinstance(values, pa.Array) else pa.array(values)
    with pytest.raises(InvalidTrace, match=words):
        trace_files.read(with_column(path, name, column))
