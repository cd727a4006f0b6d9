"""Small runs of whole benchmarks print their figures; speed is not tested."""

import json

import pytest

from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from benchmarks.journey import AIMS
from tests.benchmarks.running import run_benchmark

pytestmark = pytest.mark.nightly


def figures(*arguments):
    """What the benchmark prints, line by line."""
    finished = run_benchmark(*arguments)
    assert finished.exit_code == 0, finished.output
    return [json.loads(line) for line in finished.stdout.splitlines()]


def test_analyze_times_every_part_of_a_job_of_the_requested_size():
    (line,) = figures("analyze", "--synthetic", "dp=3,pp=2,microbatches=4,steps=2", "--repeats=1")
    assert line["ops"] == SimulatedJob(Parallelism(3, 2), 4).make([0, 1]).num_ops
    for name in ("load_s", "graph_s", "simulate_s", "total_s", "question_s", "peak_rss_bytes"):
        assert line[name] > 0, name


def test_first_analysis_of_a_process_is_timed(tmp_path):
    simulated = SimulatedJob(Parallelism(2, 2), 2)
    path = tmp_path / "trace-made.parquet"
    trace_files.write(simulated.make([1, 2]), simulated.job, path)
    (line,) = figures("first", str(path), "--repeats", "1")
    assert line["first_analysis_s"] > 0


def test_client_prints_cost_and_bytes_per_operation():
    (line,) = figures("client", "--ops", "2000", "--steps", "1")
    assert 0 < line["record_p50_us"] <= line["record_p99_us"]
    assert line["bytes_per_op"] < 10  # of one step, each batch with its header
    assert line["growing_blocks"] < 200  # of 2,000 operations
    assert line["dropped"] == 0


def test_ingest_prints_a_line_for_every_batch_size():
    sizes = [50, 7]
    options = [f"--batch-rows={size}" for size in sizes]
    lines = figures("ingest", *options, "--seconds=0.2", "--connections=3")
    assert [line["batch_rows"] for line in lines] == sizes
    for line in lines:
        assert line["rows_per_s"] == pytest.approx(line["batch_rows"] * line["requests_per_s"])
        assert 0 < line["ack_p50_ms"] <= line["ack_p99_ms"]


def test_diagnosis_prints_the_same_figures_with_more_processes():
    options = ["--jobs=6", "--healthy=2", "--seed=3"]
    [alone], [together] = (figures("diagnosis", *options, f"--processes={n}") for n in (1, 2))
    assert (alone["jobs"], alone["healthy_jobs"]) == (6, 2)
    for name in ("top1_accuracy", "culprit_accuracy", "both_named", "per_cause", "misses"):
        assert alone[name] == together[name], name


def test_journey_fails_where_an_aim_is_missed():
    finished = run_benchmark("journey", "--json", "-")
    found = json.loads(finished.stdout.splitlines()[0])
    assert list(found) == list(AIMS)
    assert finished.exit_code == int(any(each["missed"] for each in found.values()))
