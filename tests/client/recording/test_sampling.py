"""Recording plans: the same steps on every rank, from a step announced ahead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.sampling import RecordingPlans

from tests.client.recorders import WITHIN_S, recorder


def plan(version, from_step, *, enabled=True, every=1, steps=1, **more):
    return {
        "version": version,
        "from_step": from_step,
        "enabled": enabled,
        "every": every,
        "steps": steps,
        **more,
    }


def recorded_steps(plans, steps):
    return [step for step in steps if plans.records(step)]


def test_plan_samples_from_its_first_step_on():
    plans = RecordingPlans()
    plans.update({"recording": plan(1, 7, every=5, steps=2)})
    assert recorded_steps(plans, range(17)) == [0, 1, 2, 3, 4, 5, 6, 10, 11, 15, 16]


def test_newer_plan_leaves_earlier_steps_to_the_older_one():
    plans = RecordingPlans()
    plans.update({"recording": plan(1, 4, enabled=False)})
    plans.update({"recording": plan(2, 8)})
    plans.update({"recording": plan(1, 0)})  # a delayed answer
    assert recorded_steps(plans, range(10)) == [0, 1, 2, 3, 8, 9]


def test_missed_plan_is_delivered_with_the_next():
    plans = RecordingPlans()
    plans.update({"recording": plan(2, 8, earlier=[plan(1, 4, enabled=False)])})
    assert recorded_steps(plans, range(10)) == [0, 1, 2, 3, 8, 9]


NONSENSE = [
    None, 7, "all", [], {}, {"version": 1},
    plan("1", 0), plan(1, -1), plan(1, 0, every=0), plan(1, 0, steps=None), plan(1, 2.5),
    plan(1, 0, enabled="yes"), plan(True, 0),
]  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE, ids=repr)
def test_invalid_plans_change_nothing(nonsense):
    plans = RecordingPlans()
    plans.update({"recording": nonsense})
    plans.update({"recording": plan(5, 9, earlier=nonsense)})
    assert plans.version == 5
    plans.update(nonsense)
    assert recorded_steps(plans, range(3)) == [0, 1, 2]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(0, 9)), max_size=5),
    st.permutations(range(5)),
)
def test_order_of_plans_does_not_change_the_recorded_steps(plans, order):
    answers = [
        {"recording": plan(version, from_step, every=every, steps=steps)}
        for version, (from_step, every, steps) in enumerate(plans)
    ]
    one, other = RecordingPlans(), RecordingPlans()
    for answer in answers:
        one.update(answer)
    for at in order:
        if at < len(answers):
            other.update(answers[at])
    assert recorded_steps(one, range(80)) == recorded_steps(other, range(80))


def test_unrecorded_step_records_nothing_and_counts_no_drops():
    plans, buffer = RecordingPlans(), Buffer(100, 60.0)
    plans.update({"recording": plan(1, 1, every=2, steps=1)})
    run = Recorder(buffer, None, plans)
    seen = []
    for step in range(4):
        with run.step(step):
            seen.append(run.is_recording)
            with run.op("gc", tokens=1):
                pass
            with run.op("gc", step=step):
                pass
            run.record("gc", step, 1, 1)
            run.tell_microbatch(0, tokens=1)
    assert seen == [True, False, True, False]
    assert run.is_recording
    taken = buffer.take()
    assert taken is not None
    assert [op[0] for op in taken.ops] == [0, 0, 0, 2, 2, 2]
    assert taken.steps_done == [(0, 3), (2, 3)]
    assert run.dropped == 0


def test_a_step_is_recorded_whole_or_not_at_all():
    plans, buffer = RecordingPlans(), Buffer(100, 60.0)
    run = Recorder(buffer, None, plans)
    with run.step(0):
        with run.op("gc"):
            pass
        plans.update({"recording": plan(1, 0, enabled=False)})
        with run.op("gc"):
            pass
    with run.step(1), run.op("gc"):
        pass
    taken = buffer.take()
    assert taken is not None
    assert taken.steps_done == [(0, 2)]


def test_server_answers_turn_recording_off_and_on(paceline):
    paceline.recording = plan(1, 3, enabled=False)
    run = recorder(paceline.url)
    for step in range(6):
        with run.step(step), run.op("gc"):
            pass
        if step == 0:
            assert run.flush(WITHIN_S)
            paceline.recording = plan(2, 5)
        if step == 1:
            assert run.flush(WITHIN_S)
    assert run.flush(WITHIN_S)
    run.close()
    assert [step for step, _ in paceline.steps_done] == [0, 1, 2, 5]


def test_heartbeats_fetch_plans_while_nothing_is_recorded(paceline):
    paceline.accepts, paceline.recording = ["at_step"], plan(1, 1, enabled=False)
    run = recorder(paceline.url)
    with run.step(0), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    run._sender.heartbeat_every_s = 0.01
    run._buffer.wake()
    paceline.recording = plan(2, 5)
    num_before = len(paceline.posted)
    for step in range(1, 5):
        with run.step(step), run.op("gc"):
            pass
    paceline.wait_for(lambda: len(paceline.posted) > num_before, WITHIN_S)
    assert run.flush(WITHIN_S)
    with run.step(5), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.steps_done == [(0, 1), (5, 1)]
    assert len(paceline.ops) == 2
    beats = [b for b in paceline.batches if not b.columns.num_ops and not b.steps_done]
    assert {batch.at_step for batch in beats} <= {1, 2, 3, 4}
    assert {batch.at_step for batch in paceline.batches if batch not in beats} == {None}
