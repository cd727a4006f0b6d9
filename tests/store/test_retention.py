import time
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import func, select, update

from app.alerts.planning import LastNotifiedKind
from app.errors import JobBeingRemoved, LeaseLost, NotFound
from app.result.brief import brief_of
from app.store import (
    dead_letters,
    fleet,
    hosts,
    jobs,
    projects,
    recordings,
    retention,
    shards,
    windows,
)
from app.store import runs as stored_runs
from app.store import tables as at
from app.store.alerting import alerts, deliveries, notifications, silences
from app.store.alerting import tables as alert_tables
from app.store.alerting.deliveries import DeliveryAttempt
from app.store.alerting.notifications import LastNotification
from app.store.database import Store
from app.store.fleet import Loss
from app.store.recordings import StepSample
from app.store.retention import RetentionLimits
from app.store.runs import IngestCounts
from app.store.shards import SpoolRow
from app.store.tables import cursors, ingest_counts, runs, window_briefs, window_losses
from app.store.tables import drops as drops_table
from app.store.tables import histories as histories_table
from app.store.windows import StepRow
from tests.store.factories import (
    add_audit_entry,
    add_message,
    alert,
    event,
    register,
    registration,
    silence,
    window,
)
from tests.store.findings import result
from tests.store.test_dead_letters import LETTER

pytestmark = pytest.mark.sql_sensitive

USUAL = RetentionLimits(raw_days=14.0, results_days=180.0)
JOB = "default/job"
DAY_S = 86_400.0


def days_ago(days):
    return time.time() - days * DAY_S


def save_window(store, first_step, *, days, job_id=JOB, epoch=1, state="complete", trace=b"ops"):
    """Save a window of two steps, `days` old, with its step rows."""
    last = first_step + 1
    record = window(
        first_step, last_step=last, state=state, trace=trace, updated_s=days_ago(days), epoch=epoch
    )
    rows = [StepRow(epoch, step, 1.0, 1.0, 1.0, 1.0, "") for step in (first_step, last)]
    with store.write() as conn:
        windows.save(conn, job_id, record)
        windows.save_steps(conn, job_id, rows)


