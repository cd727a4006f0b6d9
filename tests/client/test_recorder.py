"""Delivery by the recorder: registration, retries, refusals; training is never disturbed."""

import json
import logging
import socket
import threading
import time
from typing import Any

import pytest
from paceline_client import Refused, Unreachable, end_job, register
from paceline_client.sending.sender import Backoff

from app.trace import ops
from app.trace.ops import FIRST_USER_CODE, OP_CODES
from tests.client.conftest import TOKEN
from tests.client.hostile_servers import endless_lookups
from tests.client.recorders import WITHIN_S, close_unreachable, recorder

GC, OPTIMIZER, FORWARD = (OP_CODES[name] for name in ("gc", "optimizer", "forward-compute"))


@pytest.fixture
def unused_url():
    """URL of a port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_recorded_step_arrives_whole(paceline):
    run = recorder(paceline.url)
    with run.step(7):
        for microbatch in range(2):
            with run.op("forward-compute", microbatch=microbatch, chunk=1):
                pass
        with run.op("optimizer"):
            pass
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.ops == [(7, FORWARD, 0), (7, FORWARD, 1), (7, OPTIMIZER, 0)]
    assert paceline.steps_done == [(7, 3)]
    batch = paceline.batches[0]
    assert (batch.epoch, batch.rank, batch.dp_rank, batch.stage) == (3, 3, 1, 1)
    assert (batch.host, batch.batch_seq) == ("node-1", 0)
    mb_ids = [mb_id for batch in paceline.batches for mb_id in batch.columns.mb_id.tolist()]
    assert mb_ids == [0, 1, -1]
    assert run.dropped == 0


def test_attributes_of_operations_are_delivered(paceline):
    run = recorder(paceline.url)
    with run.step(7):
        with run.op("forward-compute", microbatch=0, tokens=4096, seq_len_sq=2**40):
            pass
        run.end(run.begin("gc", bytes=1), bytes=2)
        run.record("forward-compute", 7, 100, 5, tokens=1024)
        with run.op("optimizer") as op:
            op.tell(sm_clock_mhz=1410.0, temperature_c=71)
    assert run.flush(WITHIN_S)
    run.close()
    columns = paceline.batches[0].columns
    assert columns.tokens.tolist() == [4096, -1, 1024, -1]
    assert columns.seq_len_sq.tolist() == [2**40, -1, -1, -1]
    assert columns.bytes.tolist() == [-1, 2, -1, -1]
    assert columns.sm_clock_mhz.tolist() == [-1, -1, -1, 1410]
    assert columns.temperature_c.tolist() == [-1, -1, -1, 71]


def test_invalid_attributes_are_dropped_and_operations_kept(paceline):
    run = recorder(paceline.url)
    with run.step(7):
        with run.op("optimizer") as op:
            op.tell(sm_clock_mhz=None, temperature_c=float("nan"), tokens=-5, colour=3)
        with run.op("gc", bytes=2**60):
            pass
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.ops == [(7, OPTIMIZER, 0), (7, GC, 0)]
    columns = paceline.batches[0].columns
    attributes = (columns.sm_clock_mhz, columns.temperature_c, columns.tokens, columns.bytes)
    assert attributes == (None, None, None, None)


def test_the_run_is_registered_in_the_background(paceline):
    run = recorder(paceline.url, name="My job", gpus=8, labels={"team": "a"})
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    run.close()
    [(path, body)] = paceline.puts
    assert path == "/api/v1/jobs/my%20job"
    assert body == {
        "name": "My job",
        "gpus": 8,
        "labels": {"team": "a"},
        "run_key": "run-1",
        "parallelism": {
            "dp_size": 2,
            "pp_size": 2,
            "tp_size": 1,
            "vpp_size": 2,
            "dsp_size": 1,
            "ep_size": 1,
        },
    }


def test_custom_op_types_and_ep_size_are_registered(paceline):
    own = [{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}]
    paceline.op_types = ops.parse_op_types(own)
    run = recorder(paceline.url, op_types=own, ep_size=2)
    with run.step(0), run.op("moe-all-to-all"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    sizes: dict[str, Any] = {"dp_size": 2, "pp_size": 2, "ep_size": 2}
    assert register(paceline.url, TOKEN, "j", **sizes, run_key="r", op_types=own) == 3
    assert [body["op_types"] for _, body in paceline.puts] == [own, own]
    assert [body["parallelism"]["ep_size"] for _, body in paceline.puts] == [2, 2]
    assert paceline.ops == [(0, FIRST_USER_CODE, 0)]


@pytest.mark.parametrize(
    "own",
    [[1], [{"name": object()}], iter(())],
    ids=["a number", "an object", "an iterator"],
)
def test_invalid_op_type_descriptions_raise_nothing_in_training(paceline, own, caplog):
    paceline.registrations.append((422, b'{"detail": "op_types[0] is no set of fields"}', {}))
    run = recorder(paceline.url, op_types=own)
    with run.step(0), run.op("moe-all-to-all"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.batches == []
    assert run.dropped == 1
    [record] = caplog.records
    assert "cannot be registered" in record.getMessage() or "stopped" in record.getMessage()


def test_replayed_operations_keep_their_times_under_a_given_epoch(paceline):
    run = recorder(paceline.url, epoch=9)
    run.record("gc", 2, 10**18, 5, seq_id=4, mc=1, mb_id=2)
    run.step_done(2)
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.puts == []
    [batch] = paceline.batches
    columns = batch.columns
    assert (batch.epoch, columns.start_ns.tolist(), columns.seq_id.tolist()) == (9, [10**18], [4])


def test_times_are_wall_clock_times(paceline):
    run = recorder(paceline.url)
    before_ns = time.time_ns()
    handle = run.begin("gc", step=0)
    run.end(handle)
    assert run.flush(WITHIN_S)
    run.close()
    columns = paceline.batches[0].columns
    assert abs(columns.start_ns[0] - before_ns) < 10**9
    assert 0 <= columns.duration_ns[0] < 10**9


def test_operations_are_numbered_by_their_start(paceline):
    run = recorder(paceline.url)
    outer = run.begin("gc", step=0)
    inner = run.begin("gc", step=0)
    run.end(inner)
    run.end(outer)
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.ops == [(0, GC, 1), (0, GC, 0)]


def test_training_errors_propagate_and_leave_the_step_incomplete(paceline):
    run = recorder(paceline.url)
    with pytest.raises(RuntimeError, match="of training"), run.step(0), run.op("gc"):
        raise RuntimeError("of training")
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.ops == [(0, GC, 0)]
    assert paceline.steps_done == []


def test_invalid_arguments_do_not_raise(paceline, caplog):
    run = recorder(paceline.url)
    run.end(None)
    run.record("gc", "no step", None, 1.5, seq_id="x")
    run.record(None, 1, 1, 1)
    run.step_done([])
    run.record("gc", 5, 1, 1)
    run.flush(WITHIN_S)
    run.record("gc", 6, 1, 1)
    run.step_done(6)
    assert run.flush(WITHIN_S)
    run.close()
    assert (6, 1) in paceline.steps_done
    assert run.dropped >= 2


def test_batch_is_retried_unchanged_until_accepted(paceline):
    paceline.answers += [
        (503, b"{}", {"Retry-After": "0"}),
        (429, b"", {}),
        (0, b"garbage\r\n\r\n", {}),
        (502, b"<html>", {}),
    ]
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    run.step_done(0)
    assert run.flush(WITHIN_S)
    run.record("gc", 1, 1, 1)
    assert run.flush(WITHIN_S)
    run.close()
    assert len(set(paceline.posted[:5])) == 1
    assert [batch.batch_seq for batch in paceline.batches] == [0, 1]
    assert run.dropped == 0


def test_registration_is_retried_after_an_invalid_epoch(paceline):
    nonsense = [b"[1]", b"<html>", b'{"epoch": true}', b'{"epoch": "3"}', b""]
    paceline.registrations += [(503, b"", {}), (0, b"\x00\xff", {})]
    paceline.registrations += [(200, body, {}) for body in nonsense]
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)  # accepted by the first valid answer
    run.close()
    assert len(paceline.puts) == 8
    assert [batch.epoch for batch in paceline.batches] == [3]


def test_refused_registration_stops_recording(paceline, caplog):
    refusal = b'{"code": "unauthorized", "detail": "no such token"}'
    paceline.registrations.append((401, refusal, {}))
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    run.record("gc", 0, 2, 1)  # lost whether recorded before or after the refusal
    run.close()
    run.record("gc", 0, 3, 1)
    assert paceline.posted == []
    assert run.dropped_reasons == {"refused by the server": 3}
    assert "cannot be registered, so nothing is recorded: 401: no such token" in caplog.text


def test_error_answers_of_a_proxy_are_retried(paceline):
    paceline.registrations += [(404, b"<html>no backend", {}), (403, b"{}", {})]
    paceline.answers += [(404, b"<html>no backend", {}), (401, b"", {})]
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped == 0
    assert len(paceline.puts) == 3
    assert [batch.batch_seq for batch in paceline.batches] == [0]


UNKNOWN: Any = (404, b'{"code": "job_not_found"}', {})


@pytest.mark.parametrize(("status", "seq", "steps"), [(201, 0, [0, 1]), (200, 1, [0, 1, 2])])
def test_removed_job_is_registered_again(paceline, status, seq, steps):
    plan = {"version": 1, "from_step": 9, "enabled": False, "every": 1, "steps": 1}
    paceline.recording = plan
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    paceline.answers.append(UNKNOWN)
    plans_begin_anew = {**plan, "from_step": 2}
    answer = {"epoch": 4, "accepts": [], "recording": plans_begin_anew}
    paceline.registrations.append((status, json.dumps(answer).encode(), {}))
    for step in (1, 2):
        run.record("gc", step, 1, 1)
        assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped == 0
    assert [step for step, _, _ in paceline.ops] == steps
    # A new run has no known batch numbers; those of an existing run may be known.
    assert [(batch.epoch, batch.batch_seq) for batch in paceline.batches][:2] == [(3, 0), (4, seq)]


def test_batches_for_a_job_missing_after_reregistration_are_dropped(paceline):
    paceline.answers += [UNKNOWN] * 3
    run = recorder(paceline.url)
    for step in range(3):
        run.record("gc", step, 1, 1)
        assert run.flush(WITHIN_S)
    run.close()
    assert len(paceline.puts) == 2
    assert run.dropped_reasons == {"refused by the server": 2}
    assert [batch.batch_seq for batch in paceline.batches] == [0]


def test_older_server_gets_unpacked_batches_after_415(paceline):
    paceline.accepts = ["packed", "dropped"]
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    paceline.accepts = []
    paceline.answers.append((415, b'{"code": "unsupported_encoding"}', {}))
    for step in (1, 2):
        run.record("gc", step, 1, 1)
        assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped == 0
    assert [body[:2] == b"\x1f\x8b" for body in paceline.posted] == [True, True, False, False]
    assert [batch.batch_seq for batch in paceline.batches] == [0, 1, 2]
    assert len(paceline.puts) == 2


def test_batch_refused_both_packed_and_plain_is_dropped(paceline):
    paceline.accepts = ["packed"]
    paceline.answers += [(422, b"{}", {})] * 2
    run = recorder(paceline.url)
    for step in (0, 1):
        run.record("gc", step, 1, 1)
        assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped_reasons == {"refused by the server": 1}
    assert [batch.batch_seq for batch in paceline.batches] == [0]
    assert len(paceline.puts) == 1


def test_refused_batch_is_dropped_and_its_step_stays_incomplete(paceline, caplog):
    paceline.answers += [(422, b'{"detail": "no"}', {})] * 2
    run = recorder(paceline.url)
    for _ in range(2):
        run.record("gc", 0, 1, 1)
        assert run.flush(WITHIN_S)
    run.record("gc", 0, 1, 1)
    run.step_done(0)
    run.record("gc", 1, 1, 1)
    run.step_done(1)
    assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped == 2
    assert paceline.steps_done == [(1, 1)]
    assert paceline.batches[0].batch_seq == 0  # a refused batch leaves no gap
    assert len(caplog.records) == 1
    assert "422: no" in caplog.text


def test_batch_number_possibly_seen_by_the_server_is_not_reused(paceline):
    paceline.answers += [(0, b"", {}), (401, b'{"code": "unauthorized"}', {})]
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    run.record("gc", 1, 1, 1)
    assert run.flush(WITHIN_S)
    run.close()
    assert [batch.batch_seq for batch in paceline.batches] == [1]


def test_a_superseded_run_sends_nothing_more(paceline):
    paceline.answers.append((409, b'{"code": "epoch_superseded"}', {}))
    run = recorder(paceline.url)
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    run.record("gc", 1, 1, 1)
    run.step_done(1)
    assert run.flush(WITHIN_S)
    run.close()
    assert len(paceline.posted) == 1
    assert run.dropped == 2


def test_rejected_operations_are_counted_and_logged_once(paceline, caplog):
    said = {"accepted": 1, "errors": [{"message": "unknown op type"}]}
    for rejected in (1, 10**30, True):  # at most the number sent is counted
        body = json.dumps({**said, "rejected": rejected}).encode()
        paceline.answers.append((202, body, {}))
    run = recorder(paceline.url)
    for step in range(4):
        run.record("gc", step, 1, 1)
        assert run.flush(WITHIN_S)
    run.close()
    assert run.dropped == 2
    assert len(paceline.batches) == 4
    assert [record.message.count("unknown op type") for record in caplog.records] == [1]


def test_unreachable_server_does_not_slow_training(unused_url):
    run = recorder(unused_url, max_ops=100)
    began_s = time.monotonic()
    for step in range(100):
        with run.step(step), run.op("gc"):
            pass
    assert time.monotonic() - began_s < 5.0
    assert not run.flush(0.01)
    close_unreachable(run)
    assert run.dropped == 100


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[", "http://host:port", "x y"])
def test_invalid_server_address_is_logged_and_raises_nothing(url, caplog):
    run = recorder(url)
    run.record("gc", 0, 1, 1)
    run.close(5)
    run.record("gc", 1, 1, 1)
    assert run.dropped == 2
    assert "stopped" in caplog.text


def test_register_raises_the_reason(paceline, unused_url):
    paceline.registrations.append((422, b'{"detail": "dp_size is 0"}', {}))
    with pytest.raises(Refused, match="422: dp_size is 0"):
        register(paceline.url, TOKEN, "j", dp_size=0, pp_size=1, run_key="r")
    with pytest.raises(Unreachable):
        register(unused_url, TOKEN, "j", dp_size=1, pp_size=1, run_key="r")


@pytest.mark.parametrize("fault", ["away", "refused", "no-address", "bad-token"])
def test_end_job_warns_once_and_returns_whatever_happens(paceline, unused_url, caplog, fault):
    url, token = (unused_url if fault == "away" else paceline.url), TOKEN
    if fault == "refused":
        paceline.end_answers.append((401, b'{"code": "unauthorized", "detail": "who?"}', {}))
    if fault == "no-address":
        url = "nonsense"
    if fault == "bad-token":
        token = "line\nbreak"
    began_s = time.monotonic()
    assert end_job(url, token, "j", timeout_s=0.1) is False
    assert time.monotonic() - began_s < WITHIN_S
    [record] = caplog.records
    assert "the end of job 'j' could not be reported" in record.getMessage()
    assert ("PACELINE_TOKEN" in record.getMessage()) == (fault == "refused")


def test_end_job_does_not_wait_for_a_name_that_takes_for_ever(monkeypatch, caplog):
    with endless_lookups(monkeypatch) as is_asked:
        assert end_job("http://nowhere", TOKEN, "j", timeout_s=0.1) is False
        assert is_asked.is_set()
    [record] = caplog.records
    assert "no answer within 0.1 s" in record.getMessage()


def test_end_job_posts_to_the_escaped_job_path(paceline):
    assert end_job(paceline.url + "/", TOKEN, "j/1") is True
    assert paceline.ended == ["/api/v1/jobs/j%2F1/end"]


def test_sender_with_a_failing_chore_stops_without_blocking_flush(paceline, caplog):
    def failing_chore():
        raise RuntimeError("of a kind that nobody thought of")

    run = recorder(paceline.url)
    run._sender._chores = [failing_chore]
    run.record("gc", 0, 1, 1)
    assert run.flush(WITHIN_S)
    run._sender.join(WITHIN_S)
    run.close()
    assert run.dropped_reasons == {"not delivered before the end": 1}
    assert "stopped: RuntimeError" in caplog.text


def test_close_ends_every_sender_thread(paceline):
    others = set(threading.enumerate())
    runs = [recorder(paceline.url) for _ in range(100)]
    paceline.wait_for(lambda: len(paceline.puts) == 100, WITHIN_S)
    senders = [each for each in threading.enumerate() if each.name == "paceline-sender"]
    senders = [each for each in senders if each not in others]
    assert len(senders) == 100
    for run in runs:
        run.close()
    for sender in senders:
        sender.join(10.0)
    assert not any(sender.is_alive() for sender in senders)


def test_backoff_grows_and_honours_the_server_minimum():
    backoff = Backoff(0.5, 30.0)
    delays_s = [backoff.next_s() for _ in range(40)]
    assert all(0.0 <= delay_s <= 30.0 for delay_s in delays_s)
    assert delays_s[0] <= 0.5
    assert max(delays_s) > 5.0
    assert backoff.next_s(at_least_s=99.0) == 99.0


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING)
