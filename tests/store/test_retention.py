import time
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import func, select, text, update

from app.errors import LeaseLost, NotFound
from app.store import (
    alerts,
    counts,
    dead_letters,
    hosts,
    jobs,
    outbox,
    projects,
    retention,
    spool,
    steps,
    windows,
)
from app.store.counts import Counts
from app.store.engine import Store
from app.store.retention import Keep
from app.store.spool import SpoolRow
from app.store.steps import StepRow
from app.store.tables import alert_events, cursors, ingest_counts, runs
from app.store.tables import outbox as outbox_table
from tests.store.factories import register, registration, window
from tests.store.test_alerts import EVENT
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
    assert num_rows(store, runs, cursors, ingest_counts) == [2, 2, 2]
    end(store, epoch=2, days=181)
    end(store, epoch=3, days=181)
    assert sweep(store) == {("default", "runs"): 2}
    with store.write() as conn:
        assert counts.by_project(conn) == before
        assert jobs.page(conn) == ([], None)
        assert jobs.register(conn, JOB, registration(), now_s=1.0) == (4, True)


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


def test_alerts_go_with_what_was_told_of_them_unless_somebody_is_still_to_be_told(store):
    register(store, JOB)
    old, waiting, new = (replace(EVENT, job_id=JOB, at_s=days_ago(n)) for n in (181, 182, 1))
    with store.write() as conn:
        ids = [alerts.add_event(conn, event) for event in (old, waiting, new)]
        for event_id in ids:
            outbox.add(conn, event_id, "https://a.example", "{}", now_s=1.0)
        conn.execute(text("UPDATE outbox SET state = 'delivered' WHERE event_id <> 2"))
    assert sweep(store) == {("default", "alert events"): 1}
    with store.read() as conn:
        assert list(conn.execute(select(alert_events.c.event_id)).scalars()) == [2, 3]
    assert num_rows(store, outbox_table) == [2]


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
