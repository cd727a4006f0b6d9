"""Hosts: the ones that several jobs found slow, and the history of one."""

import re

import pytest

from tests.browser.stocked_jobs import SHARED_HOST


def test_every_host_is_listed_slow_ones_first_as_in_the_api(stocked, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/hosts")).page
    rows = page.locator(".ledger tbody tr")
    rows.first.wait_for()
    found = stocked.get("/hosts")
    others = page.get_by_text(re.compile(r"^\d+ hosts that no finding names$"))
    expect(rows.last).not_to_be_visible()
    others.click()
    names = rows.locator("th").all_inner_texts()
    assert len(names) == len(found["items"]) == min(100, found["total"])
    first, *_, last = found["items"]
    assert (first["host"], first["jobs"], first["jobs_on_it"]) == (SHARED_HOST, 2, 2)
    cells = rows.first.locator("td").all_inner_texts()
    assert cells[:3] == [
        "2 of 2 jobs",
        str(first["workers"]),
        f"{first['worst_slowdown']:.2f}\u00d7",
    ]
    assert cells[-1] == f"{first['gpu_hours_lost']:.1f}"
    assert (last["jobs"], last["slow_since_at"]) == (0, None)
    expect(rows.last).to_contain_text("none of 1 job")
    expect(page.locator("h1")).to_contain_text(f"{found['total_slow']} of {found['total']} hosts")
    keep(page, "hosts-light")


def test_the_filter_lists_only_slow_hosts(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/hosts")).page
    page.get_by_label("Which hosts").select_option("2")
    expect(page.locator(".ledger tbody tr")).to_have_count(
        len(stocked.get("/hosts", min_jobs=2)["items"])
    )
    assert "jobs=2" in page.url


def test_a_host_page_lists_its_runs_with_links_to_windows(stocked, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/"), theme="dark").page
    page.get_by_role("region", name="Hosts slow in several jobs").get_by_role(
        "link", name=SHARED_HOST
    ).click()
    expect(page).to_have_url(f"{stocked.url}/hosts/{SHARED_HOST}")
    expect(page.locator("h1")).to_contain_text("in each of the 2 jobs")
    host = stocked.get(f"/hosts/{SHARED_HOST}")
    lines = page.locator(".ledger tbody tr")
    expect(lines).to_have_count(len(host["runs"]))
    for line, run in zip(lines.all(), host["runs"], strict=True):
        blame = run["blame"]
        assert line.locator("th a").get_attribute("href") == f"/jobs/{run['job_id']}"
        expect(line.get_by_role("link", name="dp 1, stage 1")).to_be_visible()
        window = line.get_by_role("link", name=f"{blame['windows']} windows")
        wanted = f"?window={blame['first_window']}..{blame['last_window']}"
        assert window.get_attribute("href") == f"/jobs/{run['job_id']}{wanted}"
    assert page.locator(".stat .figure").nth(2).inner_text() == (
        f"{host['worst_slowdown']:.2f}\u00d7"
    )
    keep(page, "host-dark")


@pytest.mark.nightly
def test_an_unknown_host_says_so(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/hosts"))
    page = watched.page
    page.get_by_label("Host name").fill("no/such host")
    page.get_by_label("Host name").press("Enter")
    expect(page).to_have_url(f"{stocked.url}/hosts/no%2Fsuch%20host")
    expect(page.locator("h1")).to_have_text("No job had a worker on no/such host.")
    watched.forgive("404")


@pytest.mark.nightly
def test_a_host_that_was_never_slow_says_so(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/hosts/host-000"), width=390).page
    expect(page.locator("h1")).to_have_text("host-000 was never slower than its peers.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
