"""Very many alerts of one job."""

from app.alerts.rules.evaluation import MAX_ALERTS
from tests.alerts.alert_factories import NOW_S, SLOW, facts, job_alerts, on


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
