"""Questions that cannot be answered say which edit, and what is wrong with it."""

import math

import pytest

from app.engine.questions.answer import Questions
from app.engine.questions.edits import (
    MAX_EDITS,
    Add,
    DurationChange,
    Edit,
    Factor,
    FromWorker,
    Selection,
    Set,
)
from app.engine.replays import prepare
from app.errors import InvalidRequest, InvalidTrace
from app.trace.window import SkippedStep
from tests import window_factory
from tests.window_factory import Row, in_row, replicas

ROWS = in_row(("forward-compute", 1.0), ("backward-compute", 2.0), ("optimizer", 1.0))
SKIPPED = (SkippedStep(8, "rank 3 did not report"),)
JOB = Questions(prepare(window_factory.window(replicas(ROWS, 2), dp_size=2, skipped=SKIPPED)))


def refusal(*edits: Edit) -> str:
    with pytest.raises(InvalidRequest) as refused:
        JOB.answer(edits)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("select", "words"),
    [
        (Selection(op_types=("forward-comptue",)), "op type 'forward-comptue' is not known"),
        (Selection(stages=(1,)), "there is no stage 1: the job has 0 to 0"),
        (Selection(stages=(-1,)), "there is no stage -1"),
        (Selection(dp_ranks=(2,)), "there is no dp rank 2: the job has 0 to 1"),
        (Selection(workers=((0, 1),)), "there is no stage 1"),
        (Selection(workers=((7, 0),)), "there is no dp rank 7"),
        (Selection(steps=(5,)), "step 5 of window 1-0 is not in it: it has steps 0"),
        (Selection(steps=(8,)), "step 8 of window 1-0 was left out (rank 3 did not report)"),
        (Selection(microbatches=(-1,)), "micro-batch -1 cannot be"),
    ],
)
def test_names_unknown_to_the_window_are_refused(select, words):
    fine = Edit(Set(0.0))
    assert words in refusal(fine, Edit(Set(0.0), select))
    assert refusal(fine, Edit(Set(0.0), select)).startswith("edit 2: ")


@pytest.mark.parametrize(
    ("select", "words"),
    [
        (Selection(op_types=("gc",)), "has the op type gc"),
        (Selection(op_types=("pp-comm",)), "has the op type pp-comm"),
        (Selection(op_types=("gc-pause",)), "has the op type gc-pause"),
        (Selection(op_types=("compute",), microbatches=(0, 5)), "has the micro-batch 0, 5"),
        (Selection(dp_ranks=(0,), workers=((1, 0),)), "has the worker (dp rank, stage) (1, 0)"),
    ],
)
def test_an_edit_that_selects_nothing_names_the_field(select, words):
    message = refusal(Edit(Set(0.0), select))
    assert message.startswith("edit 1 selects no operation")
    assert words in message


@pytest.mark.parametrize(
    "change",
    [
        Factor(-0.5), Factor(math.nan), Factor(math.inf), Factor(1e7), Add(math.nan),
        Add(-math.inf), Add(1e7), Set(-1e-9), Set(math.inf), Set(math.nan),
    ],
)  # fmt: skip
def test_invalid_numbers_are_refused(change):
    assert "cannot be" in refusal(Edit(change))


@pytest.mark.parametrize("change", [FromWorker(2, 0), FromWorker(0, 1), FromWorker(-1, 0)])
def test_copying_from_an_unknown_worker_is_refused(change: DurationChange):
    assert "edit 1: there is no" in refusal(Edit(change))


def test_the_number_of_edits_is_limited():
    longer = Edit(Add(0.5))
    assert JOB.answer([longer] * MAX_EDITS).what_if_s.tolist() == [4 + 1.5 * MAX_EDITS]
    assert refusal(*[longer] * (MAX_EDITS + 1)) == "101 edits: a question has at most 100"


def test_edits_that_overflow_together_are_refused():
    grown = [Edit(Factor(1e6))] * (MAX_EDITS - 1)
    assert "last for ever" in refusal(*grown)
    assert "last for ever" in refusal(Edit(Set(1.0)), *grown)


def test_a_window_that_takes_no_time_is_refused():
    window = window_factory.window([Row("optimizer", 0.0, 0.0)])
    with pytest.raises(InvalidTrace, match="took no time"):
        Questions(prepare(window)).answer([])
