"""The default rules on whole simulated jobs: alerts that fire, and that must not."""

import json
from dataclasses import replace

import pytest

from app.alerts.rules.defaults import default_rules
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import SilentWorker
from app.synth.faults.slow_compute import SlowWorker
from app.synth.restarts import simulated_runs
from benchmarks.alerts import faults
from benchmarks.alerts.faults import AlertOutcome, try_fault
from benchmarks.alerts.scenarios import SCENARIOS, false_alerts
from benchmarks.alerts.simulated_service import evaluate_rules, facts_of, simulated_service
from benchmarks.diagnosis.drawn_jobs import JobNumber
from tests.benchmarks.running import run_benchmark


# All of them are `python -m benchmarks alerts`.
@pytest.mark.parametrize("scenario", SCENARIOS[::3], ids=lambda each: each.name)
def test_job_without_stragglers_fires_no_alert(scenario):
    assert false_alerts(scenario).sentences == []


def test_thirty_scenarios_exist_and_a_slow_worker_would_fire():
    assert len({scenario.name for scenario in SCENARIOS}) >= 30
    slow = replace(SCENARIOS[0], faults=(SlowWorker(1, 1, 1.6),))
    assert {event.rule for event in false_alerts(slow).fired} == {"slowdown", "cause"}


def run_scenario(scenario, **given):
    attempts = simulated_runs(scenario.simulated, scenario.steps, scenario.events)
    with simulated_service(default_rules(**given)) as service:
        service.run_job(attempts, scenario.habits, scenario.window_steps)
    return service


def fired_rules(service):
    return [event.rule for event in service.transitions if event.kind == "firing"]


def test_slowdown_alert_covers_the_cause_alert_in_notifications():
    service = run_scenario(replace(SCENARIOS[0], faults=(SlowWorker(1, 1, 1.6),)), for_s=0.0)
    assert fired_rules(service) == ["slowdown", "cause"]
    begun, over = service.delivered
    assert begun.startswith("made runs at 1.28")
    assert "ended" in over


def test_gap_longer_than_the_silence_limit_fires_stalled():
    gap = next(each for each in SCENARIOS if each.name == "a-gap")
    steps = tuple(step if step < 36 else step + 200 for step in gap.steps)
    service = run_scenario(replace(gap, steps=steps))
    assert fired_rules(service) == ["stalled"]
    assert [event.kind for event in service.transitions] == ["firing", "resolved"]
    assert service.delivered[0].startswith("No worker of made has sent anything")


def test_silent_worker_fires_and_is_named():
    faults = (SilentWorker(3, 2, when=FaultSteps(40)),)
    service = run_scenario(replace(SCENARIOS[0], faults=faults, steps=tuple(range(520))))
    assert fired_rules(service) == ["silent-worker"]
    assert service.delivered[0].startswith("1 worker of made has fallen silent")
    assert "dp 3, stage 2" in service.delivered[0]


def test_fault_across_restarts_fires_once_and_stays_firing():
    slow = next(each for each in SCENARIOS if each.name == "two-restarts")
    slow = replace(slow, faults=(SlowWorker(1, 1, 1.6),), steps=tuple(range(160)))
    attempts = simulated_runs(slow.simulated, slow.steps, slow.events)
    rule_events = evaluate_rules(facts_of(attempts), default_rules(for_s=0.0))
    assert [event.rule for event in rule_events.firing] == ["slowdown", "cause"]
    assert {state.epoch for state in rule_events.left} == {3}


# One of each cause, and one that no slowdown S shows, of those that cost 10 % or more.
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


@pytest.mark.parametrize("number", FAULTS.values(), ids=FAULTS)
def test_fault_of_ten_percent_fires_names_its_cause_and_resolves(number):
    found = try_fault(JobNumber.of(number))
    assert found.counts, "too small to be told"
    assert found.is_alerted
    assert found.missed_at_first is None
    assert found.early == ()
    assert found.is_cause_right
    assert found.is_culprit_right or not found.has_place
    assert found.is_resolved


@pytest.mark.parametrize(
    ("at_first", "miss"),
    [({}, "not alerted"), ({"is_alerted": True}, "not resolved")],
)
def test_fault_alerted_only_on_the_longer_try_is_missed_at_first(monkeypatch, at_first, miss):
    outcome = AlertOutcome(3000000, "slow-worker", "a job", 0.2, is_cause_right=True)
    tries = {
        1: replace(outcome, **at_first),
        4: replace(outcome, is_alerted=True, is_resolved=True),
    }
    monkeypatch.setattr(faults, "_try_times", lambda _, times: tries[times])
    found = try_fault(JobNumber.of(3000000))
    assert (found.miss, found.missed_at_first) == (None, miss)
    verdict = faults_verdict("--jobs", "1", "--seed", "3")
    assert (verdict["told"], verdict["told_at_first"]) == (1, 0)
    assert [each["missed_at_first"] for each in verdict["missed_at_first"]] == [miss]


def faults_verdict(*given):
    result = run_benchmark("alerts", "--part", "faults", "--processes", "1", *given)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_faults_part_counts_alerted_and_resolved_jobs():
    found = faults_verdict("--jobs", "2", "--seed", "3")
    assert (found["jobs"], found["wrong"], found["early"]) == (2, [], 0)
    assert found["counted"] == found["alerted"] == found["resolved"] == 2
