"""Fleet lines: each job with its current run."""

import pytest

from app.store import fleet, windows
from app.store import hosts as stored_hosts
from app.store.alerting import alerts
from app.store.fleet import SHOWN_WINDOWS, RecentWindow
from app.store.windows import StepRow
from tests.store.factories import alert, event, register, window

JOB = "default/job"


def save(store, job_id, *records):
    with store.write() as conn:
        for record in records:
            windows.save(conn, job_id, record)


def test_fleet_line_has_the_newest_window_with_figures(store):
    register(store, JOB, run_key="run-1")
    save(store, JOB, window(50))
    register(store, JOB, run_key="run-2")
    newest = window(3, epoch=2, slowdown=None, verdict=None)
    save(store, JOB, window(0, epoch=2, slowdown=1.5), newest)
    register(store, "default/new")
    register(store, "research/other")
    with store.read() as conn:
        first, second = fleet.lines(conn, "default")
    assert first.latest is not None
    assert (first.job_id, first.epoch) == (JOB, 2)
    assert (first.latest.window_id, first.latest.slowdown) == ("2-0", 1.5)
    assert (second.job_id, second.latest, second.brief) == ("default/new", None, None)
    assert (first.num_gpus, first.dp_size, first.labels) == (4, 2, {})


@pytest.mark.sql_sensitive
def test_last_windows_are_of_the_current_run_oldest_first(store):
    register(store, JOB, run_key="run-1")
    save(store, JOB, window(7))
    register(store, JOB, run_key="run-2")
    many = SHOWN_WINDOWS + 5
    save(store, JOB, *(window(each, epoch=2, slowdown=1.0 + each) for each in range(many)))
    register(store, "default/short")
    save(store, "default/short", window(2), window(4, slowdown=None, verdict=None))
    register(store, "default/none")
    asked = [JOB, "default/short", "default/none"]
    with store.read() as conn:
        found = fleet.last_windows(conn, asked)
    assert [each.first_step for each in found[JOB]] == list(range(5, many))
    assert found[JOB][0] == RecentWindow(5, 5, 6.0)
    assert found["default/short"] == [RecentWindow(2, 2, 1.25), RecentWindow(4, 4, None)]
    assert found["default/none"] == []


def test_last_skip_reason_is_that_of_the_last_skipped_step(store):
    register(store, JOB)
    nothing = (None, None, None, None, "1-0")
    with store.write() as conn:
        assert fleet.last_skip_reason(conn, JOB, 1) is None
        windows.save_steps(conn, JOB, [StepRow(1, 0, *nothing, "rank 3 did not report"),
                               StepRow(1, 1, *nothing, "rank 2 did not report"),
                               StepRow(1, 2, 1.0, 1.0, 1.0, 1.0, "1-0")])  # fmt: skip
        assert fleet.last_skip_reason(conn, JOB, 1) == "rank 2 did not report"


def test_alerts_that_fire_are_counted_by_project(store):
    for job_id in (JOB, "research/job"):
        register(store, job_id)
        with store.write() as conn:
            alerts.save(conn, [alert(job_id), alert(job_id, "cause", phase="pending")])
            for at_s in (100.0, 200.0):
                alerts.add_event(conn, event(job_id, at_s=at_s))
            alerts.add_event(conn, event(job_id, at_s=300.0, kind="resolved"))
    with store.read() as conn:
        assert fleet.num_fired_since(conn, "default", 150.0) == 1


@pytest.mark.sql_sensitive
def test_jobs_are_found_by_host_name_prefix(store):
    for job_id, hosts in ((JOB, ["node-1", "node-1"]), ("default/other", ["node-20", "x-node-1"])):
        register(store, job_id)
        with store.write() as conn:
            stored_hosts.add_to_run(conn, job_id, 1, hosts)
            stored_hosts.add_to_run(conn, job_id, 1, hosts)  # again, as with each new host
    register(store, "research/job")
    with store.write() as conn:
        stored_hosts.add_to_run(conn, "research/job", 1, ["node-1"])
        assert stored_hosts.jobs_on(conn, "default", "node-") == {JOB, "default/other"}
        assert stored_hosts.jobs_on(conn, "default", "NODE-1") == {JOB}
        assert stored_hosts.jobs_on(conn, "default", "%") == set()
        [run] = stored_hosts.runs_on(conn, "default", "node-1", limit=10)
    assert (run.job_id, run.epoch, run.registered_s) == (JOB, 1, 100.0)


def test_limited_runs_of_a_host_are_the_newest(store):
    for number in range(3):
        register(store, f"default/job-{number}", now_s=100.0 + number)
        with store.write() as conn:
            stored_hosts.add_to_run(conn, f"default/job-{number}", 1, ["node-1"])
    with store.read() as conn:
        found = stored_hosts.runs_on(conn, "default", "node-1", limit=2)
    assert [run.job_id for run in found] == ["default/job-2", "default/job-1"]
