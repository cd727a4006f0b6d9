"""Headless Chromium; where it is missing the tests say so, and fail in CI."""

import os
import shutil
from pathlib import Path

import pytest

from tests.browser.watched import Watched

ARTEFACTS = Path(__file__).parents[2] / ".artefacts" / "pages"
_PATIENCE_MS = 10_000
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


@pytest.fixture(scope="session")
def chromium():
    """A browser for all tests; every page has a context of its own."""
    path = os.environ.get("PACELINE_TEST_CHROMIUM") or shutil.which("chromium")
    if not path or not Path(path).exists():
        _missing("no Chromium: apt-get install chromium, or set PACELINE_TEST_CHROMIUM to its path")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def open_page(chromium):
    """A function that opens pages; afterwards none of them may have had a complaint."""
    opened = []

    def open_one(url, *, width=1440, theme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=theme, locale="en-GB"
        )
        context.set_default_timeout(_PATIENCE_MS)
        origin = "/".join(url.split("/", 3)[:3])
        watched = Watched(context, origin)
        opened.append(watched)
        watched.page.goto(url)
        return watched

    yield open_one
    complaints = [complaint for watched in opened for complaint in watched.complaints]
    for watched in opened:
        watched.page.context.close()
    assert complaints == []


# Every card has its picture, its words or its table.
IS_DRAWN = """() => [...document.querySelectorAll(".panels .card")]
    .every(card => card.querySelector(".main-svg, .panel-state, .facts, table"))"""


@pytest.fixture
def keep():
    """A function that keeps a picture of a whole page under .artefacts/pages."""

    def keep_one(page, name):
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        page.wait_for_function(IS_DRAWN)
        page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    return keep_one
