"""The default rules on whole simulated jobs: alerts that fire, and that must not."""

from dataclasses import replace

import pytest

from app.alerts.rule import default_rules
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import simulated_runs
from benchmarks.alerts.faults import try_fault
from benchmarks.alerts.scenarios import SCENARIOS, false_alerts
from benchmarks.alerts.simulated_service import evaluate_rules, facts_of, simulated_service
from benchmarks.diagnosis.drawn_jobs import JobNumber

# All of them are `python -m benchmarks alerts`.
QUICK = ("healthy", "one-step-slow-for-all")
TESTED = [
    pytest.param(each, marks=() if each.name in QUICK else pytest.mark.nightly, id=each.name)
    for each in SCENARIOS[::3]
]


@pytest.mark.parametrize("scenario", TESTED)
def test_job_without_stragglers_fires_no_alert(scenario):
    assert false_alerts(scenario).sentences == []


def test_slowdown_alert_covers_the_cause_alert_in_notifications():
    slow = replace(SCENARIOS[0], faults=(SlowWorker(1, 1, 1.6),))
    attempts = simulated_runs(slow.simulated, slow.steps, slow.events)
    with simulated_service(default_rules(for_s=0.0)) as service:
        service.run_job(attempts, slow.habits, slow.window_steps)
    firing = [event.rule for event in service.transitions if event.kind == "firing"]
    assert firing == ["slowdown", "cause"]
    begun, over = service.delivered
    assert begun.startswith("made runs at 1.28")
    assert "ended" in over


def test_fault_across_restarts_fires_once_and_stays_firing():
    slow = next(each for each in SCENARIOS if each.name == "two-restarts")
    slow = replace(slow, faults=(SlowWorker(1, 1, 1.6),), steps=tuple(range(160)))
    attempts = simulated_runs(slow.simulated, slow.steps, slow.events)
    rule_events = evaluate_rules(facts_of(attempts), default_rules(for_s=0.0))
    assert [event.rule for event in rule_events.firing] == ["slowdown", "cause"]
    assert {state.epoch for state in rule_events.left} == {3}


# Of those that cost 10 % or more; `slow-worker` alone is quick.
FAULTS = {
    "slow-worker": 3000000,
    "throttling-gpu": 3000001,
    "slow-stage": 3000005,
    "slow-nic": 3000009,
    "flapping-nic": 3000012,
    "gc-pauses": 3000013,
    "data-loading": 3000020,
    "allocator-stalls": 3000021,
    "sequence-imbalance": 3000022,
    "uniform-slowdown": 3000024,
    "silent-worker": 3000052,
}
TRIED = [
    pytest.param(number, marks=() if name == "slow-worker" else pytest.mark.nightly, id=name)
    for name, number in FAULTS.items()
]


@pytest.mark.parametrize("number", TRIED)
def test_fault_of_ten_percent_fires_names_its_cause_and_resolves(number):
    found = try_fault(JobNumber.of(number))
    assert found.counts, "too small to be told"
    assert found.is_alerted
    assert found.missed_at_first is None
    assert found.early == ()
    assert found.is_cause_right
    assert found.is_culprit_right or not found.has_place
    assert found.is_resolved
