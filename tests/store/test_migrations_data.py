"""Upgrade and downgrade with data on both databases: every row stays readable."""

import shutil
from contextlib import closing
from dataclasses import replace

import pytest
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
from app.ingest.assembly.window_codec import unpack_window
from app.ingest.wire import codec
from app.store import hosts, jobs, runs, shards, windows
from app.store.alerting import alerts, notifications, outbox, receivers
from app.store.database import Store
from app.store.migrations import downgrade, migrate
from app.store.shards import SpoolRow
from tests.postgres import database
from tests.store import release_0002 as old

JOB, OTHER = f"default/{old.JOB}", f"default/{old.OTHER}"


def fill_and_upgrade(url):
    """Fill the database at revision 0002 with rows in every table, and upgrade it."""
    downgrade(url, "0002")
    with closing(Store(url)) as store, store.write() as conn:
        old.fill(conn)
        assert old.content(conn) == old.expected()
    migrate(url)
    return url


@pytest.fixture(scope="module")
def upgraded_file(migrated_file, tmp_path_factory):
    """Such an SQLite file, to be copied."""
    path = shutil.copy(migrated_file, tmp_path_factory.mktemp("upgraded") / "upgraded.db")
    fill_and_upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="module")
def upgraded_pg(pg_server, migrated_pg):
    """The same on PostgreSQL."""
    with database(pg_server, template_url=migrated_pg) as url:
        yield fill_and_upgrade(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database of revision 0002 that was upgraded."""
    if request.param == "sqlite":
        path = shutil.copy(request.getfixturevalue("upgraded_file"), tmp_path / "upgraded.db")
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("upgraded_pg")
    with database(request.getfixturevalue("pg_server"), template_url=template) as url:
        yield url


@pytest.fixture
def upgraded(url):
    with closing(Store(url)) as store:
        yield store


@pytest.mark.sql_sensitive
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


@pytest.mark.sql_sensitive
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


@pytest.mark.sql_sensitive
def test_alerts_and_due_messages_survive_the_upgrade(upgraded):
    with upgraded.write() as conn:
        [alert] = alerts.of_job(conn, JOB)
        assert (alert.phase, alert.num_windows, alert.epoch) == ("firing", 4, 2)
        assert (alert.labels["alertname"], alert.labels["severity"], alert.labels["ä"]) == (
            "PacelineSlowdown", "warning", "b",
        )  # fmt: skip
        [event] = alerts.event_page(conn, job_id=JOB)[0]
        assert (event.event_id, event.detail.slowdown, event.fingerprint) == (
            1, 1.42, alert.fingerprint,
        )  # fmt: skip
        [(mark, told)] = notifications.last_notifications(conn, JOB, "slowdown").items()
        assert (mark, told.kind, told.event_id) == (alert.fingerprint, "firing", 1)
        assert receivers.get(conn, "default", "settings").url == "https://a.example"
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


@pytest.mark.sql_sensitive
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


@pytest.mark.sql_sensitive
def test_rows_without_their_job_are_still_refused_after_an_upgrade(upgraded):
    """Foreign keys deferred while jobs were renamed are immediate again."""
    with pytest.raises(Exception, match=r"(?i)foreign key"), upgraded.write() as conn:
        conn.execute(text("INSERT INTO cursors (job_id, epoch, blob) VALUES ('x', 1, '')"))
