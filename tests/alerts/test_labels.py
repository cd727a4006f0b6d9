"""What an alert is known by, and whom it names."""

from msgspec.structs import replace

from app.alerts.wording import alert_sentence
from tests.alerts.alert_factories import (
    AT_ONCE,
    NOW_S,
    SLOW,
    facts,
    finding,
    job_alerts,
    on,
    only,
    rule,
)


def test_culprit_labels_follow_the_last_window():
    of_job = job_alerts(SLOW, labels={"team": "a"})
    fired = only(of_job.add_window(facts(0, 1.4, findings=[finding()]), NOW_S))
    of_job.relabel({"team": "b"})
    other = finding("slow-link", culprits=[{"dp_rank": 1, "stage": 0, "host": "host-2"}])
    later = only(of_job.add_window(facts(0, 1.4, epoch=2, findings=[other]), NOW_S))
    now = {"cause": "slow-link", "worker": "1-0", "host": "host-2"}
    assert later.state.labels == {**fired.state.labels, **now}
    later = only(of_job.add_window(facts(1, 1.4, epoch=2), NOW_S))
    assert set(fired.state.labels) - set(later.state.labels) == set(now)
    assert later.fingerprint == fired.fingerprint


def test_host_label_follows_a_moved_worker():
    of_job = job_alerts(on("worker", 1.2))
    slow = [[1.3], [1.0]]
    of_job.add_window(facts(0, 1.3, worker_slowdown=slow), NOW_S)
    moved = {(0, 0): "host-9", (1, 0): "host-2"}
    of_job.add_window(facts(0, 1.3, epoch=2, worker_slowdown=slow, hosts=moved), NOW_S)
    [state] = of_job.states
    assert (state.labels["worker"], state.labels["host"]) == ("0-0", "host-9")
    assert "host-9 (dp 0, stage 0)" in alert_sentence(state)


def test_a_new_run_gives_new_alerts_its_labels_and_those_that_fire_keep_theirs():
    of_job = job_alerts(SLOW, rule(name="later", above=1.5, **AT_ONCE), labels={"team": "a"})
    of_job.add_window(facts(0, 1.4), NOW_S)
    of_job.relabel({"team": "b"})
    of_job.add_window(facts(0, 1.6, epoch=2), NOW_S)
    assert {state.rule: state.labels["team"] for state in of_job.states} == {
        "later": "b",
        "slow": "a",
    }


def test_labels_of_an_alert_go_before_its_rules_and_these_before_its_jobs():
    labelled = replace(SLOW, labels={"team": "training", "tier": "1"})
    of_job = job_alerts(labelled, labels={"team": "other", "rule": "mine", "zone": "b"})
    change = only(of_job.add_window(facts(0, 1.4), NOW_S))
    assert {name: change.state.labels[name] for name in ("team", "tier", "zone", "rule")} == {
        "team": "training",
        "tier": "1",
        "zone": "b",
        "rule": "slow",
    }
