"""From the ideal to the recorded step: worked cases, and that the bars always add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.charts.base.theme import LIGHT
from app.charts.job.waterfall import loss_parts, waterfall
from app.result import causes
from tests.charts.results import found, result

NOWHERE: dict[str, object] = {
    "share_of_loss": None,
    "optype": None,
    "share_in_optype": None,
    "stage": None,
    "share_in_stage": None,
    "late_launch_share": 0.0,
    "stop_share": 0.0,
    "stop_steps": [],
    "sentence": None,
}


def parts_of(slowdown, costs, rest):
    findings = [found(cause, cost=cost) for cause, cost in costs]
    of_window = result(slowdown=slowdown, findings=findings, unexplained=NOWHERE | {"share": rest})
    return [(part.label, part.share) for part in loss_parts(of_window, LIGHT)]


def test_one_cause_and_the_rest_lie_between_ideal_and_recorded():
    # S = 1.6, so the ideal is 62.5 % of the step; 30 % is the worker's, 7.5 % nobody's.
    assert parts_of(1.6, [(causes.SLOW_WORKER, 0.3)], 0.075) == [
        ("Ideal", pytest.approx(0.625)),
        ("Slow worker", 0.3),
        ("Not explained", 0.075),
    ]


def test_time_that_two_causes_lose_counts_once():
    # Half of the step is lost; each of two costs 40 %, so 30 % of the step is lost by both.
    costs = [(causes.SLOW_WORKER, 0.4), (causes.SLOW_LINK, 0.4)]
    assert parts_of(2.0, costs, 0.0)[-1] == ("Counted twice", pytest.approx(-0.3))


def test_time_that_is_won_only_by_both_repairs_is_a_bar_of_its_own():
    costs = [(causes.SLOW_WORKER, 0.01), (causes.STAGE_IMBALANCE, 0.2)]
    assert parts_of(2.0, costs, 0.0)[-1] == ("Only together", pytest.approx(0.29))


def test_slowdown_of_all_workers_is_taken_out_of_the_ideal():
    # All are 1.25x slower than before, so S is 1 and shows nothing of it.
    assert parts_of(1.0, [(causes.UNIFORM_SLOWDOWN, 0.2)], 0.0) == [
        ("Ideal", pytest.approx(0.8)),
        ("Everything is slower", 0.2),
    ]


def test_costliest_causes_are_first_and_many_small_ones_are_one_bar():
    costs = [(causes.SLOW_WORKER, 0.01 * number) for number in range(1, 9)]
    shown = parts_of(1 / 0.64, costs, 0.0)
    assert [round(share, 3) for _, share in shown[1:3]] == [0.08, 0.07]
    assert shown[-1] == ("2 other causes", pytest.approx(0.03))


@given(
    st.floats(1.0, 20.0),
    st.lists(st.tuples(st.sampled_from(sorted(causes.CAUSES)), st.floats(0.001, 0.95)), max_size=9),
    st.floats(0.0, 0.9),
)
def test_bars_add_up_to_the_recorded_step(slowdown, costs, rest):
    shown = parts_of(slowdown, costs, rest)
    if costs or rest:
        assert sum(share for _, share in shown) == pytest.approx(1.0)
    else:
        assert shown == []


def test_each_bar_begins_where_the_one_above_ends():
    of_window = result(
        slowdown=2.0,
        findings=[found(causes.SLOW_WORKER, cost=0.4), found(causes.SLOW_LINK, cost=0.4)],
        unexplained=NOWHERE | {"share": 0.0},
    )
    (bars,) = waterfall(of_window, theme=LIGHT)["data"]
    assert bars["base"] == pytest.approx([0.0, 0.5, 0.9, 1.0, 0.0])
    assert bars["x"] == pytest.approx([0.5, 0.4, 0.4, 0.3, 1.0])
