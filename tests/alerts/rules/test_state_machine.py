from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from app.alerts.alert import Blame, Detail
from app.alerts.rules import state_machine
from app.alerts.rules.state_machine import AlertStep, SubjectReading
from tests.alerts.alert_factories import NOW_S, fresh, look, moment, rule
from tests.alerts.rules.reference_state_machine import Seen, history
from tests.example_counts import many

RULE = rule()
# What a state is, None or not, is what is tested.
by_window: Any = state_machine.by_window
by_clock: Any = state_machine.by_clock
without_data: Any = state_machine.by_missing_data
ended: Any = state_machine.by_end


def followed(of, looks, state=None):
    """The state and the kinds of transitions after these looks, one window each."""
    kinds: list[str] = []
    for number, each in enumerate(looks):
        value, at = each if isinstance(each, tuple) else (each, moment(number))
        seen = value if isinstance(value, SubjectReading) else look(value)
        step = by_window(of, state, fresh(of), seen, at)
        state, kinds = step.state, [*kinds, *(each.kind for each in step.transitions)]
    return state, kinds


@pytest.fixture
def firing():
    state, kinds = followed(RULE, [1.2, 1.2, 1.2])
    assert kinds == ["pending", "firing"]
    return state


def test_an_alert_is_pending_until_windows_and_seconds_are_enough():
    state, kinds = followed(RULE, [1.2, 1.2])
    assert (state.phase, kinds) == ("pending", ["pending"])
    assert (state.num_windows, state.held_s) == (2, 16.0)
    state, kinds = followed(RULE, [1.2, 1.2, 1.1])
    assert (state.phase, kinds) == ("firing", ["pending", "firing"])
    assert (state.num_windows, state.held_s) == (3, 24.0)


def test_windows_alone_are_not_enough_and_seconds_alone_neither():
    short = [(1.2, moment(number, took_s=2.0)) for number in range(9)]
    state, kinds = followed(RULE, short)
    assert (kinds, state.held_s) == (["pending"], 18.0)
    _, kinds = followed(RULE, [*short, (1.2, moment(9, took_s=2.0))])
    assert kinds == ["pending", "firing"]
    _, kinds = followed(RULE, [(1.2, moment(0, took_s=100.0)), (1.2, moment(1, took_s=100.0))])
    assert kinds == ["pending"]


def test_a_firing_alert_holds_on_between_the_thresholds_for_twice_as_long(firing):
    between = [(1.06, moment(number)) for number in range(3, 7)]
    state, kinds = followed(RULE, between[:3], firing)
    assert (state.phase, state.num_windows, kinds) == ("firing", 0, [])
    assert state.below_s == 12.0
    assert followed(RULE, between, firing) == (None, ["resolved"])


def test_between_the_thresholds_nothing_resolves_at_once(firing):
    at_once = rule(keep_firing_s=0.0)
    between = [(1.05, moment(number)) for number in range(3, 50)]
    assert followed(at_once, between, firing)[1] == []


def test_a_cause_that_is_still_found_breaks_no_row_while_it_costs_little():
    looks = [(1.2, False), (1.2, False), (1.06, True), (1.2, False)]
    state: Any = None
    kinds: list[str] = []
    for number, (value, is_present) in enumerate(looks):
        step = by_window(
            RULE, state, fresh(RULE), look(value, is_present=is_present), moment(number)
        )
        state, kinds = step.state, [*kinds, *(each.kind for each in step.transitions)]
    assert kinds == ["pending", "firing"]
    gone = by_window(
        RULE, replace(state, phase="pending"), fresh(RULE), SubjectReading(None), moment(9)
    )
    assert gone.transitions[0].kind == "cleared"


def test_a_firing_alert_resolves_once_it_was_below_for_long_enough(firing):
    state, kinds = followed(RULE, [(1.04, moment(3))], firing)
    assert (state.phase, state.below_s, kinds) == ("firing", 8.0, [])
    state, kinds = followed(RULE, [(1.04, moment(3)), (1.0, moment(4))], firing)
    assert (state, kinds) == (None, ["resolved"])


def test_a_missing_subject_counts_as_below(firing):
    gone = SubjectReading(None, detail=Detail(slowdown=1.01))
    step = by_window(RULE, firing, fresh(RULE), gone, moment(3, took_s=16.0))
    (ended,) = step.transitions
    assert ended.kind == "resolved"
    assert (ended.detail.on, ended.detail.value) == (firing.detail.on, None)
    assert ended.detail.slowdown == 1.01, "as it is now"
    assert ended.detail.gpu_hours_lost_per_hour is None


