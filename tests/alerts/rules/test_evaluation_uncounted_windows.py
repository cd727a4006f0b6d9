"""What becomes of alerts while windows close that have no figures."""

from typing import Any

import pytest

from app.alerts.rules.evaluation import JobAlerts
from app.alerts.rules.state_machine import NO_DATA_AFTER_S
from tests.alerts.alert_factories import JOB, NOW_S, SLOW, facts, job_alerts, kinds

NOT_SEEN: list[dict[str, Any]] = [{"state": "incomplete"}, {"verdict": None}, {"verdict": "low"}]


@pytest.mark.parametrize("given", NOT_SEEN)
def test_alerts_are_without_data_after_long_without_figures(given):
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(0, 1.5), NOW_S)
    of_job.add_window(facts(1, 1.5, **given), NOW_S + 100)
    assert kinds(of_job.add_window(facts(2, 1.5, **given), NOW_S + 99 + NO_DATA_AFTER_S)) == []
    heir = job_alerts(SLOW)
    assert kinds(heir.add_window(facts(3, 1.0, **given), NOW_S)) == []
    heir = JobAlerts(JOB, of_job.states, [SLOW], counted_through=(1, 16))
    assert kinds(heir.add_window(facts(3, 1.5, **given), NOW_S + 100 + NO_DATA_AFTER_S)) == [
        "no-data"
    ]
    assert heir.add_window(facts(4, 1.5, **given), NOW_S + 9999) == []
    assert kinds(heir.add_window(facts(5, 1.5), NOW_S + 9999)) == ["data-again"]
    [state] = heir.states
    assert (state.phase, state.is_no_data, state.unseen_since_s) == ("firing", False, None)


def test_a_window_with_figures_in_between_begins_the_time_without_anew():
    of_job = job_alerts(SLOW)
    for at in range(12):
        given: dict[str, Any] = {} if at % 3 == 0 else {"verdict": "low"}
        changes = of_job.add_window(facts(at, 1.5, **given), NOW_S + at * 0.4 * NO_DATA_AFTER_S)
        assert kinds(changes) == (["firing"] if at == 0 else [])


def test_a_clock_set_back_does_not_delay_alerts():
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(0, 1.5), NOW_S)
    of_job.add_window(facts(1, 1.5, verdict="low"), NOW_S)
    of_job.add_window(facts(2, 1.5, verdict="low"), NOW_S - 86_400)
    low = facts(3, 1.5, verdict="low")
    assert kinds(of_job.add_window(low, NOW_S - 86_400 + NO_DATA_AFTER_S)) == ["no-data"]


def test_a_window_that_is_incomplete_counts_once_it_is_whole():
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(0, 1.5), NOW_S)
    of_job.add_window(facts(1, 1.0, state="incomplete"), NOW_S)
    assert kinds(of_job.add_window(facts(1, 1.0), NOW_S)) == ["resolved"]
