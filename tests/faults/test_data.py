"""Rows 24 to 36 of the fault matrix, as far as they need a whole Paceline."""

from dataclasses import replace

import pytest

from app.ingest.wire import codec
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.harness.load import PushHabits
from tests.harness.trial import SMALL_JOB, Trial

pytestmark = pytest.mark.nightly

SPLIT_AND_REPEATED = PushHabits(parts=4, resent=0.6, held_back=0.4)


def test_row_24_and_26_split_repeated_reordered_batches_give_right_windows(stack, name):
    with Trial(
        stack,
        name,
        [(SMALL_JOB, SPLIT_AND_REPEATED), (SimulatedJob(Parallelism(3, 2), 4), SPLIT_AND_REPEATED)],
    ) as trial:
        trial.fault(lambda: None)
        trial.wait_for_steps(12)
        verdict = trial.finish()
    assert verdict["violations"] == []
    assert verdict["duplicates"] > 0


def test_row_25_conflicting_batch_under_a_used_key_changes_no_window(stack, name):
    with Trial(stack, name) as trial:
        trial.fault(lambda: None)
        (load,) = trial.loads
        trial.pause()
        bodies = load.bodies()
        load.push_all([sent for body in bodies for sent in (body, altered(body))])
        verdict = trial.finish()
    assert verdict["violations"] == []
    assert verdict["conflicts"] > 0
    assert verdict["conflict_rows"] > 0


def altered(body):
    """Other operations under the same key."""
    batch = codec.read_entry(body)
    longer = replace(batch.columns, duration_ns=batch.columns.duration_ns + 1)
    return codec.encode(replace(batch, columns=longer, wire=None))


def test_row_32_and_36_resized_restart_from_a_checkpoint_is_a_new_run(stack, name):
    with Trial(stack, name) as trial:
        trial.fault(lambda: None)
        (load,) = trial.loads
        trial.wait_for_steps(5)
        trial.pause()
        for number, dp_size in enumerate((3, 1), start=2):
            load.restart(SimulatedJob(Parallelism(dp_size, 2), 2), f"run-{number}", from_step=2)
            load.push_steps(6)
        verdict = trial.finish()
    assert verdict["violations"] == []


def test_row_34_skipped_step_numbers_appear_in_no_window(stack, name):
    with Trial(stack, name) as trial:
        trial.fault(lambda: None)
        (load,) = trial.loads
        trial.wait_for_steps(5)
        trial.pause()
        before, load.next_step = load.next_step, load.next_step + 100
        load.push_steps(6)
        verdict = trial.finish()
        gap = range(before, before + 100)
        shown = stack.get(f"/jobs/{load.job}/steps?limit=500")["items"]
    assert verdict["violations"] == []
    assert not {item["step"] for item in shown} & set(gap)
