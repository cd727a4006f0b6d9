"""Server faults throughout a run: training continues and lost operations are counted."""

import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import paceline_client
import pytest
from paceline_client.recording.buffer import DEFAULT_MAX_OPS, Buffer
from paceline_client.sending.transport import Answer, Transport, Unreachable

from tests.client.conftest import TOKEN
from tests.client.hostile_servers import hostile_server
from tests.client.recorders import WITHIN_S, close_unreachable, recorder

CLIENT = Path(paceline_client.__file__).parents[2]
STEPS, OPS = 40, 10


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING)


def train(run, steps=range(STEPS)):
    """A training loop whose result must not depend on the server."""
    found = 0
    for step in run.data(steps):
        with run.step(step):
            for microbatch in range(OPS):
                with run.op("forward-compute", microbatch=microbatch):
                    found += step * microbatch
    return found


@pytest.fixture
def faulty_url(request):
    """URL of a server with the fault of the test."""
    kind = request.param
    if kind == "stopped":
        yield "http://127.0.0.1:1"  # a closed port
        return
    with hostile_server(kind) as server:
        yield server.url


@pytest.mark.parametrize("faulty_url", ["stopped", "frozen", "nonsense"], indirect=True)
@pytest.mark.parametrize("max_ops", [100_000, 60])
def test_training_is_unchanged_and_every_lost_operation_counted(faulty_url, max_ops):
    run = recorder(faulty_url, max_ops=max_ops)
    assert train(run) == train(paceline_client.NULL)
    assert len(run._buffer.items) <= max_ops
    close_unreachable(run)
    assert run.dropped == STEPS * (OPS + 1)


@pytest.mark.parametrize("faulty_url", ["stopped", "frozen", "nonsense"], indirect=True)
def test_spooled_batches_are_delivered_when_the_server_returns(faulty_url, paceline, tmp_path):
    run = recorder(faulty_url, spool_dir=tmp_path)
    train(run)
    close_unreachable(run)
    assert run.dropped == 0
    again = recorder(paceline.url, spool_dir=tmp_path)
    train(again, [STEPS])
    assert again.flush(WITHIN_S)
    again.close()
    assert sorted(paceline.steps_done) == [(step, OPS + 1) for step in range(STEPS + 1)]


def test_server_that_recovers_during_the_run_gets_every_step(paceline):
    paceline.registrations += [(503, b"", {}), (200, b"<html>", {}), (0, b"\xff", {})]
    paceline.answers += [(500, b"", {}), (200, b"{}", {}), (302, b"", {}), (408, b"", {})]
    run = recorder(paceline.url)
    train(run)
    assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped == 0
    assert paceline.steps_done == [(step, OPS + 1) for step in range(STEPS)]


def test_permanent_refusal_drops_everything_and_warns_once(paceline, caplog):
    paceline.answers += [(403, b'{"code": "forbidden", "detail": "not for you"}', {})] * 1000
    run = recorder(paceline.url)
    train(run)
    assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped_reasons == {"refused by the server": STEPS * (OPS + 1)}
    [warning] = caplog.messages
    assert "403: not for you" in warning


def test_registered_run_that_a_proxy_keeps_refusing_is_told_at_its_end(paceline, caplog):
    run = recorder(paceline.url)
    train(run, [0])
    assert run.flush(WITHIN_S)
    paceline.answers += [(502, b"<html>no server is behind this", {})] * 1000
    train(run, [1])
    run.close(0.2)
    assert run.dropped == OPS + 1
    assert len([each for each in caplog.messages if "cannot be used" in each]) == 1
    assert "answers again" not in caplog.text


def test_batch_that_always_crashes_the_server_is_dropped(paceline):
    paceline.answers += [(500, b"", {})] * 20
    run = recorder(paceline.url)
    train(run, [0])
    assert run.flush(WITHIN_S)
    train(run, [1])
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.steps_done == [(1, OPS + 1)]
    assert [batch.batch_seq for batch in paceline.batches] == [1]  # the server may have seen 0


def test_deeply_nested_json_answer_is_retryable():
    answer = Answer(200, 0.0, b"[" * 100_000)
    assert not answer.is_acceptance
    assert answer.retryable


ENDLESS = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", b"x"),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
]


@pytest.mark.parametrize("answer", ENDLESS, ids=["a byte at a time", "soon"])
def test_endless_answer_is_abandoned(answer):
    with hostile_server(answer) as server:
        transport = Transport(server.url, TOKEN, timeout_s=0.1)
        with pytest.raises(Unreachable):
            transport.request("GET", "/", b"", "text/plain")
        transport.close()


def test_what_a_server_sends_cannot_move_the_cursor_of_a_terminal():
    assert Answer(400, 0.0, b'{"detail": "a\\u001b[2Jb\\nc"}').detail == "400: a?[2Jb?c"
    with hostile_server((b"\x1b[2Jnonsense\r\n", b"x")) as server:
        transport = Transport(server.url, TOKEN, timeout_s=5.0)
        with pytest.raises(Unreachable, match=r"\?\[2Jnonsense"):
            transport.request("GET", "/", b"", "text/plain")
        transport.close()


def test_close_does_not_wait_for_a_frozen_server(monkeypatch):
    patient = partial(Transport, timeout_s=600.0)
    monkeypatch.setattr("paceline_client.startup.Transport", patient)
    with hostile_server("frozen") as server:
        run = recorder(server.url)
        train(run, [0])
        with server.changed:
            assert server.changed.wait_for(lambda: server.num_connections, WITHIN_S)
        close_unreachable(run)
    assert run.dropped == OPS + 1


def test_full_buffer_uses_less_than_64_mib():
    import tracemalloc

    buffer, clock = Buffer(DEFAULT_MAX_OPS // 64, 60.0), 10**18
    tracemalloc.start()
    for number in range(DEFAULT_MAX_OPS // 32):
        op = (number // 1000 + 1000, "gc", clock + number, 10**9 + number, number, 0, 300, None)
        buffer.add(op)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size * 64 < 64 << 20
    assert buffer.dropped == DEFAULT_MAX_OPS // 64


CHILD = """
import os, sys
import paceline_client
run = paceline_client.start(
    "j", sys.argv[1], sys.argv[2], rank=0, dp_rank=0, stage=0, dp_size=1, pp_size=1, run_key="r",
    gc_pauses=False)
with run.step(0), run.op("gc"):
    pass
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        with run.step(1), run.op("gc"):
            pass
        run.step_done(1)
        run.flush(60)
        run.close(60)
        sys.stdout.write(f"{run.is_recording} {run.dropped}")
        sys.exit(0)  # with the exit handlers
    os.waitpid(child, 0)
if "unreferenced" in sys.argv:
    del run  # as when the function that started it returns
"""


def run_child(url, *arguments):
    """Run a training process that exits without closing its recorder."""
    environment = {**os.environ, "PYTHONPATH": str(CLIENT)}
    command = [sys.executable, "-c", CHILD, url, TOKEN, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_batches_left_at_exit_are_delivered_without_a_recorder_reference(paceline):
    run_child(paceline.url, "unreferenced")
    assert paceline.steps_done == [(0, 1)]


@pytest.mark.parametrize("kind", ["frozen", pytest.param("nonsense", marks=pytest.mark.nightly)])
def test_process_exits_despite_a_hostile_server(kind):
    with hostile_server(kind) as server:
        run_child(server.url)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_records_nothing_and_does_not_block(paceline):
    assert run_child(paceline.url, "fork") == "False 0"
    assert paceline.steps_done == [(0, 1)]
    assert len(paceline.ops) == 1
