"""The benchmarks analyze, growth and first print their figures; speed is not tested."""

import json
from pathlib import Path

import pytest

from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from tests.benchmarks.running import run_benchmark

FIGURES = {
    "load_s",
    "graph_s",
    "simulate_s",
    "total_s",
    "ops",
    "simulated_ops_per_s",
    "peak_rss_bytes",
    "copy_100mb_s",
    "question_s",
}


def printed(*arguments: str) -> list[dict]:
    result = run_benchmark(*arguments)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    simulated = SimulatedJob(Parallelism(2, 2), 2)
    path = tmp_path / "trace-made.parquet"
    trace_files.write(simulated.make([1, 2]), simulated.job, path)
    return path


def test_every_trace_prints_one_line(trace):
    lines = printed("analyze", str(trace), str(trace), "--repeats", "1")
    assert [line["trace"] for line in lines] == ["trace-made.parquet"] * 2
    for line in lines:
        assert set(line) >= FIGURES
        assert line["ops"] == trace_files.read(trace).trace.num_ops
        assert all(line[name] > 0 for name in FIGURES)


def test_synthetic_job_has_the_requested_size():
    (line,) = printed("analyze", "--synthetic", "dp=3,pp=2,microbatches=4,steps=2", "--repeats=1")
    simulated = SimulatedJob(Parallelism(3, 2), 4)
    assert line["ops"] == simulated.make([0, 1]).num_ops


def test_growth_covers_the_requested_sizes():
    (line,) = printed("growth", "--pp=2", "--microbatches=2", "--workers=16,4", "--repeats=1")
    assert line["workers"] == [4, 16]
    assert len(line["total_s"]) == 2
    assert isinstance(line["exponent"], float)


def test_first_analysis_is_timed(trace):
    (line,) = printed("first", str(trace), "--repeats", "1")
    assert line["first_analysis_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["analyze"], "give either TRACE files or --synthetic"),
        (["analyze", "--synthetic", "dp=0"], "'dp=0' is not one of dp, pp, microbatches, steps"),
        (["growth", "--workers", "a,b"], "'a,b' is no list of numbers"),
        (["growth", "--workers", "16,16"], "Give two sizes or more"),
        (["analyze", "--synthetic", "dp=99999999,pp=99"], "ask for fewer steps or workers"),
        (["growth", "--workers", "4,7", "--pp", "2"], "7 is no multiple of 2 stages"),
        (["first", "nowhere.parquet"], "nowhere.parquet"),
        (["page", "--workers", "1024", "--workers", "7"], "want 4 or more, and a multiple of 16"),
    ],
)
def test_impossible_options_are_refused_in_one_line(arguments, words):
    result = run_benchmark(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
