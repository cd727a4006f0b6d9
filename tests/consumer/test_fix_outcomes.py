"""Predicted fixes through real turns of the consumer: noticed, measured, and notified once."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from app.alerts.rule import Rule, default_rules
from app.consumer.fix_outcomes import follow_fixes
from app.monitor import observe
from app.store import fixes
from app.store.database import Store
from tests.consumer.jobs import HEALTHY, SIZES, SLOW
from tests.consumer.notifier import NotifierTwin
from tests.consumer.twin import ConsumerTwin, Crash, Script, step_batches

JOB = "default/job"
FIXED = replace(HEALTHY, seed=7)
SPARE = {0: "host-0", 1: "spare-1"}
OLD = {0: "host-0", 1: "host-1"}


@pytest.fixture
def url(new_url):
    return new_url()


@pytest.fixture
def twin(url):
    found = ConsumerTwin(url, default_rules=default_rules())
    yield found
    found.store.close()


@pytest.fixture
def notifier(url, twin, hook):
    with closing(NotifierTwin(url)) as found:
        found.add_receiver("hook", hook.url)
        yield found


def push(twin, job, steps, epoch=1, hosts=OLD):
    for step in steps:
        # The second run goes on from its checkpoint at step 3; batches count from 0 in each run.
        number = step - 3 if epoch == 2 else step
        batches = step_batches(job, step, epoch)
        twin.append(
            JOB,
            *(replace(each, host=hosts[each.dp_rank], batch_seq=number) for each in batches),
        )


def actions(twin):
    """A slow worker for two windows; a new run on another host for three."""
    yield lambda: twin.register(JOB, SIZES)
    yield lambda: push(twin, SLOW, range(6))
    yield lambda: None
    yield lambda: twin.register(JOB, SIZES, "run-2")
    for first in range(3, 12, 3):
        yield lambda first=first: push(twin, FIXED, range(first, first + 3), 2, SPARE)
    for _ in range(3):
        yield lambda: None


def run_all(twin):
    script = Script(twin, actions(twin))
    while True:
        try:
            twin.consumer().run(script)
        except Crash:
            continue
        return


def records(twin):
    with Store.read(twin.store) as conn:
        return fixes.page(conn, "default", now_s=twin.unix_clock())[0]


def outcome_messages(twin):
    return [row for row in twin.rows("outbox", "kind", "rule", "state") if row[0] == "fix-outcome"]


def messages(hook):
    bodies = [json.loads(body) for _, _, body in hook.requests]
    return [body["data"]["sentence"] for body in bodies if body["type"] == "fix.measured"]


def dispatch(notifier, twin):
    notifier.clock.now_s = twin.unix_clock() + 10.0
    notifier.dispatch()


def test_replaced_host_is_measured_against_its_prediction_and_notified_once(twin, notifier, hook):
    run_all(twin)
    [record] = records(twin)
    tracked = record.tracked
    assert (tracked.fix, tracked.state) == ("replace-worker", "measured")
    assert (tracked.applied_epoch, tracked.applied_step) == (2, 3)
    assert tracked.num_there == 2
    assert tracked.achieved == pytest.approx(record.prediction.speed_up, rel=0.02)
    assert (record.notice, record.tracked_by) == ("due", None)
    for _ in range(3):
        dispatch(notifier, twin)
        twin.pass_time(300)
    [sentence] = messages(hook)
    assert sentence == f"job: {record.prediction.sentence}."
    assert sentence.endswith("step 3: predicted 1.31\u00d7, achieved 1.31\u00d7.")
    assert outcome_messages(twin) == [("fix-outcome", "fix-outcome", "delivered")]
    [record] = records(twin)
    assert record.notice == "notified"


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.nightly)])
def test_crash_at_any_point_leaves_one_outcome_and_one_message(new_url, hook, every):
    def run(at=None):
        url = new_url()
        twin = ConsumerTwin(url, default_rules=default_rules())
        if at is not None:
            twin.crash_points.raise_at(at, Crash())
        run_all(twin)
        found = [(each.tracked, each.prediction.step_s, each.notice) for each in records(twin)]
        hook.requests.clear()
        with closing(NotifierTwin(url)) as notifier:
            notifier.add_receiver("hook", hook.url)
            dispatch(notifier, twin)
            dispatch(notifier, twin)
        passed = twin.crash_points.passed
        twin.store.close()
        return found, messages(hook), passed

    known, sentences, passed = run()
    assert len(sentences) == 1
    places = [at for at, point in enumerate(passed) if point != "after read"]
    for at in places[-1::-every]:  # from the end on, as the outcome is of the last turns
        assert run(at)[:2] == (known, sentences), passed[at]


def test_crash_while_the_message_is_written_notifies_once(twin, notifier, hook):
    run_all(twin)
    for at in range(3):
        notifier.crash_points.raise_at(at, Crash())
        with pytest.raises(Crash):
            dispatch(notifier, twin)
        twin.pass_time(60)
    dispatch(notifier, twin)
    assert len(set(hook.ids)) == 1
    assert outcome_messages(twin) == [("fix-outcome", "fix-outcome", "delivered")]


def test_silenced_outcome_is_notified_after_the_silence(twin, notifier, hook):
    run_all(twin)
    notifier.clock.now_s = twin.unix_clock()
    notifier.silence(pattern="replace-*", ends_s=twin.unix_clock() + 600)
    dispatch(notifier, twin)
    assert messages(hook) == []
    twin.pass_time(601)
    dispatch(notifier, twin)
    assert len(messages(hook)) == 1


def outcome_rule_of(name, jobs="*"):
    return Rule(name, "fix-outcome", severity="info", jobs=jobs)


@pytest.mark.parametrize(
    ("name", "narrowed"), [("a-new-name", False), ("the-new-name", False), ("a-new-name", True)]
)
def test_outcome_is_notified_by_the_rule_that_takes_its_place(twin, notifier, hook, name, narrowed):
    run_all(twin)
    rest = [outcome_rule_of("fix-outcome", "other-*")] if narrowed else []
    notifier.clock.now_s = twin.unix_clock()
    notifier.set_rules(*rest, outcome_rule_of(name))
    for _ in range(2):
        dispatch(notifier, twin)
    assert len(messages(hook)) == 1
    assert outcome_messages(twin) == [("fix-outcome", name, "delivered")]


@pytest.mark.parametrize(
    "rule",
    [
        Rule("slow", "slowdown", 1.5),
        outcome_rule_of("fix-outcome", "other-*"),
    ],
    ids=["removed", "of-other-jobs"],
)
def test_outcome_whose_rule_is_gone_is_never_notified(twin, notifier, hook, rule):
    run_all(twin)
    notifier.clock.now_s = twin.unix_clock()
    notifier.set_rules(rule)
    dispatch(notifier, twin)
    [record] = records(twin)
    assert record.notice is None
    notifier.set_rules(*default_rules())
    dispatch(notifier, twin)
    assert messages(hook) == []


def test_late_revision_does_not_move_an_open_prediction_back(twin):
    consumer = twin.consumer()
    twin.register(JOB, SIZES)
    push(twin, SLOW, range(6))
    twin.turns(consumer)
    [record] = records(twin)
    assert (record.tracked.first_step, record.tracked.state) == (3, "open")
    [again] = revised(twin, SLOW.record(range(3)).window(1))
    assert again.tracked.first_step == 3


def revised(twin, window):
    """All predictions after another revision of this window, as the consumer diagnoses it."""
    observation = observe(window)
    assert observation.result.advice is not None
    with Store.write(twin.store) as conn:
        follow_fixes(conn, twin.context, JOB, [(window, observation)], [])
    return records(twin)


def test_receiver_of_warnings_and_pagers_are_not_notified(twin, notifier, hook):
    notifier.add_receiver("warnings", hook.url, min_severity="warning")
    notifier.add_receiver("pager", hook.url, format="pagerduty")
    run_all(twin)
    dispatch(notifier, twin)
    assert [row[0] for row in twin.rows("outbox", "endpoint_id", "kind")] == ["hook"]


def test_end_of_the_run_makes_the_outcome_final(twin):
    consumer = twin.consumer()
    twin.register(JOB, SIZES)
    push(twin, SLOW, range(6))
    twin.turns(consumer)
    twin.register(JOB, SIZES, "run-2")
    push(twin, FIXED, range(3, 6), 2, SPARE)
    twin.turns(consumer)
    [record] = records(twin)
    assert record.tracked.state == "applied"
    assert record.notice is None
    twin.end(JOB)
    twin.turns(consumer)
    [record] = records(twin)
    assert (record.tracked.state, record.notice) == ("measured", "due")
    assert len(record.tracked.windows) == 1


def test_healthy_job_has_no_predictions(twin):
    consumer = twin.consumer()
    twin.register(JOB, SIZES)
    push(twin, FIXED, range(6))
    twin.turns(consumer)
    assert records(twin) == []


def test_failed_comparison_stops_no_window(twin, monkeypatch):
    def broken(*_):
        raise LookupError("a bug")

    monkeypatch.setattr("app.consumer.fix_outcomes.advance_all", broken)
    run_all(twin)
    states = [state for (state,) in twin.windows("state")]
    assert states == ["complete"] * 5
