"""What a reader picks on a job's page: windows, steps, a worker; by pointer, key and address."""

import re

import pytest

from app.formatting import ratio
from tests.browser.stocked_jobs import ONSET

JOB = "slow-worker"
STEPS = "Step time and worst workers"
# From the left of a chart over steps to its first step, and from its last one to the right.
_LEFT_PX, _RIGHT_PX = 148, 8


def result(stocked, window, **query):
    return stocked.get(f"/jobs/{JOB}/windows/{window}", **query)


def plot(page, title, part=0):
    return page.get_by_role("region", name=title, exact=True).locator(".plot").nth(part)


def stat(page, label):
    return page.locator(".stat", has_text=label).locator(".figure")


def slider(page, name):
    return page.get_by_role("slider", name=name, exact=True)


def query_of(page):
    return page.url.partition("?")[2]


def at_step(page, step):
    """The pixel of a step in the chart of step times, from the figure that is drawn there."""
    chart = plot(page, STEPS)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    first, last = chart.evaluate("""plot => {
        const steps = [...plot._fullData.at(-1).customdata].filter(text => text !== "")
        return [steps[0], steps.at(-1)].map(text => parseInt(text.replace(/,(?=\\d)/g, "")))
    }""")
    cell_px = (box["width"] - _LEFT_PX - _RIGHT_PX) / (last - first + 1)
    return box["x"] + _LEFT_PX + (step - first + 0.5) * cell_px, box["y"] + 90


def test_a_link_restores_windows_step_worker_and_order(stocked, open_job):
    from playwright.sync_api import expect

    query = "?window=1-24..1-32&worker=3-1&step=25&sort=slowdown"
    page = open_job(query)
    known = result(stocked, "1-24..1-32")
    told = stocked.get(f"/jobs/{JOB}/headline", window="1-24..1-32")
    expect(stat(page, "Slowdown")).to_have_text(ratio(known["slowdown"]))
    expect(page.locator("h1")).to_contain_text(
        told["sentence"].replace(" UTC", "").split(" it costs")[0]
    )
    expect(slider(page, "Windows shown")).to_have_attribute(
        "aria-valuetext", re.compile(r"^steps 24 to 39, \d\d:\d\d")
    )
    expect(page.get_by_label("Order of the workers")).to_have_value("slowdown")
    alone = stocked.get(f"/jobs/{JOB}/windows/1-24..1-32/workers")["worker_slowdown"][3][1]
    expect(page.get_by_label("Pinned")).to_contain_text("dp 3, stage 1, step 25")
    expect(page.get_by_label("Pinned")).to_contain_text(ratio(alone))
    timeline = page.get_by_label("Look closer").get_by_role("link", name="Timeline")
    expect(timeline).to_have_attribute("href", re.compile(r"timeline\?window=.*&step=25&dp=3$"))
    # The worker in its heatmap, its row and its stage; the step in both charts over steps; and
    # both where the others' waits are.
    expect(page.locator(".marks .is-pinned")).to_have_count(7)
    expect(page.locator(".marks .is-pinned.is-cell")).to_have_count(1)
    assert f"?{query_of(page)}" == query
    page.keyboard.press("Escape")
    expect(page.get_by_label("Pinned")).to_have_count(0)
    assert query_of(page) == "window=1-24..1-32&sort=slowdown"


