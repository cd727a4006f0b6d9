import time
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import func, select, update

from app.errors import LeaseLost, NotFound
from app.store import (
    alert_events,
    alert_groups,
    alert_told,
    alerts,
    attempts,
    briefs,
    counts,
    dead_letters,
    drops,
    histories,
    hosts,
    jobs,
    losses,
    muting,
    projects,
    registering,
    retention,
    run_hosts,
    spool,
    steps,
    windows,
)
from app.store.alert_told import ToldKind, ToldRow
from app.store.counts import Counts
from app.store.engine import Store
from app.store.losses import Loss
from app.store.retention import Keep
from app.store.spool import SpoolRow
from app.store.steps import StepRow
from app.store.tables import alert_tables as at
from app.store.tables import (
    cursors,
    ingest_counts,
    runs,
    window_briefs,
    window_losses,
)
from app.store.tables import drops as drops_table
from app.store.tables import histories as histories_table
from tests.store.factories import alert, do, event, register, registration, silence, tell, window
from tests.store.test_dead_letters import LETTER

USUAL = Keep(raw_days=14.0, results_days=180.0)
JOB = "default/job"
DAY_S = 86_400.0


def days_ago(days):
    return time.time() - days * DAY_S


def save_window(store, first_step, *, days, job_id=JOB, epoch=1, state="complete", trace=b"ops"):
    """A window of two steps that was saved so long ago, with the rows of its steps."""
    last = first_step + 1
    record = window(
        first_step, last_step=last, state=state, trace=trace, updated_s=days_ago(days), epoch=epoch
    )
    rows = [StepRow(epoch, step, 1.0, 1.0, 1.0, 1.0, "") for step in (first_step, last)]
    with store.write() as conn:
        windows.save(conn, job_id, record)
        steps.save(conn, job_id, rows)


def end(store, job_id=JOB, *, epoch=1, days):
    """The run ended so long ago and is closed."""
    with store.write() as conn:
        values = {"ended_s": days_ago(days), "is_closed": True}
        of_run = update(runs).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
        conn.execute(of_run.values(**values))


def sweep(store, usual=USUAL):
    """How many rows went, by project and kind."""
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
        return traces, [row.step for row in steps.series(conn, job_id, epoch=epoch)]


def test_operations_go_first_and_results_later_but_never_an_open_window(store):
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


def test_what_would_go_is_counted_and_stays(store):
    register(store, JOB)
    save_window(store, 0, days=181)
    save_window(store, 2, days=15)
    found = {one.kind: one.number for one in retention.count(store, USUAL)}
    assert found == {"operations of windows": 2, "windows": 1}
    assert kept(store) == ({0: True, 2: True}, [0, 1, 2, 3])


def test_each_project_keeps_its_own_as_long_as_it_says(store):
    with store.write() as conn:
        for project in ("short", "long", "none"):
            projects.make(conn, project, now_s=1.0)
        retention.set_own(conn, "short", raw_days=1.0, results_days=None)
        retention.set_own(conn, "long", raw_days=1000.0, results_days=2000.0)
        found = {each.project: each for each in retention.policies(conn, USUAL)}
        with pytest.raises(NotFound, match="no project 'nobody'"):
            retention.set_own(conn, "nobody", raw_days=1.0, results_days=None)
    assert found["short"].keep == Keep(1.0, 180.0)
    assert (found["short"].has_own, found["long"].has_own) == ((True, False), (True, True))
    assert found["default"].keep == found["none"].keep == USUAL
    for job_id in ("short/a", "long/a", "default/a"):
        register(store, job_id)
        save_window(store, 0, days=181, job_id=job_id)
        save_window(store, 2, days=2, job_id=job_id)
    sweep(store)
    assert kept(store, "short/a") == ({2: False}, [2, 3])
    assert kept(store, "default/a") == ({2: True}, [2, 3])
    assert kept(store, "long/a") == ({0: True, 2: True}, [0, 1, 2, 3])
    with store.write() as conn:
        retention.set_own(conn, "long", raw_days=None, results_days=None)
    sweep(store)
    assert kept(store, "long/a") == ({2: True}, [2, 3])


