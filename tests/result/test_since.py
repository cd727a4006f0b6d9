import pytest
from msgspec.structs import replace

from app.result.recent import result_since
from tests import results
from tests.results import window_result

RECORDED_S = [1.0, 1.0, 3.0, 3.0]


def result(onset=12, cost=0.3):
    """Two healthy steps and two that take 3 s instead of 2 s."""
    return window_result(
        steps=[10, 11, 12, 13],
        step_time_s={
            "recorded": RECORDED_S,
            "simulated": RECORDED_S,
            "ideal": [1.0, 1.0, 2.0, 2.0],
        },
        step_slowdown=[1.0, 1.0, 1.5, 1.5],
        structures=[[10, 11], [12, 13]],
        slowdown=8 / 6,
        gpu_time_wasted=0.25,
        gpu_hours_lost=2.0,
        launch_slowdown=1.0,
        findings=[results.finding(onset_step=onset, cost=cost)],
    )


def test_figures_since_the_onset_leave_out_healthy_steps():
    kept = result_since(result(), 12)
    assert kept.steps == (12, 13)
    assert kept.slowdown == pytest.approx(1.5)
    assert kept.gpu_time_wasted == pytest.approx(1 / 3)
    # Nothing was lost before: 6 s x 1/3 is the whole loss, 8 s x 1/4.
    assert kept.gpu_hours_lost == pytest.approx(2.0)
    assert kept.step_slowdown == (1.5, 1.5)
    assert kept.structures == ((12, 13),)
    assert kept.step_time_s.between is None


def test_cost_of_a_cause_since_its_onset_is_of_the_steps_since():
    [found] = result_since(result(), 12).findings or ()
    assert found.cost == pytest.approx(0.3 * 8 / 6)
    for onset in (None, 10):
        [found] = result_since(result(onset), 12).findings or ()
        assert found.cost == 0.3


@pytest.mark.parametrize("step", [0, 10, 14])
def test_a_step_that_leaves_out_none_or_all_changes_nothing(step):
    assert result_since(result(), step) == result()


def test_a_result_without_figures_is_unchanged():
    empty = replace(result(), slowdown=None)
    assert result_since(empty, 12) == empty
