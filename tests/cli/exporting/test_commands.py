"""`paceline export`: traces, timelines, results and metrics."""

import csv
import io
import json
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.cli.exporting.tables import TABLES
from app.cli.output import safe_cell
from app.diagnosis.job_history import History
from app.monitor import analysed
from app.trace.readers.published import trace_files
from tests.results import window_result
from tests.shared_traces import SHARED_TRACES, needs_shared

TOKEN = "pl_only-for-this-test"
COLUMNS = (
    *("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration"),
    *("seq_id", "mc", "gmc", "mb_id"),
)
PUBLISHED = (
    *("AR", "inter"),
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in ("ST", "ovlp", "puredp", "purepp", "flap")
    ),
)


def paceline(*arguments, **environment):
    environment = {"COLUMNS": "100", "PACELINE_TOKEN": TOKEN} | environment
    return CliRunner().invoke(app, [str(each) for each in arguments], env=environment)


def export(*arguments, **environment):
    return paceline("export", *arguments, **environment)


@pytest.fixture(scope="module")
def result(trace):
    """The result of `paceline analyze` for the trace."""
    return analysed(trace_files.read(trace), History())[1]


def rows_of(path, columns=COLUMNS, in_ns=False):
    """A trace's rows, sorted and cast to common types."""
    table = pq.read_table(path, columns=list(columns))
    kinds = {"optype": pa.string(), "start_ts": pa.float64(), "duration": pa.float64()}
    plain = {name: pc.cast(table.column(name), kinds.get(name, pa.int64())) for name in columns}
    for name in ("start_ts", "duration") if in_ns else ():
        plain[name] = pc.cast(pc.round(pc.multiply(plain[name], 1e9)), pa.int64())
    keys = [(name, "ascending") for name in ("step", "rank", "optype", "seq_id")]
    return pa.table(plain).sort_by(keys).combine_chunks()


@needs_shared
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trace_round_trips_through_import_and_export(name, tmp_path):
    source, imported, out = (
        SHARED_TRACES / f"trace-{name}.parquet",
        tmp_path / "trace-in.parquet",
        tmp_path / f"trace-{name}.parquet",
    )
    assert paceline("import", "published", source, "--out", imported).exit_code == 0
    assert export("trace", imported, "--out", out).exit_code == 0
    assert rows_of(out).equals(rows_of(source))
    assert pq.read_schema(out).names == [*COLUMNS[:-2], "mb_id", "gmc"]


def test_trace_export_is_limited_to_chosen_steps(trace, tmp_path):
    out = tmp_path / "trace-some.parquet"
    assert export("trace", trace, "--steps", "0,2", "--out", out).exit_code == 0
    assert set(rows_of(out).column("step").to_pylist()) == {0, 2}
    wrong = export("trace", trace, "--steps", "7", "--out", out)
    assert wrong.exit_code == 2
    assert "step 7 was not recorded" in wrong.stderr


def test_perfetto_export_writes_a_timeline_file(trace, tmp_path):
    out = tmp_path / "t.json.gz"
    found = export("perfetto", trace, "--steps", "1", "--runs", "recorded", "--out", out)
    assert found.exit_code == 0
    assert out.stat().st_size > 100


def table(path):
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_results_are_tables_with_the_figures_of_the_analysis(trace, result, tmp_path, form):
    found = export("results", trace, "--out", tmp_path / "all", "--format", form)
    assert (found.exit_code, found.stdout) == (0, "")
    assert len(found.stderr.splitlines()) == len(TABLES)
    size = (tmp_path / "all" / f"stages.{form}").stat().st_size
    said = f"wrote {tmp_path / 'all' / f'stages.{form}'} (2 rows, {size:,} bytes)"
    assert said in found.stderr.splitlines()
    tables = {name: table(tmp_path / "all" / f"{name}.{form}") for name in TABLES}
    [summary] = tables["summary"]
    assert float(summary["slowdown"]) == result.slowdown
    assert int(summary["num_steps"]) == 3
    workers = {(int(row["dp_rank"]), int(row["stage"])): row for row in tables["workers"]}
    assert float(workers[1, 0]["slowdown"]) == result.worker_slowdown[1][0]
    assert len(tables["worker-steps"]) == 12
    last = tables["worker-steps"][-1]
    assert float(last["slowdown"]) == result.per_step.worker_slowdown[2][1][1]
    recorded_s = [float(row["recorded_s"]) for row in tables["steps"]]
    assert recorded_s == list(result.step_time_s.recorded)
    assert tables["findings"][0]["cause"] == "slow-worker"
    assert {row["op_type"] for row in tables["op-types"]} >= {"forward-compute"}
    assert all(row["window"] == "1-0" for rows in tables.values() for row in rows)


