"""Pages of jobs whose workers no longer send: who is silent, who goes on, and what was lost."""

import time
from dataclasses import replace

import pytest

from app.ingest.wire import codec
from app.store import shards
from app.store.database import Store
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.browser.paceline import running
from tests.browser.waiting import wait_until
from tests.e2e.producers import batch_of

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
        shards.save_silent_ranks(
            conn,
            "default/half",
            epoch,
            silent_ranks=[3],
            silent_workers=[1],
            silent_since_s=since_s,
            stalled_since_s=None,
        )
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
            batch = batch_of(made.make_step(step), epoch, 0, stage, step)
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
    other = batch_of(SimulatedJob(SIZES, 4, seed=2).make_step(0), epoch, 0, 0, 0)
    server.push_body("twice", codec.encode(other))
    wait_until(lambda: server.get("/jobs/twice")["ingest"]["conflict"] > 0, "a conflict is seen")
    page.reload()
    expect(page.locator(".left-out")).to_contain_text(
        "operations in conflict (last: rank 0, batch 0)"
    )
    keep(page, "conflict-light")


@pytest.mark.nightly  # a server of its own, without a consumer
def test_without_a_consumer_figures_are_stale(tmp_path, open_page, keep):
    from playwright.sync_api import expect

    made = SimulatedJob(SIZES, 4)
    with running("serve", tmp_path, silent_after_s="1", lease_s="3600") as server:
        server.push("alone", made, server.register("alone", made), 3)
        store = Store(f"sqlite:///{tmp_path / 'data' / 'paceline.db'}")
        with store.write() as conn:
            shards.forget_consumer(conn, "embedded")
        store.close()
        wait_until(lambda: server.get("/jobs/alone")["state"] == "stale", "the job is stale")
        page = open_page(link(server, "alone"), theme="dark").page
        expect(page.locator("h1")).to_contain_text("No consumer is running")
        expect(page.get_by_role("note")).to_contain_text("analysed once a consumer runs")
        keep(page, "stale-dark")
        page.get_by_role("link", name="Fleet").first.click()
        expect(page.locator("a.row", has_text="alone")).to_contain_text("no consumer is running")
        page.goto("about:blank")
