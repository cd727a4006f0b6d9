"""No acknowledged batch is lost or counted twice, whatever fails."""

import random

import pytest

from app.errors import LeaseLost, QueueUnavailable, StoreUnavailable
from tests.consumer.jobs import HEALTHY, SIZES, SLOW
from tests.consumer.twin import Crash, Script, slowdown_rules, step_batches

NUM_STEPS = 3
# Enough to close both runs after a failure in the last other turn.
IDLE_TURNS = 5


@pytest.fixture
def make_busy(make_twin):
    """A function that makes a twin and a script in which a healthy and a slow job push and end."""

    def make():
        twin = make_twin(window_steps=2, default_rules=slowdown_rules(1))
        for job_id in ("job", "slow"):
            twin.register(job_id, SIZES)
        return twin, Script(twin, actions(twin))

    return make


def actions(twin):
    for step in range(NUM_STEPS):
        yield lambda step=step: twin.push("job", HEALTHY, step)
        yield lambda step=step: twin.push("slow", SLOW, step)
        if step == 2:
            yield lambda: twin.register("job", SIZES, "run-2")
            yield lambda: twin.push("job", HEALTHY, 0, epoch=2)
    yield lambda: twin.end("slow")
    yield lambda: twin.end("job")
    for _ in range(IDLE_TURNS):
        yield lambda: None


@pytest.fixture
def reference_run(make_busy):
    """Results of a run without failures, and the crash points that it passes."""
    twin, script = make_busy()
    twin.consumer().run(script)
    known = twin.known()
    assert {row[0] for row in twin.windows("state")} == {"complete", "superseded"}
    assert [row[0] for row in twin.rows("alert_events", "kind")] == ["firing", "resolved"]
    assert len(twin.rows("alert_groups")) == 1
    assert twin.queue.reader.backlog(0) == 0
    return known, tuple(twin.crash_points.passed)


def finish(twin, script):
    """Run consumers of one name, as a supervisor starts them, until the script is over."""
    while True:
        try:
            twin.consumer().run(script)
        except Crash:
            continue
        return


COMMIT = {"before commit", "after commit"}
READ = {"after read", "before done", "after done"}


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("error", "where"),
    [
        (Crash(), COMMIT | READ),
        (StoreUnavailable("no answer"), COMMIT),
        (QueueUnavailable("no answer"), READ),
    ],
    ids=["crash", "store", "queue"],
)
def test_crash_at_any_point_changes_no_result(make_busy, reference_run, error, where, is_whole):
    known, passed = reference_run
    places = {point: [at for at, each in enumerate(passed) if each == point] for point in where}
    assert all(places.values())
    for point, all_of_it in places.items():
        # One as a window is closed; of commits, another as a run is.
        few = [all_of_it[at] for at in ((3, -3) if point in COMMIT else (3,))]
        for at in all_of_it if is_whole else few:
            twin, script = make_busy()
            twin.crash_points.raise_at(at, error)
            finish(twin, script)
            assert twin.crash_points.passed[at] == point
            assert twin.known() == known, (at, point)
            assert twin.queue.reader.backlog(0) == 0


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 8))]
)
def test_duplicates_and_order_change_no_result(make_twin, seed):
    rng = random.Random(seed)
    batches = [batch for step in range(NUM_STEPS) for batch in step_batches(SLOW, step)]
    mixed = [batch for batch in batches for _ in range(rng.randint(1, 3))]
    rng.shuffle(mixed)
    known = []
    for sent in (batches, mixed):
        twin = make_twin()
        twin.register("job", SIZES)
        consumer = twin.consumer()
        while sent:
            twin.append("job", *(sent.pop(0) for _ in range(min(len(sent), rng.randint(1, 7)))))
            twin.turns(consumer, num_turns=1)
        twin.end("job")
        twin.turns(consumer)
        known.append(twin.known())
    assert known[0] == known[1]


def test_a_zombie_commits_nothing(twin):
    twin.register("job", SIZES)
    zombie = twin.shard_work(owner="zombie")
    twin.push("job", SLOW, *range(3))
    entries = twin.entries()
    successor = twin.shard_work(owner="heir")
    before = twin.known()
    for action in (lambda: zombie.take(entries), lambda: zombie.take(entries[:1])):
        with pytest.raises(LeaseLost):
            action()
    assert twin.known() == before
    assert twin.queue.reader.backlog(0) == len(entries)
    assert twin.announced.messages == []
    successor.take(entries)
    assert twin.windows("state", "num_steps") == [("complete", 3)]
    assert twin.queue.reader.backlog(0) == 0


def test_a_zombie_ends_no_run(twin):
    twin.register("job", SIZES)
    zombie = twin.shard_work(owner="zombie")
    twin.push("job", SLOW, 0)
    zombie.take(twin.entries())
    twin.end("job")
    twin.shard_work(owner="heir")
    with pytest.raises(LeaseLost):
        zombie.tick()
    assert twin.windows("state") == [("open",)]
    assert twin.rows("runs", "is_closed") == [(False,)]


def test_queue_outage_loses_no_batch(twin):
    twin.register("job", SIZES)

    def set_up(is_up):
        twin.queue.is_up = is_up

    twin.consumer().run(
        Script(
            twin,
            [
                lambda: twin.push("job", HEALTHY, 0),
                lambda: twin.push("job", HEALTHY, 1),
                *[lambda: set_up(False)] * 5,
                lambda: set_up(True),
                lambda: twin.push("job", HEALTHY, 2),
                *[lambda: None] * 3,
            ],
        )
    )
    assert twin.windows("state", "num_steps") == [("complete", 3)]
