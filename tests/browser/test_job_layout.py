"""A job's page from top to bottom: reading order, full rows, Details, sentences for even grids."""

import pytest

ORDER = [".headline", ".stat-strip", ".scrubber", ".findings", ".advice", ".charts"]

# Rows of cards that leave part of the page's width empty, by their first card's title.
_SHORT_ROWS = """() => {
    const rows = new Map()
    const width = document.querySelector(".job-panels").getBoundingClientRect().width
    for (const card of document.querySelectorAll(".charts > .card, .other-facts > .card")) {
        const { top, width } = card.getBoundingClientRect()
        rows.set(Math.round(top), [...(rows.get(Math.round(top)) ?? []), { card, width }])
    }
    return [...rows.values()]
        .filter(row => row.reduce((sum, { width }) => sum + width + 16, -16) < width - 2)
        .map(([{ card }]) => card.getAttribute("aria-label"))
}"""


def _tops(page):
    wanted = [*ORDER, ".details-section"]
    return [page.locator(each).first.bounding_box()["y"] for each in wanted]


def test_a_job_reads_from_its_finding_to_its_details(stocked, open_page):
    page = open_page(stocked.link("/jobs/long-last-stage")).page
    page.locator(".charts .main-svg").first.wait_for()
    page.locator(".advice li").first.wait_for()
    tops = _tops(page)
    assert tops == sorted(tops)
    cards = page.locator(".charts > .card")
    assert cards.first.get_attribute("aria-label") == "From ideal to recorded"
    assert cards.nth(1).get_attribute("aria-label") == "Stages"


@pytest.mark.parametrize(
    "job",
    [
        "slow-worker",
        *(
            pytest.param(job, marks=pytest.mark.nightly)
            for job in ("long-last-stage", "sequence-lengths", "healthy")
        ),
    ],
)
def test_no_row_of_cards_leaves_half_of_the_page_empty(stocked, open_page, job):
    page = open_page(stocked.link(f"/jobs/{job}")).page
    page.locator(".charts .main-svg").first.wait_for()
    for width_px in (1200, 1440, 2560):
        page.set_viewport_size({"width": width_px, "height": 1000})
        assert page.evaluate(_SHORT_ROWS) == [], f"{job}, {width_px} px"


def test_first_chart_of_a_slow_job_adds_up_from_the_ideal_to_the_recorded_step(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/slow-worker")).page
    first = page.locator(".charts > *").first
    expect(first).to_contain_text("From ideal to recorded")
    first.get_by_role("button", name="show as table").click()
    rows = first.locator("tbody tr")
    expect(rows.first).to_contain_text("Ideal")
    expect(rows.nth(1)).to_contain_text("Slow worker")
    expect(rows.last).to_contain_text("100 %")


def test_details_are_folded_until_the_reader_or_the_address_opens_them(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/slow-worker")).page
    used = page.get_by_label("Data used")
    expect(used).to_be_attached()  # where the browser's search finds it
    expect(used).to_be_hidden()
    page.locator(".details-section > summary").press("Enter")
    expect(used).to_be_visible()
    expect(page).to_have_url(f"{stocked.url}/jobs/slow-worker?details=open")
    page.reload()
    expect(used).to_be_visible()
    page.locator(".details-section > summary").press("Enter")
    expect(page).to_have_url(f"{stocked.url}/jobs/slow-worker")


@pytest.mark.nightly
def test_even_grid_is_a_sentence_until_the_reader_wants_it(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/healthy")).page
    card = page.get_by_role("region", name="Which worker", exact=True)
    expect(card).to_contain_text("All 8 workers are alike: none alone would slow the job by more")
    expect(card.locator(".main-svg")).to_have_count(0)
    card.get_by_role("button", name="Show anyway").click()
    expect(card.locator(".main-svg").first).to_be_visible()


def test_figures_and_causes_have_definitions_for_pointer_keyboard_and_touch(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/slow-worker")).page
    tip = page.get_by_role("tooltip")
    labels = page.locator(".stat dt")
    expect(labels).to_have_count(6)
    for at in range(6):
        labels.nth(at).get_by_role("button").focus()
        expect(tip).to_contain_text(labels.nth(at).inner_text())
        assert len(tip.inner_text()) > 40
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    cause = page.locator(".findings h3 .term")
    cause.hover()
    expect(tip).to_contain_text("take longer than on the other dp ranks of the stage")
    tip.hover()  # it stays under the pointer
    expect(tip).to_be_visible()
    page.mouse.move(1, 1)
    expect(tip).to_be_hidden()
    cause.dispatch_event("click")  # as a tap, which no pointer hovers before
    expect(tip).to_be_visible()
    page.locator("h1").dispatch_event("click")
    expect(tip).to_be_hidden()
