from collections import Counter

import pytest

from app.ingest.queue import shard_of
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import LEASE_S, Script


@pytest.fixture
def place(make_place):
    return make_place(num_shards=4)


def rounds(place, *consumers):
    """As many turns as it takes until everybody has looked at the leases twice."""
    place.turns(*consumers, num_turns=3, each_s=LEASE_S / 3 + 0.1)


def test_one_consumer_holds_all_shards(place):
    rounds(place, place.consumer("a"))
    assert place.owners() == ["a"] * 4


def test_a_second_one_gets_its_half_within_a_lease(place):
    a, b = place.consumer("a"), place.consumer("b")
    rounds(place, a)
    rounds(place, b, a)
    assert Counter(place.owners()) == {"a": 2, "b": 2}


def test_nobody_takes_more_than_a_fair_share(place):
    consumers = [place.consumer(name) for name in "abc"]
    rounds(place, *consumers)
    rounds(place, *consumers)
    assert max(Counter(place.owners()).values()) == 2
    assert None not in place.owners()


def test_a_dead_ones_shards_come_over_when_its_leases_lapse(place):
    a, b = place.consumer("a"), place.consumer("b")
    rounds(place, a)
    rounds(place, b, a)
    place.turns(b, num_turns=2, each_s=LEASE_S / 2)
    assert Counter(place.owners()) == {"a": 2, "b": 2}
    place.turns(b, num_turns=3, each_s=LEASE_S / 2)
    assert place.owners() == ["b"] * 4


def test_one_that_comes_back_under_its_name_has_its_shards_at_once(place):
    rounds(place, place.consumer("a"))
    place.turns(place.consumer("b"), num_turns=1, each_s=0)
    assert place.owners() == ["a"] * 4
    place.pass_time(1.0)
    place.register("job", SIZES)
    place.push("job", HEALTHY, 0)
    place.turns(place.consumer("a"), num_turns=1, each_s=0)
    assert place.windows("num_steps") == [(1,)]


def test_one_that_stops_lets_go_at_once(place):
    a, b = place.consumer("a"), place.consumer("b")
    a.run(Script(place, [lambda: None] * 2))
    assert place.owners() == [None] * 4
    place.turns(b, num_turns=1, each_s=0)
    assert place.owners() == ["b"] * 4


def test_every_shards_jobs_are_worked_on_while_the_shards_wander(place):
    consumers = [place.consumer("a")]
    jobs = [f"job-{number}" for number in range(6)]
    assert {shard_of(job_id, 4) for job_id in jobs} == {0, 1, 2, 3}
    for job_id in jobs:
        place.register(job_id, SIZES)
    for step in range(12):
        for job_id in jobs:
            place.push(job_id, HEALTHY, step)
        if step in (2, 5):
            consumers.append(place.consumer("bc"[step // 5]))
        if step == 8:
            consumers.pop(0)  # dies with whatever it held
        place.turns(*consumers, num_turns=1, each_s=LEASE_S / 3 + 0.1)
    place.turns(*consumers, num_turns=8, each_s=LEASE_S / 3 + 0.1)
    found = place.windows("job_id", "first_step", "state", "num_steps")
    assert found == [(job_id, first, "complete", 3) for job_id in jobs for first in (0, 3, 6, 9)]
    assert all(place.queue.reader.backlog(shard) == 0 for shard in range(4))


def test_one_that_froze_past_its_lease_loses_nothing_that_it_had_taken(place):
    place.register("job", SIZES)
    frozen = place.consumer("frozen")
    place.turns(frozen, num_turns=1)
    taken = place.queue.reader
    place.push("job", HEALTHY, 0, 1, 2)
    shard = shard_of("job", 4)
    taken.read([shard], "frozen", count=5, block_s=0.0)
    place.pass_time(2 * LEASE_S)
    place.turns(place.consumer("heir"), num_turns=1)
    place.turns(frozen, num_turns=1)
    assert place.owners() == ["heir"] * 4
    assert place.windows("state", "num_steps") == [("complete", 3)]
    assert place.queue.reader.backlog(shard) == 0
