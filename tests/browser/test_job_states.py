"""Pages of jobs that are not as they should be, and of a server that is not there."""

from dataclasses import replace

import pytest

from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.browser.paceline import running

SIZES = Parallelism(2, 2)
STEPS_OF_ONE_WINDOW = 8


def made(**costs):
    """A small job of which only the costs matter."""
    return SimulatedJob(SIZES, 4, costs=replace(OperationCosts(), **costs))


def push(server, job_id, job=None, num_steps=3, host=None, **registration):
    job = job or made()
    server.push(job_id, job, server.register(job_id, job, **registration), num_steps, host)


def link(server, job_id):
    return server.link.replace("/#", f"/jobs/{job_id}#")


def test_a_job_without_complete_steps_shows_how_many_are_missing(server, open_page, keep):
    from playwright.sync_api import expect

    server.register("not-yet", made())
    page = open_page(link(server, "not-yet")).page
    expect(page.locator("h1")).to_have_text("0 of 8 complete steps have arrived.")
    keep(page, "not-analysed-light")
    page.get_by_role("link", name="Fleet").first.click()
    expect(page.locator("a.row", has_text="not-yet")).to_contain_text("no data has arrived")


def test_a_job_with_host_times_says_so_beside_its_name(server, open_page):
    from playwright.sync_api import expect

    server.register("times-host", made(), labels={"times": "host"})
    page = open_page(link(server, "times-host")).page
    expect(page.locator(".crumbs")).to_contain_text(", host times")


def test_a_job_with_low_fidelity_names_no_culprit(server, open_page, keep):
    from playwright.sync_api import expect

    push(server, "late-launches", made(launch_delay_s=0.01))
    assert server.get("/jobs/late-launches")["state"] == "low-fidelity"
    page = open_page(link(server, "late-launches"), theme="dark").page
    expect(page.locator("h1")).to_contain_text("differ from the recorded ones by")
    expect(page.get_by_text("Withheld: low fidelity", exact=True)).to_have_count(3)
    assert page.locator(".shapelayer path").count() == 0
    keep(page, "low-fidelity-dark")
    page.get_by_role("link", name="Fleet").first.click()
    row = page.locator("a.row", has_text="late-launches")
    expect(row).to_contain_text("withheld")
    expect(row.locator(".slowdown")).to_have_text("not measured")


def test_a_finished_job_is_shown_as_finished(server, open_page, keep):
    from playwright.sync_api import expect

    push(server, "done")
    server.http.post("/jobs/done/end").raise_for_status()
    page = open_page(link(server, "done")).page
    expect(page.locator("h1")).to_contain_text("This job has finished after step 2.")
    expect(page.locator(".live")).to_contain_text("Finished")
    keep(page, "finished-light")


def test_an_older_window_is_marked_until_the_reader_follows_the_newest(server, open_page, keep):
    from playwright.sync_api import expect

    push(server, "two-windows", num_steps=2 * STEPS_OF_ONE_WINDOW + 2)
    page = open_page(link(server, "two-windows")).page
    expect(page.locator(".what")).to_contain_text("16 steps in 2 windows")
    page.get_by_role("slider", name="Last window shown").press("ArrowLeft")
    expect(page.locator(".what")).to_contain_text("steps 0 to 7")
    expect(page.get_by_role("note")).to_contain_text("older steps")
    expect(page).to_have_url(f"{server.url}/jobs/two-windows?window=1-0")
    keep(page, "window-of-the-past-light")
    page.get_by_role("button", name="Follow", exact=True).click()
    expect(page.get_by_role("note")).to_have_count(0)
    expect(page).to_have_url(f"{server.url}/jobs/two-windows")


HOST = "<a href='javascript:window.injected=1'>h</a>"
NAME = (
    "<img src=x onerror='window.injected=1'>\"&amp;</b><script>window.injected=1</script>\u202egnp"
)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_names_with_markup_are_shown_as_text(server, open_page, keep, theme):
    from playwright.sync_api import expect

    slow = SimulatedJob(SIZES, 4, costs=OperationCosts(stage_factors=(1.0, 1.0), noise=0.3))
    job_id = f"hostile-{theme}"
    push(server, job_id, slow, host=HOST, name=NAME, framework=NAME[:64], labels={HOST: NAME})
    page = open_page(link(server, job_id), theme=theme).page
    page.locator(".panels .main-svg").first.wait_for()
    shown = NAME.replace("\u202e", "")
    expect(page.locator(".crumbs b")).to_have_text(shown)
    expect(page.locator(".heatmaplayer").first).to_be_visible()
    keep(page, f"hostile-{theme}")
    to_table = page.get_by_role("button", name="show as table")
    for _ in range(to_table.count()):
        to_table.first.click()
    expect(page.get_by_role("cell", name=HOST, exact=True).first).to_be_visible()
    page.get_by_role("link", name="Fleet").first.click()
    expect(page.locator("a.row", has_text=shown).first).to_be_visible()
    assert page.evaluate("window.injected") is None
    assert page.locator("img, main script, [onerror], a[href^=javascript]").count() == 0


@pytest.mark.nightly  # a server of its own, which has to be gone
def test_old_figures_of_a_stalled_job_are_marked_when_the_server_stops(tmp_path, open_page, keep):
    from playwright.sync_api import expect

    with running("serve", tmp_path, silent_after_s="1") as server:
        push(server, "quiet")
        watched = open_page(link(server, "quiet"))
        page = watched.page
        expect(page.get_by_role("note")).to_contain_text("Figures are as of")
        expect(page.locator("h1")).to_contain_text("No worker has sent anything")
        expect(page.locator(".live")).to_contain_text("Stale")
        # All at once, for the page: of a service that stops in order it would hear that first.
        page.context.set_offline(True)
    expect(page.locator(".live")).to_contain_text("Stale since")
    expect(page.locator("h1")).to_contain_text("No worker has sent anything")
    keep(page, "server-gone-light")
    for complaint in list(watched.complaints):
        assert "net::ERR" in complaint, complaint  # Chromium's own line when nobody answers.
        watched.forgive(complaint)
