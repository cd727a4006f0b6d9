"""Steps that are no training steps: left out of the figures, whatever order things come in."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.ingest.assembly.steps import LEFT_OUT_REASONS
from app.ingest.assembly.windows import MAX_LEFT_OUT
from app.trace.window import SkippedStep
from tests.ingest.assembly.test_assembler_properties import (
    Life,
    arrivals,
    seen,
    stripped,
    windows_of,
)
from tests.ingest.factories import DEADLINE_S, assembler, fed, step_batches

KINDS = {1: "eval", 3: "checkpoint"}


def called(batches, kinds=KINDS):
    """The batches, which say what kind their steps are of."""
    return [
        replace(
            batch,
            step_kinds=tuple((s, kinds[s]) for s, _ in batch.steps_done if s in kinds),
        )
        for batch in batches
    ]


def left_out(step, kind, missing=(), more=""):
    return SkippedStep(step, LEFT_OUT_REASONS[kind] + more, missing, kind)


WHOLE = called([each for step in range(5) for each in step_batches(step)])
EXPECTED = windows_of(WHOLE, range(len(WHOLE)))


def test_only_training_steps_fill_a_window():
    [window] = EXPECTED.values()
    assert window[2] == (0, 2, 4)
    assert window[3] == (left_out(1, "eval"), left_out(3, "checkpoint"))
    assert window[1] == "complete"


@settings(max_examples=40)
@given(arrivals())
def test_any_order_repetition_and_cutting_gives_the_same_windows(arrival):
    batches, order = arrival
    assert stripped(windows_of(called(batches), order)) == stripped(EXPECTED)


@settings(max_examples=25)
@given(arrivals(2), st.data())
def test_crash_anywhere_does_not_change_the_windows(arrival, data):
    batches, order = arrival
    batches = called(batches)
    crashes = set(data.draw(st.lists(st.integers(0, len(order)), max_size=6)))
    overdue = set(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    expected = Life(batches, order, overdue).lived()
    assert Life(batches, order, overdue).lived(crashes) == expected


def test_ranks_missing_from_an_evaluation_are_named():
    run = assembler()
    fed(run, called(step_batches(1, range(3), seq=0)))
    [change] = run.settle(11 * DEADLINE_S)
    [skipped] = change.window.skipped
    assert skipped == left_out(1, "eval", (3,), "; rank 3 did not report the step in time")


def test_late_data_of_an_evaluation_is_dropped_not_counted_late():
    run = assembler()
    *first, last = called(step_batches(1, seq=0))
    fed(run, first)
    run.settle(11 * DEADLINE_S)
    added = run.add(last, 12 * DEADLINE_S)
    assert (added.dropped, added.num_late) == ([1], 0)
    assert run.settle(12 * DEADLINE_S) == []


def test_a_late_rank_may_name_the_step_kind():
    run = assembler()
    *first, last = step_batches(1, seq=0)
    fed(run, first)
    run.settle(11 * DEADLINE_S)
    [change] = fed(run, called([last]), 12 * DEADLINE_S)
    assert change.window.skipped == (left_out(1, "eval"),)


def test_all_step_kinds_of_disagreeing_ranks_are_named():
    run = assembler()
    one, *others = step_batches(1, seq=0)
    [change] = fed(run, [*called([one], {1: "first"}), *called(others)])
    [skipped] = change.window.skipped
    assert skipped.reason == f"{LEFT_OUT_REASONS['eval']}; {LEFT_OUT_REASONS['first']}"


def test_too_many_left_out_steps_close_the_window():
    run = assembler()
    kinds = dict.fromkeys(range(MAX_LEFT_OUT + 1), "eval")
    changes = [
        change
        for step in range(MAX_LEFT_OUT + 1)
        for change in fed(run, called(step_batches(step), kinds))
    ]
    windows = seen(changes)
    assert [(name, window[1], len(window[3])) for name, window in windows.items()] == [
        ("1-0", "incomplete", MAX_LEFT_OUT),
        (f"1-{MAX_LEFT_OUT}", "open", 1),
    ]


def test_last_window_with_an_evaluation_is_complete():
    run = assembler()
    fed(run, step_batches(0))
    fed(run, called(step_batches(1)))
    [change] = run.finish(1.0, "complete")
    assert (change.window.state, change.window.steps) == ("complete", (0,))
