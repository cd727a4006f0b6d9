"""The documentation under the app's top bar."""

import pytest

from tests.browser.test_every_page import violations, wider_than_the_page


@pytest.mark.parametrize(
    "path",
    [
        "/docs/on-call",
        *(
            pytest.param(path, marks=pytest.mark.nightly)
            for path in ("/docs", "/docs/glossary", "/docs/api")
        ),
    ],
)
def test_a_documentation_page_fits_every_width_and_has_no_accessibility_errors(
    stocked, open_page, path
):
    page = open_page(f"{stocked.url}{path}").page
    for width_px, theme in ((1440, "light"), (390, "dark"), (320, "light")):
        page.set_viewport_size({"width": width_px, "height": 1000})
        page.emulate_media(color_scheme=theme)
        assert wider_than_the_page(page) == []
        assert width_px == 320 or violations(page) == []


def test_a_finding_leads_to_its_section_of_the_runbook(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/slow-worker")).page
    page.locator(".findings").get_by_role("link", name="Runbook").click()
    expect(page).to_have_url(f"{stocked.url}/docs/on-call#slow-worker")
    heading = page.get_by_role("heading", name="slow-worker", exact=True)
    expect(heading).to_be_in_viewport()
    expect(page.get_by_role("link", name="Docs", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    page.get_by_role("link", name="Fleet", exact=True).click()
    expect(page.locator("h1")).to_contain_text("jobs")


def test_the_documentation_is_searched_by_title(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(f"{stocked.url}/docs").page
    field = page.get_by_label("Search the documentation by title")
    field.fill("gc-pau")
    page.locator(".docs-found").get_by_role("link", name="gc-pause").click()
    expect(page).to_have_url(f"{stocked.url}/docs/on-call#gc-pause")
    page.get_by_label("Search the documentation by title").fill("zzz")
    expect(page.locator(".docs-found")).to_have_text("No title has these words.")