def test_more_rows_than_a_batch_has_go_in_several(store):
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


def test_few_large_rows_go_at_once(store):
    register(store, JOB)
    for first_step, size_mib in ((0, 40), (2, 10), (4, 15), (6, 10)):
        save_window(store, first_step, days=15, trace=bytes(size_mib << 20))
    assert [each.number for each in retention.sweep(store, USUAL)] == [1, 2, 1]


def test_operations_go_with_their_results_where_they_are_to_be_kept_longer(store):
    register(store, JOB)
    save_window(store, 0, days=5)
    found = [each.kind for each in retention.sweep(store, Keep(raw_days=14.0, results_days=4.0))]
    assert found == ["operations of windows", "windows"]


def test_a_sweep_can_be_left_after_any_batch_and_others_may_write_then(store):
    register(store, JOB)
    for first_step in range(0, 240, 2):
        save_window(store, first_step, days=15)
    first = next(retention.sweep(store, USUAL))
    register(store, "default/another")
    assert first.number == 100
    assert sweep(store) == {("default", "operations of windows"): 20}


def fill_run(store, epoch):
    with store.write() as conn:
        hosts.save(conn, JOB, epoch, {(0, 0): "host"})
        drops.save(conn, JOB, epoch, [(0, 0, 0, 5)])
        histories.save(conn, JOB, epoch, through_step=1, blob=b"history")
        spool.save_state(conn, JOB, epoch, b"state")
        counts.save(conn, JOB, epoch, Counts(accepted=10, late=epoch))


def num_rows(store, *tables):
    with store.read() as conn:
        return [
            conn.execute(select(func.count()).select_from(each)).scalar_one() for each in tables
        ]


def test_a_run_goes_whole_once_it_is_closed_and_has_no_window_and_its_epoch_stays_taken(store):
    for run_key in ("a", "b", "c"):
        register(store, JOB, run_key=run_key)
    for epoch in (1, 2, 3):
        fill_run(store, epoch)
    end(store, epoch=1, days=181)
    end(store, epoch=2, days=179)
    save_window(store, 0, days=181, epoch=1)
    with store.read() as conn:
        before = counts.by_project(conn)
    assert sweep(store)["default", "runs"] == 1
    kept = num_rows(store, runs, cursors, ingest_counts, histories_table, drops_table)
    assert kept == [2, 2, 2, 2, 2]
    end(store, epoch=2, days=181)
    end(store, epoch=3, days=181)
    assert sweep(store) == {("default", "runs"): 2}
    with store.write() as conn:
        assert counts.by_project(conn) == before
        assert jobs.page(conn) == ([], None)
        assert registering.register(conn, JOB, registration(), now_s=1.0) == (4, True)


@pytest.mark.parametrize("needed", ["not closed", "has a spool", "has an open window", "has data"])
def test_a_run_that_a_consumer_may_still_need_stays(store, needed):
    register(store, JOB)
    end(store, days=400)
    with store.write() as conn:
        if needed == "not closed":
            conn.execute(update(runs).values(is_closed=False))
        if needed == "has a spool":
            spool.add(conn, [SpoolRow(JOB, 1, 1, 1, b"")])
        if needed == "has data":
            conn.execute(update(runs).values(last_data_s=days_ago(1)))
    if needed == "has an open window":
        save_window(store, 0, days=400, state="open")
    assert sweep(store) == {}
    assert num_rows(store, runs) == [1]


def keys(store, column):
    with store.read() as conn:
        return list(conn.execute(select(column).order_by(column)).scalars())


def test_transitions_go_unless_their_alert_goes_on(store):
    register(store, JOB)
    goes_on = alert(JOB, "worker", "1-0", began_at_s=days_ago(400))
    with store.write() as conn:
        alerts.save(conn, [goes_on])
        for n in (400, 182, 1):
            alert_events.add(conn, event(JOB, at_s=days_ago(n)))
            alert_events.add(conn, event(JOB, "worker", "1-0", at_s=days_ago(n)))
    assert sweep(store) == {("default", "alert events"): 2}
    assert keys(store, at.alert_events.c.event_id) == [2, 4, 5, 6]
    assert num_rows(store, at.alerts) == [1]


