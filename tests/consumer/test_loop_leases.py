from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest

from app.consumer.loop import CUT_OFF_AFTER_S, Consumer
from app.errors import QueueUnavailable
from app.trace.job import shard_of
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import LEASE_S, Script
from tests.ingest.memory_queue import MemoryReader


@pytest.fixture
def twin(make_twin):
    return make_twin(num_shards=4)


def rounds(twin, *consumers):
    """Enough turns for every consumer to check the leases twice."""
    twin.turns(*consumers, num_turns=3, each_s=LEASE_S / 3 + 0.1)


def test_no_consumer_takes_more_than_its_share(twin):
    consumers = [twin.consumer(name) for name in "abc"]
    rounds(twin, *consumers)
    rounds(twin, *consumers)
    assert max(Counter(twin.owners()).values()) == 2
    assert None not in twin.owners()


def test_shards_of_a_dead_consumer_move_when_leases_lapse(twin):
    a, b = twin.consumer("a"), twin.consumer("b")
    rounds(twin, a)
    rounds(twin, b, a)
    twin.turns(b, num_turns=2, each_s=LEASE_S / 2)
    assert Counter(twin.owners()) == {"a": 2, "b": 2}
    twin.turns(b, num_turns=3, each_s=LEASE_S / 2)
    assert twin.owners() == ["b"] * 4


def test_restarted_consumer_has_its_shards_at_once(twin):
    rounds(twin, twin.consumer("a"))
    twin.turns(twin.consumer("b"), num_turns=1, each_s=0)
    assert twin.owners() == ["a"] * 4
    twin.pass_time(1.0)
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, 0)
    twin.turns(twin.consumer("a"), num_turns=1, each_s=0)
    assert twin.windows("num_steps") == [(1,)]


def test_consumer_that_stops_releases_its_shards(twin):
    a, b = twin.consumer("a"), twin.consumer("b")
    a.run(Script(twin, [lambda: None] * 2))
    assert twin.owners() == [None] * 4
    twin.turns(b, num_turns=1, each_s=0)
    assert twin.owners() == ["b"] * 4


class CutOffReader(MemoryReader):
    """The queue, as a consumer knows it to whom it may not answer."""

    is_cut_off = False

    def read(self, shards, consumer, *, count, block_s):
        self._ask()
        return super().read(shards, consumer, count=count, block_s=0.0)

    def backlog(self, shard):
        self._ask()
        return super().backlog(shard)

    def _ask(self):
        if self.is_cut_off:
            raise QueueUnavailable("no answer")


def test_consumer_that_the_queue_does_not_answer_leaves_its_shards_to_one_whom_it_does(twin):
    reader = CutOffReader(twin.queue)
    a = Consumer(replace(twin.context, queue=reader), "a")
    b = twin.consumer("b")
    rounds(twin, a)
    rounds(twin, b, a)
    assert Counter(twin.owners()) == {"a": 2, "b": 2}
    seen = []

    def go_on():
        a.leases.renew()  # as its thread does
        twin.turns(b, num_turns=1, each_s=0)
        if None not in twin.owners():  # as for a moment while one moves
            seen.append("".join(sorted(twin.owners())))

    def is_answered(answered):
        reader.is_cut_off = not answered

    turns = [go_on] * int(2 * CUT_OFF_AFTER_S)
    a.run(Script(twin, [lambda: is_answered(False), *turns, lambda: is_answered(True), *turns]))
    assert [owners for owners, _ in groupby(seen)] == ["aabb", "bbbb", "aabb"]


def test_all_jobs_are_analysed_while_shards_change_owners(twin):
    consumers = [twin.consumer("a")]
    jobs = [f"job-{number}" for number in range(6)]
    assert {shard_of(job_id, 4) for job_id in jobs} == {0, 1, 2, 3}
    for job_id in jobs:
        twin.register(job_id, SIZES)
    for step in range(9):
        for job_id in jobs:
            twin.push(job_id, HEALTHY, step)
        if step in (2, 5):
            consumers.append(twin.consumer("bc"[step // 5]))
        if step == 6:
            consumers.pop(0)  # dies holding its shards
        twin.turns(*consumers, num_turns=1, each_s=LEASE_S / 3 + 0.1)
    twin.turns(*consumers, num_turns=8, each_s=LEASE_S / 3 + 0.1)
    found = twin.windows("job_id", "first_step", "state", "num_steps")
    assert found == [(job_id, first, "complete", 3) for job_id in jobs for first in (0, 3, 6)]
    assert all(twin.queue.reader.backlog(shard) == 0 for shard in range(4))


def test_consumer_frozen_past_its_lease_loses_no_entry(twin):
    twin.register("job", SIZES)
    frozen = twin.consumer("frozen")
    twin.turns(frozen, num_turns=1)
    queue_reader = twin.queue.reader
    twin.push("job", HEALTHY, 0, 1, 2)
    shard = shard_of("job", 4)
    queue_reader.read([shard], "frozen", count=5, block_s=0.0)
    twin.pass_time(2 * LEASE_S)
    twin.turns(twin.consumer("heir"), num_turns=1)
    twin.turns(frozen, num_turns=1)
    assert twin.owners() == ["heir"] * 4
    assert twin.windows("state", "num_steps") == [("complete", 3)]
    assert twin.queue.reader.backlog(shard) == 0
