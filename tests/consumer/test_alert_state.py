import itertools

import pytest

from app.alerts.facts import MissingDataFacts
from app.alerts.rule import Rule
from app.consumer.alert_state import ShardAlerts
from app.errors import StoreUnavailable
from app.store import jobs, projects, windows
from app.store.alerting import alert_rules
from app.store.database import Store
from tests.alerts.alert_factories import facts, kinds
from tests.consumer.jobs import HEALTHY, SIZES, SLOW, UNEXPLAINED
from tests.consumer.twin import slowdown_rules, step_batches
from tests.results import window_result
from tests.store.factories import window

IMPUTED = {"ops": 1, "lone_ops": 0, "share": 0.1, "workers": [], "steps": []}


@pytest.fixture
def twin(make_twin):
    twin = make_twin(window_steps=2, default_rules=slowdown_rules(2))
    twin.register("job", SIZES)
    return twin


@pytest.fixture
def steps():
    """Numbers of the next steps."""
    return itertools.count()


@pytest.fixture
def push(twin, steps):
    """A function that pushes one window of two steps per job and analyses it."""
    consumer = twin.consumer()

    def push(*jobs):
        for made in jobs:
            twin.push("job", made, next(steps), next(steps))
            twin.turns(consumer)

    return push


def events(twin):
    """Firing and resolved transitions, without pending ones."""
    rows = twin.rows("alert_events", "kind")
    return [kind for (kind,) in rows if kind in ("firing", "resolved")]


def test_alert_fires_once_after_enough_consecutive_slow_windows(twin, push):
    push(SLOW)
    assert events(twin) == []
    push(SLOW)
    assert events(twin) == ["firing"]
    push(SLOW, SLOW)
    assert events(twin) == ["firing"]
    announced_kinds = [m["kind"] for m in twin.announced.messages if m["event"] == "alert"]
    assert announced_kinds == ["pending", "firing"]


def test_healthy_window_resets_the_count_of_slow_windows(twin, push):
    push(SLOW, HEALTHY, SLOW)
    assert events(twin) == []


def test_alert_resolves_at_a_healthy_window(twin, push):
    push(SLOW, SLOW, HEALTHY)
    assert events(twin) == ["firing", "resolved"]
    found = [row[0] for row in twin.rows("alert_events", "detail")][1:]
    assert [(detail.window_id, detail.since_step) for detail in found] == [
        ("1-2", 0),
        ("1-4", 4),
    ]
    assert twin.rows("alerts") == []


def test_an_alert_resolves_when_its_job_ends(twin, push):
    push(SLOW, SLOW)
    twin.end("job")
    twin.turns(twin.consumer())
    assert events(twin) == ["firing", "resolved"]
    assert "has ended" in twin.rows("alert_events", "sentence")[-1][0]


@pytest.mark.parametrize("is_new_consumer", [False, True], ids=["the same", "another consumer"])
def test_windows_completed_after_the_end_raise_no_alert(twin, is_new_consumer):
    consumer = twin.consumer()
    twin.push("job", SLOW, 0, 1)
    twin.turns(consumer)
    twin.end("job")
    twin.turns(consumer)
    twin.push("job", SLOW, 2, 3)
    consumer = twin.consumer() if is_new_consumer else consumer
    twin.turns(consumer)
    assert twin.windows("state")[-1] == ("complete",)
    assert [row[0] for row in twin.rows("alert_events", "kind")] == ["pending", "cleared"]
    twin.register("job", SIZES, "run-2")
    twin.push("job", SLOW, 0, 1, 2, 3, epoch=2)
    twin.turns(consumer)
    assert events(twin)[-1:] == ["firing"], "its next run is another matter"


def test_late_batches_of_a_reopened_run_raise_no_alert(twin):
    work = twin.shard_work()
    twin.push("job", HEALTHY, 0, 1)
    work.take(twin.entries())
    twin.end("job")
    for _ in range(3):
        work.tick()
    batches = [batch for step in (2, 3) for batch in step_batches(SLOW, step)]
    for some in (batches[:3], batches[3:]):  # the first completes nothing, and reopens the run
        twin.append("job", *some)
        work.take(twin.entries())
    assert twin.windows("state") == [("complete",)] * 2
    assert twin.rows("alert_events") == []


def test_new_run_resolves_an_alert_only_with_a_healthy_window(twin, push):
    push(SLOW, SLOW)
    twin.register("job", SIZES, "run-2")
    twin.turns(twin.consumer())
    assert events(twin) == ["firing"]
    twin.push("job", HEALTHY, 0, 1, epoch=2)
    twin.turns(twin.consumer())
    assert events(twin) == ["firing", "resolved"]


@pytest.mark.parametrize("made", [HEALTHY, SLOW], ids=["healthy", "slow"])
def test_open_window_neither_fires_nor_resolves_an_alert(twin, push, steps, made):
    push(*([SLOW] if made is SLOW else [SLOW, SLOW]))
    before = events(twin)
    twin.push("job", made, next(steps))
    twin.turns(twin.consumer())
    assert twin.windows("state")[-1] == ("open",)
    assert events(twin) == before


def test_low_fidelity_window_does_not_change_the_alert_state(twin, push):
    push(SLOW, UNEXPLAINED)
    assert twin.windows("verdict")[-1] == ("low",)
    assert events(twin) == []
    push(SLOW)
    assert events(twin) == ["firing"], "the windows on both sides are in a row"
    push(UNEXPLAINED)
    assert events(twin) == ["firing"]


