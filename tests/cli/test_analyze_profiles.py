"""`paceline analyze` on plain profiles."""

import json

import pytest
from typer.testing import CliRunner

from app.cli import app
from tests.diagnosis.profiles.test_causes import made
from tests.small_profiles import SHARED_REAL, SmallProfile, needs_profiles


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def shown(*arguments):
    found = run(*arguments)
    assert found.exit_code == 0, (found.output, found.exception)
    return " ".join(found.stdout.split())


def refused(*arguments):
    found = run(*arguments)
    assert found.exit_code == 2, (found.output, found.exception)
    line = found.stderr.splitlines()[-1]
    assert line.startswith("paceline: ")
    return line


def test_finding_is_printed_before_the_times_of_every_rank(tmp_path):
    text = shown(*made(tmp_path, [6000, 9000, 6000, 6000]))
    first_line = (
        "A step of mine takes 9.5 ms (profiles of 4 of 4 ranks, 4 steps by ProfilerStep marks)."
    )
    assert text.startswith(
        f"{first_line} Rank 1 computes 9 ms a step where its peers take 6 ms (1.5\u00d7)"
    )
    assert "0 9.5 ms 63 % 37 % 32 % 0 % 0 % 0 %" in text
    assert "1 9.5 ms 95 % 5.3 % 0 % 0 % 0 % 0 %" in text
    assert "all-reduce default_pg [0-3] 4 KB 4" in text


def test_the_result_is_written_as_json(tmp_path):
    paths = made(tmp_path, [6000, 9000, 6000, 6000])
    out = tmp_path / "result.json"
    assert run(*paths, "--json", out).exit_code == 0
    found = json.loads(out.read_text())
    assert found["findings"][0]["culprits"][0]["rank"] == 1
    alone = run(*paths, "--json", "-", "--steps", "1,2")
    assert json.loads(alone.stdout)["steps"] == [1, 2]


def test_unreadable_profile_is_skipped_by_name(tmp_path):
    paths = made(tmp_path, [6000, 9000, 6000, 6000])
    paths[2].write_text("{")
    text = shown(*paths)
    assert "profiles of 3 of 4 ranks" in text
    assert "left out: mine-rank2.json.gz: " in text
    assert "nothing stands out" not in text.lower()


def test_profiles_are_recognised_by_content_not_suffix(tmp_path):
    (path,) = made(tmp_path, [6000], ranks=(0,))
    renamed = path.rename(tmp_path / "export.bin")
    assert shown(renamed).startswith("A step of export takes 6.5 ms (a profile of one rank")


@pytest.mark.parametrize("option", ["--meta", "--html"])
def test_options_of_parquet_traces_are_refused(tmp_path, option):
    (path,) = made(tmp_path, [6000], ranks=(0,))
    assert f"{option} is for parquet traces" in refused(path, option, tmp_path / "x.yaml")


def test_parquet_traces_and_profiles_are_not_mixed(tmp_path):
    (path,) = made(tmp_path, [6000], ranks=(0,))
    trace = tmp_path / "trace-a.parquet"
    trace.write_bytes(b"PAR1 and so on")
    assert "trace-a.parquet is a parquet trace" in refused(path, trace)


def test_profile_is_never_overwritten(tmp_path):
    paths = made(tmp_path, [6000] * 4)
    assert "--json" in refused(*paths, "--json", paths[2])


def test_control_characters_in_names_never_reach_the_terminal(tmp_path):
    profile = SmallProfile(0, 2).backward().steps(0, 100).kernel(5, 50, launch=1)
    evil = "\x1b[2Jdp"
    profile.all_reduce(60, 90, launch=2, ranks=[0, 1], **{"Process Group Description": evil})
    assert "\x1b" not in run(profile.write(tmp_path)).stdout


@needs_profiles
def test_third_party_profiles_are_analysed_or_refused_by_name():
    for path in sorted(SHARED_REAL.glob("*.json.gz")):
        found = run(path)
        text = found.output.lower()
        if path.name.startswith(("hta-no-gpu", "tracelens-vllm")):
            assert found.exit_code == 2
            assert path.name in found.stderr
        else:
            assert found.exit_code == 0, found.output
            assert text.startswith("a step of ")
        for claim in ("nothing stands out", "1.00x", "1.00\u00d7", "traceback", "runtimewarning"):
            assert claim not in text
