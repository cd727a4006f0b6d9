"""The fleet's page: its figures are the API's, and search, filters and keys find the right jobs."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from app.formatting import TIMES, rough_hours

OLD = {"stalled", "silent", "stale"}
NONE = {"finished": "n/a"}


@pytest.fixture
def fleet(stocked, open_page):
    """A function that opens the fleet's page and waits for its jobs."""

    def open_fleet(query="", **looks):
        watched = open_page(stocked.link(f"/{query}"), **looks)
        watched.page.locator("a.row, .fleet .panel-state").first.wait_for()
        return watched

    return open_fleet


def shown(page):
    """The ids of the jobs on the page, in their order."""
    lines = page.locator(".fleet-line")
    return lines.evaluate_all("lines => lines.map(line => line.dataset.key)")


def ids(answer):
    return [job["job_id"] for job in answer["items"]]


def query_of(page):
    return parse_qs(urlsplit(page.url).query)


def test_each_fleet_line_has_the_figures_of_the_api(stocked, fleet):
    page = fleet().page
    jobs = stocked.get("/fleet")["items"]
    assert shown(page) == ids({"items": jobs})
    for job in jobs:
        line = page.locator(f'.fleet-line[data-key="{job["job_id"]}"]')
        slowdown = line.locator(".slowdown").inner_text()
        lost = line.locator(".lost").inner_text()
        if job["slowdown"] is None or job["state"] in OLD:
            assert slowdown == "not measured"
        else:
            assert slowdown == f"{job['slowdown']:.2f}{TIMES}"
        per_day = job["lost_gpu_hours_per_day"]
        missing = NONE.get(job["state"], "not measured")
        assert lost == (missing if per_day is None else rough_hours(per_day))


def test_the_fleet_summary_has_the_figures_of_the_api(stocked, fleet, keep):
    page = fleet().page
    summary = stocked.get("/fleet")["summary"]
    strip = page.locator(".stat")
    assert page.locator("h1").inner_text().replace("\u202f", " ") == summary["sentence"]
    assert strip.nth(0).locator(".figure").inner_text() == str(summary["jobs"])
    assert strip.nth(1).locator(".figure").inner_text() == f"{summary['gpus']:,}"
    lost = f"{rough_hours(summary['lost_per_hour'])} GPU-h per hour"
    assert strip.nth(3).locator(".figure").inner_text() == lost
    assert strip.nth(4).locator(".figure").inner_text() == str(summary["alerts_firing"])
    assert "$" not in page.locator(".stat-strip").inner_text()  # no price is set
    keep(page, "fleet-stocked-light")


def test_stalled_and_silent_jobs_come_first_and_are_in_the_headline(fleet):
    page = fleet().page
    assert shown(page)[:2] == ["stalled", "silent"]
    assert ", 1 of them stalled. " in page.locator("h1").inner_text()
    assert "1 job has silent ranks: its loss is not measured." in page.locator(
        ".headline p"
    ).inner_text().replace("\u202f", " ")
    notes = page.locator(".stat .note")
    assert notes.nth(0).inner_text().startswith("1 stalled, 1 silent, ")
    assert "32 of it by 1 stalled job" in notes.nth(3).inner_text()


def test_a_fleet_line_names_the_culprit_and_marks_the_onset(stocked, fleet):
    page = fleet().page
    slow = page.locator('.fleet-line[data-key="slow-worker"]')
    assert slow.locator(".chip").all_inner_texts() == ["slow worker"]
    assert slow.locator(".culprit").inner_text().split("\n") == [
        "host-021",
        "ranks 88 to 95 (dp 3, stage 1)",
    ]
    assert slow.locator(".onset-flag").count() == 1
    long_stage = page.locator('.fleet-line[data-key="long-last-stage"]')
    assert long_stage.locator(".chip").first.inner_text() == "long last stage"
    assert long_stage.locator(".culprit").inner_text() == "stage 3"
    withheld = page.locator('.fleet-line[data-key="low-fidelity"]')
    assert withheld.locator(".causes").inner_text() == "withheld"
    assert withheld.locator("svg.sparkline").count() == 0


