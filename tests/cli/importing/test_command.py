"""`paceline import` into files and to a server that records its requests."""

import json
import resource

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN
from app.trace.readers.published import trace_files
from app.trace.readers.registry import FORMATS
from tests.cli.recording_server import TOKEN, running_server
from tests.harness.samples.job import sample_ops
from tests.trace.readers.samples import put


def run(*arguments):
    return CliRunner().invoke(app, ["import", *map(str, arguments)])


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    line = result.stderr.splitlines()[-1]
    assert line.startswith("paceline: ")
    return line


def ndtimeline(folder):
    (path,) = put(FORMATS["ndtimeline"], folder)
    return path


def test_the_formats_are_listed():
    result = run("formats")
    assert result.exit_code == 0
    for name in FORMATS:
        assert any(line.startswith(f"{name} ") for line in result.stdout.splitlines())


def test_import_prints_a_summary_and_writes_both_files(tmp_path):
    out = tmp_path / "trace-mine.parquet"
    result = run("ndtimeline", ndtimeline(tmp_path), "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(out)
    first = "sample, run 3, role trainer: 88 operations, 2 steps, 4 workers (dp 2, pp 2, tp 1)"
    assert result.stderr.splitlines()[0] == first
    assert "micro-batch ids: 32 of 32 computations" in result.stderr
    about = (tmp_path / "meta-mine.yaml").read_text()
    assert "trial_name: sample" in about
    assert "run_id: 3" in about
    assert "role: trainer" in about
    window = trace_files.read(out)
    assert window.hosts[1, 1] == "10.0.0.3"
    assert window.origin_ns is not None


def test_summary_names_the_time_source_and_uses_singular_nouns(tmp_path):
    path = tmp_path / "rank0.json"
    span = {"ph": "X", "cat": "user_annotation", "pid": 0, "tid": 0, "args": {}}
    events = [
        span | {"name": "ProfilerStep#3", "ts": 1, "dur": 9},
        span | {"name": "forward-compute", "ts": 2, "dur": 5},
    ]
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10**18}))
    found = run("kineto", path, "--dp", 1, "--pp", 1).stderr.splitlines()[0]
    assert found.endswith("times host: 1 operation, 1 step, 1 worker (dp 1, pp 1, tp 1)")


def test_import_without_a_destination_writes_nothing(tmp_path):
    result = run("ndtimeline", ndtimeline(tmp_path))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("wanted", [[], ["--out", "trace-mine.parquet"]], ids=["summary", "out"])
