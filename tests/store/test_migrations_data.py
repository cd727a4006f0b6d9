"""Upgrade and downgrade with data on both databases: every row stays readable."""

from dataclasses import replace

import pytest
import zstandard
from sqlalchemy import text

from app.consumer.run_cache import batch_digest
from app.ingest.assembly.assembler import (
    EarlierBatch,
    RunAssembler,
    RunState,
    SpooledBatch,
    WindowRules,
    pack_spool,
    unpack_spool,
)
from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.window_codec import pack_window, unpack_window
from app.ingest.wire import codec
from app.store import dead_letters, hosts, jobs, runs, shards, tokens, windows
from app.store.alerting import alerts, outbox
from app.store.database import Store
from app.store.migrations import downgrade, migrate
from app.store.runs import IngestCounts
from app.store.shards import SpoolRow
from app.store.tokens import NewToken
from tests.store import release_0002 as old
from tests.store.factories import register
from tests.store.factories import window as window_of
from tests.store.test_dead_letters import LETTER

JOB, OTHER = f"default/{old.JOB}", f"default/{old.OTHER}"


@pytest.fixture
def filled(url):
    """A database of revision 0002 with rows in every table."""
    downgrade(url, "0002")
    store = Store(url)
    with store.write() as conn:
        old.fill(conn)
        assert old.content(conn) == old.expected()
    yield store
    store.close()


@pytest.fixture
def upgraded(filled, url):
    migrate(url)
    return filled


def test_jobs_and_their_runs_belong_to_the_default_project(upgraded):
    with upgraded.read() as conn:
        records, _ = jobs.page(conn)
        assert [record.job_id for record in records] == [OTHER, JOB]
        job = jobs.get(conn, JOB)
        assert (job.epoch, job.num_gpus, job.labels) == (2, 8, {"ä": "b"})
        assert (job.silent_ranks, job.stalled_since_s, job.counts) == (None, None, None)
        assert jobs.registration(conn, JOB, 1).run_key == "run-1"
        assert [each.epoch for each in runs.ended_not_closed(conn)] == []
        assert hosts.load(conn, JOB, 2) == {
            divmod(worker, 2): f"node-{worker}" for worker in old.WORKERS
        }
        assert hosts.load(conn, JOB, 1) == {}
    with upgraded.write() as conn:
        assert runs.register(conn, JOB, jobs.registration(conn, JOB, 2), now_s=1.0) == (2, False)


def test_windows_and_steps_are_read_as_they_were_written(upgraded):
    with upgraded.read() as conn:
        found, _ = windows.page(conn, JOB)
        assert [each.window_id for each in found] == ["2-1", "2-0", "1-0"]
        whole = windows.get(conn, JOB, "2-0", per_step=True)
        assert whole == {**old.RESULT, "per_step": old.PER_STEP}
        assert windows.get(conn, OTHER, f"1-{2**53}", per_step=True)["per_step"] is None
        blob = windows.trace(conn, JOB, "2-0")
        assert windows.trace(conn, JOB, "2-1") is None
        series = windows.step_series(conn, JOB)
    assert blob is not None
    columns = unpack_window(blob).ops.columns()
    assert {name: values.tolist() for name, values in columns.items()} == old.TRACE
    assert [(row.step, row.skipped_reason) for row in series] == [
        (0, None),
        (1, old.SKIPPED["reason"]),
    ]


def test_alerts_and_due_messages_survive_the_upgrade(upgraded):
    with upgraded.write() as conn:
        [alert] = alerts.of_job(conn, JOB)
        assert (alert.phase, alert.num_windows, alert.epoch) == ("firing", 4, 2)
        assert [event.event_id for event in alerts.event_page(conn, job_id=JOB)[0]] == [1]
        (due,) = outbox.claim(conn, now_s=5.0, lease_s=1.0, limit=10)
        assert (due.delivery_id, due.attempt) == (old.DUE, 1)
        outbox.mark_failed(conn, due, detail="HTTP 500", next_at_s=9.0, now_s=6.0)
        event = replace(alerts.event_page(conn, job_id=JOB)[0][0], event_id=None)
        assert alerts.add_event(conn, event) > 2
        assert shards.acquire(conn, 1, "me", now_s=1.0, lease_s=2.0) == 8


def restored(conn, *, window_steps=4):
    """The assembler of the run with an open window, as a consumer loads it."""
    before = [
        EarlierBatch(turn, codec.read_entry(each.body), batch_digest(each.body), each.dropped)
        for turn, blob in shards.spooled_batches(conn, JOB, 2)
        for each in unpack_spool(blob)
    ]
    return RunAssembler.restore(
        jobs.registration(conn, JOB, 2).job,
        2,
        WindowRules(window_steps, 30.0),
        _no_closed_window,
        blob=shards.load_assembler(conn, JOB, 2),
        before=before,
        hosts=hosts.load(conn, JOB, 2),
        now_s=0.0,
    )


def _no_closed_window(first_step):
    raise LookupError(first_step)


