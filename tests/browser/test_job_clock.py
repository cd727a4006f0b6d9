"""Every step says when, every culprit where; charts have a clock, and times choose the windows."""

import re
from datetime import UTC, datetime

import pytest

from app.formatting import culprit_name, short_duration

JOB = "slow-worker"
STEPS = "Step time and worst workers"
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d)?$")


def leading(stocked):
    return stocked.get(f"/jobs/{JOB}/windows/latest")["findings"][0]


def minute(text):
    """A time in RFC 3339, to the minute in UTC, as the start of a `time` element's datetime."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M")


def assert_has_time(place, text):
    times = place.locator("time").evaluate_all("all => all.map(each => each.dateTime)")
    assert any(each.startswith(minute(text)) for each in times), (times, text)
    assert "UTC" in place.locator("time").first.get_attribute("title")


def test_each_step_has_its_time_and_each_culprit_host_and_rank(stocked, open_job, open_page):
    """Headline, finding, events, fleet table: one onset and one culprit in one form."""
    finding = leading(stocked)
    name, since = culprit_name(**finding["culprits"][0]), f"step {finding['onset_step']}"
    assert re.fullmatch(r"[a-z0-9-]+, ranks? [\d to]+ \(dp 3, stage 1\)", name)
    lasted = short_duration(finding["lasted_s"])
    page = open_job()
    card = page.locator(".findings li").first
    for place in (page.locator("h1"), card, page.locator(".happened")):
        assert_has_time(place, finding["onset_at"])
        assert since in place.inner_text()
    assert name in page.locator("h1").inner_text()
    assert name in card.locator("h3").inner_text()
    assert f"{since}, {lasted}" in card.inner_text()
    assert _CLOCK.search(page.locator(".scrubber .steps small").first.inner_text())
    fleet = open_page(stocked.link("/")).page
    row = fleet.locator(f'.row[href="/jobs/{JOB}"]')
    row.wait_for()
    assert_has_time(row.locator(".since"), finding["onset_at"])
    assert row.locator(".since small").inner_text() == f"{since}, {lasted}"
    host, rank = name.split(", ", 1)
    assert row.locator(".culprit").inner_text().split("\n") == [host, rank]


def test_charts_over_steps_have_a_clock_and_hovers_say_when(open_job):
    page = open_job("?window=all")
    chart = page.get_by_role("region", name=STEPS, exact=True)
    ticks = chart.locator(".xtick text").all_text_contents()
    assert any(_CLOCK.search(tick) for tick in ticks), ticks
    plot = chart.locator(".plot").last
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 12)
    first = chart.locator(".hoverlayer .hovertext text tspan").first
    first.wait_for()
    assert re.search(r"dp \d+ · s\d+.*, step \d+, \d\d:\d\d:\d\d$", first.text_content() or "")


@pytest.mark.parametrize("width", [1440, pytest.param(320, marks=pytest.mark.nightly)])
def test_a_range_of_times_chooses_the_windows_of_all_charts(stocked, open_page, width):
    from playwright.sync_api import expect

    watched = open_page(stocked.link(f"/jobs/{JOB}"), width=width)
    page = watched.page
    known = stocked.get(f"/jobs/{JOB}/time-range", **{"from": "last-15m"})
    page.get_by_role("button", name="Time", exact=True).press("Enter")
    form = page.get_by_role("form", name="Range of times")
    form.get_by_role("button", name="15 min").press("Enter")
    expect(page).to_have_url(re.compile(r"[?&]from=last-15m"))
    windows = page.get_by_role("slider", name="Windows shown")
    first = known["from"].split("-")[1]
    expect(windows).to_have_attribute("aria-valuetext", re.compile(rf"^steps {first} to \d+, "))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    form.get_by_label("From").fill("2001-01-01T00:00:00")
    form.get_by_label("To").fill("2001-01-01T01:00:00")
    form.get_by_role("button", name="Show").press("Enter")
    note = page.locator(".note-bar")
    expect(note).to_contain_text("No step in this time.")
    expect(note).to_contain_text("choose a time between")
    watched.forgive("404")
    note.get_by_role("button", name="Follow the newest").press("Enter")
    expect(page).not_to_have_url(re.compile("from="))
