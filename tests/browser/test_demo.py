"""`paceline demo` as a new user sees it: six live jobs, and what is wrong with five of them."""

import re
from functools import partial

import pytest

from app.cli.demo_jobs import ONSET_STEP, demo_jobs
from app.formatting import TIMES, ratio
from tests.browser.paceline import running
from tests.browser.waiting import wait_until

_JOBS = tuple(job.job_id for job in demo_jobs())


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with running("demo", tmp_path_factory.mktemp("demo")) as demo:
        wait_until(
            lambda: all(demo.figure(job_id, "slowdown") for job_id in _JOBS),
            "all jobs have figures",
        )
        yield demo


def job(demo, job_id, query=""):
    """The link to a job's page that signs in by itself."""
    return demo.link.replace("/#", f"/jobs/{job_id}{query}#")


def card(page, title):
    return page.get_by_role("region", name=title, exact=True)


def drawn(page, title, part=0):
    """What Plotly has drawn in a card: heatmap values, bars, outlines."""
    plot = card(page, title).locator(".plot").nth(part)
    plot.locator(".main-svg").first.wait_for()
    return plot.evaluate(
        """plot => ({
            z: plot.calcdata[0][0].z, x: plot._fullData[0].x && [...plot._fullData[0].x],
            shapes: plot.layout.shapes ?? [], colours: plot._fullData[0].colorscale,
            outlines: plot.querySelectorAll(".shapelayer path").length,
            texts: [...plot.querySelectorAll(".textpoint text")].map(text => text.textContent),
            range: plot.layout.xaxis.range, left: plot.layout.margin.l,
        })"""
    )


def scrolls_sideways(page):
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")


def first_slow_window(demo, job_id):
    """Id of the first closed window all of whose steps are after the onset."""
    found = [
        window["window_id"]
        for window in demo.get(f"/jobs/{job_id}/windows")["items"]
        if window["first_step"] >= ONSET_STEP and window["state"] == "complete"
    ]
    return found[-1] if found else None


