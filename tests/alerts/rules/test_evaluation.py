from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from app.alerts.facts import MissingDataFacts
from app.alerts.rule import Rule
from app.result.finding import ObservationRecord
from tests.alerts.alert_factories import (
    AT_ONCE,
    NOW_S,
    SLOW,
    facts,
    finding,
    job_alerts,
    kinds,
    on,
    only,
    rule,
)
from tests.results import idle

STALLED = MissingDataFacts(stalled_since_s=NOW_S - 300, num_gpus=16, last_step=40)


def test_a_slow_window_fires_and_a_good_one_resolves():
    of_job = job_alerts(SLOW)
    fired = only(of_job.add_window(facts(0, 1.4, findings=[finding()]), NOW_S))
    assert kinds([fired]) == ["firing"]
    assert fired.is_news
    assert fired.state.labels == {
        "alertname": "PacelineSlow",
        "project": "default",
        "job": "llm-70b",
        "rule": "slow",
        "severity": "warning",
        "cause": "slow-worker",
        "worker": "0-0",
        "host": "host-1",
    }
    assert fired.state.detail.gpu_hours_lost_per_hour == pytest.approx(16 * (1 - 1 / 1.4))
    resolved = only(of_job.add_window(facts(1, 1.0), NOW_S))
    assert (kinds([resolved]), resolved.state) == (["resolved"], None)
    assert of_job.states == []


def test_an_alert_on_the_whole_job_has_facts_without_a_cause():
    of_job = job_alerts(SLOW)
    result = structs.replace(facts(0, 1.4).result, observations=(of_idle(0.02), of_idle(0.054)))
    fired = only(of_job.add_window(replace(facts(0, 1.4), result=result), NOW_S))
    assert fired.state.detail.unexplained == idle(0.054)["sentence"]


def of_idle(share):
    return msgspec.convert(idle(share), ObservationRecord)


def test_what_a_newer_run_has_shown_does_not_end_with_the_one_before():
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(0, 1.4), NOW_S)
    of_job.add_window(replace(facts(0, 1.4), window_id="2-0"), NOW_S)
    assert of_job.end(1, NOW_S) == []
    assert [state.epoch for state in of_job.states] == [2]
    assert [each.kind for each in events(of_job.end(2, NOW_S))] == ["resolved"]


@pytest.mark.parametrize(
    "given",
    [{"state": "open"}, {"state": "incomplete"}, {"state": "superseded"}, {"verdict": None},
     {"verdict": "low"}],
)  # fmt: skip
@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_windows_that_do_not_count_hold_everything(given, slowdown):
    at_rest, fires = job_alerts(SLOW), job_alerts(SLOW)
    fires.add_window(facts(0, 1.5), NOW_S)
    before = fires.states
    assert at_rest.add_window(facts(1, slowdown, **given), NOW_S) == []
    assert kinds(fires.add_window(facts(1, slowdown, **given), NOW_S)) == []
    assert [replace(state, unseen_since_s=None) for state in fires.states] == before


def test_an_alert_keeps_its_first_step_and_whoever_is_to_blame_now_has_another():
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(0, 1.4, findings=[finding(onset_step=3)]), NOW_S)
    of_job.add_window(facts(1, 1.4, findings=[finding("slow-link", onset_step=9)]), NOW_S)
    [state] = of_job.states
    assert state.detail.blame is not None
    assert (state.detail.since_step, state.detail.blame.since_step) == (3, 9)


def test_a_counted_window_is_not_counted_again():
    of_job = job_alerts(rule(for_windows=2, for_s=0.0))
    of_job.add_window(facts(3, 1.4), NOW_S)
    assert of_job.add_window(facts(3, 1.4), NOW_S) == []
    assert of_job.add_window(facts(2, 1.4), NOW_S) == []
    assert kinds(of_job.add_window(facts(4, 1.4), NOW_S)) == ["firing"]


def test_an_older_window_does_not_count_after_a_resolution_or_a_restart_of_paceline():
    of_job = job_alerts(SLOW, counted_through=(1, 24))
    assert of_job.add_window(facts(3, 1.4), NOW_S) == []
    assert kinds(of_job.add_window(facts(4, 1.4), NOW_S)) == ["firing"]
    of_job.add_window(facts(5, 1.0), NOW_S)
    assert of_job.add_window(facts(4, 1.4), NOW_S) == []
    assert kinds(of_job.add_window(facts(0, 1.4, epoch=2), NOW_S)) == ["firing"]


def events(changes):
    return [event for change in changes for event in change.events]


