from dataclasses import replace

import pytest
import structlog

from app.alerts.alert import AlertState
from app.alerts.rules import Rule
from app.engine.report import analyse
from app.engine.result import as_json
from app.monitor import observe
from app.synth.run import MadeJob
from app.trace.window import SkippedStep, Window
from tests.consumer.jobs import HEALTHY, SLOW, UNEXPLAINED
from tests.factories import Row, window

RULE = Rule(num_windows=1)
AT_REST = AlertState()


def made_window(made: MadeJob, *steps: int, state="complete") -> Window:
    return Window(made.job, 1, steps[0], steps, made.make(steps), state=state)


def test_a_healthy_window_has_its_figures_and_is_no_news():
    healthy = made_window(HEALTHY, 0, 1, 2)
    seen = observe(healthy, AT_REST, RULE)
    assert seen.verdict == "ok"
    assert seen.result == as_json(analyse(healthy))
    assert seen.result["slowdown"] < RULE.threshold
    assert seen.transition is None
    assert seen.alert_state.num_over == 0
    assert seen.alert_state.window_id == "1-0"


def test_a_slow_window_is_news():
    seen = observe(made_window(SLOW, 4, 5), AT_REST, RULE)
    assert seen.transition is not None
    assert seen.transition.kind == "firing"
    assert seen.transition.window_id == "1-4"
    assert seen.transition.slowdown == seen.result["slowdown"] >= RULE.threshold
    assert seen.alert_state.is_firing


def test_an_open_window_has_figures_and_never_is_news():
    seen = observe(made_window(SLOW, 0, state="open"), AT_REST, RULE)
    assert seen.result["slowdown"] >= RULE.threshold
    assert seen.transition is None
    assert seen.alert_state == AT_REST


@pytest.mark.parametrize("state", ["incomplete", "superseded"])
def test_a_window_that_was_cut_short_holds_the_alert_as_it_is(state):
    firing = observe(made_window(SLOW, 0), AT_REST, RULE).alert_state
    for made, before in ((SLOW, AT_REST), (HEALTHY, firing)):
        seen = observe(made_window(made, 1, state=state), before, RULE)
        assert seen.transition is None
        assert seen.alert_state == before


def test_figures_that_the_replay_cannot_explain_are_shown_and_never_are_news():
    seen = observe(made_window(UNEXPLAINED, 0), AT_REST, RULE)
    assert seen.verdict == "low"
    assert seen.result["slowdown"] >= RULE.threshold
    assert seen.transition is None
    assert seen.alert_state == AT_REST


def test_a_window_without_a_complete_step_has_no_figures_and_says_why():
    skipped = SkippedStep(7, "rank 3 did not report the step in time", (3,))
    nothing = replace(
        made_window(HEALTHY, 7),
        steps=(),
        trace=HEALTHY.make([7]).select(HEALTHY.make([7]).step < 0),
        skipped=(skipped,),
        state="incomplete",
    )
    seen = observe(nothing, AT_REST, RULE)
    assert seen.report is None
    assert seen.verdict is None
    assert seen.result["slowdown"] is None
    assert seen.result["window"]["missing"] == [3]
    assert seen.result["skipped_steps"] == [{"step": 7, "reason": skipped.reason}]
    assert (seen.alert_state, seen.transition) == (AT_REST, None)


def circle():
    """A window whose only step cannot be replayed."""
    # By its record, stage 0 goes backward before the forward whose result comes back to it.
    rows = [
        Row("backward-recv", 0, 1),
        Row("backward-compute", 1, 1),
        Row("forward-compute", 6, 1),
        Row("forward-send", 7, 1),
        Row("forward-recv", 0, 2, stage=1),
        Row("forward-compute", 2, 1, stage=1),
        Row("backward-compute", 3, 2, stage=1),
        Row("backward-send", 5, 1, stage=1),
    ]
    return window(
        rows,
        pp_size=2,
        skipped=(SkippedStep(1, "rank 0 did not report the step in time", (0,)),),
    )


def test_operations_that_wait_for_each_other_skip_their_steps_with_that_reason():
    seen = observe(circle(), AT_REST, RULE)
    assert seen.report is None
    assert seen.result["slowdown"] is None
    assert seen.result["steps"] == []
    first, second = seen.result["skipped_steps"]
    assert (first["step"], second["step"]) == (0, 1)
    assert "in a circle" in first["reason"]
    assert (seen.alert_state, seen.transition) == (AT_REST, None)


def test_a_line_about_a_window_says_which_one_and_which_revision():
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        observe(replace(circle(), revision=3), AT_REST, RULE)
    [line] = lines
    assert (line["window"], line["epoch"], line["revision"]) == ("1-0", 1, 3)
