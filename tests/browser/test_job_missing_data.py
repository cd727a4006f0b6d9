"""Pages of jobs whose workers no longer send: who is silent, who goes on, and what was lost."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import update

from app.ingest.wire import codec
from app.store import runs
from app.store.database import Store
from app.store.tables import shards as table_of_shards
from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.browser.paceline import running
from tests.browser.waiting import wait_until
from tests.e2e.producers import batch_of
from tests.harness.processes import children

SIZES = Parallelism(2, 2)


@pytest.fixture
def store(server, serve_directory):
    """The server's store, to write what its consumer would after a while."""
    store = Store(f"sqlite:///{serve_directory / 'data' / 'paceline.db'}")
    yield store
    store.close()


def link(server, job_id):
    return server.link.replace("/#", f"/jobs/{job_id}#")


@pytest.mark.nightly  # a server of its own, which waits for a second only
def test_a_job_without_new_data_is_stalled_with_old_figures(tmp_path, open_page, keep):
    from playwright.sync_api import expect

    made = SimulatedJob(SIZES, 4)
    with running("serve", tmp_path, silent_after_s="1") as server:
        server.push("quiet", made, server.register("quiet", made), 3)
        wait_until(lambda: server.get("/jobs/quiet")["state"] == "stalled", "the job is stalled")
        for theme in ("light", "dark"):
            page = open_page(link(server, "quiet"), theme=theme).page
            expect(page.locator("h1")).to_contain_text("No worker has sent anything since")
            expect(page.locator(".headline .state")).to_have_text("Stalled")
            expect(page.get_by_role("note")).to_contain_text("Figures are as of")
            expect(page.locator(".live")).to_contain_text("Stale, last data")
            keep(page, f"stalled-{theme}")
            page.get_by_role("link", name="Fleet").first.click()
            expect(page.locator("a.row", has_text="quiet")).to_contain_text("no worker sends")
            # A stalled job loses all its GPUs; of its slowdown now nothing is known.
            expect(page.locator("h1")).to_contain_text("1 of 1 job is stalled.")
            expect(page.locator("a.row .slowdown")).to_have_text("not measured")
            expect(page.get_by_text("0 with current figures")).to_be_visible()
            page.goto("about:blank")


def test_a_silent_rank_is_named_while_others_send(server, store, open_page, keep):
    from playwright.sync_api import expect

    made = SimulatedJob(SIZES, 4)
    epoch = server.register("half", made)
    server.push("half", made, epoch, 3)
    with store.write() as conn:
        since_s = time.time() - 60
        runs.save_silent_ranks(conn, "default/half", epoch, runs.SilentRanks((3,), (1,), since_s))
    for theme in ("light", "dark"):
        page = open_page(link(server, "half"), theme=theme).page
        expect(page.locator("h1")).to_contain_text("Rank 3 (dp 0, stage 1")
        expect(page.locator("h1")).to_contain_text("3 others go on.")
        expect(page.locator(".headline .state")).to_have_text("Silent")
        expect(page.get_by_role("note")).to_contain_text("Figures end with step 2.")
        expect(page.get_by_role("note")).to_contain_text("Later steps lack the silent ranks.")
        keep(page, f"silent-{theme}")
        page.get_by_role("link", name="Fleet").first.click()
        expect(page.locator("a.row", has_text="half")).to_contain_text("rank 3 silent")


def test_a_job_without_figures_names_its_silent_rank_instead_of_empty_panels(
    server, open_page, keep
):
    from playwright.sync_api import expect

    made = SimulatedJob(Parallelism(1, 4), 4)
    epoch = server.register("no-figures", made)
    for stage in (0, 2, 3):
        for step in range(8):
            batch = batch_of(made.make([step]), epoch, 0, stage, step)
            server.push_body("no-figures", codec.encode(replace(batch, host=f"node-{stage}")))
    server.http.post("/jobs/no-figures/end", json={}).raise_for_status()
    wait_until(lambda: server.get("/jobs/no-figures/windows")["items"], "its window is closed")
    page = open_page(link(server, "no-figures")).page
    expect(page.locator("h1")).to_have_text(
        "This job has finished after step 7. None of its steps was analysed, "
        "as rank 1 (dp 0, stage 1) sent nothing."
    )
    expect(page.get_by_text("None of its steps was analysed")).to_have_count(1)
    expect(page.get_by_role("region", name="Findings")).to_contain_text("Silent worker: rank 1")
    expect(page.locator(".live")).to_have_text("Finished, not analysed")
    expect(page.locator(".stat", has_text="Silent ranks").locator(".figure")).to_have_text("1")
    assert page.locator(".panels .panel-state").count() == 0
    keep(page, "no-figures-light")


