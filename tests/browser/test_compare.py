"""The compare page: what it says is what the API says of the two windows."""

from urllib.parse import parse_qs, urlsplit

import pytest

from app.formatting import rough_hours

SIDES = {"a": "slow-worker:1-0", "b": "slow-worker:1-32"}
PAGE = "/compare?" + "&".join(f"{side}={named}" for side, named in SIDES.items())


def sides(page):
    query = parse_qs(urlsplit(page.url).query)
    return {side: query[side][0] for side in ("a", "b") if side in query}


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1440), pytest.param("dark", 390, marks=pytest.mark.nightly)]
)
def test_headline_and_figures_of_a_comparison_are_those_of_the_api(
    stocked, open_page, keep, theme, width
):
    from playwright.sync_api import expect

    found = stocked.get("/compare", **SIDES)
    assert "; a slow worker is new" in found["sentence"]
    page = open_page(stocked.link(PAGE), theme=theme, width=width).page
    expect(page.locator("h1")).to_have_text(found["sentence"].replace(" %", "\u202f%"))
    figures = page.locator(".compare-stats .figure")
    expect(figures.nth(0)).to_have_text(f"{found['b']['slowdown']:.2f}\u00d7")
    lost = rough_hours(found["b"]["lost_gpu_hours_per_day"])
    expect(figures.nth(3)).to_have_text(f"{lost} GPU-h per day")
    expect(page.locator(".compare-stats .note").first).to_contain_text(
        f"A {found['a']['slowdown']:.2f}\u00d7"
    )
    expect(page.locator(".causes")).to_contain_text("New on B")
    expect(page.locator(".causes li b")).to_contain_text(
        "Slow worker: host-021, ranks 88 to 95 (dp 3, stage 1)"
    )
    expect(page.locator(".compare-panels .main-svg").first).to_be_visible()
    keep(page, f"compare-{theme}-{width}")


@pytest.mark.nightly
def test_jobs_to_compare_are_chosen_by_typing_and_swapped(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/compare")).page
    expect(page.locator("h1")).to_have_text("What changed?")
    for side, job in (("A", "healthy"), ("B", "restarted")):
        page.get_by_label(f"Job of {side}").fill(job)
        page.get_by_label(f"Job of {side}").press("Enter")
        expect(page.get_by_label(f"Window of {side}").locator("optgroup")).not_to_have_count(0)
    # Runs come before windows: the second run, then the first.
    page.get_by_label("Window of B").select_option(index=2)
    expect(page.locator(".sides td").nth(1)).to_contain_text("20 recorded, run 1")
    picked = sides(page)
    assert (picked["a"], picked["b"]) == ("healthy:recent", "restarted:1-0..1-16")
    sentence = stocked.get("/compare", **picked)["sentence"]
    expect(page.locator("h1")).to_have_text(sentence.replace(" %", "\u202f%"))
    page.get_by_role("button", name="Swap A and B").click()
    expect(page.get_by_label("Job of A")).to_have_value("restarted")
    assert sides(page) == {"a": picked["b"], "b": picked["a"]}


@pytest.mark.nightly
def test_an_unknown_job_in_a_comparison_is_reported_and_the_form_stays(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link(PAGE.replace("b=slow-worker", "b=nobody")))
    expect(watched.page.get_by_text("These two cannot be compared")).to_be_visible()
    expect(watched.page.get_by_label("Job of A")).to_have_value("slow-worker")
    for _ in range(2):
        watched.forgive("404")


def test_a_comparison_with_low_fidelity_withholds_the_loss_charts(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/compare?a=healthy:recent&b=low-fidelity:recent")).page
    expect(page.locator("h1")).to_contain_text("B has low fidelity")
    expect(page.locator(".compare-stats .figure").first).to_have_text("not measured")
    expect(page.locator(".panel-state b")).to_have_text(["Withheld: low fidelity"] * 2)
