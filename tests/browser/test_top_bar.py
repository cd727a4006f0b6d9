"""The top bar: a menu on phones, and whether what shows is live."""

import re
from typing import Any

import pytest

from tests.browser.waiting import until_handled


def test_on_a_phone_the_pages_are_in_a_menu(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.link.replace("/#", "/alerts#"), width=390).page
    menu = page.locator(".top-bar .menu")
    links = menu.get_by_role("link")
    expect(menu.locator("summary")).to_have_text("Alerts")
    expect(links.first).to_be_hidden()
    menu.locator("summary").press("Enter")
    expect(links).to_have_text(["Fleet", "Alerts", "Hosts", "Settings", "Docs"])
    assert all(box["height"] >= 44 for link in links.all() if (box := link.bounding_box()))
    page.keyboard.press("Escape")
    expect(links.first).to_be_hidden()
    expect(menu.locator("summary")).to_be_focused()
    menu.locator("summary").click()
    page.locator("h1").click(position={"x": 2, "y": 2})
    expect(links.first).to_be_hidden()
    menu.locator("summary").click()
    menu.get_by_role("link", name="Settings").click()
    expect(page).to_have_url(re.compile("/settings$"))
    expect(menu.locator("summary")).to_have_text("Settings")
    expect(links.first).to_be_hidden()


def test_the_documentation_is_a_separate_document(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.link.replace("/#", "/settings#")).page
    page.get_by_role("navigation").get_by_role("link", name="Docs").click()
    expect(page.locator("h1")).to_have_text("Documentation")
    expect(page).to_have_url(re.compile("/docs$"))


def test_a_broken_event_stream_is_shown_and_resumed(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.link.replace("/#", "/alerts#")).page
    live = page.locator(".top-bar .live")
    expect(live).to_contain_text("Live, updated")  # by an event, whose id it goes on from
    # The new request is held back, so that the page stays without a stream until it was looked at.
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/api/v1/events*", hold)
    page.evaluate("dispatchEvent(new Event('offline'))")
    expect(live).to_contain_text("Stale since")
    until_handled(page, held)
    assert re.search(r"after=[0-9a-f]+-\d+$", held[0].request.url)
    held[0].continue_()
    expect(live).to_contain_text("Live")


@pytest.mark.nightly
def test_a_stopped_server_dims_every_page_and_its_return_is_noticed(server, open_page, keep):
    from playwright.sync_api import expect

    watched = open_page(server.link.replace("/#", "/hosts#"))
    page = watched.page
    expect(page.locator(".top-bar .live")).to_contain_text("Live")
    grey = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink2')")
    page.route("**/api/v1/**", lambda route: route.abort("connectionrefused"))
    page.evaluate("dispatchEvent(new Event('offline'))")
    bar = page.get_by_role("note").filter(has_text="No connection to Paceline since")
    expect(bar).to_contain_text(re.compile(r"since \d\d:\d\d:\d\d. Figures are of then"))
    since = bar.locator("b").inner_text()
    expect(page.locator(".top-bar .live")).to_have_text(
        since.replace("No connection to Paceline", "Stale").rstrip(".")
    )
    colour = page.evaluate(
        """grey => {
        const probe = document.createElement("i")
        probe.style.color = grey
        document.body.append(probe)
        return [probe, document.querySelector("h1")].map(each => getComputedStyle(each).color)
    }""",
        grey,
    )
    assert colour[0] == colour[1]
    keep(page, "cut-off-light")
    page.get_by_role("link", name="Alerts").first.click()
    expect(bar.locator("b")).to_have_text(since)
    page.unroute("**/api/v1/**")
    expect(bar).to_have_count(0)
    expect(page.locator(".top-bar .live")).to_contain_text("Live")
    expect(page.locator(".stat-strip")).to_be_visible()
    watched.complaints[:] = [
        each for each in watched.complaints if "ERR_CONNECTION_REFUSED" not in each
    ]