def test_excluded_operations_are_listed_in_one_line(server, open_page, keep):
    from playwright.sync_api import expect

    made = SimulatedJob(SIZES, 4)
    epoch = server.register("twice", made)
    server.push("twice", made, epoch, 3)
    page = open_page(link(server, "twice")).page
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".left-out")).to_have_count(0)
    other = batch_of(SimulatedJob(SIZES, 4, seed=2).make([0]), epoch, 0, 0, 0)
    server.push_body("twice", codec.encode(other))
    wait_until(lambda: server.get("/jobs/twice")["ingest"]["conflict"] > 0, "a conflict is seen")
    page.reload()
    expect(page.locator(".left-out")).to_contain_text(
        "operations in conflict (last: rank 0, batch 0)"
    )
    keep(page, "conflict-light")


def is_frozen_beside_writers(directory, pid):
    """Whether the process is frozen now; not within a transaction, which would keep all out."""
    os.kill(pid, signal.SIGSTOP)
    path = directory / "data" / "paceline.db"
    with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            return False
    return True


@pytest.fixture
def watched(tmp_path):
    """A server with a job that is slow until step 7, and whose alert fires."""
    slow = SlowWorker(2, 1, slowdown=1.6, when=FaultSteps(0, 8))
    made = SimulatedJob(Parallelism(4, 2), 4, faults=(slow,))
    rule = "{name: slow, on: slowdown, above: 1.1, for: {windows: 1, seconds: 0}, keep_firing: 0}"
    (tmp_path / "rules.yaml").write_text(f"rules: [{rule}]")
    settings = {
        "silent_after_s": "1",
        "window_steps": "8",
        "alert_rules": str(tmp_path / "rules.yaml"),
    }
    with running("serve", tmp_path, **settings) as server:
        epoch = server.register("job", made)
        server.push("job", made, epoch, 8)
        wait_until(lambda: server.get("/alerts", phase="firing")["items"], "its alert fires")
        yield server, partial(server.push, "job", made, epoch)


@pytest.fixture
def frozen(tmp_path, watched):
    """The server, its consumer frozen; and the consumer's pid."""
    server, _ = watched
    [pid] = [pid for pid, line in children(server.pid) if " consumer" in line]
    wait_until(lambda: is_frozen_beside_writers(tmp_path, pid), "it is frozen")
    yield server, pid
    os.kill(pid, signal.SIGCONT)


def test_a_recovered_job_says_what_happened_to_it(watched, open_page, keep):
    from playwright.sync_api import expect

    server, push = watched
    push(32, first=8)
    wait_until(lambda: not server.get("/alerts", phase="firing")["items"], "its alert is over")
    page = open_page(link(server, "job")).page
    expect(page.locator("h1")).to_contain_text("Recovered since step 8. From step 0 until then")
    expect(page.get_by_text("went away by itself")).to_have_text(
        "predicted for window 1-0; the cause went away by itself"
    )
    keep(page, "recovered-light")


def test_what_is_not_processed_is_unknown_on_every_page(tmp_path, frozen, open_page, keep):
    from playwright.sync_api import expect

    server, pid = frozen
    page = open_page(link(server, "job"), theme="dark").page
    expect(page.locator(".headline .state")).not_to_have_text("Unknown")
    bar = page.locator("#cut-off")
    expect(bar).to_be_empty()
    store = Store(f"sqlite:///{tmp_path / 'data' / 'paceline.db'}")
    with store.write() as conn:
        conn.execute(update(table_of_shards).values(as_of_s=time.time() - 240))
    store.close()
    expect(bar).to_contain_text("Paceline is 4 min behind; states as of", timeout=5000)
    expect(page.locator(".headline .state")).to_have_text("Unknown")
    expect(page.locator("h1")).to_contain_text("Paceline is behind: what this job does since")
    expect(page.locator(".live")).to_contain_text("Unknown, as of")
    keep(page, "unknown-dark")
    page.get_by_role("link", name="Alerts").first.click()
    expect(page.get_by_text("State unknown").first).to_be_visible()
    expect(bar).to_contain_text("4 min behind")
    keep(page, "unknown-alerts-dark")
    page.get_by_role("link", name="Fleet").first.click()
    expect(page.locator("a.row", has_text="job")).to_contain_text("Paceline is behind")
    expect(page.locator(".live")).to_contain_text("Behind, as of")
    keep(page, "unknown-fleet-dark")
    assert server.get("/fleet")["summary"]["lost_per_hour"] == 0
    os.kill(pid, signal.SIGCONT)
    expect(bar).to_be_empty(timeout=10_000)
    expect(page.locator("a.row", has_text="job")).not_to_contain_text("Paceline is behind")
