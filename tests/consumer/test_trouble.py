"""Trouble that passes costs nothing: no good entry dies, none counts twice, nobody is forgotten."""

from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import update

from app.consumer import turn as turns
from app.errors import QueueUnavailable, StoreUnavailable, Unavailable
from app.store.tables import cursors
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import DEADLINE_S, Script, step_batches

A_WHILE = {"num_turns": 40, "each_s": 60.0}  # longer than a job may take to begin


@pytest.fixture
def place(place):
    place.register("job", SIZES)
    return place


def go_on(place, consumer, num_turns):
    """Turns of a consumer that goes on after each failure, as its loop does."""
    for _ in range(num_turns):
        consumer.run(Script(place, [lambda: None]))


def num_ops(*steps):
    return sum(batch.columns.num_ops for step in steps for batch in step_batches(HEALTHY, step))


def counted(place):
    return place.rows("ingest_counts", "accepted", "duplicate", "dead")


def test_a_store_that_takes_no_batches_for_a_while_makes_no_dead_letters(place, monkeypatch):
    real, is_locked = turns.save, True

    def save(conn, work, of_jobs):
        if is_locked:
            raise StoreUnavailable("a table is locked")
        return real(conn, work, of_jobs)

    monkeypatch.setattr(turns, "save", save)
    place.push("job", HEALTHY, 0, 1, 2)
    consumer = place.consumer()
    go_on(place, consumer, 12)
    is_locked = False
    go_on(place, consumer, 12)
    assert place.rows("dead_letters") == []
    assert place.windows("state", "num_steps") == [("complete", 3)]
    assert counted(place) == [(num_ops(0, 1, 2), 0, 0)]


def test_a_queue_that_does_not_hear_of_a_commit_makes_nothing_count_twice(place, monkeypatch):
    real, is_deaf = type(place.work.queue).done, True

    def done(self, shard, entry_ids):
        if is_deaf:
            raise QueueUnavailable("no answer")
        return real(self, shard, entry_ids)

    monkeypatch.setattr(type(place.work.queue), "done", done)
    place.push("job", HEALTHY, 0)
    consumer = place.consumer()
    go_on(place, consumer, 8)
    assert place.queue.reader.backlog(0) == SIZES.num_workers
    is_deaf = False
    go_on(place, consumer, 3)
    assert place.queue.reader.backlog(0) == 0
    assert counted(place) == [(num_ops(0), 0, 0)]
    assert place.rows("dead_letters") == []


def test_a_dead_letter_takes_no_deadline_from_the_other_batches_of_its_job(place):
    consumer = place.consumer()
    place.append("job", *step_batches(HEALTHY, 0)[1:])
    place.turns(consumer)
    place.append_bytes("job", b"no batch")
    place.turns(consumer, **A_WHILE)
    assert place.rows("steps", "step", "slowdown") == [(0, None)]
    assert place.rows("runs", "stalled_since_s") != [(None,)]


def test_what_was_acknowledged_after_the_end_is_closed_as_well(place):
    consumer = place.consumer()
    place.push("job", HEALTHY, 0)
    place.end("job")
    place.turns(consumer)
    assert place.rows("runs", "is_closed") == [(True,)]
    place.push("job", HEALTHY, 1)  # by an API that had looked the job up just before
    place.turns(consumer)
    assert place.windows("first_step", "state") == [(0, "complete"), (1, "complete")]
    assert place.rows("runs", "is_closed") == [(True,)]
    assert place.rows("spool") == []


@pytest.mark.parametrize("trouble", ["another consumer", "store away"])
def test_a_job_that_hangs_in_the_midst_of_trouble_has_stalled_all_the_same(place, trouble):
    consumer = place.consumer()
    place.push("job", HEALTHY, 0, 1, 2)
    place.turns(consumer, num_turns=8)
    if trouble == "another consumer":
        consumer.leases.release_all()
        consumer = place.consumer("heir")
    else:
        place.fuse.blow(0, StoreUnavailable("no answer"))
        go_on(place, consumer, 3)
    with suppress(Unavailable):
        place.turns(consumer, **A_WHILE)
    assert place.rows("runs", "stalled_since_s") != [(None,)]


def test_a_job_that_cannot_be_loaded_keeps_no_other_from_its_end(place):
    place.register("broken", SIZES)
    for job_id in ("broken", "job"):
        place.push(job_id, HEALTHY, 0)
    place.turns(place.consumer())
    with place.store.write() as conn:
        conn.execute(update(cursors).where(cursors.c.job_id == "broken").values(blob=b"\xc1"))
    consumer = place.consumer()
    for job_id in ("broken", "job"):
        place.push(job_id, HEALTHY, 1)
    place.turns(consumer)
    place.end("broken")
    place.end("job")
    place.turns(consumer, num_turns=5)
    closed = dict(place.rows("runs", "job_id", "is_closed"))
    assert closed == {"broken": False, "job": True}


def test_a_batch_missing_at_the_end_is_lost_and_its_step_is_skipped(place):
    consumer = place.consumer()
    place.push("job", HEALTHY, 0)
    first, *others = step_batches(HEALTHY, 1)
    place.append("job", *others, *step_batches(HEALTHY, 2))
    place.end("job")
    place.turns(consumer)
    assert place.rows("ingest_counts", "lost_batches") == [(1,)]
    assert place.windows("state", "num_steps") == [("incomplete", 2)]
    assert first.rank == 0
    [(_, reason)] = [row for row in place.rows("steps", "step", "skipped_reason") if row[1]]
    assert "rank 0 did not report the step" in reason


def test_numbers_out_of_this_world_count_as_late_and_spoil_nothing(place):
    consumer = place.consumer()
    place.push("job", HEALTHY, 0)
    mad = [replace(batch, batch_seq=2**53 - 1) for batch in step_batches(HEALTHY, 1)]
    place.append("job", *mad)
    place.turns(consumer, num_turns=3, each_s=DEADLINE_S)
    place.push("job", HEALTHY, 1, 2)
    place.turns(consumer)
    assert place.rows("ingest_counts", "late", "lost_batches") == [(num_ops(1), 0)]
    assert place.windows("state", "num_steps") == [("complete", 3)]
