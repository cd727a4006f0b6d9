"""When a batch is due, and which operations a full buffer drops."""

from types import SimpleNamespace

import pytest
from paceline_client.recording import buffer as buffer_module
from paceline_client.recording.buffer import (
    GPU_POLL_EVERY_S,
    MAX_ROWS,
    STEPS_DONE_EVERY_S,
    Buffer,
)

from tests.client.recorders import WITHIN_S, recorder


def test_batches_are_sent_during_a_long_step(paceline):
    run = recorder(paceline.url, flush_interval_s=0.01)
    run.record("gc", 0, 1, 1)
    paceline.wait_for(lambda: len(paceline.batches) == 1, WITHIN_S)
    run.record("gc", 0, 2, 1)
    paceline.wait_for(lambda: len(paceline.batches) == 2, WITHIN_S)
    run.close()


def test_flush_sends_operations_recorded_during_its_request(paceline):
    post = paceline.post

    def post_while_training_goes_on(*request):
        paceline.post = post
        run.record("gc", 1, 2, 1)
        return post(*request)

    paceline.post = post_while_training_goes_on
    run = recorder(paceline.url)
    run.record("gc", 1, 1, 1)
    assert run.flush(WITHIN_S)
    assert [batch.columns.num_ops for batch in paceline.batches] == [1, 1]
    run.close()


@pytest.mark.parametrize("interval_s", [-1.0, 0.0, float("inf"), float("nan")])
def test_any_flush_interval_works_without_busy_polling(paceline, caplog, interval_s):
    run = recorder(paceline.url, flush_interval_s=interval_s)
    run.record("gc", 0, 1, 1)
    run.step_done(0)
    assert run.flush(WITHIN_S)
    assert run._buffer._next_check_s() >= GPU_POLL_EVERY_S
    run.close()
    assert paceline.steps_done == [(0, 1)]
    assert not caplog.messages


def test_batch_is_due_at_step_end_when_full_late_or_flushed():
    def buffer_with(interval_s=60.0, num_ops=1):
        buffer = Buffer(10_000, interval_s)
        for number in range(num_ops):
            buffer.add((0, "gc", 1, 1, number, -1, -1, None))
        return buffer

    assert not buffer_with().is_due()
    assert not buffer_with(num_ops=0, interval_s=0.0).is_due()
    assert buffer_with(interval_s=0.0).is_due()
    assert not buffer_with(num_ops=MAX_ROWS - 1).is_due()
    assert buffer_with(num_ops=MAX_ROWS).is_due()
    for ask in (lambda buffer: buffer.step_done(0), lambda buffer: buffer.flush(0), Buffer.close):
        buffer = buffer_with()
        ask(buffer)
        assert buffer.is_due()
    buffer = buffer_with()
    buffer.step_done(0)
    assert buffer.take() is not None
    buffer.add((1, "gc", 1, 1, 0, -1, -1, None))
    assert not buffer.is_due()


@pytest.mark.parametrize("is_step_done", [False, True])
def test_full_buffer_is_due_before_its_interval(is_step_done):
    buffer = Buffer(1, 60.0)
    op = (0, "gc", 1, 1, 0, -1, -1, None)
    buffer.add(op)
    assert not buffer.is_due()
    if is_step_done:
        buffer.step_done(0)
    else:
        buffer.add(op)
    assert buffer.is_due()
    assert buffer.take() is not None


def test_a_full_buffer_drops_new_operations_and_their_step():
    buffer = Buffer(max_ops=3, flush_interval_s=0.0)
    for step, num_ops in ((0, 1), (1, 2)):
        for seq_id in range(num_ops):
            buffer.add((step, "gc", 1, 1, seq_id, -1, -1, {}))
        buffer.step_done(step)
    taken = buffer.take()
    assert taken is not None
    assert [op[0] for op in taken.ops] == [0, 1]
    assert taken.steps_done == [(0, 1)]
    assert buffer.dropped == 1


def test_number_of_unfinished_steps_is_bounded():
    buffer = Buffer(max_ops=1, flush_interval_s=0.0)
    for step in range(3000):
        buffer.add((step, "gc", 1, 1, 0, -1, -1, {}))
    assert buffer.dropped == 2999
    assert buffer.num_unfinished_steps <= 1025


def test_short_steps_are_sent_together_unless_flushed(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(buffer_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    buffer = Buffer(1000, 60.0)

    def step(number):
        buffer.add((number, "gc", 1, 1, 0, -1, -1, None))
        buffer.step_done(number)

    step(0)
    assert buffer.is_due()  # the first step is due at once
    assert buffer.take() is not None
    for number in (1, 2, 3):
        now_s[0] += STEPS_DONE_EVERY_S / 4
        step(number)
        assert not buffer.is_due()
    assert 0 < buffer._next_check_s() <= STEPS_DONE_EVERY_S / 4 + 0.01
    now_s[0] += STEPS_DONE_EVERY_S / 4
    assert buffer.is_due()
    taken = buffer.take()
    assert taken is not None
    assert taken.steps_done == [(1, 1), (2, 1), (3, 1)]
    step(4)
    assert not buffer.is_due()
    buffer.flush(0.0)
    assert buffer.is_due()