def test_duplicate_input_files_are_refused(wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = ndtimeline(tmp_path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    line = refused("ndtimeline", path, copy, *wanted)
    assert "are there twice" in line
    assert "give each file once" in line


def test_push_creates_a_job_with_one_ended_run(tmp_path):
    path = ndtimeline(tmp_path)
    with running_server(sizes=Parallelism(2, 2)) as server:
        result = run("ndtimeline", path, "--url", server.url, "--token", TOKEN, "--job", "mine")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == f"{server.url}/jobs/mine"
    assert server.calls[:2] == ["GET /api/v1/jobs/mine", "PUT /api/v1/jobs/mine"]
    assert server.calls[-1] == "POST /api/v1/jobs/mine/end"
    assert server.registered["run_key"] == "import-3"
    assert server.registered["labels"] == {"role": "trainer"}
    sent = sorted(
        (batch.rank, step, BUILT_IN.name(code), seq_id, mb_id)
        for batch in server.batches
        for step, code, seq_id, mb_id in zip(
            *(
                getattr(batch.columns, each).tolist()
                for each in ("step", "optype", "seq_id", "mb_id")
            ),
            strict=True,
        )
    )
    numbered = [
        (op.rank, op.step, op.optype, op.seq_id, op.mb_id if "compute" in op.optype else -1)
        for op in sample_ops()
    ]
    assert sent == sorted(numbered)


def test_steps_of_a_trace_without_a_clock_are_pushed_back_to_back(tmp_path):
    path = put(FORMATS["published"], tmp_path)[0]
    with running_server(sizes=Parallelism(2, 2)) as server:
        assert run("published", path, "--url", server.url, "--token", TOKEN).exit_code == 0
    assert "PUT /api/v1/jobs/sample" in server.calls
    assert {batch.host for batch in server.batches} == {None}, "not this machine"
    starts: dict[int, list[int]] = {7: [], 8: []}
    for batch in server.batches:
        for step, values in starts.items():
            values += batch.columns.start_ns[batch.columns.step == step].tolist()
    assert min(starts[7]) < max(starts[7]) < min(starts[8])
    assert min(starts[8]) - min(starts[7]) == 95_000_000


@pytest.mark.parametrize(
    ("known", "more", "words"),
    [
        (
            {"epoch": 3, "ended_at": "2026"},
            [],
            "job mine exists: name another with --job",
        ),
        ({"epoch": 3, "ended_at": None}, ["--run-key", "b"], "job mine is still running"),
        (
            {"epoch": 9, "ended_at": "2026"},
            ["--run-key", "b"],
            "--run-key b: job mine has this run",
        ),
    ],
)
def test_push_to_an_existing_job_or_run_is_refused(known, more, words, tmp_path):
    with running_server(sizes=Parallelism(2, 2)) as server:
        server.known = known
        arguments = ["--url", server.url, "--token", TOKEN, "--job", "mine", *more]
        line = refused("ndtimeline", ndtimeline(tmp_path), *arguments)
    assert words in line
    assert not server.batches
    assert not [call for call in server.calls if call.endswith("/end")]


def test_run_key_pushes_a_new_run_of_an_ended_job(tmp_path):
    with running_server(sizes=Parallelism(2, 2)) as server:
        server.known = {"epoch": 3, "ended_at": "2026"}
        arguments = ["--url", server.url, "--token", TOKEN, "--job", "mine", "--run-key", "b"]
        assert run("ndtimeline", ndtimeline(tmp_path), *arguments).exit_code == 0
    assert server.registered["run_key"] == "b"


def test_push_refused_midway_ends_its_run(tmp_path):
    with running_server(refuse="/ops", sizes=Parallelism(2, 2)) as server:
        arguments = ["--url", server.url, "--token", TOKEN, "--job", "mine"]
        line = refused("ndtimeline", ndtimeline(tmp_path), *arguments)
    assert "operations were not accepted" in line
    assert server.calls[-1] == "POST /api/v1/jobs/mine/end"


def test_unknown_token_is_refused_and_not_printed(tmp_path):
    with running_server() as server:
        line = refused(
            "ndtimeline", ndtimeline(tmp_path), "--url", server.url, "--token", "pl_other-secret"
        )
    assert "did not answer whether job sample exists (401" in line
    assert "pl_other" not in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kineto"], "no file is named"),
        (["nothing", "a.json"], "format 'nothing' is not known"),
        (["kineto", "a.json", "a.json"], "a.json: the same file as a.json; name each file once"),
        (["kineto", "a.json", "--out", "b", "--url", "http://x"], "--out and --url"),
        (["kineto", "a.json", "--out", "-"], "a trace is binary"),
        (["kineto", "a.json", "--run-key", "b"], "--run-key is for a run on a server"),
        (["kineto", "a.json", "--map", "x"], "--map 'x': want REGEX=OPTYPE"),
        (["kineto", "a.json", "--map", "x=y"], "there is no op type 'y'; use one of forward-"),
        (["kineto", "a.json", "--map", "(=gc"], "'(' is no regular expression"),
        (["kineto", "a.json", "--map", "(?P<a>x)=gc"], "group 'a' means nothing here"),
        (["kineto", "a.json"], "a.json: cannot be read, No such file or directory"),
        (["kineto", "a\x1b[2J.json"], r"a\x1b[2J.json: cannot be read"),
        (["published", "a.parquet", "b.parquet"], "a published trace is one file"),
    ],
)
def test_invalid_arguments_are_refused(arguments, words):
    assert words in refused(*arguments)


def test_input_file_is_never_overwritten(tmp_path):
    path = put(FORMATS["published"], tmp_path)[0]
    before = path.read_bytes()
    assert "is an input file; name another file" in refused("published", path, "--out", path)
    assert path.read_bytes() == before


def test_full_disk_is_reported_and_leaves_no_partial_file(tmp_path):
    path, out = ndtimeline(tmp_path), tmp_path / "out" / "trace-a.parquet"
    out.parent.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3600, before[1]))
    try:
        line = refused("ndtimeline", path, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{out}: cannot be written" in line
    assert not list(out.parent.iterdir())
