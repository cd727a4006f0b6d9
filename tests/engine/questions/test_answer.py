"""Questions about jobs so small that the answers are known by heart."""

import dataclasses

import numpy as np
import pytest

from app.engine.questions.answer import Questions, WhatIfAnswer, answer_as_json
from app.engine.questions.edits import Add, Edit, Factor, FromWorker, Ideal, Selection, Set
from app.engine.replays import prepare
from app.trace.window import Window
from tests import window_factory
from tests.engine.questions.jobs import two_stages
from tests.window_factory import Row, in_row, replicas


def ask(window: Window, *edits: Edit) -> WhatIfAnswer:
    return Questions(prepare(window)).answer(edits)


def step_s(window: Window, *edits: Edit) -> list[float]:
    times_s: list[float] = ask(window, *edits).what_if_s.tolist()
    return times_s


JOB = window_factory.window(two_stages(), pp_size=2)


def test_no_edits_change_nothing():
    assert step_s(JOB) == [7.5]


def test_pipeline_communication_at_0_removes_both_transfers():
    answer = ask(JOB, Edit(Set(0.0), Selection(op_types=("pp-comm",))))
    assert answer.what_if_s.tolist() == [6.5]
    assert [tuple(each) for each in answer.edits] == [(4, 0)]


def test_communication_of_one_direction_has_a_joint_name():
    assert step_s(JOB, Edit(Set(0.0), Selection(op_types=("forward-pp-comm",)))) == [7.0]


@pytest.mark.parametrize(
    ("change", "expected_s"),
    [(Factor(2.0), 11.5), (Add(1.0), 9.5), (Add(-0.5), 6.5), (Add(-9.0), 3.5), (Set(1.0), 5.5)],
)
def test_an_edit_changes_the_computation_of_one_stage(change, expected_s):
    select = Selection(op_types=("forward-compute", "backward-compute"), stages=(1,))
    assert step_s(JOB, Edit(change, select)) == [expected_s]


def test_a_transfer_is_changed_from_the_last_arrival_on():
    # The receive was posted 1 s before the send: of its 1.5 s only 0.5 s are the transfer.
    assert step_s(JOB, Edit(Factor(3.0), Selection(op_types=("forward-pp-comm",)))) == [8.5]


def test_all_ideal_is_the_ideal_step():
    answer = ask(JOB, Edit(Ideal()))
    assert answer.what_if_s.tolist() == answer.replay.ideal_s.tolist()


def test_edits_apply_in_order():
    forward = Selection(op_types=("forward-compute",), stages=(1,))
    longer, exactly = Edit(Add(1.0), forward), Edit(Set(0.5), forward)
    assert step_s(JOB, longer, exactly) == [6.0]
    assert step_s(JOB, exactly, longer) == [7.0]


def test_durations_are_copied_by_type_and_seq_id():
    fast = Edit(FromWorker(0, 0), Selection(op_types=("compute",), stages=(1,)))
    answer = ask(JOB, fast)
    assert answer.what_if_s.tolist() == [5.5]
    assert [tuple(each) for each in answer.edits] == [(3, 0)]


def test_operations_without_a_counterpart_keep_their_durations():
    # Stage 0 has no forward-recv, and stage 1 no forward-send.
    answer = ask(JOB, Edit(FromWorker(0, 0), Selection(op_types=("forward-pp-comm",))))
    assert answer.what_if_s.tolist() == [7.5]
    assert [tuple(each) for each in answer.edits] == [(1, 1)]


def test_copied_durations_include_earlier_edits():
    slower = Edit(Add(1.0), Selection(op_types=("forward-compute",), workers=((0, 0),)))
    copied = Edit(FromWorker(0, 0), Selection(op_types=("forward-compute",), workers=((0, 1),)))
    assert step_s(JOB, slower) == [8.5]
    assert step_s(JOB, slower, copied) == [8.5]
    assert step_s(JOB, copied, slower) == [7.5]


def test_durations_are_copied_from_another_replica():
    rows = [
        row.on(duration_s=0.5) if row.dp_rank == 1 and row.optype == "forward-compute" else row
        for row in two_stages(2)
    ]
    job = window_factory.window(rows, dp_size=2, pp_size=2)
    select = Selection(op_types=("forward-compute",), dp_ranks=(0,))
    assert step_s(job) == [7.5]
    assert step_s(job, Edit(FromWorker(1, 0), select)) == [7.5 - 0.5 - 1.5]


def test_a_selection_is_the_intersection_of_its_fields():
    job = window_factory.window(two_stages(2), dp_size=2, pp_size=2)
    answer = ask(job, Edit(Set(0.0), Selection(dp_ranks=(1,), workers=((0, 0), (1, 1)))))
    assert [tuple(each) for each in answer.edits] == [(5, 0)]


