"""A worker's page against the API."""

import pytest

PAGE = "/jobs/slow-worker/workers/3-1"


@pytest.fixture
def worker(open_page, stocked):
    """A function that opens a worker's page and waits until both charts are there."""

    def open_it(path=PAGE, **looks):
        page = open_page(stocked.link(path), **looks).page
        page.wait_for_selector(".panels .card:nth-child(2) .main-svg")
        page.wait_for_selector(".panels .card:nth-child(1) .main-svg")
        return page

    return open_it


def test_figures_of_a_worker_are_those_of_the_api(worker, stocked):
    page = worker()
    found = stocked.get(PAGE)
    assert page.inner_text("h1").replace("\u202f", " ") == found["sentence"].replace(" UTC", "")
    figures = page.locator(".stat-strip .figure").all_inner_texts()
    assert figures[0] == f"{found['slowdown']:.2f}\u00d7"
    assert figures[1] == f"{found['place']} of {found['num_workers']}" == "1 of 32"
    assert figures[2] == f"{found['job_slowdown']:.2f}\u00d7"
    assert "Slow worker: host-021, ranks 88 to 95 (dp 3, stage 1)" in page.inner_text(".findings")
    result = stocked.get("/jobs/slow-worker/windows/recent")
    assert found["slowdown"] == result["worker_slowdown"][3][1]


def test_a_worker_page_shows_only_findings_that_name_the_worker(worker):
    other = worker("/jobs/slow-worker/workers/0-0")
    assert "No finding of this window names this worker" in other.inner_text(".findings")


@pytest.mark.nightly
def test_a_worker_page_shows_its_host_in_other_jobs(worker, stocked):
    page = worker("/jobs/shared-host-a/workers/1-1")
    card = page.locator("section[aria-label='Host in other jobs']")
    assert "node-shared-07 in other jobs" in card.inner_text()
    assert "shared-host-b" in card.inner_text()


def test_the_timeline_of_a_worker_is_two_clicks_away(worker):
    page = worker(f"{PAGE}?window=1-32")
    page.click(".acts >> text=Timeline")
    page.wait_for_selector(".operation dl")
    assert "window=1-32" in page.url
    assert "dp=3" in page.url
    page.click(".operation a >> text=dp 3, stage 1")
    page.wait_for_selector(".stat-strip")
    assert "/workers/3-1?window=1-32" in page.url


@pytest.mark.nightly
def test_a_worker_before_the_first_window_has_no_figures(open_page, stocked):
    page = open_page(stocked.link("/jobs/not-analysed/workers/1-0")).page
    page.wait_for_selector(".stat-strip")
    assert page.locator(".figure.is-unknown").count() == page.locator(".figure").count() == 6
    assert "Nothing to compare yet" in page.inner_text(".panels")


@pytest.mark.nightly
def test_an_unknown_worker_says_so(open_page, stocked):
    watched = open_page(stocked.link("/jobs/slow-worker/workers/99-0"))
    watched.page.wait_for_selector("text=There is no such worker")
    watched.forgive("404")
