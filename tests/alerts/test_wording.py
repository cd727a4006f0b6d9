import pytest

from app.alerts.alert import WorstWorker
from app.alerts.wording import gpu_time_wasted, sentence
from tests.alerts.factories import alert

TIMES = "\N{MULTIPLICATION SIGN}"


def said(**given):
    return sentence(alert(**given)).replace(TIMES, "x")


def test_a_firing_alert_tells_the_fact_and_then_the_cost():
    assert said() == (
        "llm-70b runs at 1.42x of its ideal for 3 windows, since step 1,204. It loses 30 % of its "
        "GPU time; dp 3, stage 1 on host-017 alone accounts for 1.40x."
    )


def test_a_worker_without_a_host_is_named_by_its_place():
    assert said(worst_worker=WorstWorker(3, 1, None, 1.4)).endswith(
        "; dp 3, stage 1 alone accounts for 1.40x."
    )


@pytest.mark.parametrize("worker", [None, WorstWorker(3, 1, "host-017", 1.2)])
def test_nobody_is_named_who_explains_less_than_half(worker):
    assert said(worst_worker=worker).endswith("It loses 30 % of its GPU time.")


def test_one_window_is_singular():
    assert "for 1 window, since" in said(transition={"num_windows": 1})


def test_a_resolved_alert_tells_since_when_all_is_well():
    transition = {"kind": "resolved", "slowdown": 1.02, "since_step": 1300, "num_windows": 0}
    assert said(transition=transition) == (
        "llm-70b runs at 1.02x of its ideal again, since step 1,300."
    )


def test_the_end_of_a_job_is_not_called_a_recovery():
    assert said(transition={"kind": "resolved", "job_ended": True}) == (
        "llm-70b has ended. It last ran at 1.42x of its ideal."
    )


@pytest.mark.parametrize(("slowdown", "wasted"), [(1.0, 0.0), (1.25, 0.2), (2.0, 0.5)])
def test_the_time_wasted_is_what_the_ideal_run_would_not_need(slowdown, wasted):
    assert gpu_time_wasted(slowdown) == pytest.approx(wasted)
