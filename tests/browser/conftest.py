"""Headless Chromium; where it is missing the tests say so, and fail in CI."""

import contextlib
import os
import secrets
from pathlib import Path
from shutil import which

import pytest

from tests.browser.alerting import alert_server
from tests.browser.paceline import running
from tests.browser.pages import Pages
from tests.browser.stocked import stocked_server
from tests.browser.waiting import PATIENCE_S, until

ARTEFACTS = Path(__file__).parents[2] / ".artefacts" / "pages"
PATIENCE_MS = 1000 * PATIENCE_S
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
]


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)
            # The first test of a worker also starts servers, and fills them with jobs.
            item.add_marker(pytest.mark.timeout(900))


def found_chromium():
    """Where a browser is: what PACELINE_TEST_CHROMIUM names or points to, else any; or None."""
    wanted = os.environ.get("PACELINE_TEST_CHROMIUM")
    known = (wanted,) if wanted else ("chromium-headless-shell", "chromium")
    return next(filter(None, map(which, known)), None)


@pytest.fixture(scope="session")
def chromium_path():
    """Where the browser is."""
    path = found_chromium()
    if not path or not Path(path).exists():
        _missing("no Chromium: apt-get install chromium, or set PACELINE_TEST_CHROMIUM to its name")
    return path


# Package, not session: a worker that goes on to other packages' tests is rid of the browser, whose
# driver keeps an event loop running in the thread that tests run in, and of idle servers.
@pytest.fixture(scope="package")
def chromium(chromium_path):
    """A browser for all tests."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        _missing("playwright is not installed: pip install playwright")
    # Its own five seconds are not those of a page's context, and too short for a busy machine.
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=FLAGS)
        yield browser
        browser.close()


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="package")
def stocked(tmp_path_factory):
    """A server with jobs of every kind, for all tests that only look."""
    with stocked_server(tmp_path_factory.mktemp("stocked")) as stocked:
        yield stocked


@pytest.fixture(scope="package")
def serve_directory(tmp_path_factory):
    """Where `server` keeps its data."""
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="package")
def server(serve_directory):
    """A server for all tests that push jobs; each has jobs of names that no other test uses."""
    with running("serve", serve_directory, share_links="anyone") as server:
        yield server


@pytest.fixture(scope="package")
def alert_service(tmp_path_factory):
    """A server for all tests that change what it alerts of; each has a project of its own."""
    with alert_server(tmp_path_factory.mktemp("alerts")) as server:
        yield server


@pytest.fixture
def project(alert_service):
    """A project that no other test has seen."""
    with contextlib.closing(alert_service.project(f"project-{secrets.token_hex(4)}")) as project:
        yield project


@pytest.fixture(scope="package")
def pages(chromium):
    """The pages that tests open, one after the other."""
    return Pages(chromium)


@pytest.fixture
def open_page(pages):
    """A function that opens pages; afterwards none of them may have had a complaint."""
    yield pages.open
    assert pages.take_back() == []


@pytest.fixture
def on_call(project, open_page):
    """A function that opens the alerts page of the test's own project, with these scopes only."""
    from playwright.sync_api import expect

    def on_call(*scopes, query="", **options):
        watched = open_page(project.link(f"/alerts{query}", *scopes), **options)
        expect(watched.page.locator(".stat-strip")).to_be_visible()
        return watched

    return on_call


# Every card has its picture, its words or its table.
IS_DRAWN = """() => [...document.querySelectorAll(".panels .card, .fleet-waste .card")]
    .every(card => card.querySelector(".main-svg, .panel-state, dl, p, table"))"""


@pytest.fixture
def keep():
    """A function that keeps a picture of a whole page under .artefacts/pages."""

    def keep_one(page, name):
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        until(page, IS_DRAWN)
        page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    return keep_one


@pytest.fixture
def open_job(stocked, open_page):
    """A function that opens the slow worker's page, drawn, with a query."""

    def open_one(query="", **look):
        watched = open_page(stocked.link(f"/jobs/slow-worker{query}"), **look)
        watched.page.locator(".panels .main-svg").first.wait_for()
        watched.settle()
        return watched.page

    return open_one