def test_messages_go_with_their_attempts_unless_they_are_still_to_be_sent(store):
    with store.write() as conn:
        for number, n in enumerate((400, 181, 1)):
            delivery_id = tell(conn, notice_id=f"{number}", now_s=days_ago(n))
            attempts.add(conn, delivery_id, 1, days_ago(n), 0.1, 500, "HTTP 500")
        tell(conn, notice_id="test", now_s=days_ago(400), job_id=None, rule=None, project="default")
        of_no_one = tell(conn, notice_id="due", now_s=days_ago(400))
        done = update(at.outbox).where(at.outbox.c.delivery_id != of_no_one)
        conn.execute(done.values(state="delivered", done_s=at.outbox.c.created_s))
    assert sweep(store) == {("default", "deliveries"): 3}
    assert keys(store, at.outbox.c.notice_id) == ["2", "due"]
    assert num_rows(store, at.delivery_attempts) == [1]


def test_what_was_told_is_remembered_while_an_alert_fires_and_long_enough_after(store):
    told_before: list[tuple[ToldKind, int]] = [
        ("resolved", 181),
        ("resolved", 179),
        ("firing", 400),
        ("acknowledged", 400),
    ]
    register(store, JOB)
    with store.write() as conn:
        for number, (kind, n) in enumerate(told_before):
            rule = f"r-{number}"
            told = {rule: ToldRow(kind, days_ago(n), 1, days_ago(n), "It is slow.")}
            alert_told.save(conn, JOB, rule, told)
            alert_groups.wake(conn, JOB, rule, at_s=1.0)
        for group in alert_groups.claim(conn, now_s=1.0, lease_s=1.0, limit=9)[:3]:
            alert_groups.done(conn, group, next_at_s=None, last_at_s=days_ago(400))
        alert_groups.wake(conn, JOB, "woken", at_s=1.0)
    assert sweep(store) == {("default", "alerts told"): 1, ("default", "alert groups"): 1}
    assert keys(store, at.alert_told.c.fingerprint) == ["r-1", "r-2", "r-3"]
    assert keys(store, at.alert_groups.c.rule) == ["r-1", "r-2", "r-3", "woken"]


def test_silences_and_what_people_did_go_as_long_after_they_were(store):
    with store.write() as conn:
        for n in (200, 181, 179):
            starts = {"starts_s": days_ago(n + 1), "ends_s": days_ago(n)}
            muting.add(conn, silence(f"{n}", created_s=days_ago(n), **starts))
            do(conn, "default" if n != 200 else "nobodys", at_s=days_ago(n), object_id=f"{n}")
    assert sweep(store) == {("default", "silences"): 2, ("default", "audit"): 1}
    assert keys(store, at.muting.c.silence_id) == ["179"]
    assert keys(store, at.audit.c.object_id) == ["179", "200"]


def test_dead_letters_go_once_they_were_settled_long_ago(store):
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


def test_a_window_that_is_being_revised_is_passed_over(pg_url):
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


def test_with_a_window_goes_what_the_fleet_says_of_it_and_with_a_run_its_hosts(store):
    register(store, JOB)
    save_window(store, 0, days=200)
    save_window(store, 2, days=1)
    with store.write() as conn:
        run_hosts.add(conn, JOB, 1, ["host-a"])
        for first_step in (0, 2):
            record = window(first_step, state="complete", updated_s=days_ago(1))
            briefs.save(conn, JOB, 1, first_step, {"findings": []})
            losses.save(conn, JOB, record, [Loss("total", "", 1.0, 2.0, 1.1)], num_gpus=4)
    sweep(store)
    with store.read() as conn:
        for table in (window_briefs, window_losses):
            assert list(conn.execute(select(table.c.first_step)).scalars()) == [2]
        assert run_hosts.jobs_on(conn, "default", "host-a") == {JOB}
    end(store, days=200)
    sweep(store, Keep(raw_days=0.5, results_days=0.5))
    with store.read() as conn:
        assert run_hosts.jobs_on(conn, "default", "host-a") == set()
        assert conn.execute(select(func.count()).select_from(runs)).scalar_one() == 0
