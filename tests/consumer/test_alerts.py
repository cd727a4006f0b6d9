import itertools
from dataclasses import replace

import pytest

from app.alerts.facts import WindowFacts
from app.alerts.machine import UNSEEN_AFTER_S
from app.alerts.rule import Rule
from app.consumer.books import Books
from app.errors import StoreUnavailable
from app.store import alert_rules, alerts, projects, windows
from app.store.engine import Store
from tests.consumer.jobs import HEALTHY, SIZES, SLOW, UNEXPLAINED
from tests.consumer.place import slowdown_rules, step_batches


@pytest.fixture
def place(make_place):
    place = make_place(window_steps=2, usual_rules=slowdown_rules(2))
    place.register("job", SIZES)
    return place


@pytest.fixture
def steps():
    """The numbers of the steps to come."""
    return itertools.count()


@pytest.fixture
def push(place, steps):
    """Pushes two steps, a window, and lets them be analysed."""
    consumer = place.consumer()

    def push(*jobs):
        for made in jobs:
            place.push("job", made, next(steps), next(steps))
            place.turns(consumer)

    return push


def events(place):
    """What rang: that it might was no news."""
    kinds = [row[0] for row in place.rows("alert_events", "kind")]
    return [kind for kind in kinds if kind in ("firing", "resolved")]


def test_an_alert_fires_once_after_so_many_slow_windows_in_a_row(place, push):
    push(SLOW)
    assert events(place) == []
    push(SLOW)
    assert events(place) == ["firing"]
    push(SLOW, SLOW)
    assert events(place) == ["firing"]
    told = [m["kind"] for m in place.heard.messages if m["event"] == "alert"]
    assert told == ["pending", "firing"]


def test_a_good_window_in_between_begins_the_count_anew(place, push):
    push(SLOW, HEALTHY, SLOW)
    assert events(place) == []


def test_an_alert_resolves_at_a_good_window(place, push):
    push(SLOW, SLOW, HEALTHY)
    assert events(place) == ["firing", "resolved"]
    found = [row[0] for row in place.rows("alert_events", "detail")][1:]
    assert [(each["window_id"], each.get("since_step")) for each in found] == [
        ("1-2", 0),
        ("1-4", 4),
    ]
    assert place.rows("alerts") == []


def test_what_begins_again_in_the_turn_in_which_it_ended_is_acknowledged_by_nobody(
    place, push, steps
):
    push(SLOW, SLOW)
    [(fingerprint,)] = place.rows("alerts", "fingerprint")
    with Store.write(place.store) as conn:
        assert alerts.acknowledge(conn, fingerprint, by="ada", at_s=5.0)
    for made in (HEALTHY, SLOW, SLOW):
        place.push("job", made, next(steps), next(steps))
    place.turns(place.consumer())
    assert events(place) == ["firing", "resolved", "firing"]
    assert place.rows("alerts", "acked_at_s", "acked_by") == [(None, None)]


def test_an_alert_resolves_when_its_job_ends(place, push):
    push(SLOW, SLOW)
    place.end("job")
    place.turns(place.consumer())
    assert events(place) == ["firing", "resolved"]
    assert "has ended" in place.rows("alert_events", "sentence")[-1][0]


def test_late_batches_that_are_read_before_the_run_is_closed_again_ring_for_nobody_either(place):
    work = place.shard_work()
    place.push("job", HEALTHY, 0, 1)
    work.take(place.entries())
    place.end("job")
    for _ in range(3):
        work.tick()
    batches = [batch for step in range(2, 6) for batch in step_batches(SLOW, step)]
    for some in (batches[:3], batches[3:]):  # the first completes nothing, and reopens the run
        place.append("job", *some)
        work.take(place.entries())
    assert place.windows("state") == [("complete",)] * 3
    work.tick()
    assert events(place) == []


@pytest.mark.parametrize("is_new_consumer", [False, True], ids=["the same", "another consumer"])
def test_windows_that_ranks_complete_after_the_end_ring_for_nobody(place, is_new_consumer):
    consumer = place.consumer()
    place.push("job", SLOW, 0, 1)
    place.turns(consumer)
    place.end("job")
    place.turns(consumer)
    place.push("job", SLOW, 2, 3)
    consumer = place.consumer() if is_new_consumer else consumer
    place.turns(consumer)
    assert place.windows("state")[-1] == ("complete",)
    assert [row[0] for row in place.rows("alert_events", "kind")] == ["pending", "cleared"]
    place.register("job", SIZES, "run-2")
    place.push("job", SLOW, 0, 1, 2, 3, epoch=2)
    place.turns(consumer)
    assert events(place)[-1:] == ["firing"], "its next run is another matter"


def test_a_new_run_does_not_resolve_what_the_old_one_fired(place, push):
    push(SLOW, SLOW)
    place.register("job", SIZES, "run-2")
    place.turns(place.consumer())
    assert events(place) == ["firing"]
    place.push("job", HEALTHY, 0, 1, epoch=2)
    place.turns(place.consumer())
    assert events(place) == ["firing", "resolved"]


@pytest.mark.parametrize("made", [HEALTHY, SLOW], ids=["healthy", "slow"])
def test_an_open_window_neither_fires_nor_resolves(place, push, steps, made):
    push(*([SLOW] if made is SLOW else [SLOW, SLOW]))
    before = events(place)
    place.push("job", made, next(steps))
    place.turns(place.consumer())
    assert place.windows("state")[-1] == ("open",)
    assert events(place) == before


