"""`paceline timeline` and `paceline critical-path`."""

import json

import pytest
from typer.testing import CliRunner

from app.cli import app, timeline
from tests.engine.timeline.trace_reader import overlaps, read


def paceline(*arguments, **environment):
    environment.setdefault("COLUMNS", "100")
    return CliRunner().invoke(app, [str(each) for each in arguments], env=environment)


def read_timeline(path):
    return read(iter([path.read_bytes()]))


def test_a_timeline_of_chosen_steps_workers_and_runs(trace, tmp_path):
    out = tmp_path / "out.json.gz"
    chosen = ("--steps", "0,2", "--workers", "1/0,0/*", "--runs", "recorded,ideal")
    result = paceline("timeline", trace, *chosen, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "out.json.gz (2 steps, 3 workers" in result.stderr
    found = read_timeline(out)
    assert len({each.process for each in found.operations}) == 6
    assert {each.arguments["step"] for each in found.operations} == {0, 2}
    assert overlaps(found.operations) == []


def test_default_timeline_is_the_slowest_step_of_all_workers(trace, tmp_path):
    out = tmp_path / "out.json.gz"
    assert paceline("timeline", trace, "--out", out).exit_code == 0
    found = read_timeline(out)
    assert len({each.process for each in found.operations}) == 12
    assert len({each.arguments["step"] for each in found.operations}) == 1


def test_large_job_shows_critical_path_replicas_first(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MAX_DEFAULT_SLICES", 200)
    result = paceline("timeline", trace, "--out", tmp_path / "out.json.gz")
    assert "showing dp rank 1, those on the critical path first" in result.stderr
    processes = {each.process[:4] for each in read_timeline(tmp_path / "out.json.gz").operations}
    assert processes == {"dp 1"}


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("timeline", ["--steps", "7-9"], "no step from 7 to 9; choose from 0 to 2"),
        ("timeline", ["--steps", "x"], "names no step"),
        ("timeline", ["--workers", "2/0"], "no worker of this job"),
        ("timeline", ["--ranks", "77"], "no worker recorded as rank '77'"),
        ("timeline", ["--workers", "0/0", "--ranks", "0"], "give one of them"),
        ("timeline", ["--runs", "real"], "none of recorded, simulated, ideal"),
        ("critical-path", ["--step", "7"], "step 7"),
        ("critical-path", ["--run", "real"], "none of recorded, simulated, ideal"),
    ],
)
def test_invalid_selections_are_refused_and_write_nothing(
    trace, tmp_path, command, options, message
):
    out = ["--out", tmp_path / "out.json.gz"] if command == "timeline" else []
    result = paceline(command, trace, *options, *out)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_critical_path_names_the_deciding_worker(trace):
    result = paceline("critical-path", trace)
    assert result.exit_code == 0, result.stderr
    assert "recorded: " in result.stdout
    assert "on dp 1 stage 0 (rank 1)" in result.stdout
    assert "backward-compute" in result.stdout


def test_critical_path_is_written_as_json(trace, tmp_path):
    alone = paceline("critical-path", trace, "--step", "1", "--run", "simulated", "--json", "-")
    parsed = json.loads(alone.stdout)
    assert (parsed["step"], parsed["run"]) == (1, "simulated")
    length_s = sum(link["own_s"] + link["gap_s"] for link in parsed["links"])
    assert length_s == pytest.approx(parsed["length_s"])
    out = tmp_path / "path.json"
    shown = paceline("critical-path", trace, "--step", "1", "--run", "simulated", "--json", out)
    assert "Step 1, simulated" in shown.stdout
    assert json.loads(out.read_text()) == parsed