def test_slow_window_count_and_alert_survive_a_consumer_restart(twin, push):
    push(SLOW)
    twin.push("job", SLOW, 2, 3)
    twin.pass_time(60)
    twin.turns(twin.consumer("another"))
    assert events(twin) == ["firing"]
    twin.push("job", HEALTHY, 4, 5)
    twin.pass_time(60)
    twin.turns(twin.consumer("a-third"))
    assert events(twin) == ["firing", "resolved"]


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({"state": "complete"}, []),
        ({"state": "incomplete", "result": window_result(imputed=IMPUTED)}, []),
        ({"state": "incomplete"}, ["pending"]),
        ({"state": "open"}, ["pending"]),
        ({"state": "complete", "verdict": None}, ["pending"]),
    ],
    ids=["complete", "imputed", "incomplete", "open", "without figures"],
)
def test_windows_that_rules_evaluated_are_not_counted_again_after_a_restart(twin, given, changes):
    with twin.store.write() as conn:
        for record in (window(0, state="complete"), window(8, **given)):
            windows.save(conn, "job", record)
    again = facts(1, slowdown=1.25)
    assert kinds(ShardAlerts(twin.context, 0).window("job", again)) == changes


def test_what_stays_the_same_changes_nothing_but_by_time(make_twin):
    rule = Rule("silent", "silent-worker", for_s=30.0, keep_firing_s=60.0)
    twin = make_twin(default_rules=(rule,))
    twin.register("job", SIZES)
    shard = ShardAlerts(twin.context, 0)
    silent = MissingDataFacts(silent_since_s=twin.unix_clock(), num_silent=1, num_workers=4)
    healthy = MissingDataFacts(num_workers=4)

    def later(seen):
        twin.pass_time(35)
        return kinds(shard.silence(("job", 1), seen))

    assert [later(seen) for seen in (healthy, healthy, silent, silent, silent)] == [
        [], [], ["pending"], ["firing"], []
    ]  # fmt: skip
    assert [later(healthy) for _ in range(3)] == [[], [], ["resolved"]]
    assert [later(silent) for _ in range(2)] == [["pending"], ["firing"]]


def test_alert_groups_are_woken_in_the_transaction_of_the_change(twin):
    work = twin.shard_work()
    for step in range(4):
        twin.append("job", *step_batches(SLOW, step))
    # This work has not committed yet: its first commit is point 1, after the read.
    twin.crash_points.raise_at(1, StoreUnavailable("no answer"))
    entries = twin.entries()
    with pytest.raises(StoreUnavailable):
        work.take(entries)
    assert twin.crash_points.passed[-1] == "before commit"
    assert (events(twin), twin.rows("alerts"), twin.windows()) == ([], [], [])
    assert twin.rows("alert_groups") == []
    twin.shard_work().take(entries)
    assert events(twin) == ["firing"]
    [(rule, phase, detail)] = twin.rows("alerts", "rule", "phase", "detail")
    assert (rule, phase) == ("slowdown", "firing")
    assert detail.blame.cause == "slow-worker"
    culprits = detail.blame.culprits
    assert [(culprit.dp_rank, culprit.stage) for culprit in culprits] == [(1, 0)]


JOB = "default/job"


@pytest.fixture
def project_twin(make_twin):
    """A twin whose job has a project, and a function that pushes one window of it."""
    twin = make_twin(window_steps=2, default_rules=slowdown_rules(1))
    twin.register(JOB, SIZES)
    consumer, numbers = twin.consumer(), itertools.count()

    def push(made=None):
        if made is not None:
            twin.push(JOB, made, next(numbers), next(numbers))
        twin.turns(consumer)

    return twin, push


def set_project_rules(twin, *rules):
    """Replace the project's rules."""
    now_s = twin.unix_clock()
    with Store.write(twin.store) as conn:
        projects.create_if_missing(conn, "default", now_s=now_s)
        alert_rules.replace_all(conn, "default", rules, text="", now_s=now_s)


def test_new_project_rules_apply_from_the_next_window(project_twin):
    twin, push = project_twin
    push(HEALTHY)
    set_project_rules(twin, Rule("mine", "slowdown", above=1.05, for_windows=1, for_s=0.0))
    push()
    push(SLOW)
    assert [row[0] for row in twin.rows("alerts", "rule")] == ["mine"]


def test_alert_of_a_removed_rule_resolves_in_the_next_tick(project_twin):
    twin, push = project_twin
    push(SLOW)
    assert events(twin) == ["firing"]
    set_project_rules(twin)
    push()
    assert events(twin) == ["firing", "resolved"]
    assert twin.rows("alert_events", "reason")[-1] == ("the rule was removed",)
    assert twin.rows("alerts") == []


def test_alerts_have_the_edited_labels_of_a_job_from_the_next_window_on(project_twin):
    twin, push = project_twin
    push(SLOW)
    shard_alerts = ShardAlerts(twin.context, 0)
    shard_alerts.load(JOB)
    with twin.store.write() as conn:
        jobs.edit_labels(conn, JOB, {"owner": "vision"})
    set_project_rules(twin, Rule("mine", "slowdown", above=1.05, for_windows=1, for_s=0.0))
    assert shard_alerts.jobs_with_changed_rules().jobs == [JOB]
    shard_alerts.apply_rules(JOB)
    [*_, change] = shard_alerts.window(JOB, facts(1, slowdown=1.25))
    assert change.state is not None
    assert change.state.labels["owner"] == "vision"
