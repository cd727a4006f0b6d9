"""A failure of one job or one entry blocks no other."""

from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import text, update

from app.consumer.poison import MAX_TRIALS, SUSPECT_AFTER_DELIVERIES
from app.ingest.assembly.assembler import RunAssembler
from app.store import as_of, runs
from app.store.tables import cursors
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import Crash, step_batches


@pytest.fixture
def twin(make_twin):
    twin = make_twin()
    for job_id in ("job", "broken"):
        twin.register(job_id, SIZES)
    return twin


def refuse(twin, table, job_id="broken"):
    """Make the database refuse rows of this job."""
    with twin.store.write() as conn:
        conn.execute(
            text(
                f"CREATE TRIGGER refused BEFORE INSERT ON {table} WHEN NEW.job_id = '{job_id}' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        )


def stop_refusing(twin):
    with twin.store.write() as conn:
        conn.execute(text("DROP TRIGGER refused"))


def windows_of(twin, job_id):
    return [row[1:] for row in twin.windows("job_id", "state", "num_steps") if row[0] == job_id]


def dead_letter_rows(twin):
    return twin.rows("dead_letters", "job_id", "epoch", "num_ops", "state")


def test_unreadable_entry_becomes_a_dead_letter_and_blocks_no_other(twin):
    consumer = twin.consumer()
    twin.append_bytes("job", b"no batch")
    twin.push("job", HEALTHY, *range(4))
    twin.turns(consumer)
    assert windows_of(twin, "job") == [("complete", 3), ("open", 1)]
    twin.end("job")
    twin.turns(consumer)
    assert windows_of(twin, "job") == [("complete", 3), ("complete", 1)]
    assert twin.queue.reader.backlog(0) == 0
    assert dead_letter_rows(twin) == [("job", None, 0, "dead")]


def test_run_end_waits_for_entries_behind_an_unreadable_one(twin):
    work = twin.shard_work()
    twin.append_bytes("job", b"no batch")
    work.take(twin.entries())
    twin.push("job", HEALTHY, 0)
    twin.end("job")
    work.tick()
    assert windows_of(twin, "job") == []
    work.take(twin.entries())
    work.tick()
    assert windows_of(twin, "job") == [("complete", 1)]


def test_entries_of_an_unregistered_job_become_dead_letters(twin):
    consumer = twin.consumer()
    twin.append("unknown", *step_batches(HEALTHY, 0))
    twin.push("job", HEALTHY, 0, 1, 2)
    twin.turns(consumer)
    assert windows_of(twin, "job") == [("complete", 3)]
    assert twin.queue.reader.backlog(0) == 0
    num_ops = [batch.columns.num_ops for batch in step_batches(HEALTHY, 0)]
    assert dead_letter_rows(twin) == [("unknown", 1, each, "dead") for each in num_ops]
    with twin.store.read() as conn:
        assert runs.service_counts(conn).dead == sum(num_ops)
    twin.end("job")
    twin.turns(consumer)
    assert twin.rows("runs", "job_id", "is_closed") == [("broken", False), ("job", True)]


def test_job_refused_by_the_database_blocks_no_other_and_recovers(twin):
    consumer = twin.consumer()
    refuse(twin, "windows")
    for step in range(3):
        twin.push("broken", HEALTHY, step)
        twin.push("job", HEALTHY, step)
        twin.turns(consumer)
    assert windows_of(twin, "job") == [("complete", 3)]
    assert windows_of(twin, "broken") == []
    assert 0 < twin.queue.reader.backlog(0) <= 3 * SIZES.num_workers
    stop_refusing(twin)
    twin.turns(consumer, num_turns=30)
    assert windows_of(twin, "broken") == [("complete", 3)]
    assert twin.queue.reader.backlog(0) == 0


def test_hosts_are_saved_after_a_commit_failed_for_another_job(twin):
    refuse(twin, "windows")
    for job_id in ("job", "broken"):
        batches = (replace(batch, host="host-7") for batch in step_batches(HEALTHY, 0))
        twin.append(job_id, *batches)
    twin.turns(twin.consumer())
    assert ("job",) in twin.rows("hosts", "job_id")


def test_job_with_unreadable_state_blocks_no_other_job_and_delays_no_end(twin):
    for job_id in ("broken", "job"):
        twin.push(job_id, HEALTHY, 0)
    twin.turns(twin.consumer())
    with twin.store.write() as conn:
        conn.execute(update(cursors).where(cursors.c.job_id == "broken").values(blob=b"\xc1"))
    for job_id in ("broken", "job"):
        twin.push(job_id, HEALTHY, 1, 2)
    consumer = twin.consumer()
    twin.turns(consumer)
    assert windows_of(twin, "job") == [("complete", 3)]
    assert windows_of(twin, "broken") == [("open", 1)]
    assert twin.queue.reader.backlog(0) == 2 * SIZES.num_workers
    twin.pass_time(6)
    twin.turns(consumer)
    with twin.store.read() as conn:
        processed = as_of.read(conn, num_shards=1, now_s=twin.unix_clock())
    assert [processed.of(job_id).is_behind for job_id in ("broken", "job")] == [True, False]
    for job_id in ("broken", "job"):
        twin.end(job_id)
    twin.turns(consumer, num_turns=5)
    assert twin.rows("runs", "job_id", "is_closed") == [("broken", False), ("job", True)]


@pytest.mark.parametrize("do_ids_restart", [True, False])
def test_nobody_waits_for_a_stuck_entry_that_a_wiped_server_has_lost(twin, do_ids_restart):
    twin.push("broken", HEALTHY, 0)
    twin.turns(twin.consumer())
    with twin.store.write() as conn:
        conn.execute(update(cursors).where(cursors.c.job_id == "broken").values(blob=b"\xc1"))
    twin.push("broken", HEALTHY, 1)
    consumer = twin.consumer()
    twin.turns(consumer)
    shard = twin.queue.shards[0]
    shard.pending.clear()
    if do_ids_restart:
        shard.newest_id = "0-0"
    twin.pass_time(2 * as_of.RETRIED_WITHIN_S)
    twin.turns(consumer)
    with twin.store.read() as conn:
        assert not as_of.read(conn, num_shards=1, now_s=twin.unix_clock()).of("broken").is_behind


@pytest.fixture
def poison_assembler(twin, monkeypatch):
    """A function that makes the assembler raise an error for batches of host "poison"."""

    def poison(error):
        real = RunAssembler.add

        def add(self, batch, now_s, digest=0):
            if batch.host == "poison":
                raise error
            return real(self, batch, now_s, digest)

        monkeypatch.setattr(RunAssembler, "add", add)

    return poison


def push_poison(twin):
    first, *others = step_batches(HEALTHY, 0)
    twin.append("broken", replace(first, host="poison"), *others)
    return first.columns.num_ops


def test_only_the_batch_that_raises_becomes_a_dead_letter(twin, poison_assembler):
    poison_assembler(RuntimeError("no"))
    num_ops = push_poison(twin)
    twin.push("job", HEALTHY, 0)
    twin.turns(twin.consumer(), num_turns=1)
    assert dead_letter_rows(twin) == [("broken", 1, num_ops, "dead")]
    assert windows_of(twin, "job") == [("open", 1)]
    assert twin.queue.reader.backlog(0) == 0
    op_counts = [
        row[1:]
        for row in twin.rows("ingest_counts", "job_id", "accepted", "dead")
        if row[0] == "broken"
    ]
    assert op_counts == [
        (sum(each.columns.num_ops for each in step_batches(HEALTHY, 0)[1:]), num_ops)
    ]


def test_batch_that_crashes_consumers_becomes_a_dead_letter_at_last(twin, poison_assembler):
    poison_assembler(Crash())
    num_ops = push_poison(twin)
    twin.push("job", HEALTHY, 0)
    num_crashes = 0
    for _ in range(20):
        try:
            twin.turns(twin.consumer(), num_turns=1)
        except Crash:
            num_crashes += 1
    # Not of the crashes of others: tried alone only from the third delivery on.
    assert num_crashes == SUSPECT_AFTER_DELIVERIES - 1 + MAX_TRIALS
    assert dead_letter_rows(twin) == [("broken", 1, num_ops, "dead")]
    assert windows_of(twin, "job") == [("open", 1)]
    assert twin.queue.reader.backlog(0) == 0
    assert twin.rows("totals") == []


def test_consumer_crashes_at_a_commit_make_no_dead_letters(twin):
    twin.push("job", HEALTHY, 0)
    for _ in range(20):
        twin.crash_points.raise_at(0, Crash())
        with suppress(Crash):
            twin.turns(twin.consumer(), num_turns=1)
    twin.crash_points.raise_at(-1, Crash())
    twin.turns(twin.consumer())
    assert dead_letter_rows(twin) == []
    assert windows_of(twin, "job") == [("open", 1)]
