"""Any question about any job, against the same question asked the slow and obvious way."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.engine.questions.answer import Questions
from app.engine.questions.edits import Edit, Factor, Ideal, Selection, Set
from app.engine.replays import prepare
from app.errors import InvalidRequest
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.engine.questions.reference import Asked, edits
from tests.example_counts import many
from tests.job_strategies import STRUCTURES, Structure, changing, made, seeds
from tests.shared_traces import SHARED_TRACES, needs_shared

pytestmark = pytest.mark.oracle

ALL = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)


def assert_the_answer_agrees(window: Window, wanted: list[Edit]) -> None:
    asked, questions = Asked(window), Questions(prepare(window))
    if not all(asked.make(edit) for edit in wanted):
        with pytest.raises(InvalidRequest, match="selects no operation"):
            questions.answer(wanted)
        return
    answer = questions.answer(wanted)
    assert answer.what_if_s.tolist() == pytest.approx(asked.step_times(), rel=1e-9, abs=1e-12)
    assert [tuple(each) for each in answer.edits] == asked.counts


@ALL
@many(30)
@given(seed=seeds, data=st.data())
def test_every_answer_equals_the_reference(structure: Structure, seed: int, data):
    window = made(structure, seed, num_steps=1 + seed % 2)
    assert_the_answer_agrees(window, data.draw(edits(window)))


@ALL
@many(15)
@given(seed=seeds, data=st.data())
def test_answers_about_two_structures_equal_the_reference(structure: Structure, seed: int, data):
    window = changing(structure, seed)
    # The reference has no waits in computations, which few of these windows prove.
    assume(not any((held > 0).any() for held in prepare(window).held_up))
    assert_the_answer_agrees(window, data.draw(edits(window)))


@ALL
@many(8)
@given(seed=seeds)
def test_all_ideal_gives_the_ideal_and_no_edit_the_simulation(structure: Structure, seed: int):
    questions = Questions(prepare(changing(structure, seed)))
    ideal, same = questions.answer([Edit(Ideal())]), questions.answer([])
    assert ideal.what_if_s.tolist() == pytest.approx(questions.replay.ideal_s.tolist(), rel=1e-12)
    assert same.what_if_s.tolist() == questions.replay.simulated_s.tolist()
    assert same.gpu_hours_saved == 0


# The published examples: what if these operations took no time at all?
@needs_shared
@pytest.mark.parametrize("group", ["pp-comm", "dp-comm"])
@pytest.mark.parametrize("name", ["ST", "ovlp", "puredp", "purepp", "flap", "inter"])
def test_communication_at_0_in_the_published_traces(name, group):
    window = trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")
    asked, questions = Asked(window), Questions(prepare(window))
    simulated_s = asked.step_times()
    edit = Edit(Set(0.0), Selection(op_types=(group,)))
    if not asked.make(edit):
        with pytest.raises(InvalidRequest, match=f"has the op type {group}"):
            questions.answer([edit])
        return
    answer = questions.answer([edit])
    assert answer.what_if_s.tolist() == pytest.approx(asked.step_times(), rel=1e-9)
    assert answer.replay.simulated_s.tolist() == pytest.approx(simulated_s, rel=1e-9)


@needs_shared
@pytest.mark.parametrize("name", ["ST", "inter"])
def test_a_faster_stage_in_the_published_traces(name):
    window = trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")
    asked, questions = Asked(window), Questions(prepare(window))
    edits_ = [
        Edit(Factor(0.8), Selection(op_types=("forward-compute",), stages=(1,))),
        Edit(Ideal(), Selection(op_types=("comm",), microbatches=())),
        Edit(Factor(0.5), Selection(op_types=("compute",), microbatches=(0, 1))),
    ]
    assert all(asked.make(edit) for edit in edits_)
    answer = questions.answer(edits_)
    assert answer.what_if_s.tolist() == pytest.approx(asked.step_times(), rel=1e-9)