def test_the_printed_link_opens_a_fleet_of_six_jobs_with_figures(demo, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(demo.link).page
    expect(page.locator("a.row")).to_have_count(len(_JOBS))
    for name in _JOBS:
        row = page.locator("a.row", has_text=name)
        expect(row.locator(".slowdown")).to_have_text(re.compile(rf"^\d\.\d\d{TIMES}$"))
    assert "token" not in page.url
    assert "pl_" not in page.content()
    expect(page.locator("a.row", has_text="demo-long-last-stage")).to_contain_text("stage 3")


@pytest.mark.nightly
def test_the_fleet_names_the_host_that_slows_two_jobs_down(demo, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(demo.link).page
    for job_id in ("demo-slow-worker", "demo-recovers"):
        wait_until(partial(first_slow_window, demo, job_id), "the fault has begun")
    for job_id, place in (("slow-worker", "dp 3, stage 1"), ("recovers", "dp 3, stage 2")):
        row = page.locator("a.row", has_text=f"demo-{job_id}")
        expect(row).to_contain_text(place)
        expect(row).to_contain_text("host-043")
    keep(page, "fleet-light")


@pytest.mark.nightly
def test_the_slowdown_of_the_healthy_demo_job_is_below_three_percent(demo):
    wait_until(
        lambda: bool(demo.figure("demo-healthy", "slowdown")), "the healthy job has a figure"
    )
    healthy = demo.get("/jobs/demo-healthy")
    assert healthy["state"] == "healthy"
    assert 1.0 <= healthy["slowdown"] < 1.03


@pytest.mark.nightly
def test_new_figures_come_by_themselves_and_an_open_table_stays_open(demo, open_page):
    from playwright.sync_api import expect

    page = open_page(job(demo, "demo-slow-worker")).page
    steps = card(page, "Step time and worst workers").locator(".plot").first
    steps.locator(".main-svg").first.wait_for()
    workers = card(page, "Which worker")
    workers.get_by_role("button", name="show as table").click()
    expect(workers.get_by_role("table")).to_be_visible()
    page.evaluate("window.isTheSamePage = true")
    seen = steps.get_attribute("aria-label")
    expect(steps).not_to_have_attribute("aria-label", seen)
    assert page.evaluate("window.isTheSamePage") is True
    expect(workers.get_by_role("table")).to_be_visible()


@pytest.mark.nightly
def test_the_slow_worker_is_outlined_with_the_number_that_the_api_gives(demo, open_page, keep):
    path, job_id = "/jobs/demo-slow-worker/windows", "demo-slow-worker"
    wait_until(lambda: first_slow_window(demo, job_id), "a slow window is closed")
    first = first_slow_window(demo, job_id)
    known = demo.get(f"{path}/{first}/workers")["worker_slowdown"]
    page = open_page(job(demo, "demo-slow-worker", f"?window={first}")).page
    seen = drawn(page, "Which worker")
    [outline] = seen["shapes"]
    assert (outline["x0"], outline["x1"], outline["y0"], outline["y1"]) == (2.5, 3.5, 0.5, 1.5)
    assert seen["outlines"] == 1
    assert seen["z"][1][3] == known[3][1] == max(map(max, known))
    assert ratio(known[3][1]) in seen["texts"]
    assert len(seen["texts"]) == 32
    keep(page, "job-of-the-past-light")


@pytest.mark.nightly
def test_the_heatmap_of_worker_steps_shares_the_axis_of_the_step_times(demo, open_page, keep):
    steps = "/jobs/demo-slow-worker/steps"
    wait_until(lambda: len(demo.get(steps)["items"]) > 8, "a second window has begun")
    page = open_page(job(demo, "demo-slow-worker")).page
    title = "Step time and worst workers"
    above = below = drawn(page, title, 0)

    def stand_over_each_other():
        nonlocal above, below
        above, below = drawn(page, title, 0), drawn(page, title, 1)
        return above["range"] == below["range"]

    # The job goes on: a step may come between the two looks.
    wait_until(stand_over_each_other, "both show the same steps")
    assert above["left"] == below["left"]
    columns = list(zip(*below["z"], strict=True))
    assert len(columns) > 8
    assert all(value is not None for column in columns[:-1] for value in column)
    keep(page, "job-slow-worker-light")


@pytest.mark.nightly
def test_the_job_that_hangs_is_stalled_within_a_minute(demo):
    wait_until(
        lambda: demo.get("/jobs/demo-stalls")["state"] == "stalled", "no worker has sent anything"
    )


@pytest.mark.nightly
def test_the_stage_panel_leads_on_a_job_with_a_long_last_stage(demo, open_page, keep):
    page = open_page(job(demo, "demo-long-last-stage"), theme="dark").page
    drawn(page, "Stages")
    stages = card(page, "Stages").locator(".plot")
    shares = stages.evaluate("plot => [...plot._fullData.at(-1).x]")
    assert shares.index(max(shares)) == 3
    assert shares[3] > 0.5
    leads = page.locator(".panels .charts section").first
    assert leads.get_attribute("aria-label") == "Stages"
    keep(page, "job-long-last-stage-dark")


@pytest.mark.nightly
def test_the_theme_follows_the_system_until_the_reader_chooses_one(demo, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(job(demo, "demo-slow-worker"), theme="dark").page
    dark = drawn(page, "Which worker")["colours"]
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    keep(page, "job-slow-worker-dark")
    page.get_by_role("button", name="Theme: system").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    heatmap = card(page, "Which worker").locator(".plot")
    wait_until(
        lambda: heatmap.evaluate("plot => plot._fullData[0].colorscale") != dark, "it is redrawn"
    )
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


# 390 and 1440 px are looked at on every page of a server that stands still.
@pytest.mark.nightly
@pytest.mark.parametrize("width", [320, 800])
def test_no_demo_page_scrolls_sideways(demo, open_page, keep, width):
    for path, name in (("", "fleet"), ("jobs/demo-slow-worker", "job-slow-worker")):
        page = open_page(demo.link.replace("/#", f"/{path}#"), width=width, theme="dark").page
        page.locator(".panels .main-svg, a.row").first.wait_for()
        assert not scrolls_sideways(page)
        keep(page, f"{name}-{width}-dark")


@pytest.mark.nightly
def test_sign_in_refuses_a_wrong_token_and_accepts_the_right_one(demo, open_page, keep):
    from playwright.sync_api import expect

    watched = open_page(demo.url)
    page = watched.page
    page.get_by_label("Token").fill("pl_" + "x" * 40)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("Unknown token.")
    watched.forgive("401")  # Chromium itself writes a line for every refused request.
    keep(page, "sign-in-light")
    page.get_by_label("Token").fill(demo.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("a.row")).to_have_count(len(_JOBS))
    [cookie] = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""
