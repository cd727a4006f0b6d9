"""Each guarantee is broken once on purpose: a harness that cannot fail proves nothing."""

from functools import partial

import pytest

from tests.faults import sabotage
from tests.harness.crash_points import crash_at, freeze_at
from tests.harness.load import PushHabits
from tests.harness.processes import wait_until
from tests.harness.trial import SMALL_JOB, Trial

pytestmark = pytest.mark.nightly

SHORT_S = 8.0  # lost data never arrives, so a short limit is enough


def patch(function):
    return f"{sabotage.__name__}:{function.__name__}"


def test_acknowledgement_before_the_append_is_detected(stack, name):
    stack.kill("api-1")
    stack.restart("api-0", patch(sabotage.acknowledge_before_append))
    stack.wait_until_answering("api-0")
    with Trial(stack, name, within_s=SHORT_S) as trial:
        trial.fault(partial(stack.kill, "api-0"))
        stack.start("api-0")
        verdict = trial.finish()
    assert verdict["missing"] > 0


def test_queue_that_loses_its_newest_entries_is_detected(stack, name):
    with Trial(stack, name, within_s=SHORT_S) as trial:
        for consumer in stack.consumers:
            stack.processes[consumer].freeze()
        trial.wait_for_steps(4)
        trial.fault(partial(stack.kill, "queue"))
        stack.queue.cut_tail(4000)
        stack.queue.start_and_wait()
        verdict = trial.finish()
    assert verdict["missing"] > 0


def test_stream_length_limit_is_detected(stack, name):
    stack.kill("api-1")
    stack.restart("api-0", patch(sabotage.cap_streams))
    stack.wait_until_answering("api-0")
    with Trial(stack, name, within_s=SHORT_S) as trial:
        for consumer in stack.consumers:
            trial.fault(stack.processes[consumer].freeze)
        trial.wait_for_steps(4)
        verdict = trial.finish()
    assert verdict["missing"] > 0


def test_commit_without_a_fence_is_detected(stack, name):
    no_fence = patch(sabotage.skip_fences)
    stack.kill("consumer-1")
    patches = (freeze_at("after_read", 3), crash_at("after_ack", 3))
    stack.restart("consumer-0", no_fence, *patches)
    with Trial(stack, name, within_s=SHORT_S) as trial:
        frozen = stack.processes["consumer-0"]
        wait_until(frozen.is_frozen, "it is frozen while it holds batches")
        stack.start("consumer-1", no_fence)
        (load,) = trial.loads
        wait_until(lambda: load.closed_steps() >= 4, "the other one has the shards")
        trial.pause()
        wait_until(lambda: stack.queue_is_empty(), "the other one has done everything")
        trial.fault(frozen.thaw)
        wait_until(lambda: not frozen.is_running(), "it has committed the batches that it held")
        stack.restart("consumer-1", no_fence)
        verdict = trial.finish()
    assert any("owed" in violation for violation in verdict["violations"])


def test_duplicate_batches_counted_as_new_are_detected(stack, name):
    stack.kill("consumer-1")
    stack.restart("consumer-0", patch(sabotage.skip_batch_keys))
    with Trial(stack, name, [(SMALL_JOB, PushHabits(resent=0.5))], within_s=SHORT_S) as trial:
        trial.fault(lambda: None)
        (load,) = trial.loads
        wait_until(lambda: load.closed_steps() >= 4, "it closes windows")
        verdict = trial.finish()
    assert any("owed" in violation for violation in verdict["violations"])
