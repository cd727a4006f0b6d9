"""No command overwrites its input, and a failed write is an error without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files

WRITING = [
    ["analyze", "TRACE", "--json", "OUT"],
    ["what-if", "TRACE", "--edit", "ideal", "--json", "OUT"],
    ["critical-path", "TRACE", "--json", "OUT"],
    ["timeline", "TRACE", "--out", "OUT"],
]
PRINTING = [
    ["analyze", "TRACE", "--json", "-"],
    pytest.param(["critical-path", "TRACE"], marks=pytest.mark.nightly),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace with its meta file beside it."""
    simulated = SimulatedJob(Parallelism(2, 2), 2)
    trace_files.write(simulated.make([1, 2]), simulated.job, tmp_path / "trace-made.parquet")
    return tmp_path / "trace-made.parquet"


def with_files(arguments: list[str], trace: Path, out: Path) -> list[str]:
    names = {"TRACE": str(trace), "OUT": str(out)}
    return [names.get(each, each) for each in arguments]


@pytest.mark.parametrize("arguments", WRITING, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("name", ["trace-made.parquet", "meta-made.yaml"])
def test_input_files_are_never_overwritten(trace, arguments, name):
    out = trace.parent / name
    before = out.read_bytes()
    result = CliRunner().invoke(app, with_files(arguments, trace, out))
    assert result.exit_code == 2
    assert "this is an input file; name another file" in result.stderr
    assert out.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_full_standard_output_is_a_one_line_error(trace, arguments):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "app.cli", *with_files(arguments, trace, Path("-"))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == ("paceline: standard output cannot be written: No space left on device\n")


def test_timeline_to_standard_output_is_refused(trace):
    result = CliRunner().invoke(app, ["timeline", str(trace), "--out", "-"])
    assert result.exit_code == 2
    assert "name a file" in result.stderr
    assert not Path("-").exists()
