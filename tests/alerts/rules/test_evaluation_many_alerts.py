"""Very many alerts of one job."""

from typing import Any

from app.alerts.rule import Rule
from app.alerts.rules.evaluation import MAX_ALERTS, JobAlerts
from tests.alerts.alert_factories import JOB, NOW_S, facts, finding, rule

AT_ONCE: dict[str, Any] = {"for_windows": 1, "for_s": 0.0, "keep_firing_s": 0.0}
SLOW = rule(**AT_ONCE)


def job_alerts(*rules, **given):
    return JobAlerts(JOB, rules=rules, **given)


def on(kind, above=0.1, **given):
    return Rule(kind, kind, above=above, **AT_ONCE | given)


def test_of_very_many_the_worst_have_alerts_and_the_others_are_counted():
    slow = [[1.2 + at / 1e5] for at in range(MAX_ALERTS + 50)]
    of_job = job_alerts(on("worker", 1.2))
    found = of_job.add_window(facts(0, 1.5, worker_slowdown=slow), NOW_S)
    assert len(found) == MAX_ALERTS
    assert found[0].state.subject == f"{MAX_ALERTS + 49}-0"
    assert {change.state.detail.num_named for change in found} == {50}
    found = of_job.add_window(facts(1, 1.5, worker_slowdown=slow), NOW_S)
    assert len(of_job.states) == len(found) == MAX_ALERTS


def test_a_job_has_so_many_alerts_and_no_more_and_its_own_come_first():
    slow = [[1.2 + at / 1e5] for at in range(MAX_ALERTS)]
    hosts = {(at, 0): f"host-{at // 8}" for at in range(MAX_ALERTS)}
    rules = [on("worker", 1.2), on("host", 1.2, severity="critical"), SLOW]
    of_job = job_alerts(*rules)
    of_job.add_window(facts(0, 1.5, worker_slowdown=slow, hosts=hosts), NOW_S)
    found = of_job.states
    assert len(found) == MAX_ALERTS
    num = {rule.on: sum(state.rule == rule.name for state in found) for rule in rules}
    assert num == {"host": 125, "slowdown": 1, "worker": MAX_ALERTS - 126}
    workers = [state for state in found if state.rule == "worker"]
    assert {state.detail.num_named for state in workers} == {126}
    assert min(state.detail.value for state in workers) > max(row[0] for row in slow[:126])
    of_job.add_window(facts(1, 1.5, worker_slowdown=slow, hosts=hosts), NOW_S)
    assert len(of_job.states) == MAX_ALERTS


def test_a_whole_job_rule_has_room_when_the_job_is_full():
    slow = [[1.3]] * (MAX_ALERTS + 5)
    of_job = job_alerts(on("worker", 1.2))
    of_job.add_window(facts(0, 1.5, worker_slowdown=slow), NOW_S)
    of_job.apply_rules([on("worker", 1.2), on("host", 1.2), SLOW], NOW_S)
    found = of_job.add_window(facts(1, 1.5, worker_slowdown=slow), NOW_S)
    assert {change.rule for change in found if change.is_news} == {"slow"}


def test_culprits_are_looked_up_and_not_searched_for_again_for_each_worker():
    class Counted(list[Any]):
        rounds = 0

        def __iter__(self):
            self.rounds += 1
            return super().__iter__()

    named = Counted({"dp_rank": at, "stage": 0} for at in range(200))
    of_job = job_alerts(on("worker", 1.2), on("host", 1.2))
    given = facts(0, 1.5, worker_slowdown=[[1.3]] * 200, findings=[finding(culprits=named)])
    changes = of_job.add_window(given, NOW_S)
    assert {change.state.detail.blame.num_culprits for change in changes} == {200}
    assert named.rounds <= 3