def test_since_onset_and_all_show_the_figures_of_their_windows(stocked, open_job):
    from playwright.sync_api import expect

    page = open_job()
    ribbon = stocked.get(f"/jobs/{JOB}/ribbon")
    since = ribbon["since_onset"]
    windows = f"{since['from']}..{since['to']}"
    known = stocked.get(f"/jobs/{JOB}/windows/{windows}", since_step=since["step"])
    assert known["steps"][0] == since["step"]
    assert abs(since["step"] - ONSET) <= 2
    assert known["slowdown"] >= result(stocked, windows)["slowdown"]
    page.get_by_role("button", name="Since onset", exact=True).click()
    expect(stat(page, "Lost since onset")).to_contain_text(f"{known['gpu_hours_lost']:.2g}"[:3])
    expect(stat(page, "Slowdown")).to_have_text(ratio(known["slowdown"]))
    assert query_of(page) == "window=since-onset"
    shown = page.locator(".scrubber .what")
    expect(shown).to_contain_text(f"since step {known['steps'][0]}, when it began")
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".scrubber .what")).to_contain_text("40 steps in 5 windows")
    whole = result(stocked, f"{ribbon['bins'][0]['from']}..{ribbon['bins'][-1]['to']}")
    expect(stat(page, "Slowdown")).to_have_text(ratio(whole["slowdown"]))
    assert whole["slowdown"] < known["slowdown"]
    page.go_back()
    expect(page.get_by_role("button", name="Since onset", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )


@pytest.mark.nightly
def test_arrow_keys_move_the_shown_windows_by_one_or_ten(open_job):
    from playwright.sync_api import expect

    page = open_job("?window=1-32")
    both, last = slider(page, "Windows shown"), slider(page, "Last window shown")
    expect(both).to_have_attribute("aria-valuetext", re.compile(r"^steps 32 to 39, \d\d:"))
    both.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"window=1-24$"))
    expect(both).to_be_focused()
    both.press("Shift+ArrowLeft")
    expect(page).to_have_url(re.compile(r"window=1-0$"))
    last.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"window=1-0\.\.1-8$"))
    expect(page.locator(".scrubber .what")).to_contain_text("16 steps in 2 windows")
    last.press("ArrowLeft")
    last.press("ArrowLeft")  # never beyond the other end
    expect(page).to_have_url(re.compile(r"window=1-0$"))


def test_arrow_keys_move_over_the_heatmap_enter_pins_and_escape_clears(open_job):
    from playwright.sync_api import expect

    page = open_job()
    heatmap = plot(page, "Which worker")
    heatmap.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#announcer")).to_have_text("dp 3, stage 1")
    # Itself, its row among the worst workers, and its stage.
    expect(page.locator(".marks .is-hovered")).to_have_count(4)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"worker=3-1$"))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("worker="))
    expect(page.locator(".marks .is-pinned, .marks .is-hovered")).to_have_count(0)


def test_the_pointer_highlights_a_worker_in_every_chart_and_a_click_pins_it(open_job):
    from playwright.sync_api import expect

    page = open_job()
    plot(page, "Which worker").scroll_into_view_if_needed()
    box = plot(page, "Which worker").bounding_box()
    cell_px = (box["width"] - 60 - 8) / 8
    page.mouse.move(box["x"] + 60 + 3.5 * cell_px, box["y"] + 32 + 1.5 * 40)
    expect(page.locator(".marks .is-hovered")).to_have_count(4)
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"worker=3-1$"))
    link = page.get_by_label("Pinned").get_by_role("link", name="Open worker")
    assert link.get_attribute("href") == f"/jobs/{JOB}/workers/3-1"


def test_a_range_of_steps_drawn_with_the_pointer_is_analysed_alone(stocked, open_job):
    from playwright.sync_api import expect

    page = open_job()
    page.mouse.move(*at_step(page, 26))
    page.mouse.down()
    page.mouse.move(*at_step(page, 28), steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"window=1-24&steps=26-28$"))
    expect(page.locator(".scrubber .what")).to_contain_text("steps 26 to 28")
    known = result(stocked, "1-24", steps="26-28")
    expect(stat(page, "Slowdown")).to_have_text(ratio(known["slowdown"]))
    page.mouse.dblclick(*at_step(page, 27))
    expect(page).not_to_have_url(re.compile("window|steps"))
    expect(page.get_by_role("button", name="Follow", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )


@pytest.mark.nightly
def test_a_range_over_several_windows_selects_those_windows(open_job):
    from playwright.sync_api import expect

    page = open_job()
    page.mouse.move(*at_step(page, 13))
    page.mouse.down()
    page.mouse.move(*at_step(page, 30), steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"window=1-8\.\.1-24$"))


@pytest.mark.nightly
def test_windows_that_are_not_stored_are_reported(open_page, stocked):
    from playwright.sync_api import expect

    watched = open_page(stocked.link(f"/jobs/{JOB}?window=1-4000"))
    expect(watched.page.get_by_role("note")).to_contain_text("These steps are not stored.")
    watched.page.get_by_role("button", name="Follow the newest").click()
    expect(watched.page.get_by_role("note")).to_have_count(0)
    watched.settle()
    watched.complaints[:] = [each for each in watched.complaints if "404" not in each]