def resolved_from(firing, looks):
    """The details with which it resolves, in windows from the third on, and the state before."""
    state, last = firing, AlertStep(firing)
    for number, seen in enumerate(looks, 3):
        step = by_window(RULE, state, fresh(RULE), seen, moment(number))
        state, last = step.state or state, step
    (end,) = last.transitions
    assert end.kind == "resolved"
    return end.detail


def test_resolved_says_since_when_all_is_well_not_when_that_was_sure(firing):
    calm = [look(1.0), look(1.0)]  # windows 3 and 4, of steps 24 to 31 and 32 to 39
    assert resolved_from(firing, calm).since_step == 24
    again = [look(1.0), look(1.3), *calm]
    assert resolved_from(firing, again).since_step == 40, "it came back in between"


def test_resolved_says_the_end_of_the_cause_where_that_is_known(firing):
    blame = Blame("slow-worker", "why", 0.2, 0.9, (), end_step=27, end_at_s=NOW_S - 5.0)
    over = look(1.2, is_over=True)
    ended_within = replace(over, detail=structs.replace(over.detail, blame=blame))
    detail = resolved_from(firing, [ended_within, look(1.0), look(1.0)])
    assert (detail.since_step, detail.since_at_s) == (28, NOW_S - 5.0)


def test_trouble_that_comes_and_goes_counts_and_what_is_over_raises_nothing():
    over = look(1.2, is_over=True)
    state, kinds = followed(RULE, [over, 1.2, over, over])
    assert (state.phase, state.num_windows, kinds) == ("pending", 4, ["pending"])
    assert followed(RULE, [1.2], state)[1] == ["firing"], "it came back"
    assert followed(RULE, [1.0], state)[1] == ["cleared"], "it was over"


def test_trouble_that_ended_within_a_window_does_not_resolve_by_that_window(firing):
    state, kinds = followed(RULE, [look(1.2, is_over=True)], firing)
    assert (state.phase, state.below_s, kinds) == ("firing", 0.0, [])


def test_an_unsure_reading_neither_raises_nor_resolves(firing):
    unsure = look(1.5, is_sure=False)
    assert by_window(RULE, None, fresh(RULE), unsure, moment(0)).state is None
    step = by_window(RULE, firing, fresh(RULE), unsure, moment(3))
    assert (step.state.phase, step.transitions) == ("firing", ())


def test_a_restart_ends_what_is_pending_and_counts_from_one():
    state, kinds = followed(RULE, [1.2, 1.2, (1.2, moment(0, epoch=2))])
    assert kinds == ["pending", "cleared", "pending"]
    assert (state.epoch, state.num_windows, state.held_s) == (2, 1, 8.0)
    assert followed(RULE, [1.2, (1.0, moment(0, epoch=2))]) == (None, ["pending", "cleared"])


def test_a_firing_alert_fires_on_over_a_restart_and_counts_anew(firing):
    below = by_window(RULE, firing, fresh(RULE), look(1.0), moment(3)).state
    state, kinds = followed(RULE, [(1.0, moment(0, epoch=2))], below)
    assert (state.phase, state.epoch, state.below_s, kinds) == ("firing", 2, 8.0, [])
    state, kinds = followed(RULE, [(1.2, moment(0, epoch=2))], firing)
    assert (state.num_windows, state.held_s, kinds) == (1, 8.0, [])


def test_an_alert_keeps_the_labels_and_the_first_step_that_it_fired_with_but_for_culprits(firing):
    named = replace(firing, labels={"team": "a", "host": "host-1", "worker": "0-1"})
    changed = fresh(rule(severity="critical", above=1.2))
    changed = replace(changed, labels={"team": "b", "host": "host-2"})
    state = by_window(RULE, named, changed, look(1.3), moment(3)).state
    assert state.labels == {"team": "a", "host": "host-2"}
    assert (state.severity, state.threshold) == ("warning", 1.1)
    assert (state.detail.value, state.detail.since_step) == (1.3, 0)


