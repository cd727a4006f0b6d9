"""Arrivals of several windows together, worked out by hand."""

import pytest

from app.result.join_figures import combine_results
from tests.arrival_results import block
from tests.results import window_result


def window(first_step, waited_for_s, *, num_steps=2, step_s=2.0, culprits=(), **about):
    made = block(waited_for_s, num_steps=num_steps, step_s=step_s, culprits=culprits)
    steps = list(range(first_step, first_step + num_steps))
    times = dict.fromkeys(("recorded", "simulated", "ideal"), [step_s] * num_steps)
    known = {"unexplained_share": 0.1, "coverage": 0.8, "slowdown": 1.0, "stage_share": []}
    return {"steps": steps, "step_time_s": times, "arrivals": made} | known | about


def combined(*parts):
    return combine_results([window_result(**part) for part in parts]).as_json()


def test_means_are_weighted_by_steps_and_shares_by_time():
    short = window(0, (0.0, 1.0), num_steps=1, step_s=4.0, culprits=(1,))
    found = combined(short, window(1, (0.4, 0.0), num_steps=3))
    joint = found["arrivals"]
    assert joint["waited_for_s"] == pytest.approx([0.3, 0.25])
    assert joint["num_occurrences"] == 4
    # A mean step takes 2.5 s.
    assert joint["largest_share"] == pytest.approx(0.12)
    assert joint["late_share"] == pytest.approx([0.75, 0.25])
    [culprit] = joint["culprits"]
    assert (culprit["rank"], culprit["share"], culprit["steps_late"]) == (1, 0.1, 0.25)
    assert joint["per_step"]["waited_for_s"] == [[0.0, 1.0], *[[0.4, 0.0]] * 3]


def test_step_shares_use_only_windows_that_have_them():
    parts = [
        window(0, (0.0, 0.0), step_s=1.0, unexplained_share=0.3),
        window(2, (0.0, 0.0), step_s=3.0, coverage=None),
    ]
    found = combined(*parts)
    assert found["unexplained_share"] == pytest.approx(0.15)
    assert found["coverage"] == 0.8
    nothing = combined(window(0, (0.0, 0.0), unexplained_share=None, coverage=None))
    assert nothing["unexplained_share"] is nothing["coverage"] is None


def test_windows_without_arrivals_do_not_count_as_zero_waits():
    parts = [window(0, (0.0, 0.5)), window(2, (0.0, 0.0), arrivals=None)]
    assert combined(*parts)["arrivals"]["waited_for_s"] == [0.0, 0.5]
    assert combined(*parts[1:])["arrivals"] is None


def test_a_rank_missing_from_a_window_is_unknown_in_its_steps():
    parts = [window(0, (0.0, 0.5)), window(2, (0.0, 0.1, 0.2))]
    joint = combined(*parts)["arrivals"]
    assert joint["rank"] == [0, 1, 2]
    assert joint["waited_for_s"] == pytest.approx([0.0, 0.3, 0.2])
    assert joint["per_step"]["waited_for_s"][0] == [0.0, 0.5, None]
    assert joint["host"] == ["host-0", "host-1", "host-2"]


def test_members_of_large_groups_have_a_mean_only_if_every_window_lists_them():
    parts = [window(0, (0.5, 0.0, 0.1)), window(2, (0.0, 0.3, 0.2))]
    for part in parts:
        [group] = part["arrivals"]["groups"]
        group["members"] = group["members"][:2]
    [group] = combined(*parts)["arrivals"]["groups"]
    assert [each["rank"] for each in group["members"]] == [2]
    assert group["members"][0]["waited_for_s"] == pytest.approx(0.15)
    assert group["num_occurrences"] == 4


def test_arrivals_of_a_single_window_are_unchanged():
    part = window(0, (0.0, 0.5, 0.25), culprits=(1,))
    assert combined(part)["arrivals"] == part["arrivals"]
