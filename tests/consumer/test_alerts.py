import itertools
import json

import pytest

from app.alerts.rules import Rule
from app.errors import StoreUnavailable
from tests.consumer.jobs import HEALTHY, SIZES, SLOW, UNEXPLAINED
from tests.consumer.place import HOOK, step_batches


@pytest.fixture
def place(make_place):
    place = make_place(window_steps=2, rule=Rule(num_windows=2))
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
    return [row[0] for row in place.rows("alert_events", "kind")]


def test_an_alert_fires_once_after_so_many_slow_windows_in_a_row(place, push):
    push(SLOW)
    assert events(place) == []
    push(SLOW)
    assert events(place) == ["firing"]
    push(SLOW, SLOW)
    assert events(place) == ["firing"]
    assert [m["kind"] for m in place.heard.messages if m["event"] == "alert"] == ["firing"]


def test_a_good_window_in_between_begins_the_count_anew(place, push):
    push(SLOW, HEALTHY, SLOW)
    assert events(place) == []


def test_an_alert_resolves_at_a_good_window(place, push):
    push(SLOW, SLOW, HEALTHY)
    assert events(place) == ["firing", "resolved"]
    assert place.rows("alert_events", "window_id", "since_step") == [("1-2", 0), ("1-4", 4)]


def test_an_alert_resolves_when_its_job_ends(place, push):
    push(SLOW, SLOW)
    place.end("job")
    place.turns(place.consumer())
    assert events(place) == ["firing", "resolved"]
    assert "has ended" in place.rows("alert_events", "sentence")[1][0]


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
    assert (events(place), place.rows("outbox"), place.windows()) == ([], [], [])
    place.shard_work().take(entries)
    assert events(place) == ["firing"]
    [(event_id, endpoint, payload)] = place.rows("outbox", "event_id", "endpoint", "payload")
    assert place.rows("alert_events", "event_id") == [(event_id,)]
    assert endpoint == HOOK
    message = json.loads(payload)
    assert message["type"] == "slowdown.firing"
    assert message["data"]["url"] == "https://paceline.example/jobs/job"
    worst = message["data"]["worst_worker"]
    assert (worst["dp_rank"], worst["stage"]) == (1, 0)


def test_without_an_endpoint_the_event_is_kept_and_nobody_is_told(make_place):
    place = make_place(window_steps=1, rule=Rule(num_windows=1), webhook_endpoint=None)
    place.register("job", SIZES)
    place.push("job", SLOW, 0)
    place.turns(place.consumer())
    assert events(place) == ["firing"]
    assert place.rows("outbox") == []