def test_rules_are_for_the_jobs_that_their_pattern_names():
    assert job_alerts(rule(jobs="vision-*", **AT_ONCE)).add_window(facts(0, 2.0), NOW_S) == []
    assert len(job_alerts(rule(jobs="llm-*", **AT_ONCE)).add_window(facts(0, 2.0), NOW_S)) == 1


def test_alerts_of_a_removed_rule_resolve_with_the_reason():
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(0, 1.4), NOW_S)
    change = only(of_job.apply_rules([rule(jobs="vision-*")], NOW_S))
    assert (change.state, change.events[0].kind) == (None, "resolved")
    assert change.events[0].reason == "the rule was removed"
    assert of_job.apply_rules([], NOW_S) == []


def test_a_narrower_rule_ends_alerts_of_other_subjects():
    of_job = job_alerts(on("worker", 1.2))
    slow = [[1.3, 1.0], [1.25, 1.1]]
    of_job.add_window(facts(0, 1.5, worker_slowdown=slow), NOW_S)
    change = only(of_job.apply_rules([on("worker", 1.2, of="1-*")], NOW_S))
    assert (change.state, change.events[0].subject) == (None, "0-0")
    assert change.events[0].sentence == (
        "The rule worker no longer watches host-1 (dp 0, stage 0) of llm-70b."
    )
    assert [state.subject for state in of_job.states] == ["1-0"]


def test_step_times_of_earlier_runs_are_not_compared():
    of_job = job_alerts(on("step-time", 1.2), SLOW)
    of_job.add_window(facts(8, 1.4, usual_step_s=0.5), NOW_S)
    [change] = [each for each in of_job.add_window(facts(0, 1.4, epoch=2), NOW_S) if each.events]
    [event] = change.events
    assert (change.rule, event.kind) == ("step-time", "resolved")
    assert event.sentence == ("llm-70b has restarted: its steps have no baseline yet.")
    assert [state.rule for state in of_job.states] == ["slow"]
    assert of_job.add_window(facts(2, 1.4, epoch=2, usual_step_s=1.0), NOW_S)[0].state


@pytest.mark.parametrize(("between", "since_step"), [([], 8), ([1.0], 32)])
def test_what_another_rule_finds_just_so_has_not_begun_with_that_rule(between, since_step):
    of_job = job_alerts(SLOW)
    of_job.add_window(facts(1, 1.4), NOW_S)
    of_job.add_window(facts(2, 1.4), NOW_S)
    of_job.apply_rules([structs.replace(SLOW, name="another")], NOW_S)
    values = [*between, 1.4]
    [change] = [
        change
        for at, value in enumerate(values)
        for change in of_job.add_window(facts(4 + at - len(between), value), NOW_S)
    ]
    assert (change.rule, change.state.detail.since_step) == ("another", since_step)


def test_a_job_that_ends_leaves_nothing_firing_and_nothing_pending():
    of_job = job_alerts(SLOW, rule(name="later"))
    of_job.add_window(facts(0, 1.4), NOW_S)
    changes = of_job.end(1, NOW_S)
    assert [(each.kind, each.reason) for each in events(changes)] == [
        ("cleared", "the job has ended"),
        ("resolved", "the job has ended"),
    ]
    assert of_job.states == []


def test_firing_alerts_of_a_stalled_job_are_without_data():
    of_job = job_alerts(SLOW, on("stalled", None, for_s=0.0))
    of_job.add_window(facts(0, 1.4), NOW_S)
    changes = of_job.missing_data(STALLED, NOW_S)
    assert [(each.rule, each.kind) for each in events(changes)] == [
        ("stalled", "firing"),
        ("slow", "no-data"),
    ]
    assert of_job.missing_data(STALLED, NOW_S + 5) == []
    changes = of_job.missing_data(MissingDataFacts(), NOW_S + 9)
    assert [(each.rule, each.kind) for each in events(changes)] == [("stalled", "resolved")]
    assert kinds(of_job.add_window(facts(1, 1.4), NOW_S)) == ["data-again"]


def test_a_silent_worker_is_named_with_how_many_there_are():
    silent = MissingDataFacts(False, None, NOW_S, ["dp 1, stage 0 on host-2"], 1, 2, 16, 40)
    change = only(job_alerts(on("silent-worker", None)).missing_data(silent, NOW_S))
    [event] = change.events
    assert event.sentence == (
        "1 worker of llm-70b has fallen silent by 22:13 UTC, step 40: dp 1, stage 0 on host-2."
    )
    assert event.detail.num_named == 1