def test_one_table_is_written_to_a_file_or_standard_output(trace, tmp_path):
    out = tmp_path / "stages.parquet"
    assert export("results", trace, "--table", "stages", "--out", out).exit_code == 0
    assert [row["stage"] for row in table(out)] == [0, 1]
    shown = export("results", trace, "--table", "stages", "--out", "-")
    assert shown.stdout.splitlines()[0] == ("job,window,stage,slowdown,share,forward_s,backward_s")
    assert len(shown.stdout.splitlines()) == 3
    assert shown.stderr == "wrote table stages, 2 rows to standard output\n"


def test_results_with_unknown_values_export_to_csv_and_parquet(tmp_path):
    from app.cli.exporting.tables import write_csv, write_parquet

    skipped = [{"step": 3, "reason": 'rank "1",\nand more'}]
    unknown = window_result(job={"name": "=a"}, steps=[], skipped_steps=skipped)
    for name in TABLES:
        text, packed = io.BytesIO(), io.BytesIO()
        write_csv(name, unknown, text)
        write_parquet(name, unknown, packed)
        lines = list(csv.DictReader(io.StringIO(text.getvalue().decode())))
        assert len(lines) == pq.read_table(io.BytesIO(packed.getvalue())).num_rows
    [row] = csv.DictReader(io.StringIO(_text_of("skipped-steps", unknown, write_csv)))
    assert row["reason"] == 'rank "1",\nand more'
    [summary] = csv.DictReader(io.StringIO(_text_of("summary", unknown, write_csv)))
    assert (summary["job"], summary["slowdown"]) == ("'=a", "")


def test_csv_text_is_escaped_against_formulas_and_bidi_controls():
    texts = ["=HYPERLINK(1)", "+1", "-1", "@x", "host-1", "a=b", "\u202ehost", "a\x1b\nb", ""]
    assert [safe_cell(each) for each in texts] == [
        *("'=HYPERLINK(1)", "'+1", "'-1", "'@x", "host-1", "a=b"),
        *(r"\u202ehost", "a\\x1b\nb", ""),
    ]
    assert [safe_cell(each) for each in (-1, -0.5, None)] == [-1, -0.5, None]


def _text_of(name, result, write):
    file = io.BytesIO()
    write(name, result, file)
    return file.getvalue().decode()


def points_by_metric(request):
    [resource] = request["resourceMetrics"]
    [scope] = resource["scopeMetrics"]
    return {
        metric["name"]: [
            (
                point["asDouble"],
                {each["key"]: next(iter(each["value"].values())) for each in point["attributes"]},
            )
            for point in metric["gauge"]["dataPoints"]
        ]
        for metric in scope["metrics"]
    }


def test_metrics_are_gauges_with_the_figures_of_the_analysis(trace, result):
    found = export("otlp-metrics", trace, "--workers", "1", "--out", "-")
    request = json.loads(found.stdout)
    metrics = points_by_metric(request)
    assert metrics["paceline.job.slowdown"] == [(result.slowdown, {})]
    worst = max(max(row) for row in result.worker_slowdown)
    assert metrics["paceline.worker.slowdown"] == [(worst, {"dp_rank": "1", "stage": "0"})]
    assert {each["kind"] for _, each in metrics["paceline.step.duration"]} == {
        *("recorded", "simulated", "ideal"),
    }
    # Steps and operations are not attributes: each would be a series of its own.
    keys = {key for each in metrics.values() for _, attributes in each for key in attributes}
    assert keys <= {"kind", "optype", "stage", "dp_rank", "cause"}


