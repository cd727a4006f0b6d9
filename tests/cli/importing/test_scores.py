"""`paceline import` of scores to a table, a file or a server, each marked "no what-if"."""

import csv
import gzip
import json
import os
import threading
from dataclasses import dataclass, replace

import httpx
import pyarrow.parquet as pq
import pytest
from paceline_client.query import Paceline
from typer.testing import CliRunner

from app.api.routes.jobs.scores import MAX_SCORE_BYTES
from app.cli import app
from app.cli.importing.options import ImportTarget
from app.cli.importing.scores import fit_report, show_or_push
from app.store.migrations import migrate
from app.store.scores import MAX_SCORES
from app.trace.readers.registry import SCORE_FORMATS
from app.trace.readers.scores import megatron_log, nccl_inspector, nvrx
from app.trace.readers.scores.score_report import Score, ScoreSummary
from tests.api.server import JOB, TOKEN
from tests.client.real_servers import serving

LATE = Score(3, "n3", "s", "late-by", "ms", 0.5, 0.25, None, None, 2, 2, 7, 1.5)


@dataclass
class FakeImport:
    """An opened import with these scores."""

    found: list[Score]

    def describe(self):
        return ScoreSummary(None, len(self.found), (), source="own")

    def scores(self):
        return iter(self.found)

    def collectives(self):
        return None

    def close(self):
        pass


def paceline(*arguments, **environment):
    return CliRunner().invoke(app, [str(each) for each in arguments], env=environment)


@pytest.fixture
def reports(tmp_path):
    path = tmp_path / "reports.jsonl"
    path.write_bytes(nvrx.sample()["reports.jsonl"])
    return path


def test_score_table_is_marked_and_lists_the_worst_first(reports):
    result = paceline("import", "nvrx", reports)
    assert result.exit_code == 0, result.stderr
    first, _, heading, worst, *_ = result.stdout.splitlines()
    assert first == "scores, no what-if: nvrx, 8 series of 2 reports"
    assert heading.split() == ["RANK", "NODE", "WHAT", "NEWEST", "MEAN", "SLOWDOWN", "READINGS"]
    assert worst.split() == [
        *("1", "host-b", "section", "fwd,", "relative-performance"),
        *("0.5", "of", "best", "0.5", "of", "best", "2.00\u00d7", "1", "of", "1"),
    ]
    assert "1 of 10 scores (null or NaN): these ranks are shown without" in result.stderr


@pytest.mark.parametrize("reader", [megatron_log, nccl_inspector])
def test_every_format_has_a_table(reader, tmp_path):
    paths = [tmp_path / name for name in reader.sample()]
    for path in paths:
        path.write_bytes(reader.sample()[path.name])
    result = paceline("import", reader.NAME, *paths)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"scores, no what-if: {reader.NAME}, ")


def test_control_characters_never_reach_the_terminal(tmp_path):
    path = tmp_path / "a.log"
    log = nvrx.sample()["training.log"].replace(b"host-b", b"host\x1b[2J\xff")
    path.write_bytes(log)
    result = paceline("import", "nvrx", path)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout


def test_scores_are_written_as_csv_jsonl_and_parquet(reports, tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"scores.{suffix}"
        result = paceline("import", "nvrx", reports, "--out", out)
        assert (result.exit_code, result.stdout.strip()) == (0, str(out)), result.stderr
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    assert lines == table
    assert [float(row["slowdown"] or 0) for row in rows] == [row["slowdown"] or 0 for row in table]
    assert {row["what_if"] for row in table} == {None}
    assert table[0]["at"] == "2025-09-21T14:13:20.500000Z"


def write_scores(scores, out):
    opened = FakeImport(scores)
    show_or_push(opened, ImportTarget(out, None, None, None, None))
    return out


def test_score_file_schema_does_not_depend_on_known_values(tmp_path):
    unknown = Score(None, None, "s", "m", None, None, None, None, None, 0, 1, None, None)
    tables = [
        pq.read_table(write_scores(found, tmp_path / "a.parquet"))
        for found in ([], [unknown], [LATE])
    ]
    assert tables[0].schema == tables[1].schema == tables[2].schema
    assert (tables[0].num_rows, tables[1].to_pylist()[0]["rank"]) == (0, None)
    assert str(tables[0].schema.field("rank").type) == "int64"
    names = write_scores([], tmp_path / "a.csv").read_text().strip().split(",")
    assert names == tables[0].schema.names
    assert names[-2:] == ["at", "what_if"]


def test_names_in_csv_are_escaped_against_formulas(tmp_path):
    found = [replace(LATE, node="=1+1", section="\u202eevil")]
    with write_scores(found, tmp_path / "a.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["node"], row["section"]) == ("'=1+1", r"\u202eevil")
    [stored] = pq.read_table(write_scores(found, tmp_path / "a.parquet")).to_pylist()
    assert stored["node"] == "=1+1"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--map", "^a=gc"),
        ("--run-key", "b"),
        ("--meta", "meta-a.yaml"),
        *((f"--{axis}", "2") for axis in ("dp", "pp", "tp", "vpp", "dsp", "ep")),
    ],
)
def test_options_about_operations_are_refused_for_scores(option, value, reports):
    result = paceline("import", "nvrx", reports, option, value)
    assert result.exit_code == 2
    assert f"{option} is about operations, and nvrx has scores of ranks" in result.stderr


