"""Nothing that was acknowledged is lost or counted twice, whatever happens in between."""

import random

import pytest

from app.errors import LeaseLost, QueueUnavailable, StoreUnavailable
from tests.consumer.jobs import HEALTHY, SIZES, SLOW
from tests.consumer.place import Crash, Script, slowdown_rules, step_batches

NUM_STEPS = 3
# Enough to notice the ends after trouble in the last of the others.
IDLE_TURNS = 5


@pytest.fixture
def make_busy(make_place):
    """Makes a place where two jobs, one of them slow, are about to push, end, and be alerted."""

    def make():
        place = make_place(window_steps=2, usual_rules=slowdown_rules(1))
        for job_id in ("job", "slow"):
            place.register(job_id, SIZES)
        return place, Script(place, actions(place))

    return make


def actions(place):
    for step in range(NUM_STEPS):
        yield lambda step=step: place.push("job", HEALTHY, step)
        yield lambda step=step: place.push("slow", SLOW, step)
        if step == 2:
            yield lambda: place.register("job", SIZES, "run-2")
            yield lambda: place.push("job", HEALTHY, 0, epoch=2)
    yield lambda: place.end("slow")
    yield lambda: place.end("job")
    for _ in range(IDLE_TURNS):
        yield lambda: None


@pytest.fixture
def undisturbed(make_busy):
    """What is known when nothing happens, and the points at which it could."""
    place, script = make_busy()
    place.consumer().run(script)
    known = place.known()
    assert {row[0] for row in place.windows("state")} == {"complete", "superseded"}
    assert [row[0] for row in place.rows("alert_events", "kind")] == ["firing", "resolved"]
    assert len(place.rows("alert_groups")) == 1
    assert place.queue.reader.backlog(0) == 0
    return known, tuple(place.fuse.passed)


def finish(place, script):
    """Run consumers of one name, as a supervisor starts them, until the script is over."""
    while True:
        try:
            place.consumer().run(script)
        except Crash:
            continue
        return


COMMIT = {"before commit", "after commit"}
READ = {"after read", "before done", "after done"}


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (Crash(), COMMIT | READ),
        (StoreUnavailable("no answer"), COMMIT),
        (QueueUnavailable("no answer"), READ),
    ],
    ids=["crash", "store", "queue"],
)
def test_trouble_at_any_point_changes_nothing_of_what_is_known(
    make_busy, undisturbed, error, where
):
    known, passed = undisturbed
    points = set()
    for at in (at for at, point in enumerate(passed) if point in where):
        place, script = make_busy()
        place.fuse.blow(at, error)
        finish(place, script)
        points.add(place.fuse.passed[at])
        assert place.known() == known, (at, place.fuse.passed[at])
        assert place.queue.reader.backlog(0) == 0
    assert points == where


@pytest.mark.parametrize("seed", range(8))
def test_duplicates_and_any_order_change_nothing_of_what_is_known(make_place, seed):
    rng = random.Random(seed)
    batches = [batch for step in range(NUM_STEPS) for batch in step_batches(SLOW, step)]
    mixed = [batch for batch in batches for _ in range(rng.randint(1, 3))]
    rng.shuffle(mixed)
    known = []
    for sent in (batches, mixed):
        place = make_place()
        place.register("job", SIZES)
        consumer = place.consumer()
        while sent:
            place.append("job", *(sent.pop(0) for _ in range(min(len(sent), rng.randint(1, 7)))))
            place.turns(consumer, num_turns=1)
        place.end("job")
        place.turns(consumer)
        known.append(place.known())
    assert known[0] == known[1]


def test_a_zombie_commits_nothing(place):
    place.register("job", SIZES)
    zombie = place.shard_work(owner="zombie")
    place.push("job", SLOW, *range(3))
    entries = place.entries()
    heir = place.shard_work(owner="heir")
    before = place.known()
    for deed in (lambda: zombie.take(entries), lambda: zombie.take(entries[:1])):
        with pytest.raises(LeaseLost):
            deed()
    assert place.known() == before
    assert place.queue.reader.backlog(0) == len(entries)
    assert place.heard.messages == []
    heir.take(entries)
    assert place.windows("state", "num_steps") == [("complete", 3)]
    assert place.queue.reader.backlog(0) == 0


def test_a_zombie_ends_no_run(place):
    place.register("job", SIZES)
    zombie = place.shard_work(owner="zombie")
    place.push("job", SLOW, 0)
    zombie.take(place.entries())
    place.end("job")
    place.shard_work(owner="heir")
    with pytest.raises(LeaseLost):
        zombie.tick()
    assert place.windows("state") == [("open",)]
    assert place.rows("runs", "is_closed") == [(False,)]


def test_a_queue_that_is_down_for_a_while_delays_and_loses_nothing(place):
    place.register("job", SIZES)

    def set_up(is_up):
        place.queue.is_up = is_up

    place.consumer().run(
        Script(
            place,
            [
                lambda: place.push("job", HEALTHY, 0),
                lambda: place.push("job", HEALTHY, 1),
                *[lambda: set_up(False)] * 5,
                lambda: set_up(True),
                lambda: place.push("job", HEALTHY, 2),
                *[lambda: None] * 3,
            ],
        )
    )
    assert place.windows("state", "num_steps") == [("complete", 3)]
