"""`paceline analyze` and the simulated traces that it reads."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from app.cli import app
from tests.shared_traces import SHARED_TRACES, needs_shared


def paceline(*arguments, **environment):
    return CliRunner().invoke(app, list(arguments), env=environment)


def simulated_trace(tmp_path, *options):
    path = tmp_path / "trace-made.parquet"
    small = ("--dp", "2", "--pp", "2", "--microbatches", "4", "--steps", "2")
    result = paceline("simulate", *small, *options, "--out", str(path))
    assert result.exit_code == 0, result.stderr
    return path


def test_every_command_has_help_with_an_example():
    assert paceline("--version").stdout.startswith("paceline ")
    for name in ("analyze", "simulate", "replay", "what-if", "timeline", "export trace"):
        shown = paceline(*name.split(), "--help", COLUMNS="120").stdout
        assert f"Example: paceline {name}" in shown


def test_analysis_of_a_simulated_trace_names_the_slow_worker(tmp_path):
    path = simulated_trace(tmp_path, "--fault", "slow-worker:dp=1,stage=0,factor=2.5")
    result = paceline("analyze", str(path), "--json", f"{path}.json", COLUMNS="100")
    assert result.exit_code == 0, result.stderr
    assert json.loads((path.with_suffix(".parquet.json")).read_text())["schema"] == 1
    assert "made runs at" in result.stdout
    assert "host-000, rank 1 (dp 1, stage 0) is 2.5\u00d7 slower" in " ".join(result.stdout.split())
    assert "stage 1" in result.stdout


def test_json_on_standard_output_is_json_alone_though_the_diagnosis_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("app.monitor.diagnose", lambda *_: 1 / 0)
    result = paceline("analyze", str(simulated_trace(tmp_path)), "--json", "-")
    parsed = json.loads(result.stdout)
    assert (parsed["schema"], parsed["job"]["name"], parsed["steps"]) == (1, "made", [0, 1])
    assert "ZeroDivisionError" in result.stderr


def test_steps_option_limits_the_analysis(tmp_path):
    trace = str(simulated_trace(tmp_path, "--steps", "5"))
    whole = json.loads(paceline("analyze", trace, "--json", "-").stdout)
    some = json.loads(paceline("analyze", trace, "--steps", "4,1-2", "--json", "-").stdout)
    assert (whole["steps"], some["steps"]) == ([0, 1, 2, 3, 4], [1, 2, 4])
    # A step lasts from the end of the previous step, where that one is recorded.
    own_s = [whole["step_time_s"]["recorded"][step] for step in (1, 2, 4)]
    assert some["step_time_s"]["recorded"] == pytest.approx(own_s, rel=0.02)


def test_worker_that_is_missing_from_a_step_is_named(tmp_path):
    trace = simulated_trace(tmp_path, "--steps", "3")
    table = pq.read_table(trace)
    rows = zip(table["step"].to_pylist(), table["rank"].to_pylist(), strict=True)
    pq.write_table(table.filter([row != (1, 3) for row in rows]), trace)
    result = paceline("analyze", str(trace), "--steps", "0-2", COLUMNS="100")
    assert "Rank 3 is missing from 1 of 3 steps; medians of other workers" in result.stdout
    assert "Nothing stands out" not in result.stdout


def test_dp_rank_with_fewer_microbatches_is_a_fact_though_no_step_can_be_replayed(tmp_path):
    trace = simulated_trace(tmp_path)
    table = pq.read_table(trace)
    rows = zip(table["dp_rank"].to_pylist(), table["mb_id"].to_pylist(), strict=True)
    pq.write_table(table.filter([row != (1, 3) for row in rows]), trace)
    result = paceline("analyze", str(trace), COLUMNS="300")
    assert result.exit_code == 0, result.stderr
    assert "made has no step that can be replayed" in result.stdout
    assert "Dp rank 1 runs 3 micro-batches a step, the other 4, by design" in result.stdout
    report = paceline("analyze", str(trace), "--html", str(tmp_path / "report.html"))
    assert (report.exit_code != 0, "cannot be replayed together" in report.stderr) == (True, True)


def test_missing_meta_file_infers_sizes_with_a_notice(tmp_path):
    path = simulated_trace(tmp_path)
    (tmp_path / "meta-made.yaml").unlink()
    result = paceline("analyze", str(path), "--json", "-")
    assert "sizes are from the trace" in result.stderr
    assert json.loads(result.stdout)["job"]["dp_size"] == 2


def test_a_refusal_is_one_line_without_a_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "analyze", str(tmp_path / "trace-none.parquet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("paceline: ")
    assert "No such file" in line


@needs_shared
def test_published_slow_worker_trace_has_a_large_slowdown():
    result = paceline("analyze", str(SHARED_TRACES / "trace-AR.parquet"), "--json", "-")
    assert json.loads(result.stdout)["slowdown"] > 1.5


@pytest.mark.parametrize("command", [["serve"], ["migrate"]])
def test_uncreatable_data_directory_is_a_one_line_error(command, tmp_path):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, [*command, "--data-dir", str(tmp_path / "file" / "data")])
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert len(done.stderr.strip().splitlines()) == 1
