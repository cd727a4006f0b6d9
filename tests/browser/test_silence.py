"""Pages of jobs whose workers no longer send: who is silent, who goes on, and what was lost."""

import itertools

import pytest

from app.ingest import codec
from app.synth.run import MadeJob
from app.trace.job import Parallelism
from tests.browser.paceline import running
from tests.e2e.producers import batch_of
from tests.e2e.stack import wait_until

SIZES = Parallelism(2, 2)
SILENT_RANK = 3
GIVE_UP_S = 40.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running("serve", tmp_path_factory.mktemp("serve"), silent_after_s="3") as server:
        yield server


def link(server, job_id):
    return server.link.replace("/#", f"/jobs/{job_id}#")


def state(server, job_id):
    return server.get(f"/jobs/{job_id}")["state"]


def test_a_job_of_which_nothing_comes_is_stalled_and_its_figures_are_old(server, open_page, keep):
    from playwright.sync_api import expect

    made = MadeJob(SIZES, 4)
    server.push("quiet", made, server.register("quiet", made), 3)
    wait_until(lambda: state(server, "quiet") == "stalled", "the job is stalled")
    for theme in ("light", "dark"):
        page = open_page(link(server, "quiet"), theme=theme).page
        expect(page.locator("h1")).to_contain_text("No worker has sent anything since")
        expect(page.locator(".headline .state")).to_have_text("Stalled")
        expect(page.get_by_role("note")).to_contain_text("Figures are as of")
        expect(page.locator(".live")).to_contain_text("Stale, last data")
        keep(page, f"stalled-{theme}")
        page.get_by_role("link", name="Fleet").first.click()
        expect(page.locator("a.row", has_text="quiet")).to_contain_text("no worker sends")


def test_a_job_with_a_silent_rank_names_it_while_the_others_go_on(server, open_page, keep):
    from playwright.sync_api import expect

    made = MadeJob(SIZES, 4)
    epoch = server.register("half", made)
    server.push("half", made, epoch, 3)
    go_on_until_silent(server, made, epoch)
    job = server.get("/jobs/half")
    assert (job["silent_ranks"], job["num_silent_ranks"]) == ([SILENT_RANK], 1)
    for theme in ("light", "dark"):
        page = open_page(link(server, "half"), theme=theme).page
        expect(page.locator("h1")).to_contain_text("Rank 3 has been silent since")
        expect(page.locator("h1")).to_contain_text("3 others go on.")
        expect(page.locator(".headline .state")).to_have_text("Silent")
        expect(page.get_by_role("note")).to_contain_text("Later steps lack the silent ranks.")
        keep(page, f"silent-{theme}")
        page.get_by_role("link", name="Fleet").first.click()
        expect(page.locator("a.row", has_text="half")).to_contain_text("rank 3 silent")


def go_on_until_silent(server, made, epoch):
    """Push steps of all ranks but one, each once the one before is known, until that is told."""
    steps = itertools.count(3)

    def is_silent():
        job = server.get("/jobs/half")
        if job["last_step"] == is_silent.pushed:
            is_silent.pushed = next(steps)
            trace = made.make_step(is_silent.pushed)
            for dp_rank, stage in ((0, 0), (0, 1), (1, 0)):
                batch = batch_of(trace, epoch, dp_rank, stage, is_silent.pushed)
                server.push_body("half", codec.encode(batch))
        return job["state"] == "silent"

    is_silent.pushed = 2
    wait_until(is_silent, "rank 3 is silent", GIVE_UP_S)


def test_what_no_figure_has_is_said_in_one_quiet_line(server, open_page, keep):
    from playwright.sync_api import expect

    made = MadeJob(SIZES, 4)
    epoch = server.register("twice", made)
    server.push("twice", made, epoch, 3)
    page = open_page(link(server, "twice")).page
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".left-out")).to_have_count(0)
    other = batch_of(MadeJob(SIZES, 4, seed=2).make_step(0), epoch, 0, 0, 0)
    server.push_body("twice", codec.encode(other))
    wait_until(lambda: server.get("/jobs/twice")["ingest"]["conflict"] > 0, "a conflict is seen")
    page.reload()
    expect(page.locator(".left-out")).to_contain_text(
        "operations in conflict (last: rank 0, batch 0)"
    )
    keep(page, "conflict-light")
