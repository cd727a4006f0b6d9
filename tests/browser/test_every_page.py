"""Every page in both themes and at both widths: no complaint, no scrolling, no violation."""

import json
from urllib.parse import quote

import pytest

from app.alerts.alert import fingerprint
from tests.browser.conftest import PATIENCE_MS
from tests.browser.pages import HEIGHT_PX, Pages
from tests.browser.stocked import PUBLISHED
from tests.browser.stocked_jobs import HOSTILE_ID, HOSTILE_NAME, hostile_host

# Both themes and both widths; the other two pairs at night.
LOOKS = [("light", 1440), ("dark", 390)]
OTHER_LOOKS = [("dark", 1440), ("light", 390)]

PAGES = {
    "fleet": "/",
    "job-slow-worker": "/jobs/slow-worker",
    "job-long-last-stage": "/jobs/long-last-stage",
    "job-advice": "/jobs/long-last-stage?layers=36&restart_minutes=10",
    "job-sequence-lengths": "/jobs/sequence-lengths",
    "worker": "/jobs/slow-worker/workers/3-1",
    "timeline": "/jobs/slow-worker/timeline",
    "what-if": "/jobs/slow-worker/what-if",
    "hosts": "/hosts",
    "host": "/hosts/node-shared-07",
    "alerts": "/alerts",
    "alert-rules": "/alerts/rules",
    "receivers": "/alerts/receivers",
    "settings": "/settings",
    "audit": "/settings/audit",
    "status": "/status",
    "compare": "/compare?a=slow-worker:1-0&b=slow-worker:1-32",
}
# The same pages with little to show, or with something wrong.
ODD_PAGES = {
    "job-healthy": "/jobs/healthy",
    "job-stalled": "/jobs/stalled",
    "job-silent": "/jobs/silent",
    "job-low-fidelity": "/jobs/low-fidelity",
    "job-not-analysed": "/jobs/not-analysed",
    "job-half-heard": "/jobs/half-heard",
    "job-restarted": "/jobs/restarted",
    "job-published": f"/jobs/{PUBLISHED}",
    "job-unknown": "/jobs/nobody-knows-it",
    "worker-low-fidelity": "/jobs/low-fidelity/workers/0-1",
    "timeline-not-analysed": "/jobs/not-analysed/timeline",
    "compare-nothing": "/compare",
    "host-unknown": "/hosts/nobody-knows-it",
}
HOSTILE_ALERT = f"/alerts?alert={fingerprint(f'default/{HOSTILE_ID}', 'slowdown', '')}"
_HOST = quote(hostile_host(2, 1), safe="")
HOSTILE_PAGES = {
    "hostile-fleet": "/",
    "hostile-job": f"/jobs/{HOSTILE_ID}",
    "hostile-worker": f"/jobs/{HOSTILE_ID}/workers/2-1",
    "hostile-timeline": f"/jobs/{HOSTILE_ID}/timeline",
    "hostile-what-if": f"/jobs/{HOSTILE_ID}/what-if",
    "hostile-hosts": "/hosts",
    "hostile-host": f"/hosts/{_HOST}",
    "hostile-alerts": HOSTILE_ALERT,
    "hostile-receivers": "/alerts/receivers",
    "hostile-settings": "/settings",
    "hostile-compare": f"/compare?a={HOSTILE_ID}:1-0&b={HOSTILE_ID}:1-32",
}


def violations(page):
    """What axe-core finds, each with where and why."""
    from axe_playwright_python.sync_playwright import Axe

    # Without the nodes that are right it takes half the time.
    options = {"resultTypes": ["violations"]}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


def wider_than_the_page(page):
    """What sticks out of the page at the right, without what scrolls in a frame of its own."""
    return page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
            [...document.querySelectorAll("main, main *, header *")]
                .filter(node => node.getBoundingClientRect().left + node.scrollWidth > innerWidth)
                .filter(node => getComputedStyle(node).overflowX === "visible")
                .map(node => `${node.tagName} ${node.textContent.slice(0, 40)} is too wide`)"""
    )


def wrong_in(looks, watched, name, keep):
    """Pictures of all looks are kept; gives back all that is wrong in any, a line each."""
    page, wrong = watched.page, []
    for theme, width in looks:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": HEIGHT_PX})
        watched.settle()
        keep(page, f"{name}-{width}-{theme}")
        problems = wider_than_the_page(page)
        problems += violations(page)
        wrong += [f"{name}, {theme}, {width} px: {problem}" for problem in problems]
    return "\n".join(wrong)


@pytest.fixture(scope="module")
def reader(chromium, stocked):
    """One signed-in page for all addresses, as a reader has it; a complaint is its test's."""
    watched = Pages(chromium).open(stocked.link("/"))
    watched.settle()
    yield watched
    watched.page.context.close()


_GO = """path => {
    history.pushState(null, "", path)
    dispatchEvent(new PopStateEvent("popstate"))
}"""


@pytest.fixture
def visit(reader, stocked):
    """A function that goes to an address as a link within the page does."""

    def go(path):
        del reader.complaints[:]
        reader.page.evaluate(_GO, path)
        reader.settle()
        assert reader.page.url.startswith(stocked.url + path)
        return reader

    return go