def test_figures_of_low_fidelity_hold_the_alert_as_it_is(place, push):
    push(SLOW, UNEXPLAINED)
    assert place.windows("verdict")[-1] == ("low",)
    assert events(place) == []
    push(SLOW)
    assert events(place) == ["firing"], "the windows on both sides are in a row"
    push(UNEXPLAINED)
    assert events(place) == ["firing"]


def test_the_count_and_the_alert_outlast_a_consumer(place, push):
    push(SLOW)
    place.push("job", SLOW, 2, 3)
    place.pass_time(60)
    place.turns(place.consumer("another"))
    assert events(place) == ["firing"]
    place.push("job", HEALTHY, 4, 5)
    place.pass_time(60)
    place.turns(place.consumer("a-third"))
    assert events(place) == ["firing", "resolved"]


def test_whoever_is_to_be_told_stands_in_the_transaction_that_makes_the_news(place):
    work = place.shard_work()
    for step in range(4):
        place.append("job", *step_batches(SLOW, step))
    # The commits of this work before it: none, so its first one is point 1, after the read.
    place.fuse.blow(1, StoreUnavailable("no answer"))
    entries = place.entries()
    with pytest.raises(StoreUnavailable):
        work.take(entries)
    assert place.fuse.passed[-1] == "before commit"
    assert (events(place), place.rows("alerts"), place.windows()) == ([], [], [])
    assert place.rows("alert_groups") == []
    place.shard_work().take(entries)
    assert events(place) == ["firing"]
    [(rule, phase, detail)] = place.rows("alerts", "rule", "phase", "detail")
    assert (rule, phase) == ("slowdown", "firing")
    assert detail["blame"]["cause"] == "slow-worker"
    culprits = detail["blame"]["culprits"]
    assert [(each["dp_rank"], each["stage"]) for each in culprits] == [(1, 0)]


def test_whoever_tells_people_is_woken_when_an_alert_has_begun_and_when_it_is_over(place, push):
    push(SLOW)
    assert place.rows("alert_groups") == []
    push(SLOW)
    began = place.rows("alert_groups", "rule", "next_at_s")
    assert [rule for rule, _ in began] == ["slowdown"]
    push(HEALTHY)
    assert events(place) == ["firing", "resolved"]


JOB = "default/job"


@pytest.fixture
def of_project(make_place):
    """A place whose job is called as the service calls it, and what pushes one window of it."""
    place = make_place(window_steps=2, usual_rules=slowdown_rules(1))
    place.register(JOB, SIZES)
    consumer, numbers = place.consumer(), itertools.count()

    def push(made=None):
        if made is not None:
            place.push(JOB, made, next(numbers), next(numbers))
        place.turns(consumer)

    return place, push


def watched(place, *rules):
    """Gives the project these rules."""
    now_s = place.unix_clock()
    with Store.write(place.store) as conn:
        projects.make(conn, "default", now_s=now_s)
        alert_rules.replace_all(conn, "default", rules, text="", now_s=now_s)


def test_rules_that_a_project_gives_itself_hold_from_the_next_window_on(of_project):
    place, push = of_project
    push(HEALTHY)
    watched(place, Rule("mine", "slowdown", above=1.05, for_windows=1, for_s=0.0))
    push()
    push(SLOW)
    assert [row[0] for row in place.rows("alerts", "rule")] == ["mine"]


def test_an_alert_of_a_rule_that_is_gone_is_over_in_the_next_tick(of_project):
    place, push = of_project
    push(SLOW)
    assert events(place) == ["firing"]
    watched(place)
    push()
    assert events(place) == ["firing", "resolved"]
    assert place.rows("alert_events", "reason")[-1] == ("the rule was removed",)
    assert place.rows("alerts") == []


def test_a_window_that_counted_changes_nothing_when_it_comes_again(of_project):
    place, push = of_project
    push(SLOW)
    push(HEALTHY)
    facts = slow_facts(place, "1-0")
    books = Books(place.work, 0)
    assert books.window(JOB, facts) == []
    assert books.window(JOB, replace(facts, window_id="1-2")) == []
    assert len(books.window(JOB, replace(facts, window_id="1-4"))) == 1


def test_alerts_of_a_new_run_have_its_labels(of_project):
    place, push = of_project
    push(SLOW)
    facts = slow_facts(place, "1-0")
    books = Books(place.work, 0)
    assert books.window(JOB, facts) == []
    place.register(JOB, SIZES, "run-2", labels={"team": "b"})
    watched(place, Rule("mine", "slowdown", above=1.05, for_windows=1, for_s=0.0))
    assert books.affected().jobs == [JOB]
    books.adopted(JOB)
    [*_, change] = books.window(JOB, replace(facts, window_id="2-0"))
    assert change.state is not None
    assert change.state.labels["team"] == "b"


def test_windows_that_are_incomplete_for_long_leave_an_alert_without_data(make_place):
    place = make_place(window_steps=2, usual_rules=slowdown_rules(1), silent_after_s=1e9)
    place.register(JOB, SIZES)
    consumer = place.consumer()
    place.push(JOB, SLOW, 0, 1)
    place.turns(consumer)
    for step in range(2, 10):
        _, *others = step_batches(SLOW, step)
        place.append(JOB, *others)
        place.turns(consumer, each_s=UNSEEN_AFTER_S / 4)
    assert place.windows("state")[:2] == [("complete",), ("incomplete",)]
    assert [row[0] for row in place.rows("alert_events", "kind")] == ["firing", "no-data"]


def slow_facts(place, window_id):
    with place.store.read() as conn:
        result = windows.get(conn, JOB, window_id)
    return WindowFacts(window_id, "complete", "ok", result, num_gpus=4)