def end(store, job_id=JOB, *, epoch=1, days):
    """End and close the run `days` ago."""
    with store.write() as conn:
        values = {"ended_s": days_ago(days), "is_closed": True}
        of_run = update(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
        conn.execute(of_run.values(**values))


def sweep(store, usual=USUAL):
    """Number of removed rows by project and kind."""
    found: Counter[tuple[str, str]] = Counter()
    for removed in retention.sweep(store, usual):
        found[removed.project, removed.kind] += removed.number
    return dict(found)


def kept(store, job_id=JOB, epoch=1):
    """First steps of a run's windows, whether each has its operations, and the run's steps."""
    with store.read() as conn:
        ids = sorted(
            each.first_step for each in windows.page(conn, job_id)[0] if each.epoch == epoch
        )
        traces = {
            first: windows.trace(conn, job_id, f"{epoch}-{first}") is not None for first in ids
        }
        return traces, [row.step for row in windows.step_series(conn, job_id, epoch=epoch)]


def test_operations_expire_before_results_and_open_windows_never(store):
    register(store, JOB)
    save_window(store, 0, days=181)
    save_window(store, 2, days=15)
    save_window(store, 4, days=13)
    save_window(store, 6, days=400, state="open", trace=None)
    assert sweep(store) == {
        ("default", "operations of windows"): 2,
        ("default", "windows"): 1,
    }
    assert kept(store) == ({2: False, 4: True, 6: False}, [2, 3, 4, 5, 6, 7])
    assert sweep(store) == {}


def test_each_project_has_its_own_retention(store):
    with store.write() as conn:
        for project in ("short", "long", "none"):
            projects.create_if_missing(conn, project, now_s=1.0)
        retention.set_project_limits(conn, "short", raw_days=1.0, results_days=None, max_gb=None)
        retention.set_project_limits(
            conn, "long", raw_days=1000.0, results_days=2000.0, max_gb=None
        )
        found = {each.project: each for each in retention.policies(conn, USUAL)}
        with pytest.raises(NotFound, match="no project 'nobody'"):
            retention.set_project_limits(
                conn, "nobody", raw_days=1.0, results_days=None, max_gb=None
            )
    assert found["short"].limits == RetentionLimits(1.0, 180.0)
    assert (found["short"].is_own, found["long"].is_own) == (
        (True, False, False),
        (True, True, False),
    )
    assert found["default"].limits == found["none"].limits == USUAL
    for job_id in ("short/a", "long/a", "default/a"):
        register(store, job_id)
        save_window(store, 0, days=181, job_id=job_id)
        save_window(store, 2, days=2, job_id=job_id)
    sweep(store)
    assert kept(store, "short/a") == ({2: False}, [2, 3])
    assert kept(store, "default/a") == ({2: True}, [2, 3])
    assert kept(store, "long/a") == ({0: True, 2: True}, [0, 1, 2, 3])
    with store.write() as conn:
        retention.set_project_limits(conn, "long", raw_days=None, results_days=None, max_gb=None)
    sweep(store)
    assert kept(store, "long/a") == ({2: True}, [2, 3])


def test_sweep_removes_many_rows_in_several_batches(store):
    register(store, JOB)
    for first_step in range(0, 220, 2):
        save_window(store, first_step, days=200)
    batches = [(each.kind, each.number) for each in retention.sweep(store, USUAL)]
    assert batches == [
        ("operations of windows", 100),
        ("operations of windows", 10),
        ("windows", 100),
        ("windows", 10),
    ]
    assert kept(store) == ({}, [])


def test_sweep_limits_a_batch_by_bytes(store, monkeypatch):
    monkeypatch.setattr(retention, "_BATCH_BYTES", 32 << 10)
    register(store, JOB)
    for first_step, size_kib in ((0, 40), (2, 10), (4, 15), (6, 10)):
        save_window(store, first_step, days=15, trace=bytes(size_kib << 10))
    assert [each.number for each in retention.sweep(store, USUAL)] == [1, 2, 1]


def fill_run(store, epoch):
    with store.write() as conn:
        hosts.save(conn, JOB, epoch, {(0, 0): "host"})
        stored_runs.save_drops(conn, JOB, epoch, [(0, 0, 0, 5)])
        shards.save_history(conn, JOB, epoch, through_step=1, blob=b"history")
        shards.save_assembler(conn, JOB, epoch, b"state")
        stored_runs.save(conn, JOB, epoch, IngestCounts(accepted=10, late=epoch))


def num_rows(store, *tables):
    with store.read() as conn:
        return [
            conn.execute(select(func.count()).select_from(each)).scalar_one() for each in tables
        ]


def test_closed_run_without_windows_is_removed_and_its_epoch_not_reused(store):
    for run_key in ("a", "b", "c"):
        register(store, JOB, run_key=run_key)
    for epoch in (1, 2, 3):
        fill_run(store, epoch)
    end(store, epoch=1, days=181)
    end(store, epoch=2, days=179)
    save_window(store, 0, days=181, epoch=1)
    with store.read() as conn:
        before = stored_runs.service_counts(conn)
    assert sweep(store)["default", "runs"] == 1
    kept = num_rows(store, runs, cursors, ingest_counts, histories_table, drops_table)
    assert kept == [2, 2, 2, 2, 2]
    end(store, epoch=2, days=181)
    end(store, epoch=3, days=181)
    assert sweep(store) == {("default", "runs"): 2}
    with store.write() as conn:
        assert stored_runs.service_counts(conn) == before
        assert jobs.page(conn) == ([], None)
        assert stored_runs.register(conn, JOB, registration(), now_s=1.0) == (4, True)


@pytest.mark.parametrize("needed", ["not closed", "has a spool", "has an open window", "has data"])
def test_run_that_a_consumer_may_need_is_kept(store, needed):
    register(store, JOB)
    end(store, days=400)
    with store.write() as conn:
        if needed == "not closed":
            conn.execute(update(runs).values(is_closed=False))
        if needed == "has a spool":
            shards.add_spooled(conn, [SpoolRow(JOB, 1, 1, 1, b"")])
        if needed == "has data":
            conn.execute(update(runs).values(last_data_s=days_ago(1)))
    if needed == "has an open window":
        save_window(store, 0, days=400, state="open")
    assert sweep(store) == {}
    assert num_rows(store, runs) == [1]


def keys(store, column):
    with store.read() as conn:
        return list(conn.execute(select(column).order_by(column)).scalars())


def test_events_are_removed_unless_their_alert_is_active(store):
    register(store, JOB)
    goes_on = alert(JOB, "worker", "1-0", began_at_s=days_ago(400))
    with store.write() as conn:
        alerts.save(conn, [goes_on])
        for n in (400, 182, 1):
            alerts.add_event(conn, event(JOB, at_s=days_ago(n)))
            alerts.add_event(conn, event(JOB, "worker", "1-0", at_s=days_ago(n)))
    assert sweep(store) == {("default", "alert events"): 2}
    assert keys(store, alert_tables.alert_events.c.event_id) == [2, 4, 5, 6]
    assert num_rows(store, alert_tables.alerts) == [1]


def test_finished_messages_are_removed_with_their_attempts(store):
    with store.write() as conn:
        for number, n in enumerate((400, 181, 1)):
            delivery_id = add_message(conn, notice_id=f"{number}", now_s=days_ago(n))
            attempt = DeliveryAttempt(1, days_ago(n), 0.1, 500, "HTTP 500")
            deliveries.add_attempt(conn, delivery_id, attempt)
        add_message(
            conn, notice_id="test", now_s=days_ago(400), job_id=None, rule=None, project="default"
        )
        of_no_one = add_message(conn, notice_id="due", now_s=days_ago(400))
        done = update(alert_tables.outbox).where(alert_tables.outbox.c.delivery_id != of_no_one)
        conn.execute(done.values(state="delivered", done_s=alert_tables.outbox.c.created_s))
    assert sweep(store) == {("default", "deliveries"): 3}
    assert keys(store, alert_tables.outbox.c.notice_id) == ["2", "due"]
    assert num_rows(store, alert_tables.delivery_attempts) == [1]


def test_last_notifications_are_kept_while_an_alert_fires(store):
    notified_before: list[tuple[LastNotifiedKind, int]] = [
        ("resolved", 181),
        ("resolved", 179),
        ("firing", 400),
        ("acknowledged", 400),
    ]
    register(store, JOB)
    with store.write() as conn:
        for number, (kind, n) in enumerate(notified_before):
            rule = f"r-{number}"
            last = LastNotification(
                kind, days_ago(n), event_id=1, starts_at_s=days_ago(n), sentence="It is slow."
            )
            notified = {rule: last}
            notifications.save_notifications(conn, JOB, rule, notified)
            notifications.wake_group(conn, JOB, rule, at_s=1.0)
        for group in notifications.claim_groups(conn, now_s=1.0, lease_s=1.0, limit=9)[:3]:
            notifications.release(conn, group, next_at_s=None, last_at_s=days_ago(400))
        notifications.wake_group(conn, JOB, "woken", at_s=1.0)
    assert sweep(store) == {("default", "alerts told"): 1, ("default", "alert groups"): 1}
    assert keys(store, alert_tables.notified_alerts.c.fingerprint) == ["r-1", "r-2", "r-3"]
    assert keys(store, alert_tables.alert_groups.c.rule) == ["r-1", "r-2", "r-3", "woken"]


def test_silences_and_audit_entries_expire(store):
    with store.write() as conn:
        for n in (200, 181, 179):
            starts = {"starts_s": days_ago(n + 1), "ends_s": days_ago(n)}
            silences.add(conn, silence(f"{n}", created_s=days_ago(n), **starts))
            add_audit_entry(
                conn, "default" if n != 200 else "nobodys", at_s=days_ago(n), object_id=f"{n}"
            )
    assert sweep(store) == {("default", "silences"): 2, ("default", "audit"): 1}
    assert keys(store, alert_tables.muting.c.silence_id) == ["179"]
    assert keys(store, at.audit.c.object_id) == ["179", "200"]


def test_settled_dead_letters_expire(store):
    with store.write() as conn:
        dead_letters.add(conn, [replace(LETTER, entry_id=f"{n}-0") for n in range(4)])
        dead_letters.mark(conn, 2, "replayed", now_s=days_ago(179))
        dead_letters.mark(conn, 3, "replayed", now_s=days_ago(181))
        dead_letters.mark(conn, 4, "dropped", now_s=days_ago(181))
    assert sweep(store) == {("default", "dead letters"): 2}
    with store.read() as conn:
        assert [one.letter_id for one in dead_letters.page(conn)[0]] == [1, 2]


def test_only_one_process_removes_rows_at_a_time(pg_url):
    store, other = Store(pg_url), Store(pg_url)
    with other.write() as conn:
        conn.execute(select(func.pg_advisory_xact_lock(retention.ADVISORY_LOCK)))
        with pytest.raises(LeaseLost, match="another process"):
            sweep(store)
    assert sweep(store) == {}
    store.close()
    other.close()


def test_window_under_revision_is_skipped_by_the_sweep(pg_url):
    store, other = Store(pg_url), Store(pg_url)
    register(store, JOB)
    save_window(store, 0, days=15)
    save_window(store, 2, days=15)
    with other.write() as conn:
        revised = window(0, revision=2, state="complete", trace=b"new", updated_s=time.time())
        windows.save(conn, JOB, revised)
        assert sweep(store) == {("default", "operations of windows"): 1}
    assert sweep(store) == {}
    assert kept(store)[0] == {0: True, 2: False}
    store.close()
    other.close()


def test_removing_windows_and_runs_removes_briefs_and_hosts(store):
    register(store, JOB)
    save_window(store, 0, days=200)
    save_window(store, 2, days=1)
    with store.write() as conn:
        hosts.add_to_run(conn, JOB, 1, ["host-a"])
        for first_step in (0, 2):
            record = window(first_step, state="complete", updated_s=days_ago(1))
            fleet.save_brief(conn, JOB, 1, first_step, brief_of(result(), num_gpus=4))
            fleet.save_losses(conn, JOB, record, [Loss("total", "", 1.0, 2.0, 1.1)], num_gpus=4)
    sweep(store)
    with store.read() as conn:
        for table in (window_briefs, window_losses):
            assert list(conn.execute(select(table.c.first_step)).scalars()) == [2]
        assert hosts.jobs_on(conn, "default", "host-a") == {JOB}
    end(store, days=200)
    sweep(store, RetentionLimits(raw_days=0.5, results_days=0.5))
    with store.read() as conn:
        assert hosts.jobs_on(conn, "default", "host-a") == set()
        assert conn.execute(select(func.count()).select_from(runs)).scalar_one() == 0


def test_deleted_jobs_are_removed_after_their_grace_with_all_their_rows(store):
    for job_id in (JOB, "default/other"):
        register(store, job_id)
        save_window(store, 0, days=0, job_id=job_id)
        with store.write() as conn:
            stored_runs.save(conn, job_id, 1, IngestCounts(accepted=7))
            record = window(0, state="complete", updated_s=days_ago(0))
            fleet.save_losses(conn, job_id, record, [Loss("total", "", 1.0, 2.0, 1.1)], num_gpus=4)
            fleet.save_brief(conn, job_id, 1, 0, brief_of(result(), num_gpus=4))
            hosts.add_to_run(conn, job_id, 1, ["host-a"])
            alerts.save(conn, [alert(job_id)])
            alerts.add_event(conn, event(job_id))
            recordings.add(conn, job_id, 1, StepSample(), from_step=1, now_s=1.0, by="me")
            delivery_id = add_message(conn, job_id[-5:], job_id=job_id)
            attempt = DeliveryAttempt(1, 1.0, 0.1, 500, "HTTP 500")
            deliveries.add_attempt(conn, delivery_id, attempt)
        end(store, job_id, days=0)
    before = rows_by_table(store, "default/other")
    assert set(before) > {"windows", "runs", "alerts", "outbox", "recordings", "window_losses"}
    delete_job(store, days=0.9)
    assert sweep(store) == {}
    delete_job(store, days=1.1)
    number = sum(rows_by_table(store, JOB).values())
    assert counted(store) == {("default", "rows of deleted jobs"): number}
    assert sweep(store) == {("default", "rows of deleted jobs"): number}
    assert rows_by_table(store, JOB) == {}
    assert rows_by_table(store, "default/other") == before
    assert num_rows(store, alert_tables.delivery_attempts) == [1]
    with store.read() as conn:
        assert stored_runs.service_counts(conn).accepted == 14
    assert register(store, JOB) == 2


def test_a_deleted_job_waits_for_its_open_run_and_takes_no_run_while_it_is_removed(
    store, monkeypatch
):
    monkeypatch.setattr(retention, "_BATCH_ROWS_OF_DELETED", 20)
    register(store, JOB)
    for first_step in range(0, 2 * retention._BATCH_ROWS_OF_DELETED, 2):
        save_window(store, first_step, days=0)
    delete_job(store, days=2)
    assert sweep(store) == {}
    end(store, days=2)
    removal = retention.sweep(store, USUAL)
    assert next(removal).number == retention._BATCH_ROWS_OF_DELETED
    for refused in (lambda: register(store, JOB, run_key="new"), lambda: restore_job(store)):
        with pytest.raises(JobBeingRemoved):
            refused()
    del removal
    assert sum(sweep(store).values()) == 2 * retention._BATCH_ROWS_OF_DELETED + 1
    assert register(store, JOB, run_key="new") == 2


def delete_job(store, *, days):
    with store.write() as conn:
        values = {"deleted_s": days_ago(days)}
        conn.execute(update(at.jobs).where(at.jobs.c.job_id == JOB).values(**values))


def restore_job(store):
    with store.write() as conn:
        jobs.restore(conn, JOB)


def counted(store):
    """Number of rows that a sweep would remove, by project and kind."""
    return {(each.project, each.kind): each.number for each in retention.count_old(store, USUAL)}


def rows_by_table(store, job_id):
    """Number of a job's rows by table, but for its own row."""
    found = [
        each
        for each in alert_tables.all_tables.sorted_tables
        if "job_id" in each.c and each != at.jobs
    ]
    with store.read() as conn:
        queries = {each.name: select(func.count()).where(each.c.job_id == job_id) for each in found}
        counts = {name: conn.execute(query).scalar_one() for name, query in queries.items()}
    return {name: number for name, number in counts.items() if number}