@pytest.mark.parametrize(
    "looks", [LOOKS, pytest.param(OTHER_LOOKS, marks=pytest.mark.nightly)], ids=["usual", "other"]
)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_layout_or_accessibility_errors(visit, keep, name, looks):
    watched = visit(PAGES[name])
    assert wrong_in(looks, watched, name, keep) == ""
    assert watched.complaints == []


@pytest.mark.parametrize(
    "looks", [LOOKS[:1], pytest.param(LOOKS[1:], marks=pytest.mark.nightly)], ids=["usual", "other"]
)
@pytest.mark.parametrize("name", ODD_PAGES)
def test_a_page_with_little_data_has_no_layout_or_accessibility_errors(
    visit, keep, name, looks, stocked
):
    if name == "job-published" and not stocked.has_published:
        pytest.skip("the published traces are not beside the repository")
    watched = visit(ODD_PAGES[name])
    assert wrong_in(looks, watched, name, keep) == ""
    # Chromium itself writes a line for every request that is refused.
    refused = [line for line in watched.complaints if "unknown" in name and "404" in line]
    assert watched.complaints == refused


def test_the_page_without_jobs_has_no_layout_or_accessibility_errors(open_page, stocked, keep):
    watched = open_page(stocked.link("/", stocked.empty_token))
    watched.page.get_by_text("Waiting for the first data").first.wait_for()
    assert wrong_in(LOOKS, watched, "first-start", keep) == ""


def test_the_sign_in_page_has_no_layout_or_accessibility_errors(open_page, stocked, keep):
    watched = open_page(stocked.url)
    watched.page.get_by_label("Token").wait_for()
    assert wrong_in(LOOKS, watched, "sign-in", keep) == ""


INJECTED = """() => ({
    ran: window.injected ?? null,
    made: document.querySelectorAll(
        "main img, main script, main iframe, [onerror], [onload], a[href^='javascript'], main b b"
    ).length,
})"""


@pytest.mark.parametrize("name", HOSTILE_PAGES)
def test_names_with_markup_are_shown_as_text_on_every_page(visit, keep, name):
    watched = visit(HOSTILE_PAGES[name])
    page = watched.page
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": HEIGHT_PX})
        watched.settle()
        keep(page, f"{name}-{width}")
        assert page.evaluate(INJECTED) == {"ran": None, "made": 0}
        assert wider_than_the_page(page) == []
    assert watched.complaints == []


# What a reader sees of the name: no mark that would turn the text after it round.
SHOWN = "".join(letter for letter in HOSTILE_NAME if letter not in "\u202e\u202c")[:60]


def test_a_hostile_job_name_is_shown_unchanged(visit):
    from playwright.sync_api import expect

    for path in ("/", f"/jobs/{HOSTILE_ID}", HOSTILE_ALERT):
        page = visit(path).page
        expect(page.get_by_text(SHOWN).first).to_be_visible()
        text = page.locator("main").inner_text()
        assert "\u202e" not in text.replace("\u2068", "")


def test_slowdowns_on_the_fleet_page_are_those_of_the_api(visit, stocked):
    page = visit("/").page
    jobs = {job["job_id"]: job for job in stocked.get("/jobs")["items"]}
    for job_id in ("slow-worker", "long-last-stage", "healthy"):
        row = page.locator(f"main a[href^='/jobs/{job_id}']").first
        assert f"{jobs[job_id]['slowdown']:.2f}\u00d7" in row.inner_text()


@pytest.mark.parametrize(
    ("job_id", "in_the_fleet", "after_a_click"),
    [
        (
            "slow-worker",
            ("slow worker", "host-021", "ranks 88 to 95 (dp 3, stage 1)"),
            "host-021, ranks 88 to 95 (dp 3, stage 1)",
        ),
        ("long-last-stage", ("long last stage", "stage 3"), "Stage 3, the last stage, takes"),
        (
            "sequence-lengths",
            ("sequence lengths", "moves every step"),
            "Sequence lengths are uneven",
        ),
    ],
)
def test_the_cause_is_in_the_fleet_line_and_its_sentence_one_click_away(
    visit, job_id, in_the_fleet, after_a_click
):
    from playwright.sync_api import expect

    page = visit("/").page
    page.set_viewport_size({"width": 1440, "height": HEIGHT_PX})
    row = page.locator(f"main a.row[href='/jobs/{job_id}']")
    for words in in_the_fleet:
        expect(row).to_contain_text(words)
    row.click()
    expect(page.locator("h1")).to_contain_text(after_a_click, ignore_case=True)


def test_the_document_loads_nothing_from_other_origins(stocked, chromium):
    """By the document's own account: what the policy allows, and what was loaded."""
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    answer = page.goto(stocked.link("/"))
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "http" not in policy
    assert "unsafe-eval" not in policy
    page.wait_for_selector("main h1")
    loaded = json.loads(
        page.evaluate("JSON.stringify(performance.getEntriesByType('resource').map(e => e.name))")
    )
    assert loaded
    assert all(address.startswith(f"{stocked.url}/") for address in loaded)
    context.close()
