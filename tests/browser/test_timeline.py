"""The timeline page: what is drawn, walked over, zoomed into, linked to and handed to Perfetto."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.perfetto import served
from tests.browser.waiting import until

JOB = "/jobs/slow-worker"
LATEST = "/jobs/slow-worker/windows/1-32"
FRAME = ".timeline-frame"


@pytest.fixture
def timeline(open_page, stocked):
    """A function that opens a timeline and waits until its first operation is told."""

    def open_it(path=f"{JOB}/timeline", **looks):
        watched = open_page(stocked.link(path), **looks)
        watched.page.wait_for_selector(".operation dl")
        watched.page.wait_for_selector(f"{FRAME} .main-svg")
        return watched.page

    return open_it


def chosen(page, name):
    return parse_qs(urlsplit(page.url).query).get(name, [None])[0]


def facts(page):
    """The rows of the chosen operation's card."""
    names, values = (page.locator(f".operation {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def waits_for_address(page, name, wanted=True):
    script = f"wanted => new URLSearchParams(location.search).has('{name}') === wanted"
    until(page, script, wanted)


def test_the_timeline_page_shows_the_step_of_the_api(timeline, stocked):
    page = timeline()
    found = stocked.get(f"{LATEST}/step")
    assert page.inner_text("h1") == found["sentence"].replace(" UTC", "")
    assert page.locator(".headline p").inner_text().replace("\u202f", " ") == found["sub"]
    # The address holds all of it, so a link shows a colleague this step and no newer one.
    assert (chosen(page, "window"), chosen(page, "step")) == ("1-32", str(found["step"]))
    assert chosen(page, "dp") == str(found["dp_rank"]) == "3"
    title = f"Step {found['step']} \u00b7 slow-worker \u00b7 Paceline"
    assert page.title() == title
    # The operation that proves it is told at once.
    told = facts(page)
    found = stocked.get(f"{LATEST}/operation", dp=3, **found["telling"])
    assert told["Worker"] == "dp 3, stage 1"
    assert told["Against its peers"] == f"{found['own_s'] / found['peers_s']:.2f}\u00d7"
    assert found["own_s"] / found["peers_s"] > 1.4
    assert told["On the critical path"] == "yes"


def test_keys_and_mouse_select_zoom_and_reset(timeline):
    page = timeline(f"{JOB}/timeline?op=recorded,1,forward-compute,0")
    page.focus(FRAME)
    page.keyboard.press("ArrowRight")
    until(page, "location.search.includes('compute,1')")
    page.keyboard.press("ArrowDown")
    until(page, "location.search.includes('op=recorded,1,')")
    page.keyboard.press("+")
    waits_for_address(page, "from")
    page.keyboard.press("Escape")
    waits_for_address(page, "op", wanted=False)
    page.keyboard.press("Escape")
    waits_for_address(page, "from", wanted=False)
    # The same with the mouse: a stretch is drawn, and left by a double click.
    box = page.locator(f"{FRAME} .plot").bounding_box()
    x, y = box["x"] + 400, box["y"] + 235
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 300, y, steps=4)
    page.mouse.up()
    waits_for_address(page, "from")
    low, high = float(chosen(page, "from")), float(chosen(page, "to"))
    until(
        page,
        f"() => Math.abs(document.querySelector('{FRAME} .plot').layout.xaxis.range[0] - {low})"
        " < 1e-6",
    )
    assert 0 < low < high
    page.mouse.dblclick(x, y)
    waits_for_address(page, "from", wanted=False)


def test_a_link_restores_zoom_and_operation(timeline):
    page = timeline(
        f"{JOB}/timeline?window=1-32&step=34&dp=3&from=0.1&to=0.3&op=ideal,2,backward-compute,1"
    )
    drawn = page.evaluate(f"document.querySelector('{FRAME} .plot').layout.xaxis.range")
    assert drawn == [0.1, 0.3]
    told = facts(page)
    assert told["Operation"] == "backward, micro-batch 1, ideal"
    assert told["Worker"] == "dp 3, stage 2"


def test_another_step_can_be_chosen_and_back_undoes_it(timeline, stocked):
    from playwright.sync_api import expect

    page = timeline()
    first = page.inner_text("h1")
    page.select_option("select[aria-label=Step]", "Step 38")
    expect(page.locator("h1")).to_have_text(re.compile(r"^Step 38\b"))
    assert page.inner_text("h1") == stocked.get(f"{LATEST}/step", step=38)["sentence"].replace(
        " UTC", ""
    )
    page.go_back()
    expect(page.locator("h1")).to_have_text(first, use_inner_text=True)


@pytest.mark.nightly
def test_a_step_without_a_window_is_found_in_its_window(timeline):
    page = timeline(f"{JOB}/timeline?step=12")
    assert page.inner_text("h1").startswith("Step 12, at ")
    assert chosen(page, "window") == "1-8"


def test_a_timeline_is_shown_as_a_table_and_downloaded(timeline, stocked):
    page = timeline()
    page.click("button[aria-label='Recorded and ideal: show as table']")
    rows = page.locator(".timeline tbody tr")
    figure = stocked.get(f"{LATEST}/charts/timeline")
    assert rows.count() == len(figure["meta"]["table"]["rows"])
    with page.expect_download() as kept:
        page.click("text=Download")
    assert kept.value.suggested_filename == "slow-worker-1-32-timeline.json.gz"


def test_only_the_timeline_scrolls_sideways_on_a_phone(timeline):
    page = timeline(width=390, theme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide, shown = page.evaluate(
        f"(node => [node.scrollWidth, node.clientWidth])(document.querySelector('{FRAME}'))"
    )
    assert wide > shown


@pytest.mark.nightly
def test_an_unknown_step_says_so(open_page, stocked):
    from playwright.sync_api import expect

    watched = open_page(stocked.link(f"{JOB}/timeline?window=1-32&step=9999"))
    expect(watched.page.locator("h1")).to_contain_text("no such")
    watched.forgive("422")


def test_the_timeline_page_before_the_first_closed_window_says_so(open_page, stocked):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/not-analysed/timeline")).page
    expect(page.locator("h1")).to_contain_text("no timeline")
    assert "stored when a window closes" in page.inner_text(".headline")


@pytest.mark.nightly
def test_perfetto_receives_the_trace_once_it_is_ready(open_page, stocked):
    from playwright.sync_api import expect

    with served(b'{"traceEvents":[]}') as origin:
        watched = open_page(stocked.link(f"{JOB}/timeline"))
        page = watched.page
        page.wait_for_selector(".operation dl")
        page.route("**/windows/*/step?*", lambda route: with_viewer(route, f"{origin}/"))
        page.select_option("select[aria-label=Step]", "Step 38")
        expect(page.locator("h1")).to_have_text(re.compile("^Step 38"))
        with page.expect_popup() as opened:
            page.click("text=Open in Perfetto")
        viewer = opened.value
        until(viewer, "window.app?.trace?.traceInfo.traceTitle.startsWith('slow-worker step 38')")
        count = "SELECT count(*) FROM slice WHERE name GLOB 'forward-compute*'"
        [[num]] = viewer.evaluate(
            "async sql => { const rows = (await app.trace.engine.query(sql)).iter({});"
            " return [[Number(rows.get('count(*)'))]] }",
            count,
        )
        # Six micro-batches on 8 x 4 workers, in three runs.
        assert num == 6 * 32 * 3


@pytest.mark.nightly
def test_perfetto_that_does_not_answer_is_said_with_what_to_do(open_page, stocked):
    from playwright.sync_api import expect

    page = open_page(stocked.link(f"{JOB}/timeline"), own=True).page
    page.wait_for_selector(".operation dl")
    silent = "https://perfetto.invalid"
    page.context.route(f"{silent}/**", lambda route: route.abort())
    page.route("**/windows/*/step?*", lambda route: with_viewer(route, f"{silent}/"))
    page.select_option("select[aria-label=Step]", "Step 38")
    expect(page.locator("h1")).to_have_text(re.compile("^Step 38"))
    page.clock.install()
    with page.expect_popup() as opened:
        page.click("text=Open in Perfetto")
    page.clock.fast_forward(9_000)
    note = page.locator(".note-bar")
    expect(note).to_contain_text(f"The trace is not open yet. {silent} has not answered yet.")
    expect(note).to_contain_text("download the trace")
    expect(note).to_contain_text("PACELINE_PERFETTO_URL")
    opened.value.close()
    page.clock.fast_forward(1_000)
    expect(note).to_contain_text("The trace was not opened. The tab was closed")
    expect(page.get_by_role("button", name="Open in Perfetto")).to_be_enabled()


def with_viewer(route, viewer_url):
    """The answer, as of a service whose viewer is elsewhere."""
    answer = route.fetch()
    route.fulfill(response=answer, json=answer.json() | {"viewer_url": viewer_url})
