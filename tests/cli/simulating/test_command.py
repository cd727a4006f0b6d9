"""`paceline simulate`."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.main import get_group
from typer.testing import CliRunner

from app.cli import app
from app.cli.ingest_client import IngestClient
from app.cli.pushing import WallClock
from app.cli.simulating.job import fault_example, fault_settings, parse_fault
from app.cli.simulating.output import push_runs
from app.errors import InvalidRequest
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import AllocatorStalls, DataLoading, GcPauses
from app.synth.faults.registry import FAULTS
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import EVENTS, Resize, Restart, SimulatedJob, SimulatedRun, simulated_runs
from app.synth.straggler_law import TAILS
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from tests.cli.recording_server import TOKEN, running_server

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()
SMALL = ("--dp", "2", "--pp", "2", "--microbatches", "2", "--steps", "4")


def simulate(*options, **environment):
    return CliRunner().invoke(app, ["simulate", *map(str, options)], env=environment)


def write_trace(tmp_path, *options):
    path = tmp_path / "trace-a.parquet"
    result = simulate(*SMALL, *options, "--out", path)
    assert result.exit_code == 0, result.stderr
    return path


def read_truth(tmp_path, name="a"):
    return json.loads((tmp_path / f"truth-{name}.json").read_text())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow-worker:dp=3,stage=1,factor=1.6", SlowWorker(3, 1, 1.6)),
        (
            "slow-worker:dp=3,stage=1,factor=1.6,from=20,for=5",
            SlowWorker(3, 1, 1.6, when=FaultSteps(20, 5)),
        ),
        ("gc-pauses", GcPauses()),
        ("gc-pauses:sent,rate=0.1", GcPauses(0.1, is_sent=True)),
        ("gc-pauses:sent=no,workers=all", GcPauses()),
        ("allocator-stalls:workers=1/0+2/3", AllocatorStalls(((1, 0), (2, 3)))),
        ("data-loading:host=all", DataLoading()),
        ("data-loading:host=host-001,delay-s=0.5", DataLoading("host-001", 0.5)),
        ("restart:at=20,lost-steps=4", Restart(20, 4)),
        ("resize:at=20,dp=4", Resize(20, dp_size=4)),
    ],
)
def test_fault_option_is_parsed(text, fault):
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow", "no fault 'slow': did you mean slow-nic? --list-faults shows all"),
        ("slow-wroker:dp=1", "did you mean slow-worker?"),
        ("x", "there is no fault 'x': --list-faults shows all"),
        ("slow-worker:dp=1,dp=2,stage=0,factor=2", "dp is given twice"),
        ("gc-pauses:from=1,from=2", "from is given twice"),
        ("slow-worker:dp=1,stage=0,factor=1.0", "a factor of 1 changes nothing"),
        ("long-last-stage:forward=1,backward=1", "a factor of 1 changes nothing"),
        ("planned-gc:every-steps=0", "every-steps is 0"),
        ("planned-gc:sent", "leave out sent, or give in-forward"),
        ("slow-worker:dp=1,stage=0", "factor is missing, a number, as in --fault slow-worker:dp=3"),
        ("slow-worker:dp=x,stage=0,factor=2", "dp is 'x': want a whole number"),
        ("slow-worker:dp=1,stage=0,factor=fast", "factor is 'fast': want a number"),
        ("slow-worker:dp=1,stage=0,factor=nan", "above 0"),
        ("slow-worker:dp=1,stage=0,factor=2,speed=3", "there is no 'speed', only dp, stage, "),
        ("slow-worker:dp=1,stage=0,factor=2,from=-1", "from step -1"),
        ("gc-pauses:sent=perhaps", "sent is 'perhaps': want yes or no"),
        ("gc-pauses:workers=1", "workers is '1': want workers as DP/STAGE"),
        ("restart:at=2,from=3", "there is no 'from', only at, lost-steps"),
    ],
)
def test_invalid_fault_is_refused_with_a_hint(text, message):
    with pytest.raises(InvalidRequest, match=f"--fault {text.split(':')[0]}") as refusal:
        parse_fault(text)
    assert message in str(refusal.value)


def test_every_fault_is_listed_with_its_keys():
    listed = simulate("--list-faults").stdout
    for name, kind in (FAULTS | EVENTS).items():
        assert f"\n{name} (cause: " in f"\n{listed}"
        parse_fault(fault_example(kind).split(" ", 1)[1])
        for setting in fault_settings(kind):
            assert f"{setting.key}=" in listed


def test_docs_name_exactly_the_existing_options():
    known = {
        option
        for parameter in get_group(app).commands["simulate"].params
        for option in parameter.opts
        if option not in ("-h", "--help")
    }
    assert set(re.findall(r"`(?:paceline simulate )?(--[a-z-]+)", PAGE)) == known


def test_truth_file_is_written_beside_the_trace(tmp_path):
    path = write_trace(tmp_path, "--fault", "slow-worker:dp=1,stage=0,factor=2,from=2")
    (fault,) = read_truth(tmp_path)["faults"]
    assert (fault["cause"], fault["first_step"]) == ("slow-worker", 2)
    assert fault["culprits"] == [{"dp_rank": 1, "stage": 0, "host": "host-000"}]
    assert fault["cost_while_it_lasts"] > fault["cost"] > 0.05
    window = trace_files.read(path)
    starts, ends = np.full(4, np.inf), np.zeros(4)
    np.minimum.at(starts, window.trace.step, window.trace.start_s)
    np.maximum.at(ends, window.trace.step, window.trace.start_s + window.trace.duration_s)
    assert starts.tolist() == [0.0] * 4
    np.testing.assert_allclose(read_truth(tmp_path)["step_time_s"], ends - starts, atol=1e-8)


def test_trace_has_the_requested_shape_and_sampled_steps(tmp_path):
    path = tmp_path / "trace-a.parquet"
    sizes = ("--dp", "2", "--pp", "2", "--tp", "4", "--chunks", "2", "--microbatches", "4")
    result = simulate(*sizes, "--steps", "5", "--sampled", "2/10", "--out", path)
    assert result.exit_code == 0, result.stderr
    window = trace_files.read(path)
    assert window.job.parallelism == Parallelism(2, 2, tp_size=4, vpp_size=2)
    assert window.steps == (0, 1, 10, 11, 20)
    assert set(np.unique(window.trace.mc)) == {-1, 0, 1}


def test_zero_bubble_schedule_has_backward_weight_operations(tmp_path):
    path = write_trace(tmp_path, "--schedule", "zero-bubble")
    assert "backward-weight-compute" in set(pq.read_table(path)["optype"].to_pylist())


def test_a_larger_model_takes_longer(tmp_path):
    seconds = []
    for layers in ("8", "16"):
        write_trace(tmp_path, "--layers", layers, "--hidden", "1024", "--seq-len", "2048")
        seconds.append(read_truth(tmp_path)["step_time_s"][0])
    assert 1.3 < seconds[1] / seconds[0] < 2.0


def test_stage_with_more_layers_takes_longer(tmp_path):
    path = write_trace(tmp_path, "--layers", "12,4", "--noise", "0")
    trace = trace_files.read(path).trace
    forward_s = [
        trace.duration_s[(trace.optype == 0) & (trace.stage == stage)].mean() for stage in (0, 1)
    ]
    assert forward_s[0] > 1.5 * forward_s[1]


def test_first_and_checkpoint_steps_are_longer(tmp_path):
    write_trace(tmp_path, "--first-steps", "1", "--checkpoint-every", "3")
    first, one, two, saved = read_truth(tmp_path)["step_time_s"]
    assert first > 2 * one
    assert saved > two + 0.9


def test_restarted_job_writes_a_file_for_each_run(tmp_path):
    write_trace(tmp_path, "--fault", "restart:at=3,lost-steps=1", "--fault", "gc-pauses:rate=1")
    assert trace_files.read(tmp_path / "trace-a.parquet").steps == (0, 1, 2)
    assert trace_files.read(tmp_path / "trace-a-2.parquet").steps == (2, 3)
    assert [read_truth(tmp_path, name)["epoch"] for name in ("a", "a-2")] == [1, 2]


def test_resized_job_continues_with_the_new_number_of_replicas(tmp_path):
    write_trace(tmp_path, "--fault", "resize:at=2,dp=1")
    window = trace_files.read(tmp_path / "trace-a-2.parquet")
    assert (window.job.parallelism.dp_size, window.steps) == (1, (2, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "either --out FILE.parquet or --to URL"),
        (["--out", "a.parquet", "--to", "http://127.0.0.1:1"], "either --out"),
        (["--out", "a.parquet", "--json", "-"], "needs --straggler-study"),
        (["--out", "a.parquet", "--pace", "2"], "--pace needs --to"),
        (["--out", "a.parquet", "--token", "t"], "--token needs --to"),
        (["--out", "a.parquet", "--job", "j"], "--job needs --to"),
        (["--out", "a.parquet", "--list-faults"], "--out has no effect with --list-faults"),
        (["--out", "a.parquet", "--straggler-study"], "--out has no effect with --straggler-s"),
        (["--out", "a.csv"], "--out a.csv: name a FILE.parquet"),
        (["--out", "-"], "--out -: name a FILE.parquet"),
        (["--out", ".parquet"], "name a FILE.parquet"),
        (["--out", "a.parquet", "--steps", "100000000"], "more than 100,000,000"),
        (["--out", "a.parquet", "--schedule", "best"], "want gpipe, 1f1b, "),
        (["--out", "a.parquet", "--schedule", "1f1b", "--chunks", "2"], "choose interleaved"),
        (["--out", "a.parquet", "--tail", "long"], "want log-normal, "),
        (["--out", "a.parquet", "--sampled", "40"], "RECORDED/EVERY"),
        (["--out", "a.parquet", "--sampled", "50/40"], "50 of every 40"),
        (["--out", "a.parquet", "--layers", "many"], "--layers many"),
        (["--out", "a.parquet", "--layers", "9,9,9"], "3 chunks, the job has 4"),
        (["--out", "a.parquet", "--seq-len", "1000000000"], "smaller model"),
        (["--out", "a.parquet", "--fault", "slow-stage:stage=9,factor=2"], "stage 9"),
        (
            ["--out", "a.parquet", "--fault", "gc-pauses", "--fault", "slow-host:host=h,factor=2"],
            "--fault slow-host:host=h,factor=2: the fault is on h; ",
        ),
        (
            ["--out", "a.parquet", "--steps", "9", "--fault", "gc-pauses:from=9"],
            "--fault gc-pauses:from=9: it starts after the last step 8",
        ),
        (
            [
                *("--out", "a.parquet", "--fault", "resize:at=4,dp=2"),
                *("--fault", "slow-worker:dp=2,stage=0,factor=2"),
            ],
            "--fault slow-worker:dp=2,stage=0,factor=2: the fault is on dp rank 2; ",
        ),
        (["--out", "a.parquet", "--fault", "restart:at=99"], "restart at step 99"),
        (["--out", "a.parquet", "--fault", "restart:at=0"], "restart at step 0"),
        (["--to", "localhost"], "--to localhost: want an address"),
        (["--to", "http://[::1"], "--to http://[::1: want an address"),
        (["--to", "http://localhost:99999"], "want an address"),
        (["--to", "http://127.0.0.1:1", "--job", "a b"], "--job 'a b': want "),
        (["--to", "http://127.0.0.1:1", "--job", "a\x1b"], "--job 'a\\x1b': want "),
        (["--to", "http://127.0.0.1:1", "--dp", "1", "--pp", "1"], "another with --to"),
        (["--to", "http://127.0.0.1:1", "--pace", "slow"], "--pace slow"),
        (["--to", "http://127.0.0.1:1", "--dp", "2000", "--steps", "1"], "8,000 workers"),
    ],
)
def test_invalid_options_are_refused_in_one_line(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    result = simulate(*options, PACELINE_TOKEN=TOKEN)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_the_address_is_refused_and_not_repeated():
    result = simulate("--to", "http://user:secret@localhost:1", PACELINE_TOKEN=TOKEN)
    assert result.exit_code == 2
    assert "--to: the address has a user or a password in it" in result.stderr
    assert "secret" not in result.stderr


def test_a_token_in_the_environment_does_not_forbid_a_file(tmp_path):
    result = simulate(*SMALL, "--out", tmp_path / "a.parquet", PACELINE_TOKEN=TOKEN)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("columns", ["40", "80"])
def test_study_table_is_complete_at_any_terminal_width(columns):
    lines = simulate("--straggler-study", COLUMNS=columns).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "100,000" in lines[-1]
    assert len(lines[-1].split()) == 1 + len(TAILS)


def push_simulated(server, *options):
    sizes = ("--dp", "2", "--pp", "2", "--microbatches", "2", "--steps", "20")
    return simulate(
        *sizes, "--to", server.url, "--token", TOKEN, "--pace", "max", "--job", "j", *options
    )


def rows(batches):
    names = ("step", "optype", "seq_id", "mc", "mb_id", "duration_ns")
    for batch in batches:
        columns = (getattr(batch.columns, name).tolist() for name in names)
        for row in zip(*columns, strict=True):
            yield (batch.dp_rank, batch.stage, *row)


def test_pushed_operations_equal_those_of_the_written_trace(tmp_path):
    with running_server(sizes=Parallelism(2, 2)) as server:
        result = push_simulated(server, "--fault", "slow-worker:dp=1,stage=0,factor=2")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == f"{server.url}/jobs/j"
    assert server.calls[-1] == "POST /api/v1/jobs/j/end"
    path = write_trace(tmp_path, "--fault", "slow-worker:dp=1,stage=0,factor=2", "--steps", "20")
    trace = trace_files.read(path).trace
    names = ("dp_rank", "stage", "step", "optype", "seq_id", "mc", "mb_id")
    wanted = zip(
        *(getattr(trace, name).tolist() for name in names),
        np.rint(trace.duration_s * 1e9).astype(int).tolist(),
        strict=True,
    )
    assert sorted(rows(server.batches)) == sorted(wanted)
    assert {batch.host for batch in server.batches} == {"host-000"}
    done = [step for batch in server.batches for step, _ in batch.steps_done]
    assert sorted(done) == sorted(4 * list(range(20)))


class ManualClock(WallClock):
    """A clock that advances only in `wait`."""

    def __init__(self):
        self.passed_s = 0.0

    def now_s(self):
        return 50.0 + self.passed_s

    def wait(self, seconds):
        self.passed_s += seconds


def pushed_steps(server):
    """{step: start of its first and end of its last operation, in nanoseconds}"""
    spans: dict[int, tuple[int, int]] = {}
    for batch in server.batches:
        columns = batch.columns
        for step in np.unique(columns.step).tolist():
            start_ns = columns.start_ns[columns.step == step]
            end_ns = start_ns + columns.duration_ns[columns.step == step]
            first, last = spans.get(step, (math.inf, 0))
            spans[step] = min(first, start_ns.min()), max(last, end_ns.max())
    return spans


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_steps_are_pushed_back_to_back_at_the_requested_pace(speed):
    simulated, steps = SimulatedJob(Parallelism(2, 2), 2), tuple(range(40))
    clock = ManualClock()
    with running_server(sizes=Parallelism(2, 2)) as server:
        push_runs(
            [SimulatedRun(1, simulated, steps)], IngestClient(server.url, TOKEN, "j"), speed, clock
        )
    spans = pushed_steps(server)
    assert sorted(spans) == list(steps)
    for step in steps[1:]:
        between_s = (spans[step][0] - spans[step - 1][1]) * 1e-9
        assert 0 <= between_s < 0.01
    length_s = simulated.record(steps).ended_s
    assert clock.passed_s == pytest.approx(length_s / speed, abs=0.2)


def test_unrecorded_steps_still_take_their_time():
    simulated = SimulatedJob(Parallelism(2, 2), 2)
    with running_server(sizes=Parallelism(2, 2)) as server:
        attempts = simulated_runs(simulated, [*range(16), *range(100, 104)], [])
        push_runs(attempts, IngestClient(server.url, TOKEN, "j"), math.inf, ManualClock())
    spans = pushed_steps(server)
    step_ns = spans[15][1] - spans[15][0]
    assert spans[100][0] - spans[15][1] == pytest.approx(84 * step_ns, rel=0.2)


def test_silent_worker_pushes_nothing_from_its_first_silent_step(tmp_path):
    with running_server(sizes=Parallelism(2, 2)) as server:
        result = push_simulated(server, "--fault", "silent-worker:dp=1,stage=1,from=4")
    assert result.exit_code == 0, result.stderr
    silent_steps = {row[2] for row in rows(server.batches) if row[:2] == (1, 1)}
    assert silent_steps == set(range(4))


def test_each_run_of_a_restarted_job_has_its_own_epoch():
    with running_server(sizes=Parallelism(2, 2)) as server:
        result = push_simulated(server, "--fault", "restart:at=10,lost-steps=2")
    assert result.exit_code == 0, result.stderr
    steps = {
        epoch: {row[2] for row in rows(b for b in server.batches if b.epoch == epoch)}
        for epoch in (7, 8)
    }
    assert steps == {7: set(range(10)), 8: set(range(8, 20))}


def test_hosts_with_clock_offsets_push_their_own_times():
    with running_server(sizes=Parallelism(2, 2)) as server:
        result = push_simulated(server, "--gpus-per-host", "2", "--clock-offset", "5")
    assert result.exit_code == 0, result.stderr
    first_ns: dict[str, float] = {}
    for batch in server.batches:
        seen = first_ns.get(batch.host, math.inf)
        first_ns[batch.host] = min(seen, int(batch.columns.start_ns.min()))
    assert set(first_ns) == {"host-000", "host-001"}
    assert 0.1e9 < abs(first_ns["host-000"] - first_ns["host-001"]) < 10.1e9


def test_server_refusal_is_reported_with_exit_status_2():
    with running_server(refuse="/ops", sizes=Parallelism(2, 2)) as server:
        result = push_simulated(server)
    assert result.exit_code == 2
    assert "it is not wanted" in result.stderr


def test_study_is_written_as_json_and_as_a_chart(tmp_path):
    chart = tmp_path / "law.html"
    result = simulate("--straggler-study", "--json", "-", "--chart", chart)
    found = json.loads(result.stdout)
    assert found["workers"][0] == 8
    assert found["workers"][-1] == 100_000
    assert {len(tail["efficiency"]) for tail in found["tails"]} == {len(found["workers"])}
    page = chart.read_text()
    assert "Plotly.newPlot" in page
    assert '<meta name="viewport"' in page
    assert "Of the time of 100,000 workers" in page
