import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.alert import AlertState, Transition
from app.alerts.rules import Rule, decide, job_ended
from app.errors import StartUpFailed

RULE = Rule(threshold=1.1, clear=1.05, num_windows=3)


def see(state, slowdown, *, at, epoch=1, window_state="complete", verdict="ok", rule=RULE):
    return decide(
        state,
        rule,
        slowdown=slowdown,
        window_id=f"{epoch}-{at}",
        window_state=window_state,
        verdict=verdict,
    )


def run(*windows, state=None):
    """The last state, and the transition (or None) that each window brought."""
    state, transitions = state or AlertState(), []
    for window in windows:
        state, transition = see(state, **window)
        transitions.append(transition)
    return state, transitions


def slow(at, slowdown=1.42, **given):
    return {"at": at, "slowdown": slowdown, **given}


def test_it_fires_at_the_third_slow_window_and_tells_since_when():
    state, transitions = run(slow(8), slow(16, 1.1), slow(24))
    assert transitions == [None, None, Transition("firing", "1-24", 1.42, 1.1, 8, 3)]
    assert state.is_firing


def test_a_window_below_the_threshold_begins_the_count_anew():
    _, transitions = run(slow(0), slow(8), slow(16, 1.09), slow(24), slow(32), slow(40))
    assert transitions == [None] * 5 + [Transition("firing", "1-40", 1.42, 1.1, 24, 3)]


def test_between_the_thresholds_it_keeps_firing_and_below_it_resolves():
    firing, _ = run(slow(0), slow(8), slow(16))
    state, transitions = run(slow(24, 1.05), slow(32, 1.0499), state=firing)
    assert transitions == [None, Transition("resolved", "1-32", 1.0499, 1.1, 32, 0)]
    assert (state.is_firing, state.num_over) == (False, 0)


def test_it_rings_once_however_long_the_job_is_slow():
    _, transitions = run(*(slow(8 * number) for number in range(20)))
    assert [transition is not None for transition in transitions] == [False, False, True] + [
        False
    ] * 17


@pytest.mark.parametrize(
    "unsure",
    [
        {"window_state": "open"},
        {"window_state": "incomplete"},
        {"window_state": "superseded"},
        {"verdict": "low"},
        {"verdict": None, "slowdown": None},
    ],
    ids=repr,
)
@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_a_window_that_cannot_be_relied_on_holds_everything(unsure, slowdown):
    pending, _ = run(slow(0), slow(8))
    firing, _ = run(slow(16), state=pending)
    for state in (AlertState(), pending, firing):
        window = {"at": 24, "slowdown": slowdown} | unsure
        assert see(state, **window) == (state, None)


def test_a_window_handed_in_again_counts_once():
    state, transitions = run(slow(0), slow(8), slow(8), slow(0))
    assert transitions == [None] * 4
    assert state.num_over == 2


def test_windows_before_and_after_a_restart_are_not_in_a_row():
    _, transitions = run(slow(0), slow(8), slow(0, epoch=2), slow(8, epoch=2), slow(16, epoch=2))
    assert transitions == [None] * 4 + [Transition("firing", "2-16", 1.42, 1.1, 0, 3)]


def test_an_alert_outlives_a_restart_and_resolves_in_the_next_run():
    firing, _ = run(slow(0), slow(8), slow(16))
    _, transitions = run(slow(0, epoch=2), slow(8, 1.01, epoch=2), state=firing)
    assert [transition and transition.kind for transition in transitions] == [None, "resolved"]


def test_the_end_of_the_job_resolves_what_fires():
    firing, _ = run(slow(0), slow(8), slow(16))
    state, transition = job_ended(firing, RULE)
    assert transition == Transition("resolved", "1-16", 1.42, 1.1, 16, 0, job_ended=True)
    assert not state.is_firing
    assert job_ended(state, RULE)[1] is None


def test_the_end_of_the_job_forgets_what_was_pending():
    pending, _ = run(slow(0), slow(8))
    state, transition = job_ended(pending, RULE)
    assert (state.num_over, state.since_step, transition) == (0, None, None)


@pytest.mark.parametrize(
    "given", [{"clear": 1.2}, {"clear": 1.0}, {"threshold": 1.0}, {"num_windows": 0}], ids=repr
)
def test_a_rule_that_cannot_work_is_refused_at_the_start(given):
    with pytest.raises(StartUpFailed):
        Rule(**given)


WINDOWS = st.lists(
    st.fixed_dictionaries(
        {
            "slowdown": st.sampled_from([None, 1.0, 1.049, 1.05, 1.09, 1.1, 1.3]),
            "window_state": st.sampled_from(["complete"] * 5 + ["open", "incomplete"]),
            "verdict": st.sampled_from(["ok"] * 5 + ["low"]),
        }
    ),
    max_size=40,
)


@given(WINDOWS, st.integers(1, 4))
def test_it_fires_only_after_enough_slow_windows_in_a_row_and_alternates(windows, num_windows):
    rule = Rule(threshold=1.1, clear=1.05, num_windows=num_windows)
    state, counted, kinds = AlertState(), [], []
    for at, window in enumerate(windows):
        state, transition = see(state, **window, at=at, rule=rule)
        if (
            window["slowdown"]
            and window["window_state"] == "complete"
            and window["verdict"] == "ok"
        ):
            counted.append(window["slowdown"])
        if transition is None:
            continue
        kinds.append(transition.kind)
        if transition.kind == "firing":
            last = counted[-num_windows:]
            assert len(last) == num_windows
            assert min(last) >= rule.threshold
        else:
            assert counted[-1] < rule.clear
    assert kinds == (["firing", "resolved"] * len(kinds))[: len(kinds)]
    assert state.is_firing == (kinds[-1:] == ["firing"])


@given(WINDOWS)
def test_it_agrees_with_the_obvious_implementation(windows):
    state, is_firing, in_a_row = AlertState(), False, 0
    for at, window in enumerate(windows):
        state, _ = see(state, **window, at=at)
        slowdown = window["slowdown"]
        if slowdown is None or window["window_state"] != "complete" or window["verdict"] != "ok":
            continue
        in_a_row = in_a_row + 1 if slowdown >= 1.1 else 0
        is_firing = in_a_row >= 3 if not is_firing else slowdown >= 1.05
        assert state.is_firing == is_firing