def test_a_silent_worker_is_not_back_while_others_of_a_new_run_have_not_come():
    of_job = job_alerts(on("silent-worker", None))
    silent = MissingDataFacts(silent_since_s=NOW_S, names=["dp 1"], num_silent=1, num_workers=2)
    of_job.missing_data(silent, NOW_S)
    assert of_job.missing_data(MissingDataFacts(has_unseen_ranks=True), NOW_S + 60) == []
    assert of_job.missing_data(replace(silent, has_unseen_ranks=True), NOW_S + 99) == []
    assert kinds(of_job.missing_data(MissingDataFacts(), NOW_S + 120)) == ["resolved"]


def test_workers_have_an_alert_each_and_are_called_as_their_pages():
    of_job = job_alerts(on("worker", 1.2))
    slow = [[1.3, 1.0], [1.25, 1.1]]
    found = of_job.add_window(facts(0, 1.5, worker_slowdown=slow), NOW_S)
    assert [change.state.subject for change in found] == ["0-0", "1-0"]
    assert found[0].state.labels["host"] == "host-1"
    found = of_job.add_window(facts(1, 1.5, worker_slowdown=[[1.0, 1.0], [1.25, 1.3]]), NOW_S)
    said = {change.fingerprint: kinds([change]) for change in found}
    assert sorted(said.values()) == [[], ["firing"], ["resolved"]]


def test_a_host_is_as_slow_as_its_worst_worker():
    of_job = job_alerts(on("host", 1.2, of="host-*"))
    hosts = {(0, 0): "host-1", (0, 1): "host-1", (1, 0): "host-2", (1, 1): "other"}
    found = of_job.add_window(
        facts(0, 1.5, worker_slowdown=[[1.0, 1.4], [1.1, 1.9]], hosts=hosts), NOW_S
    )
    assert [(each.state.subject, each.state.detail.value) for each in found] == [("host-1", 1.4)]


def test_a_cause_raises_when_it_is_sure_and_holds_on_when_it_is_less_so():
    of_job = job_alerts(on("cause", 0.1, min_confidence=0.8))
    sure, unsure = finding(cost=0.3), finding(cost=0.3, confidence=0.7)
    assert of_job.add_window(facts(0, 1.4, findings=[unsure]), NOW_S) == []
    assert kinds(of_job.add_window(facts(1, 1.4, findings=[sure]), NOW_S)) == ["firing"]
    assert kinds(of_job.add_window(facts(2, 1.4, findings=[unsure]), NOW_S)) == []
    assert kinds(of_job.add_window(facts(3, 1.4, findings=None), NOW_S)) == []  # nobody could look
    assert kinds(of_job.add_window(facts(4, 1.0, findings=[]), NOW_S)) == ["resolved"]


def test_causes_have_separate_alerts():
    of_job = job_alerts(on("cause", 0.1, of="s*"))
    found = of_job.add_window(
        facts(0, 1.4, findings=[finding(), finding("slow-link"), finding("gc-pause"),
                                finding("slow-worker", 0.2), finding("stage-imbalance", None)]),
        NOW_S,
    )  # fmt: skip
    assert [each.state.subject for each in found] == ["slow-link", "slow-worker"]
    assert [each.state.detail.value for each in found] == [0.3, 0.3]


def test_low_fidelity_counts_just_the_windows_that_others_do_not():
    of_job = job_alerts(on("low-fidelity", None), SLOW)
    low: dict[str, Any] = {
        "fidelity": {"discrepancy": 0.07, "verdict": "low", "step_discrepancy": []}
    }
    assert kinds(of_job.add_window(facts(0, 1.4, verdict="low", **low), NOW_S)) == ["firing"]
    changes = of_job.add_window(facts(1, 1.4), NOW_S)
    assert [(each.rule, each.kind) for each in events(changes)] == [
        ("low-fidelity", "resolved"),
        ("slow", "firing"),
    ]


@pytest.mark.parametrize(
    ("of", "given", "value"),
    [
        (on("waste", 0.2), {}, 1 - 1 / 1.4),
        (on("gpu-hours-lost", 4.0), {}, 16 * (1 - 1 / 1.4)),
        (on("optype", 1.2), {}, 1.4),
        (on("clock-residual", 0.002), {"clocks": {"residual_ms": 3.0}}, 0.003),
        (on("step-time", 1.2), {"usual_step_s": 0.5}, 2.0),
    ],
    ids=lambda each: each.name if isinstance(each, Rule) else None,
)
def test_every_figure_is_in_the_unit_that_rules_are_written_in(of, given, value):
    change = only(job_alerts(of).add_window(facts(0, 1.4, **given), NOW_S))
    assert change.state.detail.value == pytest.approx(value)
    assert change.events[0].sentence.endswith(".")