def test_a_pipe_is_read_once_or_refused(tmp_path):
    def piped(name, content):
        path = tmp_path / f"{name}.pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        try:
            return paceline("import", name, path)
        finally:
            # Unblocks a writer that still waits for a reader.
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            writer.join(30)
            os.close(reader)

    samples = {"nvrx": "training.log", "megatron-log": "training.log"}
    for name, file in samples.items():
        result = piped(name, gzip.compress(SCORE_FORMATS[name].sample()[file]))
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith(f"scores, no what-if: {name}, ")
    result = piped("nccl-inspector", b"x")
    assert result.exit_code == 2
    assert "nccl-inspector.pipe: is a pipe, and these logs are read twice" in result.stderr


def test_scores_cannot_be_written_as_a_trace(reports, tmp_path):
    result = paceline("import", "nvrx", reports, "--out", tmp_path / "trace.parquet.gz")
    assert result.exit_code == 2
    assert "cannot become a trace" in result.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    database = tmp_path_factory.mktemp("import") / "paceline.db"
    migrate(f"sqlite:///{database}")
    with serving(database) as (url, _):
        yield url


@pytest.fixture
def push_options(server, request):
    """Options that push to a job named after the test."""
    job = request.function.__name__
    headers = {"authorization": f"Bearer {TOKEN}"}
    path = f"{server}/api/v1/jobs/{job}"
    assert httpx.put(path, json=JOB, headers=headers, trust_env=False).status_code == 201
    return ("--url", server, "--token", TOKEN, "--job", job)


def test_scores_are_sent_to_a_job(reports, server, push_options):
    result = paceline("import", "nvrx", reports, *push_options)
    assert result.exit_code == 0, result.stderr
    job = push_options[-1]
    assert f"of 8 scores for job {job} (scores, no what-if)" in result.stdout
    with Paceline(server, TOKEN) as client:
        [report] = client.score_reports(job)
        worst = client.scores(job).first(1)[0]
    assert (report["source"], report["num_scores"], report["num_reports"]) == ("nvrx", 8, 2)
    assert json.loads(report["lacks"])[0]["what"] == "1 of 10 scores (null or NaN)"
    assert (worst["rank"], worst["slowdown"], worst["num"], worst["of"]) == (1, 2.0, 1, 1)
    assert (worst["step"], worst["at"]) == (100, "2025-09-21T14:13:20.500000Z")


def test_score_report_fits_the_request_size_limit():
    long = Score(1, "ü" * 128, "s", "m", None, 1.0, 1.0, 0.5, 2.0, 1, 1, None, None)
    sent = fit_report([long] * MAX_SCORES)
    size_bytes = len(json.dumps({"scores": sent}))
    assert MAX_SCORE_BYTES - 70_000 < size_bytes < MAX_SCORE_BYTES
    assert sent[0] == {
        **{"rank": 1, "node": "ü" * 128, "section": "s", "metric": "m"},
        **{"value": 1.0, "mean": 1.0, "score": 0.5, "num": 1, "of": 1},
    }
    assert len(fit_report([replace(long, node="a")] * (MAX_SCORES + 1))) == MAX_SCORES


def test_refusal_shows_neither_traceback_nor_token(reports, server):
    refused = [
        (("--url", server, "--token", TOKEN, "--job", "nobody"), "register it with PUT"),
        (("--url", server, "--token", "pl_wrong_one", "--job", "llm-70b"), "401 unauthorised"),
        (("--url", server, "--token", TOKEN), "--job is missing"),
        (("--url", "ftp://a", "--token", TOKEN, "--job", "a"), "no http or https address"),
    ]
    for arguments, message in refused:
        result = paceline("import", "nvrx", reports, *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert TOKEN not in result.stderr
        assert "pl_wrong" not in result.stderr
        assert "Traceback" not in result.stderr
