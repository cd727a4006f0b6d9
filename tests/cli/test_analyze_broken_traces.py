"""A trace that cannot be analysed is refused in one line, and nothing is written."""

import dataclasses
import json
import random
import re
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli import app
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.cli.broken_traces import FAULTS, Files
from tests.example_counts import many

SIZES = Parallelism(2, 2)
OLD = '{"an": "older result"}'


def good_trace(folder, seed=1, sizes=SIZES, num_microbatches=2, num_steps=2):
    return Files.of(SimulatedJob(sizes, num_microbatches), num_steps, folder, random.Random(seed))


def refused(files, *options):
    """The one-line error of `paceline analyze`."""
    folder = files.trace.parent
    before = contents(folder)
    result = CliRunner().invoke(app, ["analyze", str(files.trace), *options])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert contents(folder) == before, "something was written"
    return one_line(result.stdout, result.stderr)


def one_line(stdout, stderr):
    assert stdout == ""
    line, end, more = stderr.partition("\n")
    assert (end, more) == ("\n", "")
    assert line.startswith("paceline: ")
    assert line.isprintable()
    return line


def analysed_or_refused(files):
    result = CliRunner().invoke(app, ["analyze", str(files.trace), "--json", "-"])
    if result.exit_code:
        assert isinstance(result.exception, SystemExit), result.exception
        assert "trace-odd.parquet" in one_line(result.stdout, result.stderr)
    else:
        assert json.loads(result.stdout)["slowdown"] > 0
        assert "Traceback" not in result.stderr  # of a diagnosis that failed


def contents(folder):
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_each_fault_is_reported_with_file_position_and_remedy(name, seed, tmp_path):
    files = good_trace(tmp_path, seed)
    words = FAULTS[name](files)
    out = tmp_path / "result.json"
    line = refused(files, "--json", str(out))
    assert re.search(words, line), line
    assert "-odd." in line
    assert not out.exists()


@given(
    name=st.sampled_from(sorted(FAULTS)),
    seed=st.integers(0, 2**32),
    sizes=st.builds(Parallelism, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    num_microbatches=st.integers(1, 3),
    num_steps=st.integers(1, 3),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_fault_in_any_job_shape_is_refused_in_one_line(
    name, seed, sizes, num_microbatches, num_steps
):
    with tempfile.TemporaryDirectory() as folder:
        files = good_trace(Path(folder), seed, sizes, num_microbatches, num_steps)
        words = FAULTS[name](files)
        if not words:
            return  # a fault that a job of this shape cannot have
        out = Path(folder) / "result.json"
        out.write_text(OLD)
        line = refused(files, "--json", str(out))
        assert re.search(words, line), line
        assert out.read_text() == OLD


@given(seed=st.integers(0, 2**32), num_changes=st.integers(1, 6))
@many(60)
def test_a_damaged_file_is_analysed_or_refused(seed, num_changes):
    # Not every bit has a checksum, so damage may go unnoticed; a crash is never allowed.
    with tempfile.TemporaryDirectory() as folder:
        files = good_trace(Path(folder), seed)
        content = bytearray(files.trace.read_bytes())
        for _ in range(num_changes):
            content[files.rng.randrange(len(content))] ^= 1 << files.rng.randrange(8)
        files.trace.write_bytes(content)
        analysed_or_refused(files)


@given(
    name=st.sampled_from(["start_ts", "duration", "optype", "seq_id", "mc", "mb_id", "step"]),
    seed=st.integers(0, 2**32),
    sizes=st.builds(Parallelism, st.integers(1, 2), st.integers(1, 3), vpp_size=st.integers(1, 2)),
    num_changes=st.integers(1, 20),
)
@many(60)
def test_trace_with_swapped_values_is_analysed_or_refused(name, seed, sizes, num_changes):
    with tempfile.TemporaryDirectory() as folder:
        files = good_trace(Path(folder), seed, dataclasses.replace(sizes, vpp_size=1))
        files.change_meta(vpp_size=sizes.vpp_size)
        values = files.columns[name]
        for _ in range(num_changes):
            here, there = files.random_row(), files.random_row()
            values[here], values[there] = values[there], values[here]
        files.write_rows(files.columns)
        analysed_or_refused(files)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "sp ace", "日本", "a\x9b"])
def test_unusual_file_names_are_printed_safely(name, tmp_path):
    files = good_trace(tmp_path)
    odd = tmp_path / f"trace-{name}.parquet"
    files.trace.rename(odd)
    files.meta.rename(tmp_path / f"meta-{name}.yaml")
    files = Files(odd, files.sizes, files.rng)
    files.set_one("duration", -1.0)
    shown = f"trace-{name}.parquet".encode("unicode_escape").decode()
    line = refused(files)
    assert shown in line.encode("unicode_escape").decode().replace("\\\\", "\\")


def test_file_name_that_is_not_utf8_is_refused(tmp_path):
    files = good_trace(tmp_path)
    odd = tmp_path / "trace-\udcff.parquet"
    files.trace.rename(odd)
    line = refused(Files(odd, files.sizes, files.rng))
    assert line == r"paceline: trace-\udcff.parquet: is no name in UTF-8; rename the file"


def test_unreadable_file_is_refused(tmp_path, monkeypatch):
    def denied(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    files = good_trace(tmp_path)
    monkeypatch.setattr(pq, "ParquetFile", denied)
    assert "trace-odd.parquet: cannot be read, Permission denied; name a" in refused(files)


def test_error_names_the_meta_file_given_by_option(tmp_path):
    files = good_trace(tmp_path)
    meta = tmp_path / "about.yaml"
    meta.write_text("dp_size: 2\n")
    assert "about.yaml: pp_size is missing; add it" in refused(files, "--meta", str(meta))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("x", "'x' names no step; write 3 or 5-9"),
        ("", "'' names no step"),
        ("1,", "'' names no step"),
        ("-3", "'-3' names no step"),
        ("1-0", "steps 1-0 end before they begin; write 0-1"),
        ("7", "step 7 is no complete step .*which has 0-1"),
        ("5-9", "there is no step from 5 to 9; choose from 0 to 1"),
        ("9" * 30, "names no step"),
        ("\x1b[2J", r"'\\x1b\[2J' names no step"),
    ],
)
def test_invalid_or_missing_steps_are_refused(tmp_path, steps, words):
    line = refused(good_trace(tmp_path), f"--steps={steps}")
    assert re.search(f"trace-odd.parquet: .*{words}", line), line


def test_incomplete_step_cannot_be_chosen(tmp_path):
    files = good_trace(tmp_path)
    files.filter_rows(lambda row: (row["step"], row["stage"]) != (1, 1))
    line = refused(files, "--steps", "1")
    assert "step 1 cannot be analysed; " in line
    assert "(dp_rank 0, stage 1) reported nothing" in line


@pytest.mark.parametrize("out", ["none/result.json", "folder", "file/result.json"])
def test_unwritable_result_path_is_refused(tmp_path, out):
    files = good_trace(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    line = refused(files, "--json", str(tmp_path / out))
    assert f"{tmp_path / out}: cannot be written" in line
