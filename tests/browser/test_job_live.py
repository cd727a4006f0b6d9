"""A job's page while figures come in: nothing that the reader chose is lost, nothing jumps."""

from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.browser.waiting import until

JOB = "goes-on"
# What moved up or down in sight without the reader's doing. Figures may grow along their line.
_WATCH_SHIFTS = """() => {
    window.shifts = []
    new PerformanceObserver(list => {
        for (const entry of list.getEntries())
            for (const { node, previousRect: was, currentRect: now } of entry.sources)
                if (node && !entry.hadRecentInput && Math.abs(was.y - now.y) > 1)
                    window.shifts.push(`${node.nodeName}: ${node.textContent.slice(0, 60)}`)
    }).observe({ type: "layout-shift" })
}"""


def test_new_figures_reset_no_choice_and_shift_no_layout(server, open_page):
    from playwright.sync_api import expect

    made = SimulatedJob(Parallelism(4, 2), 4, faults=(SlowWorker(2, 1, slowdown=1.6),))
    epoch = server.register(JOB, made)
    # Of fewer than three steps arrivals are no evidence, which would be a line more.
    server.push(JOB, made, epoch, 12)
    watched = open_page(server.link.replace("/#", f"/jobs/{JOB}?worker=2-1&step=9&sort=host#"))
    page = watched.page
    page.locator(".panels .main-svg").first.wait_for()
    watched.settle()
    page.get_by_text("Evidence", exact=True).click()
    heatmap = page.get_by_role("region", name="Which worker").locator(".plot")
    heatmap.focus()
    page.keyboard.press("ArrowRight")
    before_px = page.evaluate("scrollY")  # the focus has brought the heatmap into sight
    page.mouse.wheel(0, 300)
    until(page, f"scrollY >= {before_px + 290}")
    page.evaluate(_WATCH_SHIFTS)
    page.evaluate("window.isTheSamePage = true")
    server.push(JOB, made, epoch, 18)
    expect(page.locator(".scrubber .what")).to_contain_text("16 steps in 2 windows")
    watched.settle()
    known = server.get(f"/jobs/{JOB}/windows/recent")
    assert known["steps"] == list(range(16))  # not those of the open window
    assert page.evaluate("window.isTheSamePage")
    expect(page.locator(".findings details dl")).to_be_visible()
    expect(page.get_by_label("Pinned")).to_contain_text("dp 2, stage 1, step 9")
    expect(page.get_by_label("Order of the workers")).to_have_value("host")
    expect(heatmap).to_be_focused()
    expect(page.locator(".marks .is-hovered").first).to_be_attached()
    assert abs(page.evaluate("scrollY") - before_px - 300) < 12
    assert page.evaluate("window.shifts") == []
