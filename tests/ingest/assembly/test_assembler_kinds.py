"""Evaluation and checkpoint steps are left out of the figures in any order of arrival."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.ingest.assembly.steps import LEFT_OUT_REASONS
from app.ingest.assembly.windows import MAX_LEFT_OUT
from app.trace.window import SkippedStep
from tests.example_counts import many
from tests.ingest.assembly.test_assembler_properties import (
    CrashingRun,
    arrivals,
    last_revisions,
    windows_of,
)
from tests.ingest.factories import DEADLINE_S, assembler, feed, step_batches

KINDS = {1: "eval", 3: "checkpoint"}


def with_kinds(batches, kinds=KINDS):
    """The batches with their step kinds declared."""
    return [
        replace(
            batch,
            step_kinds=tuple((s, kinds[s]) for s, _ in batch.steps_done if s in kinds),
        )
        for batch in batches
    ]


def skipped_step(step, kind, missing=(), more=""):
    return SkippedStep(step, LEFT_OUT_REASONS[kind] + more, missing, kind)


ALL_BATCHES = with_kinds([each for step in range(5) for each in step_batches(step)])
EXPECTED = windows_of(ALL_BATCHES, range(len(ALL_BATCHES)))


def test_only_training_steps_fill_a_window():
    [window] = EXPECTED.values()
    assert window[2] == (0, 2, 4)
    assert window[3] == (skipped_step(1, "eval"), skipped_step(3, "checkpoint"))
    assert window[1] == "complete"


@many(25)
@given(arrivals(2), st.data())
def test_crash_anywhere_does_not_change_the_windows(arrival, data):
    batches, order = arrival
    batches = with_kinds(batches)
    crashes = set(data.draw(st.lists(st.integers(0, len(order)), max_size=6)))
    overdue = set(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    expected = CrashingRun(batches, order, overdue).play()
    assert CrashingRun(batches, order, overdue).play(crashes) == expected


def test_ranks_missing_from_an_evaluation_are_named():
    run = assembler()
    feed(run, with_kinds(step_batches(1, range(3), seq=0)))
    [change] = run.settle(11 * DEADLINE_S)
    [skipped] = change.window.skipped
    assert skipped == skipped_step(1, "eval", (3,), "; rank 3 did not report the step in time")


def test_late_data_of_an_evaluation_is_dropped_not_counted_late():
    run = assembler()
    *first, last = with_kinds(step_batches(1, seq=0))
    feed(run, first)
    run.settle(11 * DEADLINE_S)
    added = run.add(last, 12 * DEADLINE_S)
    assert (added.dropped, added.num_late) == ([1], 0)
    assert run.settle(12 * DEADLINE_S) == []


def test_a_late_rank_may_name_the_step_kind():
    run = assembler()
    *first, last = step_batches(1, seq=0)
    feed(run, first)
    run.settle(11 * DEADLINE_S)
    [change] = feed(run, with_kinds([last]), 12 * DEADLINE_S)
    assert change.window.skipped == (skipped_step(1, "eval"),)


def test_all_step_kinds_of_disagreeing_ranks_are_named():
    run = assembler()
    one, *others = step_batches(1, seq=0)
    [change] = feed(run, [*with_kinds([one], {1: "first"}), *with_kinds(others)])
    [skipped] = change.window.skipped
    assert skipped.reason == f"{LEFT_OUT_REASONS['eval']}; {LEFT_OUT_REASONS['first']}"


def test_too_many_left_out_steps_close_the_window():
    run = assembler()
    kinds = dict.fromkeys(range(MAX_LEFT_OUT + 1), "eval")
    changes = [
        change
        for step in range(MAX_LEFT_OUT + 1)
        for change in feed(run, with_kinds(step_batches(step), kinds))
    ]
    windows = last_revisions(changes)
    assert [(name, window[1], len(window[3])) for name, window in windows.items()] == [
        ("1-0", "incomplete", MAX_LEFT_OUT),
        (f"1-{MAX_LEFT_OUT}", "open", 1),
    ]


def test_last_window_with_an_evaluation_is_complete():
    run = assembler()
    feed(run, step_batches(0))
    feed(run, with_kinds(step_batches(1)))
    [change] = run.finish(1.0, "complete")
    assert (change.window.state, change.window.steps) == ("complete", (0,))