class CannedHandler(BaseHTTPRequestHandler):
    """Answers each path with a canned response and records the requests."""

    answers: dict[str, tuple[int, bytes]]
    requests: list[tuple[str, bytes]]

    def answer(self):
        size = int(self.headers.get("content-length") or 0)
        self.requests.append((f"{self.command} {self.path}", self.rfile.read(size)))
        known = self.headers["authorization"] == f"Bearer {TOKEN}" or self.command == "POST"
        status, body = self.answers.get(self.path.partition("?")[0], (404, b'{"detail": "no"}'))
        self.send_response(status if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815

    def log_message(self, *_args):
        pass


@contextmanager
def canned_server(**answers):
    """A server's address and the requests that it receives."""
    handler = type("Handler", (CannedHandler,), {"answers": answers, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.requests  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


WINDOW = "/api/v1/jobs/llm-70b/windows/latest"


def zip_of(trace: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(trace, "../../trace-x.parquet")
        archive.write(trace.with_name("meta-made.yaml"), "meta-x.yaml")
    return packed.getvalue()


def test_all_exports_work_from_a_server(trace, result, tmp_path):
    answers = {
        f"{WINDOW}/trace": (200, zip_of(trace)),
        f"{WINDOW}/timeline": (200, b"packed"),
        WINDOW: (200, msgspec.json.encode(result)),
        "/v1/metrics": (200, b"{}"),
    }
    with canned_server(**answers) as (url, requests):
        source = ("--url", url, "--job", "llm-70b")
        out = tmp_path / "trace-got.parquet"
        found = export("trace", *source, "--out", out)
        assert (found.exit_code, found.stdout) == (0, ""), found.stderr
        assert f"wrote {out} (" in found.stderr
        assert f"operations, {out.stat().st_size:,} bytes)" in found.stderr
        # A simulated trace has a nanosecond clock, and nanoseconds are stored.
        assert rows_of(out, [*COLUMNS, "start_ns"], in_ns=True).equals(
            rows_of(trace, [*COLUMNS, "start_ns"], in_ns=True)
        )
        timeline = tmp_path / "t.json.gz"
        assert export("perfetto", *source, "--steps", "3", "--out", timeline).exit_code == 0
        assert timeline.read_bytes() == b"packed"
        assert export("results", *source, "--out", tmp_path / "all").exit_code == 0
        found = export("otlp-metrics", *source, "--endpoint", url)
        assert found.exit_code == 0, found.stderr
    sent = dict(requests)["POST /v1/metrics"]
    assert points_by_metric(json.loads(sent))["paceline.job.slowdown"][0][0] == result.slowdown
    assert f"GET {WINDOW}/timeline?steps=3" in dict(requests)
    assert f"GET {WINDOW}?per_step=true" in dict(requests)


def test_token_defaults_to_the_data_directorys_file(result, tmp_path, monkeypatch):
    out = tmp_path / "stages.csv"
    source = ("--job", "llm-70b", "--table", "stages", "--out", out)
    own = {"PACELINE_TOKEN": "", "PACELINE_DATA_DIR": str(tmp_path)}
    with canned_server(**{WINDOW: (200, msgspec.json.encode(result))}) as (url, _):
        without = export("results", "--url", url, *source, **own)
        demo = tmp_path / "paceline-demo" / "token"
        demo.parent.mkdir()
        demo.write_text("pl_demo")
        monkeypatch.setattr("app.cli.replay.gettempdir", lambda: str(tmp_path))
        beside_demo = export("results", "--url", url, *source, **own)
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        found = export("results", "--url", url, *source, **own)
    assert (without.exit_code, found.exit_code) == (2, 0), found.stderr
    assert f"no token in {tmp_path / 'token'}: give --token" in without.stderr
    assert "`paceline token create --scope ingest,read` makes one" in without.stderr
    assert f"that of the running demo is in {demo}" in beside_demo.stderr
    assert len(table(out)) == 2


REFUSED = {
    "its own message": ({WINDOW: (409, b'{"detail": "still open"}')}, "answers 409: still open"),
    "no JSON": ({WINDOW: (200, b"<html>")}, "answers no JSON object"),
    "a list": ({WINDOW: (200, b"[]")}, "answers no JSON object"),
    "moved": ({WINDOW: (301, b"")}, "is moved: use the address that it redirects to"),
    "busy": ({WINDOW: (503, b"\x1b[31mbusy\n\n")}, "answers 503: \\x1b[31mbusy"),
}


@pytest.mark.parametrize(("answers", "why"), REFUSED.values(), ids=REFUSED)
def test_server_refusal_is_a_one_line_error(answers, why, tmp_path):
    with canned_server(**answers) as (url, _):
        found = export("results", "--url", url, "--job", "llm-70b", "--out", tmp_path / "x")
    assert found.exit_code == 2
    assert why in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert TOKEN not in found.stderr
    assert not (tmp_path / "x").exists()


def test_incomplete_trace_download_is_refused(tmp_path):
    with canned_server(**{f"{WINDOW}/trace": (200, b"PK no zip")}) as (url, _):
        out = tmp_path / "trace-a.parquet"
        found = export("trace", "--url", url, "--job", "llm-70b", "--out", out)
    assert found.exit_code == 2
    assert "the server's answer is not a complete trace: try again" in found.stderr
    assert not out.exists()


def test_points_rejected_by_the_collector_are_reported(trace):
    partial = b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}'
    with canned_server(**{"/v1/metrics": (200, partial)}) as (url, _):
        found = export("otlp-metrics", trace, "--endpoint", url)
    assert found.exit_code == 2
    assert "the collector refused 3 points: too old" in found.stderr


WRONG = {
    "no source": (("results", "--out", "x"), "name a trace file, or a server with --url and --job"),
    "no job": (("results", "--url", "http://a", "--out", "x"), "--url needs --job"),
    "a job in a file": (("results", "{trace}", "--job", "a", "--out", "x"), "give --url too"),
    "two sources": (
        ("results", "{trace}", "--url", "http://a", "--job", "a", "--out", "x"),
        "give a trace file or --url, not both",
    ),
    "no address": (
        ("results", "--url", "ftp://a", "--job", "a", "--out", "x"),
        "--url ftp://a: want an address like http",
    ),
    "a password": (
        ("results", "--url", "http://a:b@c", "--job", "a", "--out", "x"),
        "has a user or a password in it",
    ),
    "no server": (
        ("results", "--url", "http://127.0.0.1:1", "--job", "a", "--out", "x"),
        "does not answer (Connection refused)",
    ),
    "another table": (
        ("results", "{trace}", "--table", "no", "--out", "x"),
        "--table 'no': name one of summary",
    ),
    "another format": (
        ("results", "{trace}", "--format", "xlsx", "--out", "x"),
        "--format 'xlsx': name one of csv, parquet",
    ),
    "tables on standard output": (("results", "{trace}", "--out", "-"), "choose it with --table"),
    "a trace on standard output": (("trace", "{trace}", "--out", "-"), "is binary"),
    "over its input": (("trace", "{trace}", "--out", "{trace}"), "this is an input file"),
    "no destination": (("otlp-metrics", "{trace}"), "--out, or a collector with --endpoint"),
    "no folder": (("trace", "{trace}", "--out", "/no/folder/trace-a.parquet"), "cannot be written"),
    "no trace": (("trace", "{trace}.gone", "--out", "trace-a.parquet"), "cannot be read"),
}


@pytest.mark.parametrize(("arguments", "why"), WRONG.values(), ids=WRONG)
def test_invalid_arguments_are_a_one_line_error(trace, arguments, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = export(*(each.format(trace=trace) for each in arguments))
    assert found.exit_code == 2
    assert why in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