def test_open_window_survives_the_upgrade(upgraded):
    with upgraded.read() as conn:
        run = restored(conn)
        blob = shards.load_assembler(conn, JOB, 2)
    assert blob is not None
    # The window is stored open in revision 4: the next revision must be newer.
    assert RunState.read(blob).revision == 4
    assert run.settle(0.0) == []
    assert run.add(codec.read_entry(old.BATCHES[0][2]), 0.0).verdict == "duplicate"
    assert run.add(codec.read_entry(old.MISSING), 0.0).verdict == "new"
    (change,) = run.settle(0.0)
    assert (change.window.id, change.window.state) == ("2-1", "complete")
    assert change.window.steps == (2, 3, 4, old.LAST_STEP)
    assert [(skip.step, skip.missing) for skip in change.window.skipped] == [(1, (2, 3))]
    assert change.window.revision == 5
    # Step 1 has the operations of ranks that sent it in time only.
    assert change.ops is not None
    assert unpack_window(*change.ops).ops.of_step(1).rank.tolist() == [0, 1]


def test_open_window_without_further_steps_closes_with_a_newer_revision(upgraded):
    with upgraded.write() as conn:
        # As if no rank had sent step 5.
        conn.execute(text("DELETE FROM spool"))
        kept = [SpooledBatch(body, []) for _, seq, body in old.BATCHES if seq == 7]
        shards.add_spooled(conn, [SpoolRow(JOB, 2, 1, 4, pack_spool(kept))])
        run = restored(conn)
    (change,) = run.finish(0.0, "complete")
    assert change.window.revision == 5


def test_run_without_windows_keeps_its_cursors_after_an_upgrade(upgraded):
    with upgraded.read() as conn:
        assert shards.spooled_runs(conn) == [(JOB, 2)]
        blob = shards.load_assembler(conn, OTHER, 1)
    assert blob is not None
    state = RunState.read(blob)
    assert (state.closed_through, state.cursors[0].next_seq) == (2, 3)


def test_downgrade_restores_the_original_rows(upgraded, url):
    downgrade(url, "0002")
    with upgraded.read() as conn:
        assert old.content(conn) == old.expected()
    migrate(url)
    with upgraded.read() as conn:
        assert restored(conn).settle(0.0) == []
    downgrade(url, "0002")
    with upgraded.read() as conn:
        assert old.content(conn) == old.expected()


def new_trace():
    table = unpack_window(old.stored_trace(old.TRACE)).ops
    return table, OpTable(**table.columns(), tokens=table.start_ns, bytes=table.duration_ns)


def test_downgrade_rewrites_new_rows_in_the_older_format(upgraded, url):
    _, with_tokens = new_trace()
    result = {"slowdown": 1.5, "worker_slowdown": [[1.0, 2.0]]}
    new = window_of(100, epoch=2, state="complete", result=result, trace=pack_window(with_tokens))
    with upgraded.write() as conn:
        windows.save(conn, JOB, new)
        windows.save(conn, JOB, window_of(101, epoch=2, result=result))
        body = old.body(0, 9, [6, 7])
        kept = [SpooledBatch(zstandard.compress(body), [6])]
        shards.add_spooled(conn, [SpoolRow(JOB, 2, 2, 7, pack_spool(kept))])
        runs.save(conn, JOB, 2, IngestCounts(accepted=1))
        dead_letters.add(conn, [LETTER])
        runs.add_to_total(conn, "fenced_commits", 1)
        tokens.create(conn, NewToken("default", "", ["read"]), now_s=1.0)
    downgrade(url, "0002")
    with upgraded.read() as conn:
        found = old.content(conn)
    saved = {(row["epoch"], row["first_step"]): row for row in found["windows"]}
    assert saved[2, 100]["result"] == saved[2, 101]["result"] == result
    at_ns = 2**60 + 24  # the next microsecond
    assert saved[2, 100]["trace"] == old.TRACE | {
        "start_ns": [at_ns, at_ns, at_ns + 70_000, at_ns],
        "duration_ns": [0, 2**40 + 224, 0, 0],
    }
    assert saved[2, 101]["trace"] is None
    assert saved[2, 0] == old.expected()["windows"][2]
    assert (0, 9, body) in {
        (row["rank"], row["batch_seq"], row["body"]) for row in found["batches"]
    }
    state = next(row["blob"] for row in found["cursors"] if row["job_id"] == old.JOB)
    assert sorted(state["late"]) == [[[0, 9], [6]], [[2, 8], [1]]]


def test_downgrade_keeps_job_ids_of_other_projects_distinct(upgraded, url):
    with upgraded.write() as conn:
        tokens.create(conn, NewToken("other", "", ["read"]), now_s=1.0)
    register(upgraded, f"other/{old.JOB}")
    downgrade(url, "0002")
    with upgraded.read() as conn:
        ids = conn.execute(text("SELECT job_id FROM jobs ORDER BY job_id")).scalars().all()
    assert ids == [old.OTHER, old.JOB, f"other/{old.JOB}"]


def test_rows_without_their_job_are_still_refused_after_an_upgrade(upgraded):
    """Foreign keys deferred while jobs were renamed are immediate again."""
    with pytest.raises(Exception, match=r"(?i)foreign key"), upgraded.write() as conn:
        conn.execute(text("INSERT INTO cursors (job_id, epoch, blob) VALUES ('x', 1, '')"))
