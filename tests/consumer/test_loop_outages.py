"""Temporary outages lose no entry, count none twice, and hide no stall."""

from contextlib import suppress
from dataclasses import replace

import pytest

from app.consumer import commit as turns
from app.errors import QueueUnavailable, StoreUnavailable, Unavailable
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import DEADLINE_S, Script, step_batches

LONG_WAIT = {"num_turns": 40, "each_s": 60.0}  # longer than the start timeout


@pytest.fixture
def twin(twin):
    twin.register("job", SIZES)
    return twin


def run_turns(twin, consumer, num_turns):
    """Turns of a consumer that continues after each failure, as its loop does."""
    for _ in range(num_turns):
        consumer.run(Script(twin, [lambda: None]))


def num_ops(*steps):
    return sum(batch.columns.num_ops for step in steps for batch in step_batches(HEALTHY, step))


def counted(twin):
    return twin.rows("ingest_counts", "accepted", "duplicate", "dead")


def test_store_outage_makes_no_dead_letters(twin, monkeypatch):
    real, is_locked = turns.save_turns, True

    def save(conn, work, of_jobs):
        if is_locked:
            raise StoreUnavailable("a table is locked")
        return real(conn, work, of_jobs)

    monkeypatch.setattr(turns, "save_turns", save)
    twin.push("job", HEALTHY, 0, 1, 2)
    consumer = twin.consumer()
    run_turns(twin, consumer, 12)
    is_locked = False
    run_turns(twin, consumer, 12)
    assert twin.rows("dead_letters") == []
    assert twin.windows("state", "num_steps") == [("complete", 3)]
    assert counted(twin) == [(num_ops(0, 1, 2), 0, 0)]


def test_lost_acknowledgement_counts_nothing_twice(twin, monkeypatch):
    real, has_no_answer = type(twin.context.queue).done, True

    def done(self, shard, entry_ids):
        if has_no_answer:
            raise QueueUnavailable("no answer")
        return real(self, shard, entry_ids)

    monkeypatch.setattr(type(twin.context.queue), "done", done)
    twin.push("job", HEALTHY, 0)
    consumer = twin.consumer()
    run_turns(twin, consumer, 8)
    assert twin.queue.reader.backlog(0) == SIZES.num_workers
    has_no_answer = False
    run_turns(twin, consumer, 3)
    assert twin.queue.reader.backlog(0) == 0
    assert counted(twin) == [(num_ops(0), 0, 0)]
    assert twin.rows("dead_letters") == []


def test_dead_letter_delays_neither_deadline_nor_stall_of_its_job(twin):
    consumer = twin.consumer()
    twin.append("job", *step_batches(HEALTHY, 0)[1::2])  # nothing of stage 0
    twin.turns(consumer)
    twin.append_bytes("job", b"no batch")
    twin.turns(consumer, **LONG_WAIT)
    assert twin.rows("steps", "step", "slowdown") == [(0, None)]
    assert twin.rows("runs", "stalled_since_s") != [(None,)]


@pytest.mark.parametrize("trouble", ["another consumer", "store away"])
def test_job_that_hangs_during_an_outage_is_stalled(twin, trouble):
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0, 1, 2)
    twin.turns(consumer, num_turns=8)
    if trouble == "another consumer":
        consumer.leases.release_all()
        consumer = twin.consumer("heir")
    else:
        twin.crash_points.raise_at(0, StoreUnavailable("no answer"))
        run_turns(twin, consumer, 3)
    with suppress(Unavailable):
        twin.turns(consumer, **LONG_WAIT)
    assert twin.rows("runs", "stalled_since_s") != [(None,)]


def test_absurd_batch_numbers_count_as_late(twin):
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0)
    absurd = [replace(batch, batch_seq=2**53 - 1) for batch in step_batches(HEALTHY, 1)]
    twin.append("job", *absurd)
    twin.turns(consumer, num_turns=3, each_s=DEADLINE_S)
    twin.push("job", HEALTHY, 1, 2)
    twin.turns(consumer)
    assert twin.rows("ingest_counts", "late", "lost_batches") == [(num_ops(1), 0)]
    assert twin.windows("state", "num_steps") == [("complete", 3)]