def test_micro_batches_are_those_of_the_operations():
    is_computation = JOB.trace.optype < 2
    mb_id = np.where(is_computation, np.where(JOB.trace.stage == 1, 3, 0), -1)
    job = window_factory.with_columns(JOB, mb_id=mb_id)
    answer = ask(job, Edit(Factor(2.0), Selection(microbatches=(3,))))
    assert [tuple(each) for each in answer.edits] == [(2, 0)]
    assert answer.what_if_s.tolist() == [11.5]


def test_only_the_chosen_steps_change():
    job = window_factory.window([*two_stages(step=3), *two_stages(step=4)], pp_size=2)
    edit = Edit(Set(0.0), Selection(op_types=("pp-comm",), steps=(4,)))
    assert step_s(job, edit) == [7.5, 6.5]


def test_answers_use_the_ideals_of_each_structure():
    long = ("forward-compute", 1.0), ("backward-compute", 2.0), ("optimizer", 1.0)
    short = ("forward-compute", 4.0), ("optimizer", 1.0)
    rows = [
        *(row.on(step=3) for row in in_row(*long)),
        *(row.on(step=4) for row in in_row(*short)),
        *(row.on(step=5) for row in in_row(*long)),
    ]
    rows[-1] = rows[-1].on(duration_s=2.0)
    replay = prepare(window_factory.window(rows))
    assert len(replay.groups) == 2
    answer = Questions(replay).answer([Edit(Ideal()), Edit(Factor(2.0), Selection(steps=(4,)))])
    assert answer.replay.ideal_s.tolist() == [4.5, 5.0, 4.5]
    assert answer.what_if_s.tolist() == [4.5, 10.0, 4.5]
    assert [tuple(each) for each in answer.edits] == [(8, 0), (2, 0)]


def test_milestones_are_edited_with_their_operation():
    # The bucket is launched when 3 of the backward's 4 s have run, and is what ends the step.
    rows = [
        *in_row(("forward-compute", 1.0), ("backward-compute", 4.0)),
        Row("separate-grads-all-reduce", 4.0, 6.0),
        Row("optimizer", 10.0, 1.0),
    ]
    job = window_factory.window(replicas(rows, 2), dp_size=2)
    backward = Selection(op_types=("backward-compute",))
    assert step_s(job) == [11.0]
    assert step_s(job, Edit(Set(2.0), backward)) == [1 + 1.5 + 6 + 1]
    assert step_s(job, Edit(Factor(2.0), backward)) == [1 + 6 + 6 + 1]
    one = dataclasses.replace(backward, dp_ranks=(1,))
    assert step_s(job, Edit(Factor(2.0), one)) == [1 + 6 + 6 + 1]


def test_the_answer_has_its_baseline():
    rows = [row.on(start_s=row.start_s + (row.start_s > 6)) for row in two_stages()]
    job = window_factory.window(rows, pp_size=2)
    answer = answer_as_json(ask(job, Edit(Set(0.0), Selection(op_types=("pp-comm",)))))
    assert answer["window"] == "1-0"
    assert answer["steps"] == [0]
    assert answer["step_time_s"]["recorded"] == [8.5]
    assert answer["step_time_s"]["simulated"] == [7.5]
    assert answer["step_time_s"]["what_if"] == [6.5]
    # The launch delay of 1 s is in neither side of a ratio.
    assert answer["against_recorded"]["slowdown"] == 6.5 / 7.5
    assert answer["against_recorded"]["speed_up"] == 7.5 / 6.5
    assert answer["against_recorded"]["per_step"] == {
        "slowdown": [6.5 / 7.5],
        "speed_up": [7.5 / 6.5],
    }
    ideal_s = answer["step_time_s"]["ideal"][0]
    assert answer["against_ideal"]["slowdown"] == 6.5 / ideal_s
    assert answer["gpu_hours_saved"] == pytest.approx(8.5 * 2 * (1 - 6.5 / 7.5) / 3600)
    assert answer["edits"] == [{"changed_ops": 4, "ops_without_counterpart": 0}]


def test_a_slower_job_has_negative_savings():
    assert ask(JOB, Edit(Factor(2.0))).gpu_hours_saved < 0


def test_a_step_of_zero_length_has_no_speedup():
    answer = answer_as_json(ask(JOB, Edit(Set(0.0))))
    assert answer["against_recorded"]["speed_up"] is None
    assert answer["against_recorded"]["slowdown"] == 0
    assert answer["against_ideal"]["per_step"]["speed_up"] == [None]


@pytest.mark.parametrize("neutral", [Factor(1.0), Add(0.0)])
def test_an_edit_without_effect_keeps_negative_transfers(neutral):
    # The clock of stage 1 is 5 ms late: the receive seems to end before its send begins.
    job = window_factory.window(
        [
            Row("forward-compute", 0, 1),
            Row("forward-send", 1, 0.001),
            Row("forward-recv", 0, 0.995, stage=1),
            Row("forward-compute", 0.995, 1, stage=1),
            Row("optimizer", 2, 1),
            Row("optimizer", 2, 1, stage=1),
        ],
        pp_size=2,
    )
    answer = ask(job, Edit(neutral))
    assert answer.what_if_s.tolist() == answer.replay.simulated_s.tolist()