def test_a_search_is_kept_in_the_address_and_cleared_by_escape(stocked, fleet):
    from playwright.sync_api import expect

    page = fleet().page
    page.keyboard.press("/")
    page.keyboard.type("node-shared")
    expect(page).to_have_url(re.compile(r"\?q=node-shared$"))  # a slow browser asks while one types
    expect(page.locator(".fleet-line")).to_have_count(2)
    assert sorted(shown(page)) == ["shared-host-a", "shared-host-b"]
    page.reload()
    expect(page.locator(".fleet-line")).to_have_count(2)
    assert page.get_by_label("Search jobs").input_value() == "node-shared"
    page.get_by_label("Search jobs").press("Escape")
    expect(page.locator(".fleet-line")).to_have_count(len(stocked.get("/fleet")["items"]))
    assert query_of(page) == {}
    expect(page.get_by_label("Search jobs")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Search jobs")).not_to_be_focused()


@pytest.mark.nightly
def test_an_unknown_address_links_to_the_fleet(stocked, open_page):
    watched = open_page(stocked.link("/nowhere"))
    page = watched.page
    page.get_by_role("heading", name="There is no such page").wait_for()
    page.get_by_role("link", name="Show the fleet").click()
    page.locator("a.row").first.wait_for()
    watched.forgive("404 (Not Found)")


def test_filters_and_orders_of_the_fleet_are_those_of_the_api(stocked, fleet):
    from playwright.sync_api import expect

    page = fleet().page
    counts = stocked.get("/fleet")["summary"]["by_state"]
    page.get_by_role("button", name=f"Finished {counts['finished']}").click()
    finished = stocked.get("/fleet", state="finished")
    expect(page.locator(".fleet-line")).to_have_count(finished["total"])
    assert shown(page) == ids(finished)
    page.get_by_role("button", name=re.compile("^All")).click()
    page.get_by_label("Cause", exact=True).select_option("stage-imbalance")
    long_stages = stocked.get("/fleet", cause="stage-imbalance")
    expect(page.locator(".fleet-line")).to_have_count(long_stages["total"])
    assert shown(page) == ids(long_stages)
    page.goto(stocked.link("/?order=gpus&dir=asc"))
    expect(page.locator(".fleet-line")).to_have_count(sum(counts.values()))
    assert shown(page) == ids(stocked.get("/fleet", order="gpus", dir="asc"))


@pytest.mark.nightly
def test_a_second_click_on_a_column_head_reverses_the_order(stocked, fleet):
    from playwright.sync_api import expect

    page = fleet().page
    head = page.locator(".head").get_by_role("button", name=re.compile("^Job"))
    for way in ("asc", "desc"):
        wanted = ids(stocked.get("/fleet", order="name", dir=way))
        head.click()
        expect(page.locator(".fleet-line").first).to_have_attribute("data-key", wanted[0])
        assert shown(page) == wanted
    assert query_of(page) == {"order": ["name"], "dir": ["desc"]}


@pytest.mark.nightly
def test_a_search_without_matches_offers_all_jobs(stocked, fleet, keep):
    from playwright.sync_api import expect

    page = fleet("?q=no-such-thing").page
    expect(page.get_by_text("No job matches")).to_be_visible()
    keep(page, "fleet-none-found-light")
    page.get_by_role("button", name="Show all jobs").click()
    expect(page.locator(".fleet-line")).to_have_count(len(stocked.get("/fleet")["items"]))


def test_keys_move_over_the_jobs_and_open_one(stocked, fleet):
    from playwright.sync_api import expect

    page = fleet().page
    first, second, *_ = shown(page)
    focused = page.locator(":focus")
    for key, job in (("j", first), ("j", second), ("ArrowUp", first), ("k", first)):
        page.keyboard.press(key)
        assert focused.get_attribute("href") == f"/jobs/{job}"
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    assert focused.get_attribute("href") == f"/jobs/{first}"
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{stocked.url}/jobs/{first}")
    page.go_back()
    expect(page.locator("a.row").first).to_be_focused()  # the one that was opened
    page.keyboard.press("j")
    assert focused.get_attribute("href") == f"/jobs/{second}"


def test_two_picked_jobs_are_compared(stocked, fleet, keep):
    from playwright.sync_api import expect

    page = fleet().page
    first, second, third, *_ = shown(page)
    page.keyboard.press("j")
    page.keyboard.press("x")
    boxes = page.get_by_role("checkbox")
    expect(boxes.first).to_have_attribute("aria-checked", "true")
    expect(page.get_by_role("link", name="Compare these two")).to_have_count(0)
    boxes.nth(1).click()
    page.locator("a.row").nth(2).click()
    expect(page.get_by_role("link", name="Compare these two")).to_have_count(0)
    boxes.first.click()
    keep(page, "fleet-picked-light")
    page.get_by_role("link", name="Compare these two").click()
    assert query_of(page) == {"a": [f"{second}:recent"], "b": [f"{third}:recent"]}
    assert first not in page.url


def test_without_the_server_old_figures_stay_with_their_time(stocked, fleet, keep):
    from playwright.sync_api import expect

    watched = fleet()
    page = watched.page
    lines = len(shown(page))
    page.route("**/api/v1/fleet?*", lambda route: route.abort())
    page.get_by_label("Cause", exact=True).select_option("slow-worker")
    note = page.get_by_role("note").filter(has_text="Shown as of")
    expect(note).to_be_visible()
    assert len(shown(page)) == lines
    keep(page, "fleet-old-light")
    expect(note.get_by_role("button", name="Try again")).to_be_visible()
    page.unroute("**/api/v1/fleet?*")
    expect(note).to_have_count(0)
    expect(page.locator(".fleet-line")).to_have_count(
        stocked.get("/fleet", cause="slow-worker")["total"]
    )
    # The page tries again by itself, too.
    watched.complaints[:] = [each for each in watched.complaints if "ERR_FAILED" not in each]


@pytest.mark.nightly
def test_a_failed_first_load_is_retried(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/hosts"))
    page = watched.page
    page.locator("h1").wait_for()
    page.route("**/api/v1/fleet?*", lambda route: route.abort())
    page.get_by_role("link", name="Fleet").first.click()
    expect(page.get_by_text("Could not load the jobs")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.unroute("**/api/v1/fleet?*")
    page.locator("a.row").first.wait_for()
    watched.complaints[:] = [each for each in watched.complaints if "ERR_FAILED" not in each]


def test_the_fleet_page_fits_every_width(fleet, keep):
    page = fleet(theme="dark").page
    lines = page.locator(".fleet-line")
    for width in (320, 390, 800, 1200):
        page.set_viewport_size({"width": width, "height": 1000})
        keep(page, f"fleet-stocked-{width}-dark")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for part in (".job b", ".slowdown", ".state", ".lost"):
            assert lines.first.locator(part).is_visible()
        assert page.locator(".fleet").evaluate(OUTSIDE) == 0


# The card hides what sticks out of it, so that nothing scrolls: nothing may stick out.
OUTSIDE = """fleet => {
    const edge = fleet.getBoundingClientRect().right
    const parts = [...fleet.querySelectorAll("a.row > *, .fleet-filters *, .head *")]
    return parts.filter(part => part.getBoundingClientRect().right > edge).length
}"""


@pytest.mark.nightly
def test_a_project_without_jobs_shows_how_to_send_steps(stocked, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/", token=stocked.empty_token)).page
    expect(page.locator("h1")).to_have_text(
        "No jobs yet. Send the first steps and they appear here."
    )
    expect(page.locator("code", has_text=f"PACELINE_URL={stocked.url}")).to_be_visible()
    page.get_by_role("tab", name="PyTorch").press("ArrowRight")
    expect(page.get_by_role("tab", name="Megatron")).to_be_focused()
    expect(page.locator("code", has_text="paceline.install()")).to_be_visible()
    page.get_by_role("tab", name="HTTP").click()
    expect(page.locator("code", has_text="/api/v1/jobs/by-hand/end")).to_be_visible()
    expect(page.locator("a.row")).to_have_count(0)
    keep(page, "first-start-light")
