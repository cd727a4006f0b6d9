"""From the ideal to the recorded step: worked cases, and that the bars always add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.charts.base.theme import LIGHT
from app.charts.job.waterfall import has_losses, loss_parts, waterfall
from app.monitor import observe
from app.result import causes
from app.synth.faults.interruptions import GcPauses, PlannedGc
from app.synth.faults.slow_compute import SlowWorker
from tests.charts.results import found, result
from tests.diagnosis.jobs import made, window_of
from tests.results import unexplained


def window_with(ideal, costs, rest, **more):
    findings = [found(cause, cost=cost) for cause, cost in costs]
    return result(findings=findings, unexplained=unexplained(rest, ideal_share=ideal), **more)


def parts_of(ideal, costs, rest):
    parts = loss_parts(window_with(ideal, costs, rest), LIGHT)
    return [(part.label, pytest.approx(part.share)) for part in parts]


def test_one_cause_and_the_rest_lie_between_ideal_and_recorded():
    assert parts_of(0.625, [(causes.SLOW_WORKER, 0.3)], 0.075) == [
        ("Ideal", 0.625),
        ("Slow worker", 0.3),
        ("Not explained", 0.075),
    ]


def test_idle_time_without_a_cause_is_a_bar_of_its_own():
    rest = unexplained(0.0, ideal_share=0.65, idle_share=0.05)
    parts = loss_parts(
        result(findings=[found(causes.SLOW_WORKER, cost=0.3)], unexplained=rest), LIGHT
    )
    assert [(part.label, part.is_guess) for part in parts] == [
        ("Ideal", False),
        ("Slow worker", False),
        ("All idle, cause not recorded", True),
    ]
    assert [part.share for part in parts] == pytest.approx([0.65, 0.3, 0.05])


def test_one_cause_alone_is_never_counted_twice_nor_only_together():
    # Means over other steps than those of the cost: the ideal takes the difference.
    assert parts_of(0.7, [(causes.GC_PAUSE, 0.4)], 0.0) == [
        ("Ideal", 0.6),
        ("Garbage collection", 0.4),
    ]
    assert parts_of(0.6, [(causes.SLOW_WORKER, 0.3)], 0.019) == [
        ("Ideal", 0.7),
        ("Slow worker", 0.3),
    ]


def test_time_that_two_causes_lose_counts_once():
    costs = [(causes.SLOW_WORKER, 0.4), (causes.SLOW_LINK, 0.4)]
    assert parts_of(0.5, costs, 0.0)[-1] == ("Counted twice", -0.3)


def test_time_that_is_won_only_by_both_repairs_is_a_bar_of_its_own():
    costs = [(causes.SLOW_WORKER, 0.01), (causes.STAGE_IMBALANCE, 0.2)]
    assert parts_of(0.5, costs, 0.0)[-1] == ("Only together", 0.29)


def test_time_between_steps_is_a_share_of_all_time_and_all_else_of_the_steps():
    costs = [(causes.CHECKPOINT_STALL, 0.5), (causes.SLOW_WORKER, 0.4)]
    assert parts_of(0.6, costs, 0.0) == [
        ("Ideal", 0.3),
        ("Checkpoints", 0.5),
        ("Slow worker", 0.2),
    ]


def test_costliest_causes_are_first_and_many_small_ones_are_one_bar():
    costs = [(causes.SLOW_WORKER, 0.01 * number) for number in range(1, 9)]
    shown = parts_of(0.64, costs, 0.0)
    assert shown[1:3] == [("Slow worker", 0.08), ("Slow worker", 0.07)]
    assert shown[-1] == ("2 other causes", 0.03)


LOW = {"discrepancy": 0.2, "verdict": "low"}


@pytest.mark.parametrize(
    "window",
    [
        window_with(0.96, [], 0.04),
        window_with(1.0, [(causes.SLOW_WORKER, -0.04)], 0.0),
        window_with(None, [(causes.SLOW_WORKER, 0.3)], 0.0),
        window_with(0.7, [(causes.SLOW_WORKER, 0.3)], 0.0, fidelity=LOW),
        result(findings=None, unexplained=None),
    ],
    ids=["little", "negative", "older", "low fidelity", "withheld"],
)
def test_result_without_known_losses_has_no_chart(window):
    assert not has_losses(window)
    assert loss_parts(window, LIGHT) == []


@given(
    st.floats(0.0, 1.0),
    st.lists(st.tuples(st.sampled_from(sorted(causes.CAUSES)), st.floats(0.001, 0.1)), max_size=9),
    st.floats(0.0, 0.9),
)
def test_bars_add_up_to_the_recorded_step(ideal, costs, rest):
    window = window_with(ideal, costs, rest)
    if has_losses(window):
        parts = loss_parts(window, LIGHT)
        assert sum(part.share for part in parts) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "fault",
    [SlowWorker(1, 1, 1.6), PlannedGc(every_steps=3, pause_s=1.0), GcPauses(rate=0.5, pause_s=1.0)],
    ids=lambda fault: fault.name,
)
def test_one_fault_of_a_whole_job_is_one_bar_between_ideal_and_recorded(fault):
    of_window = observe(window_of(made(fault))).result
    (finding,) = of_window.findings or ()
    ideal, lost, *rest = loss_parts(of_window, LIGHT)
    assert lost.share == finding.cost
    assert 0 < ideal.share < 1
    assert [part.label for part in rest] in ([], ["Not explained"])


def test_each_bar_begins_where_the_one_above_ends():
    costs = [(causes.SLOW_WORKER, 0.4), (causes.SLOW_LINK, 0.4)]
    (bars,) = waterfall(window_with(0.5, costs, 0.0), theme=LIGHT)["data"]
    assert bars["base"] == pytest.approx([0.0, 0.5, 0.9, 1.0, 0.0])
    assert bars["x"] == pytest.approx([0.5, 0.4, 0.4, 0.3, 1.0])