def test_pending_alerts_take_newer_details():
    state = by_window(RULE, None, fresh(RULE), look(1.2), moment(2)).state
    assert state.detail.since_step == 16
    knows = look(1.2)
    knows = replace(knows, detail=structs.replace(knows.detail, since_step=12))
    named = replace(fresh(RULE), labels={"cause": "slow-link"})
    state = by_window(RULE, state, named, knows, moment(3)).state
    assert (state.detail.since_step, state.labels) == (12, {"cause": "slow-link"})
    assert state.began_at_s == NOW_S + 16


def test_without_data_a_firing_alert_waits_and_goes_on_with_the_next_window(firing):
    step = without_data(firing)
    assert (step.state.is_no_data, [each.kind for each in step.transitions]) == (True, ["no-data"])
    assert without_data(step.state).transitions == ()
    again = by_window(RULE, step.state, fresh(RULE), look(1.2), moment(3))
    assert (again.state.is_no_data, [each.kind for each in again.transitions]) == (
        False,
        ["data-again"],
    )


def test_a_pending_alert_is_not_marked_without_data():
    pending = by_window(RULE, None, fresh(RULE), look(1.2), moment(0)).state
    assert without_data(pending) == state_machine.AlertStep(pending)


def test_the_end_of_a_job_resolves_what_fires_and_clears_what_is_pending(firing):
    assert ended(firing, "over").transitions[0][::2] == ("resolved", "over")
    pending = by_window(RULE, None, fresh(RULE), look(1.2), moment(0)).state
    assert ended(pending, "over").transitions[0].kind == "cleared"


STALLED = rule(on="stalled", above=None, clear=None, for_s=10.0, keep_firing_s=5.0)


def ticked(of, ticks, state=None):
    kinds: list[str] = []
    for now_s, holds in ticks:
        step = by_clock(of, state, fresh(of), holds=holds, now_s=now_s)
        state, kinds = step.state, [*kinds, *(each.kind for each in step.transitions)]
    return state, kinds


def test_a_silence_fires_by_the_clock():
    assert ticked(STALLED, [(0.0, True), (9.0, True)])[1] == ["pending"]
    state, kinds = ticked(STALLED, [(0.0, True), (9.0, True), (10.0, True)])
    assert (state.held_s, kinds) == (10.0, ["pending", "firing"])
    assert ticked(STALLED, [(0.0, True), (9.0, False), (10.0, True)])[1] == [
        "pending",
        "cleared",
        "pending",
    ]
    assert ticked(STALLED, [(0.0, False)]) == (None, [])


def test_a_silence_resolves_once_it_was_over_for_long_enough():
    fires = [(0.0, True), (10.0, True)]
    state, kinds = ticked(STALLED, [*fires, (20.0, False), (24.0, False)])
    assert (state.ceased_s, kinds) == (20.0, ["pending", "firing"])
    assert ticked(STALLED, [*fires, (20.0, False), (25.0, False)])[1][-1] == "resolved"
    state, kinds = ticked(STALLED, [*fires, (20.0, False), (24.0, True), (30.0, False)])
    assert (state.ceased_s, kinds[-1]) == (30.0, "firing")


def test_a_clock_that_goes_back_fires_nothing():
    assert ticked(STALLED, [(1000.0, True), (0.0, True)])[1] == ["pending"]


values = st.sampled_from([1.0, 1.04, 1.05, 1.07, 1.1, 1.3, 1.5])
begins_anew = st.integers(0, 9).map(lambda drawn: drawn == 9)
is_sure = st.integers(0, 4).map(bool)
windows = st.tuples(begins_anew, values, st.sampled_from([1.0, 4.0, 8.0, 30.0]), is_sure)
# As many of one kind in a row as it takes to get anywhere.
runs = st.lists(st.tuples(windows, st.integers(1, 4)), min_size=4, max_size=16)
rules = st.builds(
    rule,
    for_windows=st.integers(1, 3),
    for_s=st.sampled_from([0.0, 8.0, 20.0]),
    keep_firing_s=st.sampled_from([0.0, 8.0, 16.0]),
    clear=st.sampled_from([1.05, 1.1]),
)


@many(300)
@given(rules, runs)
def test_state_machine_matches_the_reference(of, run):
    seen, epoch = [], 1
    for (is_new_run, *window), num_alike in run:
        epoch += is_new_run
        seen += [Seen(epoch, *window)] * num_alike
    looks = [
        (look(each.value, is_sure=each.is_sure), moment(number, each.epoch, each.took_s))
        for number, each in enumerate(seen)
    ]
    assert followed(of, looks)[1] == history(of, seen)
