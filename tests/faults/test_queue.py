"""Rows 6 to 11 and 19 of the fault matrix: faults of the event queue."""

from functools import partial

import pytest

from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.harness.processes import wait_until
from tests.harness.trial import DEFAULT_HABITS, Trial

pytestmark = pytest.mark.nightly

BULKY = SimulatedJob(Parallelism(4, 2), 64)


def test_row_06_killed_queue_loses_nothing(stack, name):
    with Trial(stack, name) as trial:
        for _ in range(3):
            trial.fault(partial(stack.kill, "queue"))
            (load,) = trial.loads
            retries = load.retries
            wait_until(lambda: load.retries > retries, "a batch is refused meanwhile")  # noqa: B023
            stack.queue.start_and_wait()
            trial.wait_for_steps()
        assert trial.finish()["violations"] == []


def test_row_08_wiped_queue_is_used_as_new_and_nothing_is_spurious(stack, name):
    with Trial(stack, name) as trial:
        trial.wait_for_steps(4)
        trial.fault(stack.queue.wipe)
        stack.queue.start_and_wait()
        trial.wait_for_steps(4)
        verdict = trial.finish()
    assert verdict["recovered_s"] is not None
    assert verdict["fresh_s"] is not None
    assert verdict["spurious"] == 0


def test_row_09_full_queue_refuses_batches_and_is_still_drained(stack, name):
    with Trial(stack, name, [(BULKY, DEFAULT_HABITS)]) as trial:
        for consumer in stack.consumers:
            stack.processes[consumer].freeze()
        trial.fault(partial(stack.queue.send, "CONFIG", "SET", "maxmemory", "8mb"))
        (load,) = trial.loads
        refused = load.retried_503
        wait_until(lambda: load.retried_503 > refused + 3, "batches are refused")
        for consumer in stack.consumers:
            stack.processes[consumer].thaw()
        trial.wait_for_steps(2)
        assert trial.finish()["violations"] == []
    stack.queue.send("CONFIG", "SET", "maxmemory", str(1 << 30))


def test_row_10_queue_with_a_full_disk_loses_nothing(stack, name):
    with Trial(stack, name) as trial:
        full = stack.queue.file_bytes() + 10_000
        trial.fault(partial(stack.queue.limit_files, full))
        wait_until(lambda: not stack.queue.is_running(), "it gives up rather than lose a batch")
        stack.queue.start_and_wait()
        assert trial.finish()["violations"] == []


def test_row_11_hanging_queue_refuses_batches_and_the_api_stays_healthy(stack, name):
    with Trial(stack, name) as trial:
        (load,) = trial.loads
        refused = load.retried_503
        trial.fault(stack.queue.freeze)
        wait_until(lambda: load.retried_503 > refused, "a batch is refused")
        for port in stack.api_ports:
            assert stack.health(port) == 200
        stack.queue.thaw()
        assert trial.finish()["violations"] == []


def test_row_19_backlog_is_worked_off(stack, name):
    with Trial(stack, name) as trial:
        for consumer in stack.consumers:
            trial.fault(stack.processes[consumer].freeze)
        trial.wait_for_steps(40)
        (load,) = trial.loads
        closed = load.closed_steps()
        for consumer in stack.consumers:
            stack.processes[consumer].thaw()
        wait_until(lambda: load.closed_steps() > closed, "the consumers go on")
        assert trial.finish()["violations"] == []
