"""From the fleet to the operation that proves it, without a mouse."""

import re

import pytest

_MOST_TABS = 120
# What has the focus, and the ring round it: a reader has to see where he is.
_FOCUSED = """() => {
    const node = document.activeElement
    const style = getComputedStyle(node)
    return {
        name: `${node.tagName} ${node.ariaLabel ?? node.textContent.slice(0, 60)}`,
        isRinged: node === document.body || style.outlineStyle !== "none"
            && parseFloat(style.outlineWidth) >= 2,
        isThere: node === document.body || node.checkVisibility(),
    }
}"""


def tab_to(page, selector, *, back=False):
    """Press Tab until the first such node has the focus; every stop on the way is to be seen."""
    wanted = page.locator(selector).first
    wanted.wait_for()
    for _ in range(_MOST_TABS):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        focused = page.evaluate(_FOCUSED)
        assert focused["isThere"], focused["name"]
        assert focused["isRinged"], focused["name"]
        if wanted.evaluate("node => node === document.activeElement"):
            return
    pytest.fail(f"{selector} cannot be reached with Tab")


def test_fleet_job_and_timeline_work_by_keyboard(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/"))
    page = watched.page
    expect(page.locator("a.row").first).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type("slow-worker")
    expect(page.locator("a.row")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/jobs/slow-worker"))
    watched.settle()

    tab_to(page, "[role=slider][data-handle=both]")
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"window=1-8\.\.1-24"))
    tab_to(page, "button:text-is('Follow')", back=True)
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(re.compile("window="))
    watched.settle()

    tab_to(page, "[role=application]")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile("worker=3-1"))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("worker="))

    tab_to(page, "main a[href*='/workers/3-1']", back=True)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("dp 3, stage 1")
    watched.settle()

    tab_to(page, "main a[href*='/timeline']")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/timeline"))
    watched.settle()
    tab_to(page, "main [aria-label^='Timeline']")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("region", name="Selected operation")).to_contain_text("ms")


@pytest.mark.nightly
def test_alerts_are_acknowledged_and_silenced_by_keyboard(project, open_page):
    from playwright.sync_api import expect

    state = project.fire()
    page = open_page(project.link("/alerts")).page
    expect(page.locator(".now-rows .row")).to_be_visible()
    tab_to(page, "[data-key=acknowledge]")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Acknowledged by")).to_be_visible()
    tab_to(page, "[data-key=silence]")
    page.keyboard.press("Enter")
    expect(page.locator(".silence-form button:text-is('1 h')")).to_be_focused()
    tab_to(page, ".silence-form button:text-is('1 day')")
    page.keyboard.press("Enter")
    tab_to(page, "[name=comment]")
    page.keyboard.type("new switches")
    page.keyboard.press("Enter")
    expect(page.locator("details.muted > summary")).to_contain_text("Silenced by")
    expect(page.locator("details.muted > summary")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "a[data-key=details]")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"alert={state.fingerprint}"))
    expect(page.locator(".alert-details")).to_be_visible()


def test_the_first_tab_stop_skips_to_the_page(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/")).page
    expect(page.locator("a.row").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
