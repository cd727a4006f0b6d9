"""`paceline replay` against a server that records its requests."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.synth.job import SimulatedJob
from app.trace import ops as ops_module
from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN
from app.trace.readers.published import trace_files
from tests.cli.recording_server import TOKEN, running_server

SIMULATED = SimulatedJob(Parallelism(2, 2, tp_size=2), 3, name="small job")


def recorded(tmp_path):
    path = tmp_path / "trace-small.parquet"
    trace_files.write(SIMULATED.make([4, 5]), SIMULATED.job, path)
    return path


def replay(path, server_url, *more, token=TOKEN):
    arguments = ["replay", str(path), "--speed", "max", "--url", server_url, "--token", token]
    return CliRunner().invoke(app, [*arguments, *more])


def test_a_replay_sends_every_operation_once_and_ends_the_job(tmp_path):
    path = recorded(tmp_path)
    with running_server() as server:
        result = replay(path, server.url)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == f"{server.url}/jobs/small-job"
    assert server.registered["parallelism"]["tp_size"] == 2
    assert (server.registered["name"], server.registered["gpus"]) == ("small job", 8)
    assert server.calls[0] == "PUT /api/v1/jobs/small-job"
    assert server.calls[-1] == "POST /api/v1/jobs/small-job/end"
    assert "op_types" not in server.registered
    assert sent(server) == expected(trace_files.read(path).trace)


def test_replay_registers_the_traces_own_op_types(tmp_path):
    described = [{"name": "moe-all-to-all", "kind": "collective", "axis": "ep", "stream": "moe"}]
    own = ops_module.parse_op_types(described)
    trace = SIMULATED.make([4, 5])
    clip = trace.optype == own.codes["optimizer-clip-main-grad"]
    trace = replace(trace, optype=np.where(clip, own.codes["moe-all-to-all"], trace.optype))
    job = Job.of("small job", replace(SIMULATED.parallelism, ep_size=2), own)
    trace_files.write(trace, job, tmp_path / "trace-own.parquet")
    with running_server() as server:
        result = replay(tmp_path / "trace-own.parquet", server.url)
    assert result.exit_code == 0, result.stderr
    assert server.registered["op_types"] == described
    assert server.registered["parallelism"]["ep_size"] == 2
    assert sent(server, own) == expected(trace, own)
    assert "moe-all-to-all" in {row[3] for row in sent(server, own)}


def sent(server, op_types=BUILT_IN):
    rows = []
    for batch in server.batches:
        ops = batch.columns
        columns = (ops.optype, ops.step, ops.seq_id, ops.mc, ops.mb_id, ops.duration_ns)
        where = (batch.rank, batch.dp_rank, batch.stage)
        for code, *numbers in zip(*(column.tolist() for column in columns), strict=True):
            rows.append((*where, op_types.name(code), *numbers))
    return sorted(rows)


def expected(trace, op_types=BUILT_IN):
    names = ("rank", "dp_rank", "stage", "optype", "step", "seq_id", "mc", "mb_id", "duration_s")
    rows = zip(*(getattr(trace, name).tolist() for name in names), strict=True)
    return sorted((*row[:3], op_types.name(row[3]), *row[4:8], round(row[8] * 1e9)) for row in rows)


def test_every_worker_declares_the_operation_count_of_its_steps(tmp_path):
    path = recorded(tmp_path)
    with running_server() as server:
        replay(path, server.url, "--job", "other", "--keep-open")
    assert not any(call.endswith("/end") for call in server.calls)
    done = {(batch.rank, *step) for batch in server.batches for step in batch.steps_done}
    trace = trace_files.read(path).trace
    assert done == {
        (rank, step, int(((trace.rank == rank) & (trace.step == step)).sum()))
        for rank in (0, 2, 4, 6)
        for step in (4, 5)
    }
    assert {batch.epoch for batch in server.batches} == {7}


@pytest.mark.parametrize(
    ("refuse", "message"),
    [("small-job", "refused job small-job: 422"), ("/ops", "not accepted"), ("/end", "not wanted")],
)
def test_a_refusal_is_one_line_and_exit_status_2(tmp_path, refuse, message):
    with running_server(refuse=refuse) as server:
        result = replay(recorded(tmp_path), server.url)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "it is not wanted" in result.stderr
    assert result.stdout == ""


def test_an_unknown_token_is_refused(tmp_path):
    with running_server() as server:
        result = replay(recorded(tmp_path), server.url, token="pl_another-one-entirely")
    assert (result.exit_code, "this token is not known" in result.stderr) == (2, True)


def test_unreachable_server_is_reported(tmp_path):
    with running_server() as server:
        url = server.url
    result = replay(recorded(tmp_path), url)
    assert result.exit_code == 2
    assert "does not answer" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speed", "-1"], "--speed -1"),
        (["--speed", "fast"], "--speed fast"),
        (["--speed", "nan"], "--speed nan"),
        (["--url", "localhost:8642"], "want an address"),
    ],
)
def test_invalid_options_are_refused(tmp_path, arguments, message):
    result = CliRunner().invoke(
        app, ["replay", str(recorded(tmp_path)), "--token", TOKEN, *arguments]
    )
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_data_directorys_token_is_used(tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    environment = {"PACELINE_DATA_DIR": str(tmp_path), "PACELINE_TOKEN": None}
    arguments = ["replay", str(recorded(tmp_path)), "--speed", "max"]
    with running_server() as server:
        result = CliRunner().invoke(app, [*arguments, "--url", server.url], env=environment)
    assert result.exit_code == 0, result.stderr
