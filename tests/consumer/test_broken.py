"""What goes wrong with one job, or one entry, stops no other."""

from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import text, update

from app.ingest.assembler import RunAssembler
from app.store import counts
from app.store.tables import cursors
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import DEADLINE_S, Crash, step_batches


@pytest.fixture
def place(make_place):
    place = make_place()
    for job_id in ("job", "broken"):
        place.register(job_id, SIZES)
    return place


def refuse(place, table, job_id="broken"):
    """From now on the database takes no row of this job."""
    with place.store.write() as conn:
        conn.execute(
            text(
                f"CREATE TRIGGER refused BEFORE INSERT ON {table} WHEN NEW.job_id = '{job_id}' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        )


def relent(place):
    with place.store.write() as conn:
        conn.execute(text("DROP TRIGGER refused"))


def windows_of(place, job_id):
    return [row[1:] for row in place.windows("job_id", "state", "num_steps") if row[0] == job_id]


def letters(place):
    return place.rows("dead_letters", "job_id", "epoch", "num_ops", "state")


def test_an_entry_that_cannot_be_read_becomes_a_dead_letter_and_stops_nobody(place):
    consumer = place.consumer()
    place.append_bytes("job", b"no batch")
    place.push("job", HEALTHY, *range(4))
    place.turns(consumer)
    assert windows_of(place, "job") == [("complete", 3), ("open", 1)]
    place.end("job")
    place.turns(consumer)
    assert windows_of(place, "job") == [("complete", 3), ("complete", 1)]
    assert place.queue.reader.backlog(0) == 0
    assert letters(place) == [("job", None, 0, "dead")]


def test_a_run_still_waits_for_what_was_acknowledged_behind_a_broken_entry(place):
    work = place.shard_work()
    place.append_bytes("job", b"no batch")
    work.take(place.entries())
    place.push("job", HEALTHY, 0)
    place.end("job")
    work.tick()
    assert windows_of(place, "job") == []
    work.take(place.entries())
    work.tick()
    assert windows_of(place, "job") == [("complete", 1)]


def test_entries_of_a_job_that_never_registered_become_dead_letters_and_stop_nobody(place):
    consumer = place.consumer()
    place.append("unknown", *step_batches(HEALTHY, 0))
    place.push("job", HEALTHY, 0, 1, 2)
    place.turns(consumer)
    assert windows_of(place, "job") == [("complete", 3)]
    assert place.queue.reader.backlog(0) == 0
    num_ops = [batch.columns.num_ops for batch in step_batches(HEALTHY, 0)]
    assert letters(place) == [("unknown", 1, each, "dead") for each in num_ops]
    with place.store.read() as conn:
        assert dict(counts.by_project(conn))["default"].dead == sum(num_ops)
    place.end("job")
    place.turns(consumer)
    assert place.rows("runs", "job_id", "is_closed") == [("broken", False), ("job", True)]


def test_a_job_that_cannot_be_stored_stops_nobody_and_goes_on_once_it_can(place):
    consumer = place.consumer()
    refuse(place, "windows")
    for step in range(3):
        place.push("broken", HEALTHY, step)
        place.push("job", HEALTHY, step)
        place.turns(consumer)
    assert windows_of(place, "job") == [("complete", 3)]
    assert windows_of(place, "broken") == []
    assert 0 < place.queue.reader.backlog(0) <= 3 * SIZES.num_workers
    relent(place)
    place.turns(consumer, num_turns=30)
    assert windows_of(place, "broken") == [("complete", 3)]
    assert place.queue.reader.backlog(0) == 0


def test_a_job_that_cannot_be_stored_keeps_no_other_from_its_deadline_or_end(place):
    consumer = place.consumer()
    for job_id in ("broken", "job"):
        place.push(job_id, HEALTHY, 0)
        place.append(job_id, *step_batches(HEALTHY, 1)[1:])
    place.turns(consumer)
    refuse(place, "windows")
    place.end("broken")
    place.turns(consumer, num_turns=int(DEADLINE_S) + 2)
    [skipped] = [row for row in place.rows("steps", "job_id", "step", "slowdown") if row[2] is None]
    assert skipped == ("job", 1, None)
    place.end("job")
    place.turns(consumer)
    assert windows_of(place, "job") == [("incomplete", 1)]
    assert windows_of(place, "broken") == [("open", 1)]
    relent(place)
    place.turns(consumer)
    assert windows_of(place, "broken") == [("incomplete", 1)]


def test_hosts_are_saved_though_the_first_attempt_met_a_broken_job(place):
    refuse(place, "windows")
    for job_id in ("job", "broken"):
        batches = (replace(batch, host="host-7") for batch in step_batches(HEALTHY, 0))
        place.append(job_id, *batches)
    place.turns(place.consumer())
    assert ("job",) in place.rows("hosts", "job_id")


def test_a_job_whose_memory_cannot_be_restored_keeps_no_consumer_from_the_others(place):
    for job_id in ("broken", "job"):
        place.push(job_id, HEALTHY, 0)
    place.turns(place.consumer())
    with place.store.write() as conn:
        conn.execute(update(cursors).where(cursors.c.job_id == "broken").values(blob=b"\xc1"))
    for job_id in ("broken", "job"):
        place.push(job_id, HEALTHY, 1, 2)
    place.turns(place.consumer())
    assert windows_of(place, "job") == [("complete", 3)]
    assert windows_of(place, "broken") == [("open", 1)]
    assert place.queue.reader.backlog(0) == 2 * SIZES.num_workers


@pytest.fixture
def poisoned(place, monkeypatch):
    """From now on, a batch of host "poison" breaks whoever assembles it, in the way given."""

    def poison(error):
        real = RunAssembler.add

        def add(self, batch, now_s, digest=0):
            if batch.host == "poison":
                raise error
            return real(self, batch, now_s, digest)

        monkeypatch.setattr(RunAssembler, "add", add)

    return poison


def push_poison(place):
    first, *others = step_batches(HEALTHY, 0)
    place.append("broken", replace(first, host="poison"), *others)
    return first.columns.num_ops


def test_a_batch_that_breaks_our_code_alone_becomes_a_dead_letter(place, poisoned):
    poisoned(RuntimeError("no"))
    num_ops = push_poison(place)
    place.push("job", HEALTHY, 0)
    place.turns(place.consumer(), num_turns=1)
    assert letters(place) == [("broken", 1, num_ops, "dead")]
    assert windows_of(place, "job") == [("open", 1)]
    assert place.queue.reader.backlog(0) == 0
    taken = [
        row[1:]
        for row in place.rows("ingest_counts", "job_id", "accepted", "dead")
        if row[0] == "broken"
    ]
    assert taken == [(sum(each.columns.num_ops for each in step_batches(HEALTHY, 0)[1:]), num_ops)]


def test_a_batch_that_ends_its_consumers_becomes_a_dead_letter_after_some_of_them(place, poisoned):
    poisoned(Crash())
    num_ops = push_poison(place)
    place.push("job", HEALTHY, 0)
    for _ in range(20):
        with suppress(Crash):
            place.turns(place.consumer(), num_turns=1)
    assert letters(place) == [("broken", 1, num_ops, "dead")]
    assert windows_of(place, "job") == [("open", 1)]
    assert place.queue.reader.backlog(0) == 0
    assert place.rows("totals") == []


def test_consumers_that_end_for_another_reason_make_no_dead_letters(place):
    place.push("job", HEALTHY, 0)
    for _ in range(20):
        place.fuse.blow(0, Crash())
        with suppress(Crash):
            place.turns(place.consumer(), num_turns=1)
    place.fuse.blow(-1, Crash())
    place.turns(place.consumer())
    assert letters(place) == []
    assert windows_of(place, "job") == [("open", 1)]
